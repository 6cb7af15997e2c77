"""Read a range of a stream as Arrow record batches."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from ..errors import ClosedError
from ..tables.bounded import plan_bounded
from ..tables.columns import arrow_schema
from ..tables.lookup import Lookup
from ..tables.ranges import SequenceRange
from ..tables.reading import read_range
from ..tables.session import held
from ..tables.source_options import SourceOptions
from ..tables.tasks import ReadSpec, read_spec
from .options import Bound, check_columns, in_one_piece, read_options

__all__ = ["ArrowReader", "RangeTask", "plan_tasks", "read_jetstream", "read_tasks", "stored_bytes"]

RangeTask = tuple[ReadSpec, SequenceRange]
"""A range and the settings to read it. A task can be pickled."""


def read_jetstream(
    options: Mapping[str, str] | str,
    stream: str,
    *,
    subjects: str | Iterable[str] = (),
    start: Bound = "first",
    end: Bound = "now",
    columns: Sequence[str] | None = None,
) -> ArrowReader:
    """Read the messages between two positions of a stream as Arrow record batches, in order, each once.

    Use it to load a stream into pandas, DuckDB or any other library that accepts Arrow::

        with read_jetstream("nats://127.0.0.1:4222", "ORDERS") as reader:
            table = reader.read_all()

    The call resolves the positions, so messages that are stored later aren't read.

    Args:
        options: URLs of servers, separated by commas, or a mapping with ``servers`` and any other connection or read
            options of Spark's source, such as ``credentialsFile``, ``tlsCa``, ``failOnDataLoss``, ``readMode`` or
            ``batchRows``.
        stream: Name of the stream, or several names separated by commas, which are read one after the other.
        subjects: Subject filters, which must not overlap. By default, all messages are read.
        start: The first message to read: "first", "now", a sequence, or a time.
        end: Where to stop: "now", the last sequence to read, or a time. Messages stored at that time or later aren't
            read.
        columns: Names of columns. Defaults to ``subject``, ``data``, ``headers``, ``stream``, ``sequence`` and
            ``timestamp``. There are also ``timestamp_ns`` and ``stream_created``. Omit ``data`` if you don't need it:
            the server then sends no payloads if a consumer can be created. For ``sequence``, ``stream`` and
            ``stream_created`` alone, it sends no messages either, if the stream has no gaps and neither ``subjects``
            nor ``readMode`` is given.

    Raises:
        ConfigError: An argument or option is missing, invalid or unknown. Also raised if the stream doesn't exist or
            ends before ``start`` or ``end``, if permissions are missing, or if ``start`` is a time in the future.
        HistoryTruncatedError: Messages at or after sequence ``start`` were removed. The iteration raises this error too
            if messages are removed before they are read.
        ConnectError: No server can be reached.
        AuthenticationError: The server refused the credentials.
    """
    settings = in_one_piece(read_options(options, stream, subjects, start, end))
    names = check_columns(columns, settings)
    return ArrowReader(arrow_schema(names), read_tasks(plan_tasks(settings, names)))


def plan_tasks(options: SourceOptions, columns: tuple[str, ...]) -> list[RangeTask]:
    """Resolve the positions of a read, and divide it into ranges. Closes the connection before returning."""
    spec = read_spec(options, columns)
    with held(options.connect):
        return [(task.spec(spec), task.range) for task in plan_bounded(options) if task.range is not None]


def stored_bytes(options: SourceOptions) -> int:
    """Return the number of bytes that the streams store. Raises `ConfigError` if a stream does not exist."""
    with held(options.connect):
        return sum(
            Lookup(options.for_stream(name)).facts().bytes for name in options.streams or (options.stream,)
        )


def read_tasks(tasks: Sequence[RangeTask]) -> Generator[pa.RecordBatch]:
    """Yield the messages of ranges, one range after the other. The end of the iteration closes the connection."""
    for spec, range_ in tasks:
        with held(spec.connect):
            yield from read_range(spec, range_)


class ArrowReader(Iterator[pa.RecordBatch]):
    """An iterator over record batches of messages. Returned by `read_jetstream`.

    Iterate over the reader, or pass it to a library that accepts Arrow streams, such as DuckDB, ``polars.DataFrame`` or
    ``pyarrow.RecordBatchReader.from_stream``. Such a library raises its own error classes, with the texts of jsclient's
    errors. A reader can be read only once.

    The first batch opens the connection. The connection is closed after the last batch, by `close`, or when the reader
    is discarded. If reading raises an error, the reader ends, and further reads raise `ClosedError`.

    Attributes:
        schema: The ``pyarrow.Schema`` of the batches.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema: pa.Schema = schema
        self._batches = batches
        self._broken = ""  # why the iteration stopped before the last message
        self._streaming = False

    def __next__(self) -> pa.RecordBatch:
        self._check_not_broken()
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException:
            if self._has_ended():  # a ValueError raised while another thread reads doesn't end the reader
                self._broken = "the reader ended with an error"
            raise

    def read_all(self) -> pa.Table:
        """Return all messages that haven't been read yet as a ``pyarrow.Table``.

        The table must fit into memory. If that is uncertain, iterate over the reader instead.

        Raises:
            ClosedError: The reader has already ended, or was closed.
            HistoryTruncatedError: Messages were removed before they were read.
            JetStreamError: Reading failed for a different reason, for example because the server can't be reached.
        """
        return pa.Table.from_batches(self._remaining(), self.schema)

    def close(self) -> None:
        """Stop reading, and close the connection. Closing the reader again has no effect.

        If messages remain, iterating over the reader raises `ClosedError` afterwards, so an incomplete read can't be
        mistaken for a complete one.
        """
        ended = self._has_ended()
        try:
            self._batches.close()
        finally:  # a ValueError raised while another thread reads leaves the reader open
            if not ended and self._has_ended():
                self._broken = "the reader was closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the remaining rows as a stream of the Arrow PyCapsule interface.

        Releasing the stream after its first batch closes the reader. Raises `ClosedError` if the reader has ended,
        because a query that is run again would silently find no rows. The first batch of a second stream raises it too.
        """
        self._check_open()
        return pa.RecordBatchReader.from_batches(self.schema, self._remaining()).__arrow_c_stream__(
            requested_schema
        )

    def _check_open(self) -> None:
        self._check_not_broken()
        if self._has_ended():
            raise ClosedError("the reader has ended: call read_jetstream again")

    def _check_not_broken(self) -> None:
        """Raise `ClosedError` if the reader was closed or failed, instead of ending as if it had read all messages."""
        if self._broken:
            raise ClosedError(f"{self._broken}: call read_jetstream again")

    def _has_ended(self) -> bool:
        return inspect.getgeneratorstate(self._batches) == inspect.GEN_CLOSED

    def _remaining(self) -> Generator[pa.RecordBatch]:
        self._check_open()  # check again, since the reader may have ended after the stream was created
        if self._streaming:
            raise ClosedError("another Arrow stream is reading: call read_jetstream again")
        self._streaming = True
        try:
            for batch in self:  # noqa: UP028  `yield from` would not close the reader, which is not a generator
                yield batch
        except GeneratorExit:
            self.close()
            raise
        finally:
            self._streaming = False
