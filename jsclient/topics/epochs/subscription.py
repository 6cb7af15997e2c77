"""A subscriber of some partitions of a topic, which receives an epoch completely or not at all."""

from __future__ import annotations

import asyncio
import time as clock
from collections import deque
from collections.abc import AsyncIterator, Hashable
from dataclasses import replace
from typing import Any, TypeVar

from ..._runtime.handle import State
from ...errors import (
    EpochsLostError,
    HistoryTruncatedError,
    ProtocolError,
    RequestTimeoutError,
)
from ...protocol.epochs.records import EpochPosition, EpochReading
from ...protocol.epochs.trackers import Epoch, FrontierUpdate
from ...protocol.topics.position import Position
from ...protocol.topics.record import Record
from ...protocol.topics.value_codec import Codec
from ..log_reader import LogReader
from .events import EpochEvents, Filter
from .history import EpochHistory, EpochStart, Join

__all__ = ["EpochSubscription"]

T = TypeVar("T", bound=Hashable)

_AT_ONCE = 500  # records taken from the reader at once


class EpochSubscription(EpochEvents[T]):
    """Reads the epochs of a topic from its partitions. Created by `EpochTopic.subscribe`.

    Read whole epochs with `completed`, which is what most applications need::

        async for epoch in subscription.completed():
            await store(epoch.time, epoch.items)
            save(subscription.position.to_json())

    To process data before its epoch is complete, iterate over the subscription or call `next`. Both return individual
    `Data` and `FrontierUpdate` events. The time of every later `Data` event is at or after an element of `frontier`.

    With the default ``filter``, "atomic", an epoch is skipped if some of its data was sent before the subscription
    started. Iteration ends when all partitions have ended. If a read is cancelled, no event is lost.

    If records were removed from the stream before they were read, the next read raises `EpochsLostError` once. Part of
    the data of the epochs named in the error is lost, so discard what you have received of these epochs. Reading then
    continues with later epochs.
    """

    def __init__(
        self,
        history: EpochHistory[T],
        partitions: tuple[int, ...],
        codec: Codec,
        *,
        filter: Filter = "atomic",
        resume: EpochPosition[T] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(history.topic, history.order, partitions, codec, filter)
        self._history = history
        self._options = options or {}
        self._resume = resume
        self._reading: EpochReading[T] = EpochReading(self._order, self._topic, partitions, self._skip)
        self._skipped = 0
        self._reader: LogReader | None = None
        self._where: Position
        self._records: deque[Record] = deque()
        self._lost_at: EpochPosition[T] | None = None  # where records were lost, until new snapshots are read
        self._moved_ns = 0

    @property
    def frontier_age(self) -> float:
        """How long ago the frontier last moved, in seconds, or 0 if no movement is known yet.

        The value grows while a publisher is gone or doesn't advance, so you can use it for monitoring. An alert must
        treat 0 as unknown. The value is computed from the clocks of the server and of this machine, which should
        therefore be synchronized.
        """
        return max(0.0, (clock.time_ns() - self._moved_ns) / 1e9) if self._moved_ns else 0.0

    @property
    def position(self) -> EpochPosition[T]:
        """The position from which a new subscription can continue, in this or a different process.

        The new subscription returns all data of the epochs that are still open, including data that this subscription
        has already returned. Store the position as ``position.to_json()``, and read it with `EpochPosition.from_json`.
        """
        if self._lost_at is not None:
            return self._lost_at
        where = self._where
        return replace(self._core.position, stream=where.stream, incarnation=where.incarnation)

    @property
    def refused(self) -> int:
        """The number of data messages skipped because they name no publisher, or one that had already been replaced.

        It is counted since the subscription was opened. No event reports these messages.
        """
        return self._reading.refused

    @property
    def skipped(self) -> int:
        """The number of invalid records skipped since the opening. The event `RecordSkipped` reports them."""
        return self._skipped

    async def begin_reading(self, start: EpochStart = "now", *, wait: bool) -> None:
        """Find out where to start, and start reading. For internal use. `EpochTopic.subscribe` calls this method.

        Raises the errors that `EpochTopic.subscribe` describes.
        """
        history, partitions = self._history, self._partitions
        if self._resume is None:
            self._start(await history.snapshots(partitions, start, wait=wait))
            return
        try:
            join = await history.at(partitions, self._resume)
        except EpochsLostError as error:
            self._error = error
            self._start(await history.snapshots(partitions, "now", wait=wait))
        else:
            self._core.resumed = self._resume
            self._start(join)
        self._resume = None

    def _start(self, join: Join[T]) -> None:
        entries, start = join
        self._where, self._lost_at = start, None
        self._reading.owners = {partition: entry.owner_at(start.seq) for partition, entry in entries.items()}
        self._reading.joined = {partition: entry.up_to for partition, entry in entries.items()}
        for partition, entry in entries.items():
            self._events.extend(
                self._core.receive_message(partition, entry.record.snapshot, entry.seq, as_of=entry.up_to)
            )
            self._moved_ns = max(self._moved_ns, entry.time_ns)
        if not self._core.is_over:
            self._reader = LogReader(self._history.log, start, **self._options)
            self._reader.begin()

    async def _more(self, deadline: float | None, timeout: float) -> None:
        if self._lost_at is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.begin_reading(wait=True)
            except TimeoutError:
                why = self._history.log.problem
                raise RequestTimeoutError("new snapshots of a topic", timeout, why) from None
        elif self._records or await self._fill(deadline, timeout):
            self._handle_record(self._records.popleft())

    async def _fill(self, deadline: float | None, timeout: float) -> bool:
        """Wait for records. Return False if records were removed before they were read."""
        reader = self._reader
        assert reader is not None
        try:
            self._records.extend(reader.take(_AT_ONCE))
            if not self._records:
                remaining = None if deadline is None else deadline - asyncio.get_running_loop().time()
                self._records.append(await reader.next(remaining))
        except HistoryTruncatedError as error:
            lost_at, self._reader = self.position, None
            self._error = self._core.messages_lost(str(error))
            self._lost_at = lost_at
            await reader.close()
            return False
        except RequestTimeoutError as error:
            raise RequestTimeoutError("the next event of a topic", timeout, error.why) from None
        return True

    def _handle_record(self, record: Record) -> None:
        """Handle a record. Its events are returned before the next record is handled, so `position` matches them."""
        message = self._reading.message(record, self._core.lower_of)
        if message is None:
            return
        try:
            events = self._core.receive_message(*message, record.seq)
        except ProtocolError as error:
            self._skip(record, error)
            return
        self._events.extend(events)
        while self._core.invalid:
            seq, reason = self._core.invalid.pop()
            self._skip(Record(seq=seq, subject=record.subject, data=b""), reason)
        if events and isinstance(events[-1], FrontierUpdate):
            self._moved_ns = record.time_ns

    def _skip(self, record: Record, error: ProtocolError) -> None:
        self._skipped += 1
        self._history.report_skipped(record, error, self._skipped)

    def _owners(self) -> dict[int, str]:
        return self._reading.owners

    async def _read_again(self, epoch: Epoch[T], owners: dict[int, str]) -> AsyncIterator[Any]:
        """Read the items of an epoch again. ``owners`` are the owners of the partitions at its first message."""
        reading: EpochReading[T] = EpochReading(self._order, self._topic, self._partitions)
        reading.owners = owners
        first, last, remaining = epoch.first_seq, epoch.last_seq, epoch.count
        async for record in self._history.records(first - 1, last, _AT_ONCE):
            if record.seq > last or (remaining == epoch.count and record.seq > first):
                break
            if reading.entry_of(record) is None and reading.time_of(record) == epoch.time:
                remaining -= 1
                yield self._codec.decode(record.data)
        if remaining > 0:
            raise EpochsLostError(
                (epoch.time,), f"messages of {first} to {last} were removed before it was read again"
            )

    async def close(self) -> None:
        """Stop reading. You can still use `position` to resume later. Closing the subscription again has no effect."""
        self._state = State.CLOSED
        if self._reader is not None:
            await self._reader.close()
