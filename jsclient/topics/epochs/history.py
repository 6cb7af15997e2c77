"""Finds the last frontiers of a topic, the start of a subscriber, and the data that counts, in the topic's log."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from ..._runtime.retry import Retry
from ...errors import (
    ConfigError,
    EpochsLostError,
    HistoryTruncatedError,
    JetStreamError,
    ProducerFencedError,
    ProtocolError,
    TopicNotFoundError,
    WrongLastSequenceError,
)
from ...protocol.epochs.frontier import Capabilities, Order
from ...protocol.epochs.records import (
    PRODUCER,
    EpochPosition,
    EpochReading,
    FrontierEntry,
    data_subject,
    frontier_subject,
)
from ...protocol.epochs.trackers import EpochPublisher
from ...protocol.events import Event, PartitionsMissing, RecordSkipped
from ...protocol.topics.position import Extent, Position
from ...protocol.topics.record import Record
from ..log import Log, Page, search_back
from ..log_reader import check_position

__all__ = ["EpochHistory", "EpochStart", "Join", "LastFrontier", "Taken", "Wait"]

R = TypeVar("R")
T = TypeVar("T", bound=Hashable)

EpochStart: TypeAlias = Literal["now", "first"]
"""The start of a subscriber: the epochs that are latent now, or the oldest stored epochs."""

StoreRecord: TypeAlias = Callable[[bytes, Mapping[str, str], int, str], Awaitable[int]]

_PAGE, _PAGE_BYTES = 5000, 8 * 1024 * 1024
_RACES: Final = 10  # attempts to take a partition before giving up on faster producers
_LAG_PAUSE, _LAG_PAUSES = 0.05, 100  # pause in seconds while a replica lags, and maximum number of pauses
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # pauses in seconds before looking for partitions again
_FIRST_REPORT = 5.0  # seconds until a wait is reported for the first time


class Wait:
    """The wait of a subscriber for a topic or its partitions.

    It pauses between requests, and reports a wait that takes long.
    """

    def __init__(self, emit: Callable[[Event], None], topic: str) -> None:
        self._emit = emit
        self._topic = topic
        self._started_at = asyncio.get_running_loop().time()
        self._pause, self._report = _FIRST_PAUSE, _FIRST_REPORT

    def report_wait(self, reason: str, partitions: Sequence[int], *, may_fail: bool = True) -> None:
        """Report the wait if a report is due. For ``may_fail`` see `PartitionsMissing`."""
        waited = asyncio.get_running_loop().time() - self._started_at
        if waited >= self._report:
            self._report = 2 * waited
            self._emit(
                PartitionsMissing(
                    topic=self._topic,
                    partitions=tuple(partitions),
                    waited=waited,
                    reason=reason,
                    may_fail=may_fail,
                )
            )

    async def again(self, error: JetStreamError, partitions: Sequence[int]) -> None:
        """Pause before the next request. ``error`` is the error of the last request."""
        missing = isinstance(error, TopicNotFoundError)
        self.report_wait(
            "no publisher has written there yet, or its records were removed" if missing else str(error),
            partitions,
        )
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


class LastFrontier(NamedTuple, Generic[T]):
    """The newest valid frontier record of a partition, and the message that contains it, or None for both.

    ``last_seq`` is the sequence of the subject's last message, which the next record must follow, or 0 for an empty
    subject. Messages between the frontier record and this sequence are invalid.
    """

    entry: FrontierEntry[T] | None
    record: Record | None
    last_seq: int


class Taken(NamedTuple, Generic[T]):
    """A partition that a new producer has taken over.

    Attributes:
        publisher: The state of the partition.
        producer: The token of the new producer.
        seq: The sequence of the new producer's first frontier record.
    """

    publisher: EpochPublisher[T]
    producer: str
    seq: int


class Join(NamedTuple, Generic[T]):
    """The snapshots that a subscriber starts with, and the position after which it reads."""

    entries: dict[int, FrontierEntry[T]]
    start: Position


class EpochHistory(Generic[T]):
    """Reads the log of a topic, or of one partition."""

    def __init__(self, log: Log, order: Order[T], topic: str) -> None:
        self.log: Log = log
        self.order: Order[T] = order
        self.topic: str = topic

    def report_skipped(self, record: Record, error: ProtocolError, count: int = 1) -> None:
        """Report an invalid record if ``count``, the number of records that a reader has skipped, is a power of two."""
        if count & (count - 1) == 0:
            stream, subject = self.log.stream, record.subject
            self.log.emit(
                RecordSkipped(stream=stream, subject=subject, stream_seq=record.seq, count=count, error=error)
            )

    async def _retried(self, ask: Callable[[], Awaitable[R]]) -> R:
        """Repeat a request until it succeeds. Wait for a connection first. Raise errors that aren't transient."""
        tries = Retry()
        while True:
            await self.log.wait_ready()
            try:
                return await ask()
            except JetStreamError as error:
                if not await tries.again(error):
                    raise

    async def page(self, since: int, end: int, limit: int = _PAGE) -> Page:
        """Read a page of records after a sequence. ``end`` is the sequence of a message that is known to be stored.

        If the page is empty and does not reach ``end``, the request is repeated for some seconds. A replica may lag,
        and a restarted server may not know all of its messages yet.
        """
        page = Page([])
        for _ in range(_LAG_PAUSES):
            page = await self._retried(partial(self.log.history, since, limit, _PAGE_BYTES))
            if page.records or page.up_to >= end:
                break
            await asyncio.sleep(_LAG_PAUSE)
        return page

    async def records(self, since: int, end: int, limit: int = _PAGE) -> AsyncIterator[Record]:
        """Yield the records after a sequence, page by page, up to the page that contains the sequence ``end``."""
        while since < end:
            page = await self.page(since, end, limit)
            if not page.records:
                return
            for record in page.records:
                yield record
            since = page.records[-1].seq

    # --- the last frontier record ----------------------------------------------------------------------------

    def _entry(self, record: Record) -> FrontierEntry[T] | None:
        try:
            return FrontierEntry.from_record(record, self.order)
        except ProtocolError:
            return None

    async def last_frontier(self, partition: int) -> LastFrontier[T]:
        """Find the newest valid frontier record of a partition. May raise any error of a request."""
        subject = frontier_subject(self.topic, partition)
        last = await self.log.last(subject)
        if last is None:
            return LastFrontier(None, None, 0)
        try:
            return LastFrontier(FrontierEntry.from_record(last, self.order), last, last.seq)
        except ProtocolError as error:
            self.report_skipped(last, error)
        first = (await self.log.extent()).first_seq
        record = await search_back(
            self.records,
            first,
            last.seq - 1,
            lambda other: other.subject == subject and self._entry(other) is not None,
        )
        return LastFrontier(None if record is None else self._entry(record), record, last.seq)

    # --- taking over a partition -----------------------------------------------------------------------------

    async def take_partition(self, partition: int, store: StoreRecord, *, start: T | None) -> Taken[T]:
        """Take over a partition. Fence its last producer and continue from its state, or start a new partition.

        Args:
            partition: The number of the partition.
            store: Stores a frontier record, like `Outlet.record`.
            start: The least time of a new partition. Defaults to the least time of the order.

        Raises:
            ProducerFencedError: Other producers keep taking the partition.
            HistoryTruncatedError: The partition has no frontier record, possibly because records were removed. Pass
                ``start`` to continue anyway.
            ConfigError: ``start`` is not a valid time.

        May also raise any request error.
        """
        producer = secrets.token_hex(8)
        for _ in range(_RACES):
            last, _, last_seq = await self.last_frontier(partition)

            async def write(entry: FrontierEntry[T], expected: int = last_seq) -> int:
                msg_id = f"{self.topic}.{partition}/{producer}/f{expected}"
                return await store(entry.record.to_json(self.order), entry.headers, expected, msg_id)

            try:
                if last is None:
                    publisher = await self._new(start)
                    seq = await write(FrontierEntry(publisher.first_record(), 0, producer, 0))
                    return Taken(publisher, producer, seq)
                return await self._continued(partition, last, producer, write)
            except WrongLastSequenceError:
                pass  # another producer took the partition in the meantime
        raise ProducerFencedError(frontier_subject(self.topic, partition))

    async def _new(self, start: T | None) -> EpochPublisher[T]:
        extent = await self.log.extent()
        if start is None and extent.first_seq > 1:
            raise HistoryTruncatedError(extent.first_seq, 1, self.log.stream)
        publisher = EpochPublisher(self.order)
        if start is not None:
            self.order.encode(start)
            publisher.capabilities = Capabilities(self.order, [start])
        return publisher

    async def _continued(
        self,
        partition: int,
        last: FrontierEntry[T],
        producer: str,
        write: Callable[[FrontierEntry[T]], Awaitable[int]],
    ) -> Taken[T]:
        reading: EpochReading[T] = EpochReading(self.order, self.topic, [partition])
        reading.owners = {partition: last.owner_at(last.up_to)}
        times: set[T] = set()
        if last.up_to < last.seq:
            await self._scan_to(last.seq, reading, last.up_to, times)
            reading.owners = {partition: last.producer}
        up_to, more = last.seq, True
        while more:
            page = await self.log.history(up_to, _PAGE, _PAGE_BYTES)
            for record in page.records:
                up_to = record.seq
                self._note(reading, record, times)
            more = page.more
        publisher = EpochPublisher.restored(self.order, last.record, times)
        seq = await write(FrontierEntry(publisher.record(), 0, producer, up_to, last.producer))
        # Data stored before the new frontier record still belongs to the predecessor, so add its times to the frontier.
        later: set[T] = set()
        await self._scan_to(seq, reading, up_to, later)
        if later:
            publisher = EpochPublisher.restored(self.order, last.record, times | later)
        return Taken(publisher, producer, seq)

    async def _scan_to(self, end: int, reading: EpochReading[T], since: int, times: set[T]) -> None:
        """Add to ``times`` the times of the data between ``since`` and the record at ``end``.

        Raises `ProtocolError` if the record at ``end``, which was stored, cannot be read.
        """
        async for record in self.records(since, end):
            since = record.seq
            if since < end:
                self._note(reading, record, times)
        if since < end:
            raise ProtocolError(f"frontier record {end} of topic {self.topic!r} is gone")

    @staticmethod
    def _note(reading: EpochReading[T], record: Record, times: set[T]) -> None:
        if reading.entry_of(record) is None and (time := reading.time_of(record)) is not None:
            times.add(time)

    # --- data that was stored before -------------------------------------------------------------------------

    async def counting(self, partition: int, *, first: int, last: int, ours: tuple[str, int]) -> set[int]:
        """Return the sequences of the partition's data that counts, from ``first`` to ``last``, both included.

        Data counts if its producer owned the partition when it was stored. If the owner is unknown, the next frontier
        record names it. ``ours`` is the token of this producer and the sequence of its first record, from which it
        owns the partition.
        """
        data, frontier = data_subject(self.topic, partition), frontier_subject(self.topic, partition)
        counting_seqs: set[int] = set()
        earlier: list[tuple[int, str]] = []  # data with its producer, while the partition's owner is unknown
        producer, taken_at = ours
        owner, since, end = producer if first > taken_at else "", first - 1, max(last, taken_at)
        while since < end and not (since >= last and owner):
            page = await self.page(since, end)
            if not page.records:
                break
            for record in page.records:
                since = record.seq
                if record.subject == frontier and (entry := self._entry(record)) is not None:
                    counting_seqs.update(seq for seq, by in earlier if by == (entry.before or entry.producer))
                    earlier.clear()
                    owner = entry.producer
                elif record.subject == data and since <= last:
                    by = record.headers.get(PRODUCER, "")
                    if not owner:
                        earlier.append((since, by))
                    elif by == owner:
                        counting_seqs.add(since)
        return counting_seqs

    # --- the start of a subscriber ---------------------------------------------------------------------------

    async def snapshots(self, partitions: Sequence[int], start: EpochStart, *, wait: bool) -> Join[T]:
        """Return the snapshots of a new subscriber: the last or the first stored frontier record of each partition.

        Each snapshot is read from the leader of the stream. The snapshots need not be from the same moment, because
        messages of a partition before its own snapshot are skipped. Reading starts after the oldest snapshot.

        Args:
            partitions: The numbers of the partitions.
            start: ``"now"`` for the last records, or ``"first"`` for the first.
            wait: Whether to wait until all partitions exist.

        Raises:
            TopicNotFoundError: Some partitions don't exist, and ``wait`` is false.
            PositionInvalidError: The stream ends before a snapshot.

        May also raise any request error. If ``wait`` is true, transient errors are retried.
        """
        pauses, read = Wait(self.log.emit, self.topic), partial(self._read_entries, partitions, start)
        while True:
            entries, extent = await (self._retried(read) if wait else read())
            # A snapshot is usable only if all records after its sequence are still stored.
            missing = [
                partition
                for partition in partitions
                if partition not in entries or entries[partition].up_to + 1 < extent.first_seq
            ]
            if not missing:
                position = extent.end.at(min(entry.up_to for entry in entries.values()))
                if position.seq > extent.last_seq:
                    await self._retried(partial(check_position, self.log, position))
                return Join(entries, position)
            error = TopicNotFoundError(self.topic, missing)
            if not wait:
                raise error
            await pauses.again(error, missing)

    async def _read_entries(
        self, partitions: Sequence[int], start: EpochStart
    ) -> tuple[dict[int, FrontierEntry[T]], Extent]:
        if start == "first":
            return await self._first_entries(partitions), await self.log.extent()
        frontiers = await asyncio.gather(*map(self.last_frontier, partitions))
        entries = {
            partition: last.entry
            for partition, last in zip(partitions, frontiers, strict=True)
            if last.entry is not None
        }
        return entries, await self.log.extent()

    async def _first_entries(self, partitions: Sequence[int]) -> dict[int, FrontierEntry[T]]:
        """Return the first frontier record of each partition after which no message was removed."""
        start = (await self.log.extent()).start.seq  # 0 for a stream that never had a message
        requested = {frontier_subject(self.topic, partition): partition for partition in partitions}
        entries: dict[int, FrontierEntry[T]] = {}
        since, more = start, True
        while more and len(entries) < len(partitions):
            page = await self.log.history(since, _PAGE, _PAGE_BYTES)
            for record in page.records:
                since, partition = record.seq, requested.get(record.subject)
                if partition is not None and partition not in entries:
                    try:
                        entry = FrontierEntry.from_record(record, self.order)
                    except ProtocolError as error:
                        self.report_skipped(record, error)
                        continue
                    if entry.up_to >= start:
                        entries[partition] = entry
            more = page.more
        return entries

    async def at(self, partitions: Sequence[int], position: EpochPosition[T]) -> Join[T]:
        """Return the snapshots with which a subscriber continues from a saved position.

        Raises:
            PositionInvalidError: The position belongs to another stream, or to an earlier stream with the same name.
            EpochsLostError: Records that are still needed were removed.
            ConfigError: The position belongs to other partitions.

        May also raise any request error.
        """
        if {partition for partition, _ in position.records} != {*partitions}:
            raise ConfigError(
                f"the position is of a subscriber of partitions {[p for p, _ in position.records]}, "
                f"not {[*partitions]}"
            )
        where = Position(position.stream, position.incarnation, position.since)
        await self._retried(partial(check_position, self.log, where))
        entries = {}
        for partition, seq in position.records:
            page = await self.page(max(seq, 1) - 1, seq, 1)
            if not page.records or page.records[0].seq != seq:
                raise EpochsLostError((), f"frontier record {seq} of partition {partition} was removed")
            entries[partition] = FrontierEntry.from_record(page.records[0], self.order)
        # Each entry covers the records of its partition up to `up_to`. Records up to the least `up_to` aren't needed,
        # so start after them if that is later than the saved position.
        first = min((entry.up_to for entry in entries.values()), default=0)
        return Join(entries, where.at(max(position.since, first)))
