"""Read a topic's segments on an executor. Messages are filtered by their headers, without decoding payloads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ...errors import ConfigError, EpochsLostError, HistoryTruncatedError, ProtocolError
from ...protocol.consumers.ack import sequences
from ...protocol.epochs.frontier import Order
from ...protocol.epochs.records import EPOCH, PRODUCER, data_subject
from ...protocol.streams.direct_get import direct_sequence
from ...protocol.wire.frames import Frame
from ...protocol.wire.headers import parse_headers
from ...tables.columns import arrow_schema, direct_columns, frame_batch, record_batch
from ...tables.range_reader import ConsumerRange
from ...tables.ranges import SequenceRange
from ...tables.reading import open_range
from ...tables.session import session
from ...tables.tasks import ReadSpec
from .planning import ReadRequest, Segment, order_of

__all__ = ["EpochSpec", "read_segments"]

_OWN = ("epoch", "partition")  # columns that only this source provides
_KNOWN_TIMES = 4096  # maximum number of cached times


@dataclass(frozen=True, slots=True)
class EpochSpec:
    """The read settings that all tasks of a batch share. They are pickled and sent to the executors."""

    read: ReadSpec  # how to read messages, and the columns of the rows
    topic: str
    order: str = "int"  # name of the order of the topic's times, from its schema
    # The epochs to read: the fields of a `ReadRequest` as JSON.
    start: str = "[]"
    end: str = "[]"
    missed: str = "[]"
    numbers: bool = True  # true if the column ``epoch`` contains numbers instead of JSON

    def between(self, order: Order[Any], request: ReadRequest[Any]) -> EpochSpec:
        """Return a copy for these epochs, which must have an end."""
        assert request.end is not None
        start, end, missed = (
            json.dumps([*map(order.encode, times)]) for times in (request.start, request.end, request.missed)
        )
        return replace(self, start=start, end=end, missed=missed)


class _Epochs:
    """A map from values of the epoch header to values of the column ``epoch``."""

    def __init__(self, spec: EpochSpec) -> None:
        order: Order[Any] = order_of(spec.order, spec.topic)
        start, end, missed = (
            [*map(order.decode, json.loads(text))] for text in (spec.start, spec.end, spec.missed)
        )
        self._order, self._selected, self._numbers = (
            order,
            ReadRequest(order, start, end, missed),
            spec.numbers,
        )
        self._known: dict[bytes, Any] = {}

    def epoch_of(self, text: bytes) -> Any:
        """Return the value of the column, or None if the epoch does not belong to the batch.

        Raises `ProtocolError` if the header is invalid.
        """
        if text in self._known:
            return self._known[text]
        try:
            time = self._order.decode(json.loads(text))
        except (ValueError, ConfigError) as error:
            raise ProtocolError(f"the time of a message makes no sense: {text!r:.60}: {error}") from None
        value = None
        if time in self._selected:
            encoded = self._order.encode(time)
            value = encoded if self._numbers else json.dumps(encoded, separators=(",", ":"))
        if len(self._known) >= _KNOWN_TIMES:
            self._known.clear()
        self._known[text] = value
        return value


def read_segments(spec: EpochSpec, segments: Sequence[Segment]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the batch's epochs in these segments, in order.

    Raises:
        EpochsLostError: Data was removed before it was read.
        PositionInvalidError, ConfigError, JetStreamError: See `jsclient.tables.reading.read_range`.
    """
    epochs = _Epochs(spec)
    for segment in segments:
        try:
            yield from _read_segment(spec, segment, epochs)
        except HistoryTruncatedError as error:
            raise EpochsLostError((), str(error)) from error


def _read_segment(spec: EpochSpec, segment: Segment, epochs: _Epochs) -> Iterator[pa.RecordBatch]:
    read = replace(spec.read, subjects=(data_subject(spec.topic, segment.partition),))
    opened = session(read.connect)
    schema = _schema(read.columns, numbers=spec.numbers)
    base = tuple(name for name in read.columns if name not in _OWN)
    reader = opened.run(open_range(opened.js, read, SequenceRange(segment.first, segment.last)))
    try:
        while messages := opened.run(reader.read_messages(read.batch_rows)):
            by_consumer = isinstance(reader, ConsumerRange)
            frames, times = _filtered(messages, segment, epochs, by_consumer=by_consumer)
            for start in range(0, len(frames), read.batch_rows):
                part = frames[start : start + read.batch_rows]
                columns: dict[str, Any] = {
                    "epoch": pa.array(times[start : start + read.batch_rows], _type(numbers=spec.numbers)),
                    "partition": pa.repeat(pa.scalar(segment.partition, pa.int32()), len(part)),
                }
                if by_consumer:
                    batch = frame_batch(part, arrow_schema(base), read.stream, created=read.created)
                    columns |= dict(zip(base, batch.columns, strict=True))
                else:
                    columns |= direct_columns(part, base, read.stream, read.created)
                yield record_batch(schema, columns)
    finally:
        opened.run(reader.close())


def _schema(columns: Sequence[str], *, numbers: bool) -> pa.Schema:
    own = {"epoch": _type(numbers=numbers), "partition": pa.int32()}
    return pa.schema(
        [(name, own[name]) if name in own else arrow_schema([name]).field(0) for name in columns]
    )


def _type(*, numbers: bool) -> pa.DataType:
    return pa.int64() if numbers else pa.string()


_EPOCH_LINE, _PRODUCER_LINE = f"\r\n{EPOCH}: ".encode(), f"\r\n{PRODUCER}: ".encode()


def _filtered(
    frames: Sequence[Frame], segment: Segment, epochs: _Epochs, *, by_consumer: bool
) -> tuple[list[Frame], list[Any]]:
    """Return the batch's messages from producers that owned the partition at the time, and the messages' epochs."""
    owners = [(after, producer.encode()) for after, producer in segment.owners]
    owner, owners = owners[0][1], owners[1:]
    selected, times = [], []
    for frame in frames:
        if owners:
            seq = sequences(frame[1])[0] if by_consumer else direct_sequence(frame)
            while owners and owners[0][0] < seq:
                owner = owners.pop(0)[1]
        # Skip the data of producers that no longer owned the partition, because it is invalid.
        if _header(frame[2], _PRODUCER_LINE, PRODUCER) != owner:
            continue
        text = _header(frame[2], _EPOCH_LINE, EPOCH)
        time = epochs.epoch_of(text)
        if time is not None:
            selected.append(frame)
            times.append(time)
    return selected, times


def _header(block: bytes, line: bytes, name: str) -> bytes:
    """Return the value of a header, stripped as in `Headers`, or b"" if it is missing."""
    at = block.find(line)
    if at < 0:
        return parse_headers(block)[1].get(name, "").encode() if block else b""
    at += len(line)
    return block[at : block.find(b"\r\n", at)].strip()
