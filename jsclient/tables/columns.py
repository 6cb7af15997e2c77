"""Convert batches of messages to Arrow columns."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .._runtime.connection.speedups import chosen
from ..protocol.consumers.ack import read_jsack
from ..protocol.wire.frames import Frame
from ..protocol.wire.header_names import MSG_SIZE
from .header_column import HEADERS, header_column
from .source_options import QUEUE_COLUMNS

__all__ = ["arrow_schema", "direct_columns", "frame_batch", "known_columns", "record_batch"]

_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,array<string>>": HEADERS,
}

# Indexes of the numbers among the tokens of a JSAck in its short form of 9 tokens. In the long form, two more tokens,
# the domain and the account, precede the numbers.
_DELIVERED, _STREAM_SEQ, _CONSUMER_SEQ, _TIME, _PENDING = _NUMBERS = 4, 5, 6, 7, 8
_FIRST_FORM, _MORE = 9, 2
_WIDTH = 8  # bytes of a number


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema that Spark expects for batches with these columns, in this order."""
    return pa.schema([(name, _TYPES[QUEUE_COLUMNS[name]]) for name in columns])


def record_batch(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a record batch with the columns of the schema.

    ``columns`` maps the name of each column to an array of the schema's type, or to a list.
    """
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, kind)
        for column, kind in (
            (columns[name], kind) for name, kind in zip(schema.names, schema.types, strict=True)
        )
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def frame_batch(
    frames: Sequence[Frame],
    schema: pa.Schema,
    stream: str,
    consumer: str = "",
    created: str | None = None,
    *,
    headers_only: bool = False,
) -> pa.RecordBatch:
    """Return a record batch of messages delivered by a consumer. Every reply must be a JSAck subject.

    Args:
        frames: The messages.
        schema: The schema of the batch, without ``data`` if the consumer omits payloads.
        stream: The name of the stream.
        consumer: The name of the consumer.
        created: When the stream was created, in ISO format, or None if unknown.
        headers_only: Whether the consumer omits payloads and adds their sizes to the headers.
    """
    numbers = _Numbers(frames)
    builders: dict[str, Callable[[], Any]] = {
        "subject": lambda: _texts([frame[0] for frame in frames]),
        "data": lambda: pa.array([frame[3] for frame in frames], pa.binary()),
        "headers": lambda: _frame_headers(frames, headers_only=headers_only),
        "stream": lambda: pa.repeat(stream, len(frames)),
        "sequence": lambda: numbers.column(_STREAM_SEQ),
        "timestamp": lambda: pc.divide(numbers.column(_TIME), 1000).cast(pa.timestamp("us", tz="UTC")),
        "timestamp_ns": lambda: numbers.column(_TIME),
        "stream_created": lambda: _created(created, len(frames)),
        "consumer": lambda: pa.repeat(consumer, len(frames)),
        "consumer_sequence": lambda: numbers.column(_CONSUMER_SEQ),
        "num_delivered": lambda: numbers.column(_DELIVERED).cast(pa.int32()),
        "num_pending": lambda: numbers.column(_PENDING),
        "reply": lambda: numbers.replies,
    }
    return record_batch(schema, {name: builders[name]() for name in schema.names})


def direct_columns(
    frames: Sequence[Frame], names: Sequence[str], stream: str, created: str | None = None
) -> dict[str, Any]:
    """Return columns of messages read by direct get, for `record_batch`.

    Names of columns that only a consumer provides are ignored.
    """
    added = _Added(frames)
    builders: dict[str, Callable[[], Any]] = {
        "subject": lambda: added.subject,
        "data": lambda: pa.array([frame[3] for frame in frames], pa.binary()),
        "headers": lambda: header_column([_own_block(frame[2]) for frame in frames]),
        "stream": lambda: pa.repeat(stream, len(frames)),
        "sequence": lambda: added.sequence,
        "timestamp": lambda: pc.divide(added.time_ns, 1000).cast(pa.timestamp("us", tz="UTC")),
        "timestamp_ns": lambda: added.time_ns,
        "stream_created": lambda: _created(created, len(frames)),
    }
    return {name: builders[name]() for name in names if name in builders}


def known_columns(sequences: array[int], stream: str, created: str | None = None) -> dict[str, Any]:
    """Return the columns that are known without the messages for these sequences, for `record_batch`."""
    count = len(sequences)
    return {
        "stream": pa.repeat(stream, count),
        "sequence": pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(sequences)]),
        "stream_created": _created(created, count),
    }


def _created(created: str | None, count: int) -> pa.Array:
    moment = datetime.fromisoformat(created) if created else None
    return pa.repeat(pa.scalar(moment, _TYPES["timestamp"]), count)


class _Numbers:
    """The numbers in the JSAck subjects of many messages.

    A compiled function parses them if it is installed. Otherwise Arrow does, at a tenth of the cost of Python code.
    """

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = frames
        self._lists: pa.ListArray | None = None
        self._more = 0

    @property
    def replies(self) -> pa.Array:
        return _texts([frame[1] for frame in self._frames])

    def column(self, index: int) -> pa.Array:
        count = len(self._frames)
        if self._compiled:
            first = _NUMBERS.index(index) * count * _WIDTH
            numbers = pa.py_buffer(self._compiled).slice(first, count * _WIDTH)
            return pa.Array.from_buffers(pa.int64(), count, [None, numbers])
        if self._lists is None:
            self._split()
        assert self._lists is not None
        return pc.list_element(self._lists, index + self._more).cast(pa.int64())

    @cached_property
    def _compiled(self) -> bytes:
        """One array for each number, in the order of `_NUMBERS`. Empty if Arrow has to parse the numbers."""
        read = chosen().jsack_numbers
        return b"" if read is None else read(list(self._frames))

    def _split(self) -> None:
        lists = pc.split_pattern(self.replies, ".")
        shortest, longest = pc.min_max(pc.list_value_length(lists)).values()
        if shortest != longest or shortest.as_py() not in {
            _FIRST_FORM,
            _FIRST_FORM + _MORE,
            _FIRST_FORM + 1 + _MORE,
        }:
            # Slow path: the JSAcks have longer or mixed forms, so convert each of them to the first form.
            acks = [read_jsack(frame[1]) for frame in self._frames]
            plain = [
                f"$JS.ACK.S.C.{ack.num_delivered}.{ack.stream_seq}.{ack.consumer_seq}.{ack.timestamp_ns}.{ack.num_pending}"
                for ack in acks
            ]
            lists, self._more = pc.split_pattern(pa.array(plain, pa.string()), "."), 0
        else:
            self._more = 0 if shortest.as_py() == _FIRST_FORM else _MORE
        self._lists = lists


_ADDED = (
    r"Nats-Subject: (?P<subject>[^\r\n]+)\r\nNats-Sequence: (?P<sequence>[0-9]+)\r\n"
    r"Nats-Time-Stamp: (?P<time>[^\r\n]+)\r\nNats-Num-Pending: [0-9]+\r\nNats-Last-Sequence: [0-9]+\r\n\r\n$"
)
_BEFORE = re.compile(rb"\r\nNats-Last-Sequence: ([0-9]{1,18})\r\n\r\n\Z")  # sequence of the previous message
_FIRST_LINE = len(b"NATS/1.0\r\n")
# The first header that the server adds. A message may itself have a header of this name, so find the last one.
_ADDED_FROM = b"Nats-Stream: "
_SIZE_FROM = f"{MSG_SIZE}: ".encode()  # the first header that the server adds if a consumer omits payloads


class _Added:
    """The headers that the server adds to messages in a direct get, parsed by a compiled function or by Arrow."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = frames

    @property
    def subject(self) -> pa.Array:
        return _texts([row[1] for row in self._rows]) if self._rows else self._column("subject")

    @property
    def sequence(self) -> pa.Array:
        if self._rows:
            return pa.array([row[2] for row in self._rows], pa.int64())
        return self._column("sequence").cast(pa.int64())

    @property
    def time_ns(self) -> pa.Array:
        if self._rows:
            return pa.array([row[3] for row in self._rows], pa.int64())
        return self._column("time").cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64())

    def _column(self, name: str) -> pa.Array:
        return pc.struct_field(self._parsed, name)

    @cached_property
    def _parsed(self) -> pa.StructArray:
        return pc.extract_regex(_texts([frame[2] for frame in self._frames]), _ADDED)

    @cached_property
    def _rows(self) -> list[tuple[bytes, bytes, int, int]]:
        """The rows that the compiled function returns. Empty unless it can parse all messages."""
        split = chosen().split_stored
        before = None if split is None or not self._frames else _BEFORE.search(self._frames[0][2])
        if split is None or before is None:
            return []
        rows, _ = split(list(self._frames), int(before[1]))
        return rows if len(rows) == len(self._frames) else []


