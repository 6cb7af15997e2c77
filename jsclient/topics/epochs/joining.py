"""The start of a subscriber: the last frontier record of each partition, or those of a saved position."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from functools import partial
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from ...errors import ConfigError, EpochsLostError, ProtocolError, TopicNotFoundError
from ...protocol.epochs.frontier import Order
from ...protocol.epochs.messages import EpochPosition
from ...protocol.epochs.records import FrontierEntry, frontier_subject
from ...protocol.topics.position import Extent, Position
from ..log import Log, check_position
from .paging import last_frontier, page_up_to, patiently, report_skipped

__all__ = ["Join", "Joining", "Start"]

T = TypeVar("T", bound=Hashable)

Start: TypeAlias = Literal["now", "first"]
"""The start of a subscriber: the epochs that are latent now, or the oldest stored ones."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between two requests
_PAGE, _PAGE_BYTES = 5000, 8 * 1024 * 1024


class Join(NamedTuple, Generic[T]):
    """The snapshots to start with, and the position to read after."""

    entries: dict[int, FrontierEntry[T]]
    start: Position


class Joining(Generic[T]):
    """Finds the start of a subscriber.

    Each snapshot is read from the stream's leader. They need not be of one instant: messages of a partition before its
    own snapshot are skipped. Reading starts after the oldest of them.
    """

    def __init__(self, log: Log, order: Order[T], topic: str, partitions: tuple[int, ...]) -> None:
        self._log, self._order, self._topic, self._partitions = log, order, topic, partitions

    async def snapshots(self, start: Start, *, wait: bool) -> Join[T]:
        """Start with the last frontier record of each partition, or with its first stored one.

        Args:
            start: "now" or "first".
            wait: Wait until all partitions exist.

        Raises:
            TopicNotFoundError: Some do not exist. And those of any request; with ``wait`` not the transient ones.
        """
        pause = _FIRST_PAUSE
        while True:
            look = partial(self._look, self._last_records if start == "now" else self._first_records)
            entries, extent = await (patiently(self._log, look) if wait else look())
            # The records after a snapshot's sequence must still be stored.
            missing = [
                partition
                for partition in self._partitions
                if partition not in entries or entries[partition].up_to + 1 < extent.first_seq
            ]
            if not missing:
                return Join(entries, await self._start(entries, extent))
            if not wait:
                raise TopicNotFoundError(self._topic, missing)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _look(
        self, records: Callable[[], Awaitable[dict[int, FrontierEntry[T]]]]
    ) -> tuple[dict[int, FrontierEntry[T]], Extent]:
        return await records(), await self._log.extent()

    async def _first_records(self) -> dict[int, FrontierEntry[T]]:
        """The first record of each partition after which nothing was removed."""
        first = (await self._log.extent()).first_seq
        wanted = {frontier_subject(self._topic, partition): partition for partition in self._partitions}
        entries: dict[int, FrontierEntry[T]] = {}
        since, more = first - 1, True
        while more and len(entries) < len(self._partitions):
            page = await self._log.history(since, _PAGE, _PAGE_BYTES)
            for record in page.records:
                since, partition = record.seq, wanted.get(record.subject)
                if partition is not None and partition not in entries:
                    try:
                        entry = FrontierEntry.read(record, self._order)
                    except ProtocolError as error:
                        report_skipped(self._log, record, error)
                        continue
                    if entry.up_to + 1 >= first:
                        entries[partition] = entry
            more = page.more
        return entries

    async def _last_records(self) -> dict[int, FrontierEntry[T]]:
        found = await asyncio.gather(
            *(
                last_frontier(self._log, self._order, frontier_subject(self._topic, partition))
                for partition in self._partitions
            )
        )
        return {
            partition: last.entry
            for partition, last in zip(self._partitions, found, strict=True)
            if last.entry is not None
        }

    async def _start(self, entries: Mapping[int, FrontierEntry[T]], extent: Extent) -> Position:
        """The position after which the subscriber reads. Raises `PositionInvalidError` if the stream ends before it."""
        start = extent.end.at(min(entry.up_to for entry in entries.values()))
        if start.seq > extent.last_seq:
            await patiently(self._log, partial(check_position, self._log, start))
        return start

    async def at(self, position: EpochPosition[T]) -> Join[T]:
        """Start with the records of a saved position.

        Raises:
            PositionInvalidError: The place is of another stream, or of an earlier stream of that name.
            EpochsLostError: Records that it needs were removed. ConfigError: It is of other partitions. And those of
                any request.
        """
        if {partition for partition, _ in position.records} != {*self._partitions}:
            raise ConfigError(
                f"the position is of a subscriber of partitions {[p for p, _ in position.records]}, "
                f"not {[*self._partitions]}"
            )
        where = Position(position.stream, position.incarnation, position.since)
        await patiently(self._log, partial(check_position, self._log, where))
        entries = {}
        for partition, seq in position.records:
            page = await page_up_to(self._log, max(seq, 1) - 1, seq, limit=1)
            if not page.records or page.records[0].seq != seq:
                raise EpochsLostError((), f"frontier record {seq} of partition {partition} was removed")
            entries[partition] = FrontierEntry.read(page.records[0], self._order)
        # Reading starts at the later of both: everything after the first record of a partition is needed.
        first = min((entry.up_to for entry in entries.values()), default=0)
        return Join(entries, where.at(position.since) if position.since >= first else where.at(first))
