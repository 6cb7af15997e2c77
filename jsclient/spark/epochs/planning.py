"""Plan the batches and tasks of a read from the frontier records of a topic. Does no I/O.

Planning reads no data, because a frontier record bounds the data around it. Its upper frontier has the greatest times
sent so far in its partition. Data of a time that is not at or before one of these times is stored after the record. Its
lower frontier has the least times that may still be sent. Data of a time that is not at or after one of these times is
stored before the record. Two such records enclose all data of an epoch in a partition.

As for a subscriber, a position among the epochs is an `EpochPosition`. Epochs that its frontier has passed were
received. Epochs at or before a time of ``missed`` are never delivered, because parts of them were removed.
"""

from __future__ import annotations

import ast
import json
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgspec

from ...errors import ConfigError, EpochsLostError, PositionInvalidError
from ...protocol.epochs.frontier import Antichain, Int, Order, Product
from ...protocol.epochs.records import EpochPosition, FrontierEntry

__all__ = [
    "BatchCut",
    "ReadRequest",
    "Segment",
    "TopicHistory",
    "cut_of",
    "order_of",
    "place_of",
    "position_to_json",
    "request_between",
    "share",
]

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Segment:
    """A range of sequences that contains all data of some epochs in a partition."""

    partition: int
    first: int  # first stream sequence
    last: int  # last stream sequence, inclusive
    # Pairs ``(after, producer)`` in ascending order. Between the sequence ``after`` and the next pair, only data of
    # ``producer`` is valid. The first ``after`` is less than ``first``.
    owners: tuple[tuple[int, str], ...]

    @property
    def width(self) -> int:
        """The number of sequences. The segment has at most this many messages."""
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> Segment:
        """Return the part between two sequences, both inclusive."""
        first_owner = bisect_right([after for after, _ in self.owners], first - 1) - 1
        owners = tuple(owner for owner in self.owners[first_owner:] if owner[0] < last)
        return Segment(self.partition, first, last, owners)


class ReadRequest(Generic[T]):
    """A request for the epochs from a start frontier up to an end frontier, without the missed epochs."""

    def __init__(
        self, order: Order[T], start: Sequence[T], end: Sequence[T] | None = None, missed: Sequence[T] = ()
    ) -> None:
        """Create a request. ``end`` is None for no end, and () for the end of a completed topic."""
        self.start: Antichain[T] = Antichain.minimal(order, start)
        self.missed: Antichain[T] = Antichain.maximal(order, missed)
        self.end: Antichain[T] | None = None if end is None else Antichain.minimal(order, end)

    def __contains__(self, time: T) -> bool:
        if self.end is not None and self.end.some_below(time):
            return False
        return self.start.some_below(time) and not self.missed.some_above(time)


