"""The publisher of one partition, which sends the data of epochs and completes the epochs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..._runtime.handle import Handle, State, body_error_first
from ...errors import (
    ClosedError,
    ConfigError,
    HistoryTruncatedError,
    JetStreamError,
    ProducerFencedError,
    PublishesFailedError,
    WrongLastSequenceError,
)
from ...protocol.epochs.frontier import Antichain, Changes
from ...protocol.epochs.records import (
    EPOCH,
    FrontierEntry,
    FrontierRecord,
    data_headers,
    frontier_subject,
)
from ...protocol.epochs.trackers import EpochState
from ...protocol.topics.value_codec import Codec
from .history import EpochHistory, Taken
from .home import Home, OutgoingRecord, Outlet
from .presence import Presence

__all__ = ["PartitionPublisher"]

T = TypeVar("T", bound=Hashable)


class PartitionPublisher(Handle, Generic[T]):
    """Sends data in epochs to one partition of a topic. Opened by `EpochTopic.publisher`.

    Send the data of an epoch with `send`, and complete the epoch by advancing to a later time::

        async with topic.publisher() as publisher:
            await publisher.send(7, ["some", "items"])
            await publisher.send(7, ["more", "items"])
            await publisher.advance(8)  # subscribers now receive epoch 7

    A partition has one publisher at a time. If a new publisher takes over the partition, everything that the old one
    sent before the takeover remains valid, and subscribers skip what the old publisher sends afterwards. When the old
    publisher next tries to complete an epoch, for example with `advance`, it raises `ProducerFencedError`.

    Data is sent without waiting for acks, but an epoch is only completed when all its data has been stored. If data was
    refused, if it is unknown whether data was stored, or if a different publisher took over the partition, every
    further call raises an error. To recover, open a new publisher. Its `frontier` shows which epochs are still open.
    Send the data of these epochs again.

    Leaving ``async with`` waits until the data has been stored, and releases the partition. Open epochs stay open, and
    a later publisher can continue them. Call `close` to end the partition.
    """

    def __init__(
        self, history: EpochHistory[T], outlet: Outlet, taken: Taken[T], *, partition: int, codec: Codec
    ) -> None:
        self._history, self._log = history, history.log
        self._out = outlet
        self._core, self._producer, self._taken_at = taken
        self._seq = self._taken_at  # sequence of the last frontier record
        # Sequence of the subject's last message. The next record must follow this message.
        self._last_seq = self._taken_at
        self._topic = history.topic
        self._partition = partition
        self._codec = codec
        self._lock = asyncio.Lock()  # data and frontier records are stored in the order of the calls
        self._count = 0
        self._last: tuple[T, dict[str, str]] | None = None  # the last time sent, and its headers
        self._error: JetStreamError | None = None
        self._rewriting: asyncio.Task[None] | None = None
        self._presence: Presence | None = None

    # --- what it is ------------------------------------------------------------------------------------------

    @property
    def partition(self) -> int:
        """Number of the partition, counted from 0."""
        return self._partition

    @property
    def frontier(self) -> Antichain[T]:
        """The earliest times for which data may still be sent, as an `Antichain`.

        An epoch is complete once no time in the frontier is less than or equal to the time of the epoch. If times are
        integers, the frontier contains a single time. The frontier is empty once the partition has ended.
        """
        return self._core.lower

    @property
    def upper(self) -> Antichain[T]:
        """The latest times for which data has been sent, as an `Antichain`. Empty if no data has been sent."""
        return self._core.upper

    def state(self, time: T) -> EpochState:
        """Return whether the epoch ``time`` has no data yet, is in progress, or is completed in this partition."""
        return self._core.state(time)

    @property
    def is_alive(self) -> bool:
        """Whether the publisher can still send. False if it was closed, or if a call has failed permanently."""
        return not self.is_closed and self._error is None

    def __repr__(self) -> str:
        return f"<PartitionPublisher {self._topic}.{self._partition} at {list(self.frontier)}>"

    # --- sending ---------------------------------------------------------------------------------------------

    async def send(self, time: T, items: Any, *, msg_id: str | None = None) -> None:
        """Send a batch of items of one epoch, without waiting until it has been stored.

        If the call is cancelled, the batch wasn't sent. The only exception is a publisher that uses your own nats-py
        connection. With such a publisher, a cancelled call may have sent the batch.

        Args:
            time: The time of the epoch. Sending its first batch makes the epoch active.
            items: The items, usually a list. The codec of the topic must be able to encode them.
            msg_id: An id for deduplication. Within the duplicate window of the stream, a message with this id is stored
                once in this partition and epoch, even by different publishers. So you can send an epoch again without
                knowing which parts of it were stored.

        Raises:
            EpochCompletedError: The epoch is already completed, or this publisher has given up its time. The batch
                wasn't sent.
            ConfigError: The time, the items or the id are invalid. The batch wasn't sent.
            MaxPayloadError: The batch is larger than the server accepts. It wasn't sent.
            RequestTimeoutError: There is no connection, or too many messages stayed in flight. The batch wasn't sent.
            PublishesFailedError: Some data sent earlier couldn't be stored.
            ProducerFencedError: Another publisher has taken over the partition.
        """
        async with self._lock:
            self._check_open()
            self._core.capabilities.check_time(time)
            message = self._message(time, items, msg_id)
            self._core.record_sent(time)
            try:
                await self._out.send(message)
            except PublishesFailedError as error:  # earlier messages have failed
                self._error = error
                raise

    def _message(self, time: T, items: Any, msg_id: str | None = None) -> OutgoingRecord:
        if self._last is None or self._last[0] != time:
            self._last = time, data_headers(self._core.order, time, self._producer)
        headers = self._last[1]
        where = f"{self._topic}.{self._partition}/"
        if msg_id is not None:
            if not msg_id:
                raise ConfigError("the message id is empty")
            return OutgoingRecord(
                self._codec.encode(items), headers, f"{where}{headers[EPOCH]}/{msg_id}", named=True
            )
        self._count += 1
        return OutgoingRecord(self._codec.encode(items), headers, f"{where}{self._producer}/{self._count}")

    async def flush(self) -> None:
        """Wait until all data sent so far has been stored.

        Cancelling the call doesn't stop the data from being sent.

        Raises:
            PublishesFailedError: Some data couldn't be stored. Open a new publisher, and resend every epoch that
                wasn't completed.
            ProducerFencedError: Another publisher has taken over the partition.
            ClosedError: The publisher was closed.
        """
        await self._in_background(self._flush_in_turn())

    async def _flush_in_turn(self) -> None:
        async with self._lock:
            self._check_open()
            await self._flush()

    async def advance(self, to: T) -> None:
        """Complete all epochs before the time ``to``.

        The call waits until all data and then the new frontier have been stored. If the publisher is already at this
        time, nothing is written. If the call is cancelled, it continues in the background, and the next call waits for
        it.

        Args:
            to: The earliest time for which data may still be sent.

        Raises:
            EpochCompletedError: ``to`` itself is already completed.
            ConfigError: ``to`` isn't a valid time.

        May also raise any error of `send`, and any error that publishing can raise.
        """
        await self._in_background(self._write_change(lambda: self._core.advance(to)))

    async def update(self, changes: Mapping[T, int] | Changes[T]) -> None:
        """Add and drop capabilities in a single step, to control for which times this publisher may still send data.

        With a capability for a time, the publisher may send data for this time and all later times. The publisher of a
        new partition has a capability for the time at which the partition begins. An epoch is completed when no
        capability allows its time any more. Use `advance` unless you need several capabilities at once, for example
        because times aren't totally ordered.

        The call waits, raises errors and handles cancellation just like `advance`.

        Args:
            changes: The times, each with +1 to add a capability or -1 to drop one. Only times that an existing
                capability allows can be added.
        """
        pairs = [*changes.items()] if isinstance(changes, Mapping) else [*changes]
        await self._in_background(self._write_change(lambda: self._core.update(pairs)))

    async def close(self) -> None:
        """Complete all epochs, and end the partition permanently. No publisher can send to the partition afterwards.

        A subscription ends when all its partitions have ended. To stop without ending the partition, use `release`. The
        call waits, raises errors and handles cancellation just like `advance`.
        """
        await self._in_background(self._write_change(self._core.close))
        await self.release()

    async def commit_epoch(self, time: T, *batches: Any, to: T | None = None) -> None:
        """Send all data of an epoch and complete the epoch.

        If the stream allows atomic batches, the epoch is stored completely or not at all. This requires nats-server
        2.12 or later and ``allow_atomic``. Otherwise, the call is equivalent to `send` and `advance`, and a crash may
        leave the epoch open with some of its data stored. That data isn't stored twice if you commit the epoch again
        within the duplicate window of the stream. In both cases, subscribers receive the epoch completely or not at
        all.

        If the call is cancelled, the epoch may or may not be committed.

        Args:
            time: The time of the epoch.
            batches: The data of the epoch. Each batch is one message. A server accepts at most 999 messages in an
                atomic batch.
            to: The time to advance to. Defaults to the next time if the `Order` of the topic has a ``successor``.

        Raises:
            ConfigError: ``to`` is omitted although the topic's `Order` has no ``successor``, or advancing to ``to``
                doesn't complete the epoch.

        May also raise any error of `send` and `AtomicBatch.commit`.
        """
        if to is None:
            successor = getattr(self._core.order, "successor", None)
            if successor is None:
                raise ConfigError("the order has no next time: give the time to advance to with to=")
            self._core.order.encode(time)
            to = successor(time)
        after: Any = to
        self._core.order.encode(time)
        self._core.order.encode(after)
        if time == after or not self._core.order.less_equal(time, after):
            raise ConfigError(f"{time!r} is not completed by going to {after!r}")
        # Without atomic batches, use message ids, so that a repeated commit doesn't store data twice.
        if not self._out.is_atomic:
            for number, batch in enumerate(batches):
                await self.send(time, batch, msg_id=f"of all {number}")
            await self.advance(after)
            return
        await self._in_background(self._commit(time, batches, after))

    # --- frontier records ------------------------------------------------------------------------------------

    async def _commit(self, time: T, batches: tuple[Any, ...], to: T) -> None:
        async with self._lock:
            self._check_open()
            core = self._core
            core.capabilities.check_time(time)
            core.capabilities.check_time(to)
            messages = [self._message(time, batch) for batch in batches]
            await self._flush()
            if batches:
                core.send(time)
            record = core.advance(to)
            assert record is not None, "what allowed the time is gone"
            entry = FrontierEntry(record, 0, self._producer, 0)
            await self._store(
                lambda: self._out.commit(messages, record.to_json(core.order), entry.headers, self._last_seq)
            )

    async def announce(self, home: Home) -> None:
        """Answer other publishers that ask whether this partition has one. For internal use."""
        self._presence = await home.announce(self._partition, lambda: self.is_alive)

    def keep_record(self, every: float) -> None:
        """Store the frontier every ``every`` seconds, before the stream removes it for its age. For internal use."""
        self._rewriting = self._log.tasks.start(self._keep_record(every), "frontier record kept")

    async def _keep_record(self, every: float) -> None:
        while True:
            seq = self._seq
            await asyncio.sleep(every)
            if seq == self._seq:
                try:
                    await self._write_change(self._core.record)
                except JetStreamError as error:
                    self._log.report(error)
                    return

    async def _write_change(self, change: Callable[[], FrontierRecord[T] | None]) -> None:
        async with self._lock:
            self._check_open()
            await self._flush()
            record = change()
            if record is None:
                return
            entry = FrontierEntry(record, 0, self._producer, 0)
            msg_id = f"{self._topic}.{self._partition}/{self._producer}/f{self._seq}"
            await self._store(
                lambda: self._out.record(
                    record.to_json(self._core.order), entry.headers, self._last_seq, msg_id
                )
            )

    async def _store(self, write: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Write a frontier record. Invalid messages that other clients have stored under the subject are skipped.

        After a failure, the state of the partition is unknown, so every further call of the publisher raises the error.
        """
        while True:
            try:
                self._seq = self._last_seq = await write()
                return
            except WrongLastSequenceError as error:
                self._error = await self._why_refused()
                if self._error is not None:
                    raise self._error from error
            except JetStreamError as error:
                self._error = error
                raise

    async def _why_refused(self) -> JetStreamError | None:
        """Return why a frontier record was refused, or None if only invalid messages followed the last record."""
        subject = frontier_subject(self._topic, self._partition)
        try:
            last, _, last_seq = await self._history.last_frontier(self._partition)
            if last is None:
                extent = await self._log.extent()
                return HistoryTruncatedError(extent.first_seq, self._seq, self._log.stream)
        except JetStreamError:
            return ProducerFencedError(subject, self._seq)
        if last.seq == self._seq and last_seq > self._last_seq:
            self._last_seq = last_seq
            return None
        return ProducerFencedError(subject, self._seq, last.seq)

    async def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._log.tasks.start(work, "frontier record", awaited=True)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise ClosedError("closed while a frontier record was written") from None
            raise

    # --- data that was sent ----------------------------------------------------------------------------------

    async def _flush(self) -> None:
        try:
            await self._out.flush()
            while self._out.repeated:
                await self._send_again([*self._out.repeated])
                await self._out.flush()
        except PublishesFailedError as error:
            self._error = error
            raise

    async def _send_again(self, repeated: list[tuple[OutgoingRecord, int]]) -> None:
        """Send messages again if the stored message with their id does not count, because its producer was fenced."""
        stored = [seq for _, seq in repeated]
        ours = self._producer, self._taken_at
        counts = await self._history.counting(self._partition, first=min(stored), last=max(stored), ours=ours)
        for message, seq in repeated:
            if seq not in counts:
                # If the message kept its id, the server would drop it as a duplicate, so send it with a new id. Derive
                # the new id from the old one, so that a later publisher that repeats the message uses the same new id.
                await self._out.send(message._replace(msg_id=f"{message.msg_id}~"))
            # Removed after sending, so that a message that couldn't be sent stays in the list.
            del self._out.repeated[0]

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self.is_closed:
            raise ClosedError("the publisher was closed")

    # --- the end ---------------------------------------------------------------------------------------------

    async def release(self) -> None:
        """Release the partition without ending it. Open epochs stay open, and a later publisher can continue them.

        Data that wasn't flushed may or may not be stored. If the call is cancelled, the release continues in the
        background.
        """
        if self._rewriting is not None:
            self._rewriting.cancel()
        if not self.is_closed:
            await asyncio.wait([self._log.tasks.start(self._release(), "release of a partition")])

    async def _release(self) -> None:
        async with self._lock:
            if not self.is_closed:
                self._state = State.CLOSED
                await self._out.close()
        if self._presence is not None:
            await self._presence.end_answering()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._error is None and not self.is_closed:
                await self.flush()
        finally:
            with body_error_first(error, self):
                await self.release()