def _own_block(block: bytes, added_from: bytes = _ADDED_FROM) -> bytes:
    """Return a header block without the headers that the server has added."""
    return _whole_lines(block[: block.rfind(added_from)])


def _delivered_block(block: bytes) -> bytes:
    """Return the part of a delivered header block that a direct get would return as well.

    A consumer delivers the whole block. In a direct get, the server replaces the last two bytes of a block by its own
    headers, because it assumes that they are the empty line at the end. If a block does not end with an empty line, its
    last line is incomplete after that, and is not read.
    """
    return block if not block or block.endswith(b"\r\n\r\n") else _whole_lines(block[:-2])


def _whole_lines(lines: bytes) -> bytes:
    """Return a header block with only the complete lines, or b"" if the first line is the only complete line."""
    end = len(lines) if lines.endswith(b"\r\n") else lines.rfind(b"\r\n") + 2
    return lines[:end] + b"\r\n" if end > _FIRST_LINE else b""


def _texts(values: list[bytes]) -> pa.Array:
    """Decode UTF-8 to an array of strings. Spark's strings can't contain invalid bytes, so they become U+FFFD."""
    try:
        return pa.array(values, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values], pa.string())


def _frame_headers(frames: Sequence[Frame], *, headers_only: bool) -> pa.Array:
    blocks = [frame[2] for frame in frames]
    if headers_only:
        return header_column([_own_block(block, _SIZE_FROM) for block in blocks])
    return header_column([_delivered_block(block) for block in blocks] if any(blocks) else blocks)
