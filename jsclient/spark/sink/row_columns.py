"""Convert Arrow batches from Spark to columns of subjects, headers and payloads, as bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ...errors import ConfigError, InvalidNameError
from ...protocol.wire.header_names import BATCH_ID, EXPECTED_STREAM, MSG_ID
from ...protocol.wire.headers import encode_headers
from ...protocol.wire.names import check_publish_subject
from .message_ids import SourceIds
from .row_error import BadRow

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ..options.sink import SinkOptions

__all__ = [
    "ONE_ROW_A_MESSAGE",
    "RowMessages",
    "RowReader",
    "RowShape",
    "rows_shape",
    "set_headers",
    "whole_headers",
]

_ALLOWED = {
    "subject": ("string",),
    "data": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": ("string",),
}
_SOURCE = {"stream": "string", "stream_created": "timestamp", "sequence": "bigint"}  # for dedup=source
_ILLEGAL_ID = re.compile(rb"[\x00-\x1f\x7f]")
# Messages to these subjects are executed by the server, and aren't stored by any stream. $JS.EVENT is for advisories,
# which streams can store.
_REQUEST = re.compile(rb"\$(SYS\.|JS\.(?!EVENT\.))")
_MAX_SUBJECTS = 100_000  # maximum number of cached legal subjects
_NO_BLOCK = b""
# A row that was copied from a message has these headers from the message's publisher or from the server. If the row
# were published with them to a different stream, the server would treat them as commands.
_OF_SERVER = re.compile("nats-", re.IGNORECASE)

# With these headers, the server would hold rows back until their batch is complete, in the order of their numbers.
_IN_BATCH = (
    f"{BATCH_ID} makes the row part of an atomic batch, which a sink cannot publish, since it publishes row by row: "
    "leave out the headers named Nats-Batch-..., or option headers=keep"
)

ONE_ROW_A_MESSAGE = (
    "dedup=source is for at most one row for each message and subject. Use dedup=content, or a column msg_id"
)


@dataclass(frozen=True, slots=True)
class RowShape:
    """The columns of the rows. The shape is pickled and sent to the executors."""

    data: str  # name of the payload column
    has_subject: bool
    has_headers: bool
    has_id: bool
    # Subject of rows whose subject is null or that have no such column, or None without a default.
    subject: str | None
    by_source: bool = False  # true if ids are made from the columns that identify the source message


def rows_shape(schema: StructType, options: SinkOptions) -> RowShape:
    """Check the columns of the rows, and return their shape. Columns with other names are ignored.

    Raises:
        ConfigError: A column is missing or has the wrong type.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    payloads = [name for name in ("data", "value") if name in types]
    if len(payloads) != 1:
        found = ", ".join(types) or "none"
        raise ConfigError(
            f"the rows need one column 'data' or 'value', a string or binary; their columns are: {found}. "
            "to_json(struct('*')) makes one of all others"
        )
    for name, allowed in _ALLOWED.items():
        if name in types and types[name] not in allowed:
            raise ConfigError(f"column {name!r} is {types[name]}: it must be {' or '.join(allowed)}")
    if "subject" not in types and options.subject is None:
        raise ConfigError("the rows have no column 'subject': add one, or give the option 'subject'")
    by_source = options.dedup == "source"
    if by_source and (wrong := [name for name, kind in _SOURCE.items() if types.get(name) != kind]):
        raise ConfigError(
            f"option 'dedup' is 'source', but the rows have no column {wrong[0]!r} of type {_SOURCE[wrong[0]]}: keep "
            "the source's columns stream, stream_created and sequence. It has stream_created if the schema names it: "
            ".schema('subject string, data binary, stream string, stream_created timestamp, sequence bigint')"
        )
    return RowShape(
        payloads[0], "subject" in types, "headers" in types, "msg_id" in types, options.subject, by_source
    )


@dataclass(slots=True)
class RowMessages:
    """Rows ready to be published, as columns of equal length."""

    subjects: list[bytes]
    blocks: list[bytes] | None  # header blocks, b"" for rows without headers, or None if no row has headers
    payloads: list[bytes]
    # Ids from the column ``msg_id``, the source or kept headers. b"" for rows without an id. None if there are no ids.
    ids: list[bytes] | None