class TopicHistory(Generic[T]):
    """The frontier records of a topic that planning needs."""

    def __init__(self, order: Order[T], partitions: int) -> None:
        self.order = order
        self._entries: list[list[FrontierEntry[T]]] = [[] for _ in range(partitions)]

    def add_entry(self, partition: int, entry: FrontierEntry[T]) -> None:
        """Add the next record of a partition. A record that was already added is ignored."""
        entries = self._entries[partition]
        if not entries or entry.seq > entries[-1].seq:
            entries.append(entry)

    @property
    def lower_frontier(self) -> Antichain[T]:
        """The lower frontier of all partitions. It is empty once the topic is completed."""
        if not all(self._entries):
            return Antichain(self.order, (self.order.bottom,))
        return self._merged([entries[-1] for entries in self._entries])

    def _merged(self, entries: Sequence[FrontierEntry[T]]) -> Antichain[T]:
        return Antichain.minimal(self.order, (time for entry in entries for time in entry.record.lower))

    def whole(self, request: ReadRequest[T], first_seq: int) -> ReadRequest[T]:
        """Return the request without the epochs that have lost data, for a stream that begins at ``first_seq``.

        Raises `EpochsLostError` if no record of a partition covers the removed data yet.
        """
        missed = [*request.missed]
        for number, entries in enumerate(self._entries):
            # Epochs that have lost data are incomplete, so they must be skipped. The first record after all removed
            # data names these epochs in its upper frontier.
            knows = next((entry for entry in entries if entry.up_to + 1 >= first_seq), None)
            if knows is not None:
                missed += knows.record.upper
            elif entries:
                raise EpochsLostError(
                    (), f"the frontier of the data removed from partition {number} is unknown"
                )
        end = None if request.end is None else request.end.elements
        return ReadRequest(self.order, request.start.elements, end, missed)

    def earliest(self, first_seq: int) -> ReadRequest[T]:
        """Return a request for all complete epochs of a stream that begins at ``first_seq``.

        Raises the same errors as `whole`.
        """
        return self._plainly(self.whole(ReadRequest(self.order, (self.order.bottom,)), first_seq))

    def latest(self) -> ReadRequest[T]:
        """Return a request for all epochs that have no data yet."""
        sent = [time for entries in self._entries if entries for time in entries[-1].record.upper]
        return self._plainly(ReadRequest(self.order, self.lower_frontier.elements, missed=sent))

    def _plainly(self, epochs: ReadRequest[T]) -> ReadRequest[T]:
        """If times are numbers, return a request for the same epochs that has only a start and no ``missed``."""
        if not isinstance(self.order, Int) or not epochs.start:
            return epochs
        numbers: Any = (*epochs.start, *(self.order.successor(number) for number in epochs.missed))
        return ReadRequest(self.order, (max(numbers),))

    def epoch_position(self, request: ReadRequest[T], stream: str, created: str) -> EpochPosition[T]:
        """Return the position before these epochs."""
        anchors = [self._anchor(number, request) for number in range(len(self._entries))]
        records = tuple((number, 0 if entry is None else entry.seq) for number, entry in enumerate(anchors))
        since = min(0 if entry is None else entry.up_to for entry in anchors)
        frontiers = (request.start.elements,)
        return EpochPosition(self.order, since, request.missed.elements, frontiers, records, stream, created)

    def forget_records(self, epoch_position: EpochPosition[T]) -> None:
        """Drop the records that a read from this position does not need."""
        for number, seq in epoch_position.records:
            entries = self._entries[number]
            at = bisect_right(entries, seq, key=lambda entry: entry.seq) - 1
            del entries[: max(at, 0)]

    def limited(self, request: ReadRequest[T], end: Antichain[T], epochs: int) -> tuple[T, ...]:
        """Return the end of a batch with at most ``epochs`` epochs, at or before the frontier ``end``.

        Only frontier records separate epochs. Epochs that a publisher has sent between two records count as a single
        epoch.
        """
        if isinstance(self.order, Int):
            return self._nth_number(request, end, epochs)
        # Replay the frontier records in the order of the stream. After each record, the merged frontier of all
        # partitions is a possible end if it has passed the previous end.
        now: dict[int, FrontierEntry[T]] = {}
        reached, steps = request.start, 0
        every = [(entry.seq, number, entry) for number, some in enumerate(self._entries) for entry in some]
        for _, number, entry in sorted(every, key=lambda one: one[:2]):
            now[number] = entry
            merged = self._merged([*now.values()])
            if len(now) == len(self._entries) and merged != reached and all(map(reached.some_below, merged)):
                reached, steps = merged, steps + 1
                if steps == epochs or merged == end:
                    break
        return reached.elements

    def _nth_number(self, requested: ReadRequest[Any], end: Antichain[Any], epochs: int) -> tuple[T, ...]:
        start, last = requested.start.elements[0], end.elements[0] if end else None
        cuts: set[Any] = set()
        for entries in self._entries:
            for entry in entries:
                upper: Any = entry.record.upper
                cuts.update(entry.record.lower, (time + 1 for time in upper))
        within = sorted(cut for cut in cuts if cut > start and (last is None or cut < last))
        return (within[epochs - 1],) if len(within) >= epochs else end.elements

    def _anchor(self, partition: int, epochs: ReadRequest[T]) -> FrontierEntry[T] | None:
        """Return the last record before which no data of these epochs is stored."""
        anchor = None
        for entry in self._entries[partition]:
            if any(time in epochs for time in entry.record.upper):
                break
            anchor = entry
        return anchor

    def lost_epochs(self, request: ReadRequest[T], first_seq: int) -> EpochsLostError | None:
        """Return an error if data of these epochs may have been removed from a stream that begins at ``first_seq``.

        Returns None if all data of the epochs is stored.
        """
        for number in range(len(self._entries)):
            anchor = self._anchor(number, request)
            known = 0 if anchor is None else anchor.up_to
            if known + 1 < first_seq:
                return EpochsLostError(
                    (),
                    f"data of partition {number} after message {known} may have been removed before it was read: the "
                    f"stream begins at {first_seq} now",
                )
        return None

    def segments(self, request: ReadRequest[T]) -> list[Segment] | None:
        """Return the segments of these epochs, or None if the known records do not reach the end of the request."""
        assert request.end is not None
        segments = []
        beginning = ReadRequest(self.order, request.start.elements, missed=request.missed.elements)
        for number, entries in enumerate(self._entries):
            anchor = self._anchor(number, beginning)
            first = 0 if anchor is None else entries.index(anchor)
            # The first record whose lower frontier has passed the end of the epochs is the end of their data, so stop
            # there.
            done = next(
                (
                    at
                    for at in range(first, len(entries))
                    if all(map(request.end.some_below, entries[at].record.lower))
                ),
                None,
            )
            if done is None:
                return None
            segment = _between(number, entries[first : done + 1])
            if segment is not None and anchor is not entries[done]:
                segments.append(segment)
        return segments


def _between(partition: int, entries: Sequence[FrontierEntry[T]]) -> Segment | None:
    """Return the segment between the first and the last of consecutive records, or None if it is empty."""
    first, last = entries[0], entries[-1]
    owners = [(first.up_to, first.before)] if first.up_to < first.seq else []
    owners += [(entry.seq, entry.producer) for entry in entries[:-1]]
    distinct = owners[:1] + [other for one, other in pairwise(owners) if one[1] != other[1]]
    if last.seq - first.up_to <= 1:
        return None
    return Segment(partition, first.up_to + 1, last.seq - 1, tuple(distinct))


