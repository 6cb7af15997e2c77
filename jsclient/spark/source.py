"""``format("jetstream")``: what Spark asks for readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.streaming.datasource import ReadLimit  # noqa: F401  there since 4.2, which is the oldest that will do
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from ..errors import ConfigError
from .options.source import SourceOptions
from .schema import LOG_COLUMNS, QUEUE_COLUMNS, ddl

if TYPE_CHECKING:
    from .options.sink import SinkOptions

__all__ = ["JetStreamSource"]

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "timestamp": TimestampType(),
    "map<string,array<string>>": MapType(StringType(), ArrayType(StringType())),
}


class JetStreamSource(DataSource):
    """Streams as data frames, and data frames into streams. Options and columns are in the documentation."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> str:
        return ddl(SourceOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from .log.batch import LogBatchReader, PushdownReader

        options = SourceOptions.parse(self.options, streaming=False)
        kind = PushdownReader if options.pushdown else LogBatchReader
        return kind(options, _columns(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        options = SourceOptions.parse(self.options, streaming=True)
        columns = _columns(schema, options)
        if options.mode == "queue":
            from .queue.stream import QueueStreamReader

            return QueueStreamReader(options, columns)
        from .log.stream import LogStreamReader

        return LogStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  Spark's signature
        from .sink.writers import JetStreamBatchWriter

        return JetStreamBatchWriter(self._sink_options(overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802  Spark's
        from .sink.writers import JetStreamStreamWriter

        return JetStreamStreamWriter(self._sink_options(overwrite=overwrite), schema)

    def _sink_options(self, *, overwrite: bool) -> SinkOptions:
        from .options.sink import SinkOptions

        if overwrite:
            raise ConfigError(
                "a stream is not overwritten: use mode('append') for a batch, and outputMode('append') for a streaming "
                "query; for updates, publish_batch in foreachBatch"
            )
        return SinkOptions.parse(self.options)


def _columns(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    """The columns of a schema, which is the default one, or of the user: then any of them, in any order.

    Raises:
        ConfigError: One is not there, or has another type.
    """
    known = LOG_COLUMNS if options.mode == "log" else QUEUE_COLUMNS
    for field in schema.fields:
        if field.name not in known:
            raise ConfigError(
                f"the schema has a column {field.name!r}, which mode {options.mode!r} does not have: its columns are "
                f"{', '.join(known)}"
            )
        if field.dataType != _TYPES[known[field.name]]:
            raise ConfigError(
                f"the schema has column {field.name!r} as {field.dataType.simpleString()}: it is {known[field.name]}"
            )
        if not field.nullable:
            raise ConfigError(f"the schema has column {field.name!r} as not nullable: leave that out")
    if not schema.fields:
        raise ConfigError("the schema has no columns")
    return tuple(schema.fieldNames())
