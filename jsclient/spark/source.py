"""The data source behind ``format("jetstream")``, through which Spark creates readers and writers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Never

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
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
from ..tables.source_options import EPOCH_COLUMNS, LOG_COLUMNS, QUEUE_COLUMNS, SourceOptions, ddl
from .options.epochs import EpochSinkOptions, EpochSourceOptions, is_epochs

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
    """Data source that reads streams as DataFrames and writes DataFrames to streams.

    The documentation lists its options and columns.
    """

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> str:
        if is_epochs(self.options):
            from .epochs.source import epoch_columns

            return ddl(epoch_columns(EpochSourceOptions.parse(self.options)))
        return ddl(SourceOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        if is_epochs(self.options):
            from .epochs.source import EpochBatchReader

            parsed = EpochSourceOptions.parse(self.options, streaming=False)
            return EpochBatchReader(parsed, *_epoch_columns(schema))
        from .log.batch import LogBatchReader, PushdownReader

        options = SourceOptions.parse(self.options, streaming=False)
        kind = PushdownReader if options.pushdown else LogBatchReader
        return kind(options, _mode_columns(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        try:
            return self._stream_reader(schema)
        except ConfigError as error:
            return _RefusedStreamReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        if is_epochs(self.options):
            from .epochs.source import EpochStreamReader

            parsed = EpochSourceOptions.parse(self.options, streaming=True)
            return EpochStreamReader(parsed, *_epoch_columns(schema))
        options = SourceOptions.parse(self.options, streaming=True)
        columns = _mode_columns(schema, options)
        if options.mode == "queue":
            from .queue.stream import QueueStreamReader

            return QueueStreamReader(options, columns)
        if options.has_several:
            from .log.several import SeveralStreamsReader

            return SeveralStreamsReader(options, columns)
        from .log.stream import LogStreamReader

        return LogStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001  Spark's signature
        _refuse(overwrite=overwrite)
        if is_epochs(self.options):
            raise ConfigError(
                "option 'epochs' is for streaming queries: a batch write has no number for its epoch"
            )
        from .options.sink import SinkOptions
        from .sink.spark_writer import JetStreamBatchWriter

        return JetStreamBatchWriter(SinkOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802  Spark's
        _refuse(overwrite=overwrite)
        # Spark passes the name of the query in this option, but only to sinks.
        query = self.options.get("queryName", "")
        if is_epochs(self.options):
            from .epochs.sink import EpochStreamWriter

            return EpochStreamWriter(EpochSinkOptions.parse(self.options), schema, query)
        from .options.sink import SinkOptions
        from .sink.spark_writer import JetStreamStreamWriter

        return JetStreamStreamWriter(SinkOptions.parse(self.options), schema, query)


class _RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader that raises the error in its options when Spark first calls a method.

    If `JetStreamSource.streamReader` raised the error, PySpark 4.3 would try to stop a reader that was never assigned,
    and fail with an UnboundLocalError.
    """

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def _raise(self) -> Never:
        raise self._error.with_traceback(None)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        self._raise()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._raise()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        self._raise()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        self._raise()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._raise()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        self._raise()


def _refuse(*, overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(
            "a stream cannot be overwritten: use mode('append') for a batch, and outputMode('append') for a streaming "
            "query; for updates, publish_batch in foreachBatch"
        )


def _mode_columns(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    known = LOG_COLUMNS if options.mode == "log" else QUEUE_COLUMNS
    return _columns(schema, known, f"mode {options.mode!r}")


def _epoch_columns(schema: StructType) -> tuple[tuple[str, ...], bool | None]:
    """Return the selected columns, and whether the column ``epoch`` is numeric (None if it is not selected)."""
    numbers = schema["epoch"].dataType != _TYPES["string"] if "epoch" in schema.fieldNames() else None
    known = EPOCH_COLUMNS if numbers is not False else {**EPOCH_COLUMNS, "epoch": "string"}
    return _columns(schema, known, "a topic of epochs"), numbers


def _columns(schema: StructType, known: Mapping[str, str], what: str) -> tuple[str, ...]:
    """Check the columns of a schema and return their names.

    The user's schema may select any of the known columns, in any order.

    Raises:
        ConfigError: A column is unknown, or has the wrong type.
    """
    for field in schema.fields:
        if field.name not in known:
            raise ConfigError(
                f"the schema has a column {field.name!r}, which {what} does not have: its columns are "
                f"{', '.join(known)}"
            )
        if field.dataType != _TYPES[known[field.name]]:
            raise ConfigError(
                f"the schema has column {field.name!r} as {field.dataType.simpleString()}: it is {known[field.name]}"
            )
        if not field.nullable:
            raise ConfigError(f"the schema has column {field.name!r} as not nullable: make it nullable")
    if not schema.fields:
        raise ConfigError("the schema has no columns")
    return tuple(schema.fieldNames())