def share(segments: Sequence[Segment], tasks: int) -> list[list[Segment]]:
    """Divide segments among at most ``tasks`` tasks. Their numbers of sequences differ by at most one."""
    whole = sum(segment.width for segment in segments)
    tasks = max(1, min(tasks, whole))
    cuts = [whole * task // tasks for task in range(1, tasks + 1)]
    shared: list[list[Segment]] = [[] for _ in range(tasks)]
    task = done = 0
    for segment in segments:
        first = segment.first
        while first <= segment.last:
            last = min(segment.last, first + cuts[task] - done - 1)
            shared[task].append(segment.part(first, last))
            done += last - first + 1
            first = last + 1
            if done == cuts[task]:
                task += 1
    return [one for one in shared if one]


@dataclass(frozen=True, slots=True)
class BatchCut:
    """The division of a batch among tasks. The end offset of the batch records the division.

    A replay is divided in the same way, even if the options or the stream have changed, because the message ids of a
    sink contain the number of the task.
    """

    tasks: int
    segments: tuple[tuple[int, int, int], ...]  # partition, first and last sequence of each segment

    @classmethod
    def of_segments(cls, segments: Iterable[Segment], tasks: int) -> BatchCut:
        return cls(tasks, tuple((one.partition, one.first, one.last) for one in segments))

    def share(self, segments: Iterable[Segment]) -> list[list[Segment]]:
        """Divide the segments that remain. A task without a remaining segment keeps its number and reads no data."""
        remaining = {segment.partition: segment for segment in segments}
        planned = share([Segment(*one, ()) for one in self.segments], self.tasks)
        return [
            [piece for one in some if (piece := _common(remaining.get(one.partition), one)) is not None]
            for some in planned
        ]


def _common(segment: Segment | None, other: Segment) -> Segment | None:
    if segment is None:
        return None
    first, last = max(segment.first, other.first), min(segment.last, other.last)
    return segment.part(first, last) if first <= last else None


_CUT = "cut"  # the key of a `BatchCut` in an offset


def position_to_json(epoch_position: EpochPosition[Any], cut: BatchCut | None = None) -> dict[str, Any]:
    """Return the position as Spark stores it, with the division of the batch that ends there."""
    fields: dict[str, Any] = json.loads(epoch_position.to_json())
    return fields if cut is None else {**fields, _CUT: [cut.tasks, *cut.segments]}


def cut_of(offset: Mapping[str, Any]) -> BatchCut | None:
    """Return the division of the batch that ends at an offset, or None if the offset does not record it."""
    if _CUT not in offset:
        return None
    try:
        tasks, *segments = msgspec.convert(offset[_CUT], list[Any])
        return BatchCut(
            msgspec.convert(tasks, int), msgspec.convert(tuple(segments), tuple[tuple[int, int, int], ...])
        )
    except (msgspec.ValidationError, ValueError) as error:
        raise PositionInvalidError(
            f"the checkpoint has an offset that is not valid for a topic of epochs ({error}): {str(dict(offset))[:200]}"
        ) from None


def place_of(offset: Mapping[str, Any], order: Order[Any], partitions: int) -> EpochPosition[Any]:
    """Return the position stored in an offset. Raises `PositionInvalidError` if it does not fit the topic."""
    fields = {name: value for name, value in offset.items() if name != _CUT}
    epoch_position: EpochPosition[Any] = EpochPosition.from_json(json.dumps(fields), order)
    if len(epoch_position.frontiers) != 1 or [number for number, _ in epoch_position.records] != [
        *range(partitions)
    ]:
        raise PositionInvalidError(
            f"the checkpoint has an offset that is not valid for this topic, which has {partitions} partitions: "
            f"{str(dict(offset))[:200]}; was it made by another source?"
        )
    return epoch_position


def request_between(
    start: EpochPosition[Any], end: EpochPosition[Any] | None, order: Order[Any]
) -> ReadRequest[Any]:
    """Return a request for the epochs between two positions, or for all epochs after one position."""
    return ReadRequest(order, start.frontiers[0], None if end is None else end.frontiers[0], start.missed)


def order_of(name: str, topic: str) -> Order[Any]:
    """Return the order with this name. Its times are integers or tuples of integers.

    Raises `ConfigError` for a custom order.
    """
    try:
        return _order(ast.parse(name, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(
            f"option 'epochs': the times of topic {topic!r} have the order {name!r}, which Spark does not know: it can "
            "read integers (Int), and tuples of them (Product)"
        ) from None


def _order(node: ast.expr) -> Order[Any]:
    match node:
        case ast.Name("int"):
            return Int()
        case ast.Call(ast.Name("int"), [bottom], []):
            return Int(int(ast.unparse(bottom)))
        case ast.Call(ast.Name("product"), [_, *_] as parts, []):
            return Product(*map(_order, parts))
        case _:
            raise ValueError(ast.unparse(node))