class RowReader:
    """Converter from batches to `RowMessages`, which runs as little Python code per row as possible.

    Args:
        shape: The columns of the rows.
        replaced: Names of headers that the sink sets. They are removed from the rows' own headers.
        source_ids: Creates ids of rows from the columns of the source.
        keep: Whether to publish headers whose names begin with "Nats-", which the server may execute as commands.

    Attributes:
        dropped: Names of the headers beginning with "Nats-" that rows had and that are not published.
    """

    def __init__(
        self, shape: RowShape, replaced: frozenset[str], source_ids: SourceIds, *, keep: bool = False
    ) -> None:
        self._keep = keep
        self.dropped: set[str] = set()
        self._source_ids = source_ids
        self._shape = shape
        self._replaced = replaced
        self._fixed = None if shape.subject is None else check_publish_subject(shape.subject).encode()
        self._legal: set[bytes] = set()
        self._keeps_ids = keep and MSG_ID not in replaced
        self._header_ids: list[bytes] = []

    def read_batch(self, batch: pa.RecordBatch) -> RowMessages:
        """Convert a batch. Raises `BadRow` if a row cannot be published."""
        shape = self._shape
        subjects = self._subjects(batch)
        payloads = _values(
            batch.column(shape.data),
            shape.data,
            lambda: "it is null: give every row a payload, as with coalesce(..., lit(''))",
        )
        ids = None
        if shape.has_id:
            ids = _values(batch.column("msg_id"), "msg_id", lambda: "it is null: every row needs an id")
            for row, one in enumerate(ids):
                if not one or _ILLEGAL_ID.search(one):
                    what = "holds a control character" if one else "is empty"
                    raise BadRow(row, "msg_id", f"it {what}: an id is a line of text")
                if one != one.strip(b" "):
                    # The server treats " a" and "a" as one id, and " " as no id.
                    raise BadRow(
                        row, "msg_id", "it has spaces around it, which servers drop: use trim(msg_id)"
                    )
        elif shape.by_source:
            ids = _ids_of_source(batch, subjects, self._source_ids)
            _check_different(ids)
        blocks = self._blocks(batch.column("headers")) if shape.has_headers else None
        if self._header_ids:
            ids, self._header_ids = self._header_ids, []
        return RowMessages(subjects, blocks, payloads, ids)

    def _subjects(self, batch: pa.RecordBatch) -> list[bytes]:
        if not self._shape.has_subject:
            assert self._fixed is not None
            return [self._fixed] * batch.num_rows
        column = batch.column("subject")
        if column.null_count:
            if self._fixed is None:
                row = column.is_null().index(True).as_py()
                raise BadRow(
                    row, "subject", "it is null: give it a value, or a default by the option 'subject'"
                )
            column = column.fill_null(self._shape.subject)
        subjects = _values(column, "subject", str)
        # Subjects usually repeat. Checking each of them only once saves most of the time.
        new = set(subjects) - self._legal
        if new:
            for one in new:
                if _REQUEST.match(one):
                    reason = "what is published to it is a request to the server: drop the row, or change its subject"
                    raise BadRow(subjects.index(one), "subject", reason)
                try:
                    check_publish_subject(one.decode())
                except (InvalidNameError, UnicodeDecodeError) as error:
                    raise BadRow(subjects.index(one), "subject", f"{error}") from None
            if len(self._legal) > _MAX_SUBJECTS:
                self._legal.clear()
            self._legal |= new
        return subjects

    def _blocks(self, column: pa.MapArray) -> list[bytes] | None:
        if column.null_count == len(column):
            return None
        offsets = column.offsets.to_pylist()
        names = column.keys.to_pylist()
        values = _header_values(column.items)
        nulls = column.is_null().to_pylist()
        blocks: list[bytes] = []
        replaced = self._replaced
        if not self._keep:
            of_server = {name for name in set(names) if name is not None and _OF_SERVER.match(name)}
            self.dropped |= of_server - replaced
            replaced |= of_server
        for row, (start, end, null) in enumerate(zip(offsets, offsets[1:], nulls)):  # noqa: B905  one extra offset
            if null or start == end:
                blocks.append(_NO_BLOCK)
                continue
            headers = {names[at]: values(at) for at in range(start, end) if names[at] not in replaced}
            if BATCH_ID in headers:
                raise BadRow(row, "headers", _IN_BATCH)
            try:
                blocks.append(encode_headers(headers) if headers else _NO_BLOCK)
            except (InvalidNameError, ConfigError) as error:
                raise BadRow(row, "headers", f"{error}") from None
            if self._keeps_ids and MSG_ID in headers:
                self._keep_id(row, len(column), headers[MSG_ID])
        return blocks if any(blocks) else None

    def _keep_id(self, row: int, rows: int, value: str | Sequence[str]) -> None:
        """Remember the id in a row's headers, in the form in which the server reads it."""
        if not self._header_ids:
            self._header_ids = [b""] * rows
        first = value if isinstance(value, str) else next(iter(value), "")
        self._header_ids[row] = first.lstrip(" ").encode()


