"""The state of an epoch publisher, and the filter of a subscriber that receives each epoch completely or not at all.

An epoch is all data of one time. It is *latent* until some of its data was sent, then *active*, and *completed* when
its publisher has no more capability that allows it. A subscriber that starts in the middle can receive all of an
epoch only if the epoch was latent in every partition at that time. It starts with a snapshot of each partition's
frontiers, and drops data at or before an element of one of the upper frontiers.

Four rules are needed for that, and a model check shows that each of them is
(``tests/protocol/epochs/test_trackers_model.py``):

- data at or before *some* element of the filter is dropped;
- an upper frontier has the greatest times *ever* sent, including completed times, since another partition may lag;
- an element is removed from the filter when it is completed in *all* partitions, as the merged lower frontier shows;
- a time is completed if no element of the lower frontier is at or before it, which also holds for an empty frontier.

Source: Strymon's publish-subscribe protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from ...errors import EpochsLostError, ProtocolError
from .frontier import Antichain, Capabilities, Changes, MutableAntichain, Order, in_order
from .records import (
    Data,
    DataMessage,
    EpochPosition,
    FrontierRecord,
    FrontierUpdate,
    InitialFrontierSnapshot,
    LowerFrontierUpdate,
    Message,
    SubscriberEvent,
)

__all__ = [
    "Data",
    "Epoch",
    "EpochBuffer",
    "EpochPublisher",
    "EpochState",
    "EpochSubscriber",
    "FrontierUpdate",
    "SubscriberEvent",
]

T = TypeVar("T", bound=Hashable)


class EpochState(enum.Enum):
    """The progress of an epoch in one partition. Returned by `PartitionPublisher.state`.

    * ``LATENT``: No data of the epoch has been sent yet.
    * ``ACTIVE``: Some data of the epoch has been sent, or may have been sent by an earlier publisher of the partition.
    * ``COMPLETED``: The publisher can't send any more data of the epoch, even if it has never sent any.
    """

    LATENT = "latent"
    ACTIVE = "active"
    COMPLETED = "completed"


class EpochPublisher(Generic[T]):
    """The state of one partition, and the frontier records to write.

    Data sent before a frontier record must be stored before it, and data sent after it must be stored after it.
    Either wait for messages in flight before and after the record, or send so that the server preserves the order.
    Otherwise a subscriber that starts at that record misses data that its filter does not include.
    """

    __slots__ = ("_active", "_restored", "capabilities", "order", "upper")

    def __init__(self, order: Order[T]) -> None:
        self.order: Order[T] = order
        self.capabilities: Capabilities[T] = Capabilities(order)
        self.upper: Antichain[T] = Antichain(order)
        # Times for which this publisher has sent data, but which it hasn't completed yet.
        self._active: set[T] = set()
        self._restored = Antichain(order)  # the upper frontier at the restart

    @classmethod
    def restored(cls, order: Order[T], last: FrontierRecord[T], sent_after: Iterable[T]) -> EpochPublisher[T]:
        """Restore the state from the last frontier record and the times of all data after it."""
        publisher = cls(order)
        publisher.capabilities = Capabilities(order, last.lower)
        publisher.upper = publisher._restored = Antichain.maximal(order, (*last.upper, *sent_after))
        return publisher

    @property
    def lower(self) -> Antichain[T]:
        """The lower frontier."""
        return self.capabilities.frontier

    @property
    def snapshot(self) -> InitialFrontierSnapshot[T]:
        """The first message of a new subscriber."""
        return InitialFrontierSnapshot(self.lower.elements, self.upper.elements)

    def record(self) -> FrontierRecord[T]:
        """Return a record without changes, with which a producer starts."""
        return self._record(())

    def first_record(self) -> FrontierRecord[T]:
        """Return the first record of a new partition, which creates the partition."""
        return self._record([(time, 1) for time in self.lower])

    def state(self, time: T) -> EpochState:
        """Return the state of an epoch. After a restart, data that may have been sent before counts as sent."""
        if not self.capabilities.allows(time):
            return EpochState.COMPLETED
        if time in self._active or self._restored.some_above(time):
            return EpochState.ACTIVE
        return EpochState.LATENT

    def send(self, time: T) -> None:
        """Check and record that data of this time is about to be sent.

        If `Capabilities.check_time` raises an error, the data must not be sent.
        """
        self.capabilities.check_time(time)
        self.record_sent(time)

    def record_sent(self, time: T) -> None:
        """Record that data of this time is about to be sent, after a check that it is allowed."""
        if time not in self._active:  # the upper frontier already includes an active time
            self.upper = self.upper.with_maximal(time)
            self._active.add(time)

    def update(self, changes: Changes[T]) -> FrontierRecord[T] | None:
        """Drop and add capabilities. Return the record to write, or None if the frontier is the same.

        If `Capabilities.update` raises an error, the state has not changed.
        """
        return self._changed(self.capabilities.update(changes))

    def advance(self, to: T) -> FrontierRecord[T] | None:
        """Complete the times before ``to``. See `Capabilities.advance`."""
        return self._changed(self.capabilities.advance(to))

    def close(self) -> FrontierRecord[T] | None:
        """Complete all epochs."""
        return self._changed(self.capabilities.close())

    def _changed(self, visible: Changes[T]) -> FrontierRecord[T] | None:
        if not visible:
            return None
        self._active = {time for time in self._active if self.capabilities.allows(time)}
        return self._record(visible)

    def _record(self, updates: Changes[T]) -> FrontierRecord[T]:
        return FrontierRecord(tuple(updates), self.lower.elements, self.upper.elements)


@dataclass(slots=True)
class EpochSubscriber(Generic[T]):
    """Reads some partitions of a topic, and returns the data of epochs that it can receive in full.

    Attributes:
        partitions: The partitions to read. The subscriber waits for the snapshots of all of them.
        atomic: Whether to drop epochs that cannot be received in full.
        coarser: Further times to drop, together with all times before them.
        max_held: Maximum number of messages that wait for the last snapshot.
        resumed: The position of an earlier subscriber of the same partitions, to continue from.
        hold: If true, `position` treats each completed epoch as not consumed until `release` is called for it.
        filter: Times at or before any element are dropped.
        invalid: The sequences and errors of invalid messages that had waited for the last snapshot. The caller
            removes them.
    """

    order: Order[T]
    partitions: frozenset[Hashable]
    atomic: bool = True
    coarser: tuple[T, ...] = ()
    max_held: int = 10_000
    resumed: EpochPosition[T] | None = None
    hold: bool = False
    filter: Antichain[T] = field(init=False)
    invalid: list[tuple[int, ProtocolError]] = field(default_factory=list)
    # Epochs at or before one of these times may lack data that was sent before the snapshots.
    _missed: Antichain[T] = field(init=False)
    _waiting: set[Hashable] = field(init=False)  # partitions whose snapshot has not arrived
    _joined: dict[Hashable, int] = field(default_factory=dict)  # the sequence that each snapshot describes
    _lower: dict[Hashable, MutableAntichain[T]] = field(default_factory=dict)
    _merged: MutableAntichain[T] = field(init=False)
    _held: list[tuple[Hashable, Message[T], int]] = field(default_factory=list)
    # The sequence of the last frontier record of each partition. The dict is replaced, never modified.
    _frontier_seqs: dict[Hashable, int] = field(default_factory=dict)
    # For each epoch not consumed yet: the sequence of its first data message, and the value of `_frontier_seqs` when
    # that message arrived.
    _unconsumed: dict[T, tuple[int, dict[Hashable, int]]] = field(default_factory=dict)
    _read: int = 0  # all messages up to this sequence have been received
    # Frontiers from earlier subscribers. The epochs that these frontiers complete were consumed by those subscribers,
    # so this subscriber drops the data of these epochs.
    _done: list[Antichain[T]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._waiting = set(self.partitions)
        self.filter = self._missed = Antichain(self.order)
        self._merged = MutableAntichain(self.order)
        self._joined, self._lower, self._held, self._unconsumed, self._frontier_seqs = {}, {}, [], {}, {}

    # --- state --------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether all snapshots have arrived."""
        return not self._waiting

    @property
    def frontier(self) -> Antichain[T]:
        """The merged lower frontier. Further data of any partition is at or after one of its elements."""
        return self._merged.frontier

    @property
    def is_over(self) -> bool:
        """Whether every partition has completed all its epochs."""
        return self.is_ready and not self.frontier

    def is_completed(self, time: T) -> bool:
        """Return whether every partition has completed this time."""
        return self.is_ready and not self.frontier.some_below(time)

    def passes(self, time: T) -> bool:
        """Return whether the subscriber returns data of this time. It drops other data."""
        return not self.filter.some_above(time) and all(done.some_below(time) for done in self._done)

    @property
    def position(self) -> EpochPosition[T]:
        """The position of this subscriber. Its partitions must be in one stream, and all snapshots have arrived."""
        newest = self._read + 1, self._frontier_seqs
        first, seqs = min(self._unconsumed.values(), key=itemgetter(0), default=newest)
        # For a subscriber that resumes at this position, an epoch counts as consumed unless it is at or after one of
        # these times. So add the times of completed epochs that haven't been consumed yet.
        held = [time for time in self._unconsumed if self.is_completed(time)] if self.hold else []
        consumed = (Antichain.minimal(self.order, (*self.frontier, *held)), *self._done)
        records: Any = tuple(sorted(seqs.items()))
        frontiers = tuple(frontier.elements for frontier in consumed)
        return EpochPosition(self.order, first - 1, self._missed.elements, frontiers, records)

    def release(self, time: T) -> None:
        """Mark a completed epoch as consumed. Call it for an epoch only after all epochs before it."""
        self._unconsumed.pop(time, None)

    def lower_of(self, partition: Hashable) -> Antichain[T]:
        """Return the lower frontier of a partition whose snapshot has arrived."""
        return self._lower[partition].frontier

    # --- messages -----------------------------------------------------------------------------------------------

    def receive_message(
        self, partition: Hashable, message: Message[T], seq: int = 0, *, as_of: int | None = None
    ) -> list[SubscriberEvent[T]]:
        """Process the next message of a partition. ``seq`` is its sequence, 0 if it is not stored.

        Messages before the partition's snapshot are skipped. If the snapshot describes an earlier sequence ``as_of``,
        only messages up to that sequence are skipped. Data that is dropped is never decoded.

        Raises:
            ProtocolError: The first message is not a snapshot, a later message is a snapshot, or the message has data
                or a capability for a completed time. The message has no effect.
            EpochsLostError: Too many messages arrived before the last snapshot. The subscriber waits for all snapshots
                again.
        """
        if isinstance(message, InitialFrontierSnapshot):
            return self._snapshot(partition, message, seq, seq if as_of is None else as_of)
        if partition not in self._lower:
            raise ProtocolError(f"the first message of partition {partition!r} is not a snapshot")
        if seq and seq <= self._joined[partition]:
            self._read = max(self._read, seq)
            return []
        if self._waiting:
            if len(self._held) >= self.max_held:
                raise self.messages_lost("too much came before the snapshots of all partitions")
            self._held.append((partition, message, seq))
            return []
        return self._message(partition, message, seq)

    def _snapshot(
        self, partition: Hashable, snapshot: InitialFrontierSnapshot[T], seq: int, as_of: int
    ) -> list[SubscriberEvent[T]]:
        if partition not in self._waiting:
            reason = "came before" if partition in self.partitions else "is of none of ours"
            raise ProtocolError(f"the snapshot of partition {partition!r} {reason}")
        self._waiting.discard(partition)
        self._joined[partition] = as_of
        self._frontier_seqs = {**self._frontier_seqs, partition: seq}
        self._lower[partition] = MutableAntichain.of(self.order, snapshot.lower)
        self._merged.update((time, 1) for time in self._lower[partition].frontier)
        self._missed = self._missed.with_maximal(*snapshot.upper)
        if self._waiting:
            return []
        # All snapshots have arrived. If this subscriber resumes, use what its saved position says instead: up to where
        # messages were received, which epochs may lack data, and which epochs were consumed.
        self._read = min(self._joined.values())
        if self.resumed is not None:
            self._read = self.resumed.since
            self._missed = Antichain.maximal(self.order, self.resumed.missed)
            self._done = [Antichain.minimal(self.order, frontier) for frontier in self.resumed.frontiers]
            self.resumed = None
        self.filter = self._missed if self.atomic else Antichain(self.order)
        self.filter = self.filter.with_maximal(*self.coarser)
        self._shrink_filter()
        frontier = self.frontier.elements
        events: list[SubscriberEvent[T]] = [FrontierUpdate(tuple((time, 1) for time in frontier), frontier)]
        held, self._held = self._held, []
        for message in held:
            try:
                events += self._message(*message)
            except ProtocolError as error:
                self.invalid.append((message[2], error))
        return events

    def _message(self, partition: Hashable, message: Message[T], seq: int) -> list[SubscriberEvent[T]]:
        self._read = max(self._read, seq)
        if isinstance(message, DataMessage):
            return self._data(partition, message, seq)
        assert isinstance(message, LowerFrontierUpdate)
        events = self._update(partition, message.updates)
        self._frontier_seqs = {**self._frontier_seqs, partition: seq}
        return events

    def _data(self, partition: Hashable, message: DataMessage[T], seq: int) -> list[SubscriberEvent[T]]:
        time = message.time
        if not self._lower[partition].frontier.some_below(time):
            raise ProtocolError(f"partition {partition!r} sent data of {time!r}, which it had completed")
        if not self.passes(time):
            return []
        whole = not self._missed.some_above(time)
        if time not in self._unconsumed and (whole or not self.hold):
            self._unconsumed[time] = (seq, self._frontier_seqs)
        return [Data(time, message.data, partition, seq, whole)]

    def _update(self, partition: Hashable, updates: Changes[T]) -> list[SubscriberEvent[T]]:
        own = self._lower[partition]
        for time, change in updates:
            if change > 0 and not own.frontier.some_below(time):
                raise ProtocolError(f"partition {partition!r} goes back to {time!r}, which it had completed")
        visible = self._merged.update(own.update(updates))
        self._shrink_filter()
        if not visible:
            return []
        if not self.hold:
            self._unconsumed = {
                time: start for time, start in self._unconsumed.items() if not self.is_completed(time)
            }
        return [FrontierUpdate(tuple(visible), self.frontier.elements)]

    def _shrink_filter(self) -> None:
        """Remove elements that all partitions have completed, because no data at or before them can arrive."""
        if self._done:
            self._done = [done for done in self._done if not all(map(done.some_below, self.frontier))]
        if any(self.is_completed(time) for time in self.filter):
            self.filter = Antichain(
                self.order, tuple(time for time in self.filter if not self.is_completed(time))
            )

    def messages_lost(self, reason: str) -> EpochsLostError:
        """Return the error to raise for missing messages, and wait for new snapshots of all partitions."""
        error = EpochsLostError(in_order(self.order, self._unconsumed), reason)
        self._begin()
        self.resumed, self._done = None, []
        return error


