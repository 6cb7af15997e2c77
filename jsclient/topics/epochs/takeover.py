"""Taking over a partition: the state of its last producer, and the record that replaces it."""

from __future__ import annotations

import secrets
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from ...errors import (
    HistoryTruncatedError,
    ProducerFencedError,
    ProtocolError,
    WrongLastSequenceError,
)
from ...protocol.epochs.capabilities import Capabilities
from ...protocol.epochs.frontier import Order
from ...protocol.epochs.records import EpochReading, FrontierEntry, frontier_subject
from ...protocol.epochs.trackers import EpochPublisher
from ..log import Log
from .outlet import Outlet
from .paging import last_frontier, page_up_to

__all__ = ["Taken", "take_partition"]

T = TypeVar("T", bound=Hashable)

_RACES: Final = 10  # attempts, as other producers may be faster
_PAGE, _PAGE_BYTES = 5000, 8 * 1024 * 1024


class Taken(NamedTuple, Generic[T]):
    """A partition taken over.

    Attributes:
        publisher: The state of the partition.
        producer: The token of the new producer.
        seq: The sequence of its first record.
    """

    publisher: EpochPublisher[T]
    producer: str
    seq: int


async def take_partition(
    log: Log, outlet: Outlet, order: Order[T], topic: str, partition: int, *, start: T | None
) -> Taken[T]:
    """Continue from the state of the last producer of a partition, or start it. The last producer is fenced.

    Args:
        start: The least time of a new partition; by default that of the order.

    Raises:
        ProducerFencedError: Other producers keep taking it.
        HistoryTruncatedError: It has no frontier record, and one may have been removed: give ``start``.
        ConfigError: ``start`` is not a valid time. And those of any request.
    """
    taking = _Taking(log, outlet, order, topic, partition)
    for _ in range(_RACES):
        try:
            return await taking.take(start)
        except WrongLastSequenceError:
            pass  # another producer took it meanwhile
    raise ProducerFencedError(frontier_subject(topic, partition))


class _Taking(Generic[T]):
    def __init__(self, log: Log, outlet: Outlet, order: Order[T], topic: str, partition: int) -> None:
        self.log, self.outlet, self.order, self.topic, self.partition = log, outlet, order, topic, partition
        self.subject = frontier_subject(topic, partition)
        self.producer = secrets.token_hex(8)

    async def take(self, start: T | None) -> Taken[T]:
        last, _, last_seq = await last_frontier(self.log, self.order, self.subject)
        if last is None:
            return await self._begin(start, last_seq)
        reading: EpochReading[T] = EpochReading(self.order, self.topic, [self.partition])
        reading.owners = {self.partition: last.owner_at(last.up_to)}
        times: set[T] = set()
        if last.up_to < last.seq:
            await self._scan(reading, last.up_to, times, until=last.seq)
            reading.owners = {self.partition: last.producer}
        up_to = await self._scan(reading, last.seq, times)
        publisher = EpochPublisher.restored(self.order, last.record, times)
        entry = FrontierEntry(publisher.record(), 0, self.producer, up_to, last.producer)
        seq = await self._write(entry, last_seq)
        # Data stored meanwhile is the predecessor's and counts.
        more: set[T] = set()
        await self._scan(reading, entry.up_to, more, until=seq)
        if more:
            publisher = EpochPublisher.restored(self.order, last.record, times | more)
        return Taken(publisher, self.producer, seq)

    async def _begin(self, start: T | None, last_seq: int) -> Taken[T]:
        extent = await self.log.extent()
        if start is None and extent.first_seq > 1:
            raise HistoryTruncatedError(extent.first_seq, 1, self.log.stream)
        publisher = EpochPublisher(self.order)
        if start is not None:
            self.order.encode(start)
            publisher.capabilities = Capabilities(self.order, [start])
        record = publisher.first_record()
        seq = await self._write(FrontierEntry(record, 0, self.producer, 0), last_seq)
        return Taken(publisher, self.producer, seq)

    async def _write(self, entry: FrontierEntry[T], expected: int) -> int:
        msg_id = f"{self.topic}.{self.partition}/{self.producer}/f{expected}"
        return await self.outlet.record(entry.record.to_json(self.order), entry.headers, expected, msg_id)

    async def _scan(
        self, reading: EpochReading[T], since: int, times: set[T], *, until: int | None = None
    ) -> int:
        """Collect the times of data after a sequence. Returns the sequence up to which everything was read.

        ``until``: a stored record to stop at; a replica may not have it yet.
        """
        while until is None or since < until:
            if until is None:
                page = await self.log.history(since, _PAGE, _PAGE_BYTES)
            else:
                page = await page_up_to(self.log, since, until)
                if not page.records:
                    raise ProtocolError(f"frontier record {until} of {self.subject!r} is gone")
            for record in page.records:
                if until is not None and record.seq >= until:
                    return until
                since = record.seq
                if reading.entry_of(record) is None and (time := reading.time_of(record)) is not None:
                    times.add(time)
            if until is None and not page.more:
                return since
        return since