def _ids_of_source(batch: pa.RecordBatch, subjects: Sequence[bytes], source_ids: SourceIds) -> list[bytes]:
    """Return the ids of rows, which identify the messages from which the rows were made."""
    for name in _SOURCE:
        if batch.column(name).null_count:
            row = batch.column(name).is_null().index(True).as_py()
            raise BadRow(row, name, "it is null: with dedup=source it identifies the message of the source")
    created = batch.column("stream_created").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    streams = pc.unique(batch.column("stream")).to_pylist()
    for one in streams:
        if not one or _ILLEGAL_ID.search(one.encode()):
            raise BadRow(
                batch.column("stream").index(one).as_py(), "stream", f"{one!r} is not the name of a stream"
            )
    times = pc.unique(created).to_pylist()
    if len(streams) == len(times) == 1:  # fast path, because a batch nearly always has one source stream
        sequences = _integers(batch.column("sequence"))
        return source_ids.ids_of_one_stream(subjects, streams[0].encode(), times[0], sequences)
    parts = [batch.column("stream"), created, batch.column("sequence")]
    joined = pc.binary_join_element_wise(*(part.cast(pa.string()) for part in parts), ".")
    return source_ids.ids(subjects, _values(joined, "stream", str))


def _integers(column: pa.Array) -> list[int]:
    """Return the values of a column of integers without nulls."""
    column = column.cast(pa.int64())
    # Read the integers through a memoryview, because ``to_pylist`` is much slower in some releases of pyarrow.
    numbers = memoryview(column.buffers()[1]).cast("q")
    return numbers[column.offset : column.offset + len(column)].tolist()


def _check_different(ids: Sequence[bytes]) -> None:
    """Raise `BadRow` if two rows were made from one message and have the same subject."""
    if len(set(ids)) == len(ids):
        return
    seen: set[bytes] = set()
    for row, one in enumerate(ids):
        if one in seen:
            message = one.rpartition(b".")[0].decode()
            raise BadRow(
                row,
                "sequence",
                f"two rows with this subject are made from message {message}, so one would be lost: "
                f"{ONE_ROW_A_MESSAGE}",
            )
        seen.add(one)


def set_headers(ids: str, expected_stream: str | None) -> tuple[bytes, frozenset[str]]:
    """Return the header line that the sink adds to all messages, and the names of headers that rows cannot set."""
    names = set()
    line = b""
    if expected_stream is not None:
        line = f"{EXPECTED_STREAM}: {expected_stream}\r\n".encode()
        names.add(EXPECTED_STREAM)
    if ids != "none":
        names.add(MSG_ID)
    return line, frozenset(names)


def whole_headers(
    line: bytes, prefix: bytes, tails: Sequence[bytes] | None, blocks: Sequence[bytes] | None, count: int
) -> list[bytes]:
    """Build the final header blocks from the rows' own headers, the common line and the message id."""
    if tails is None:
        if blocks is None:
            return [b"NATS/1.0\r\n%b\r\n" % line if line else b""] * count
        if not line:
            return list(blocks)
        return [b"%b%b\r\n" % (block[:-2] if block else b"NATS/1.0\r\n", line) for block in blocks]
    # Omit the empty line at the end, which is the last two bytes of a block, so that headers can be appended.
    end = b"%bNats-Msg-Id: %b" % (line, prefix)
    head = b"NATS/1.0\r\n" + end
    if blocks is None:
        return [b"%b%b\r\n\r\n" % (head, tail) for tail in tails]
    return [
        b"%b%b%b\r\n\r\n" % (block[:-2], end, tail) if block else b"%b%b\r\n\r\n" % (head, tail)
        for block, tail in zip(blocks, tails, strict=True)
    ]


def _values(column: pa.Array, name: str, null: Callable[[], str]) -> list[bytes]:
    """Return the values of a string or binary column as bytes.

    The buffer of the column is sliced, which is much faster than converting Arrow's scalars. If a value is null, raises
    `BadRow` with the reason that ``null`` returns.
    """
    if column.null_count:
        raise BadRow(column.is_null().index(True).as_py(), name, null())
    count = len(column)
    if not count:
        return []
    kind = column.type
    _, offsets, data = column.buffers()
    # Read the offsets through a memoryview, because ``to_pylist`` is much slower in some releases of pyarrow.
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        numbers = memoryview(offsets).cast("q")
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        numbers = memoryview(offsets).cast("i")
    else:
        raise BadRow(0, name, f"it came as {kind}, which is neither text nor bytes")
    offsets_of_values = numbers[column.offset : column.offset + count + 1].tolist()
    first = offsets_of_values[0]
    raw = b"" if data is None else data.slice(first, offsets_of_values[-1] - first).to_pybytes()
    if first:
        offsets_of_values = [value_offset - first for value_offset in offsets_of_values]
    return [raw[start:end] for start, end in pairwise(offsets_of_values)]


def _header_values(items: pa.Array) -> Callable[[int], Any]:
    """Return a function that returns the value or the values of the header at an index.

    A null is returned as None, which `encode_headers` refuses.
    """
    if not pa.types.is_list(items.type) and not pa.types.is_large_list(items.type):
        texts: list[str | None] = items.to_pylist()
        return texts.__getitem__
    offsets, values = items.offsets.to_pylist(), items.values.to_pylist()
    valid = items.is_valid().to_pylist()

    def get(at: int) -> Any:
        found = values[offsets[at] : offsets[at + 1]] if valid[at] else None
        return found[0] if found is not None and len(found) == 1 else found

    return get