class Epoch(msgspec.Struct, Generic[T], frozen=True):
    """All data of one time, from all partitions.

    Attributes:
        batches: The items of each message, in order. None if the epoch was too large for the buffer, so that it has
            to be read again.
        first_seq, last_seq: The sequences of its first and last message, or 0 if they are not stored.
        count: The number of its messages.
    """

    time: T
    batches: tuple[Any, ...] | None
    first_seq: int
    last_seq: int
    count: int


@dataclass(slots=True)
class _Open:
    """An epoch that is not completed."""

    first_seq: int
    last_seq: int
    count: int = 0
    batches: list[Any] | None = field(default_factory=list)
    bytes: int = 0


@dataclass(slots=True)
class EpochBuffer(Generic[T]):
    """Buffers the data of open epochs, up to ``max_bytes``. Beyond that, it drops the data of the largest epoch.

    The sequences of the first and last message of such an epoch remain.
    """

    order: Order[T]
    max_bytes: int = 256 * 1024 * 1024
    retained_bytes: int = 0
    _open: dict[T, _Open] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of open epochs."""
        return len(self._open)

    def add_data(self, data: Data[T], size: int) -> None:
        """Add data of ``size`` bytes, unless a part of its epoch was missed."""
        if not data.whole:
            return
        epoch = self._open.get(data.time)
        if epoch is None:
            epoch = self._open[data.time] = _Open(data.seq, data.seq)
        epoch.first_seq = min(epoch.first_seq, data.seq)
        epoch.last_seq = max(epoch.last_seq, data.seq)
        epoch.count += 1
        if epoch.batches is not None:
            epoch.batches.append(data.items)
            epoch.bytes += size
            self.retained_bytes += size
        while self.retained_bytes > self.max_bytes:
            largest = max(self._open.values(), key=_bytes_of)
            self.retained_bytes -= largest.bytes
            largest.batches, largest.bytes = None, 0

    def completed(self, frontier: Antichain[T]) -> list[Epoch[T]]:
        """Take the epochs that are completed according to a subscriber's frontier, each after the epochs before it."""
        times = in_order(self.order, (time for time in self._open if not frontier.some_below(time)))
        epochs = []
        for time in times:
            epoch = self._open.pop(time)
            self.retained_bytes -= epoch.bytes
            batches = None if epoch.batches is None else tuple(epoch.batches)
            epochs.append(Epoch(time, batches, epoch.first_seq, epoch.last_seq, epoch.count))
        return epochs

    def drop_data(self) -> None:
        """Drop all data. See `EpochSubscriber.messages_lost`."""
        self._open.clear()
        self.retained_bytes = 0


def _bytes_of(epoch: _Open) -> int:
    return epoch.bytes
