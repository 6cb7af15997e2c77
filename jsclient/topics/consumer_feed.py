"""`ConsumerFeed`, which pushes records from a consumer. All readers of a connection with equal filters share it.

A push is only a hint, and a reader accepts only as many records as fit into its queue. One consumer can therefore
serve any number of readers, each at its own position, and a slow reader doesn't delay the others. While the stream
allows no further consumer, plain subscriptions are used instead. They notify the readers of new records, which the
readers then read from the history.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeAlias

from .._runtime.calls import delete_consumer
from .._runtime.connection.connection import Inbox, Lifecycle
from .._runtime.context import Context
from .._runtime.retry import varied
from .._runtime.tasks import Timer
from ..errors import ConsumerLimitError, JetStreamError, NotJetStreamMessageError
from ..protocol.consumers.ack import sequences
from ..protocol.consumers.monitors import HeartbeatMonitor
from ..protocol.consumers.ordered import ephemeral_config
from ..protocol.consumers.push import whole_number
from ..protocol.events import ConsumerRefused, HeartbeatMissed
from ..protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..protocol.topics.hints import CreateAgain, Hints, are_all_heard, heard_subjects
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
from ..protocol.topics.record_codec import DeliveredRecords
from ..protocol.wire.frames import Frame, is_data
from ..protocol.wire.header_names import LAST_CONSUMER
from ..protocol.wire.headers import inline_status, parse_headers
from ..streams.stream import Stream
from .consumers import Consumers
from .feeds import Foreign
from .log import HEARTBEAT, Feed, Receive

__all__ = ["ConsumerFeed", "Doubted"]

Doubted: TypeAlias = Literal["none", "late", "all"]

_FORGOTTEN: Final = 30.0  # how long a consumer outlives its readers, in seconds
_EARLY: Final = 0.001  # event loop timers may fire up to this many seconds early


class ConsumerFeed(Feed):
    """Pushes records with an ephemeral push consumer, whose name is the id of its first subscription.

    ``doubted`` selects the jumps of the stream sequence that may hide records which were removed before their
    delivery. With "none", there are no such jumps. With "late", only a jump to a delivery with further messages
    pending may hide records. With "all", every jump may.
    """

    def __init__(
        self, context: Context, stream: Stream, subject: str, *, linked: bool, doubted: Doubted
    ) -> None:
        self._context = context
        self._stream = stream
        self._subject = subject
        self._linked = linked
        self._doubted: Doubted = doubted
        self.consumers: Consumers = Consumers(context, stream)
        self._joined: dict[str, _Pushes] = {}
        self._last: _Pushes | None = None
        self._uncertain: set[str] = set()  # consumers that may still exist after their inbox was closed

    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        if id in self._uncertain:
            await self.consumers.delete(id)
            self._uncertain.discard(id)
        self._joined[id] = self._last = pushes = self._pushes()
        try:
            await pushes.join(id, receive, lost)
        except BaseException:
            self._joined.pop(id, None)
            if pushes.consumer == id:
                # The failed request may have created a consumer of this name. Let the next `open` delete that consumer.
                self._uncertain.add(id)
            raise

    async def close(self, id: str) -> None:
        if (pushes := self._joined.pop(id, None)) is not None:
            await pushes.leave(id)

    def has_read(self, id: str, count: int) -> None:
        if (pushes := self._joined.get(id)) is not None:
            pushes.has_read(id, count)

    def _pushes(self) -> _Pushes:
        """Return the pushes that other readers share, or new pushes if this reader doesn't trust the shared ones."""
        key, shared = self._key(), self._context.shared
        pushes: _Pushes | None = shared.get(key)
        # A reader opens the feed again if a record wasn't pushed to it. Replace the pushes, unless they come from plain
        # subscriptions, for which `missed` makes the reader check the history without waiting for a hint.
        if pushes is None or (pushes is self._last and not pushes.missed()):
            shared[key] = pushes = _Pushes(self, key)
        return pushes

    def _key(self) -> Hashable:
        if not self.shares:
            return self
        incarnation = "" if self.origin is None else self.origin.incarnation
        return (
            ConsumerFeed, self._context.api.prefix, self._stream.name, self._subject, incarnation,
            self._linked, self._doubted, self.heartbeat, self.may_listen,
        )  # fmt: skip

    def forget_pushes(self, key: Hashable, pushes: _Pushes) -> None:
        """Prevent other readers from joining these pushes."""
        if self._context.shared.get(key) is pushes:
            del self._context.shared[key]

    # --- for `_Pushes` ----------------------------------------------------------------------------------------

    def config(self, name: str, deliver_subject: str) -> ConsumerConfig:
        """Return the configuration of a consumer of this feed."""
        config = ConsumerConfig(
            name=name,
            deliver_subject=deliver_subject,
            deliver_policy=DeliverPolicy.NEW,
            filter_subject=self._subject,
            idle_heartbeat=self.heartbeat,
            max_deliver=1,
        )
        return ephemeral_config(config, _FORGOTTEN)

    def deliveries(self, receive: Receive, lost: Callable[[], None]) -> _Deliveries:
        """Return the deliveries of a consumer of this feed."""
        return _Deliveries(
            self._context,
            self._stream.name,
            receive,
            lost,
            linked=self._linked,
            doubted=self._doubted,
            heartbeat=self.heartbeat,
            origin=self.origin,
        )

    def hearing(self, look: Callable[[list[str]], None], lost: Callable[[], None]) -> _Hearing:
        """Return plain subscriptions that take the place of a consumer."""
        config = self._stream.config
        subjects = heard_subjects(config.subjects or (), self._subject)
        # Without echo, this connection doesn't hear the records that it publishes itself, so the hints are incomplete.
        echoes = self._context.connection.echoes
        hints = Hints(all_heard=bool(subjects) and are_all_heard(config) and echoes)
        return _Hearing(self._context, subjects, hints, look, lost)

    @property
    def context(self) -> Context:
        return self._context

    @property
    def stream(self) -> Stream:
        return self._stream


class _Group(NamedTuple):
    receive: Receive
    lost: Callable[[], None]


class _Pushes:
    """A consumer, or plain subscriptions in its place, for the readers that have joined.

    Attributes:
        consumer: The name of the consumer. A consumer of this name need not exist.
    """

    def __init__(self, feed: ConsumerFeed, key: Hashable) -> None:
        self._feed = feed  # the feed of the first reader, which configures the consumer
        self._context = feed.context
        self._key = key
        self._members: dict[str, _Group] = {}
        self._opening: asyncio.Task[None] | None = None
        self._deliveries: _Deliveries | None = None
        self._hearing: _Hearing | None = None
        self._again: asyncio.Task[None] | None = None
        self._is_creating = False
        self._is_over = False
        self.consumer: str = ""

    async def join(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        """Start pushing to another reader.

        May raise any error of a request. After an error, the reader has not joined.
        """
        self._members[id] = _Group(receive, lost)
        if self._opening is None:
            self._opening = self._context.tasks.start(
                self._open_consumer(id), "feed of readers", awaited=True
            )
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            self._members.pop(id, None)
            raise
        if self._hearing is not None:
            self._hearing.add_reader(id)

    async def leave(self, id: str) -> None:
        """Stop pushing to this reader. The last reader to leave deletes the consumer."""
        self._members.pop(id, None)
        if self._hearing is not None:
            self._hearing.remove(id)
        if not self._members:
            self._leave_feed()
            if self._opening is None or self._opening.done():
                await self._end_pushes()

    def missed(self) -> bool:
        """Record that a record wasn't pushed to a reader. Return whether these pushes can still serve that reader."""
        if self._hearing is not None:
            self._hearing.missed()
        return self._hearing is not None

    def has_read(self, id: str, count: int) -> None:
        """Record that a reader has read ``count`` records from the history."""
        if self._hearing is not None:
            self._hearing.has_read(id, count)

    async def _open_consumer(self, id: str) -> None:
        try:
            try:
                await self._create(id)
            except ConsumerLimitError as error:
                if not self._feed.may_listen:
                    raise
                await self._listen(error)
        except BaseException:
            self._leave_feed()
            raise
        if not self._members:
            await self._end_pushes()

    async def _create(self, name: str) -> None:
        """Create the consumer. May raise any error of a request. After an error, no subscription remains."""
        connection, feed = self._context.connection, self._feed
        self.consumer = name
        deliveries = feed.deliveries(self._push, self._lost)
        deliveries.consumer = name
        inbox = connection.new_inbox()
        deliveries.inbox = await connection.subscribe(inbox, deliveries.arrived)
        try:
            await feed.consumers.create(feed.config(name, inbox))
            if deliveries.inbox.denied is not None:
                raise deliveries.inbox.denied
        except BaseException:
            await deliveries.end_deliveries()
            raise
        deliveries.begin_deliveries()
        self._deliveries = deliveries

    async def _listen(self, error: ConsumerLimitError) -> None:
        """Use plain subscriptions until the stream allows another consumer."""
        hearing = self._feed.hearing(self._wake, self._lost)
        await hearing.begin_hearing()
        self._hearing = hearing
        self._context.emit(
            ConsumerRefused(stream=self._feed.stream.name, error=error, meanwhile=hearing.meanwhile)
        )
        self._again = self._context.tasks.start(self._create_when_possible(), "wait for room for a consumer")

    async def _create_when_possible(self) -> None:
        name, count, attempts = self.consumer, 0, CreateAgain()
        while self._hearing is not None:
            await asyncio.sleep(varied(attempts.next()))
            count += 1
            self._is_creating = True
            # Ignore the error. A refusal has already been reported, and a lost connection calls `lost`.
            with suppress(JetStreamError):
                await self._create(f"{name}-{count}")
            self._is_creating = False
            if self._deliveries is not None:
                await self._end_hearing()
                if self._is_over:
                    await self._end_pushes()
                self._push([])  # makes the readers check the history for records older than the consumer

    async def _end_hearing(self) -> None:
        hearing, self._hearing = self._hearing, None
        if hearing is not None:
            await hearing.end_hearing()

    async def _end_pushes(self) -> None:
        self._is_over = True
        await self._end_hearing()
        if self._again is not None and not self._is_creating and self._again is not asyncio.current_task():
            self._again.cancel()
        deliveries, self._deliveries = self._deliveries, None
        if deliveries is not None:
            await deliveries.end_deliveries()
            if self._context.connection.is_connected:
                with suppress(JetStreamError):  # the server also removes a consumer that has no subscriber
                    await delete_consumer(self._context, self._feed.stream.name, self.consumer)

    def _leave_feed(self) -> None:
        self._feed.forget_pushes(self._key, self)

    def _push(self, records: list[Record]) -> None:
        for member in tuple(self._members.values()):
            member.receive(records)

    def _wake(self, ids: list[str]) -> None:
        for reader in ids:
            if (member := self._members.get(reader)) is not None:
                member.receive([])

    def _lost(self) -> None:
        self._leave_feed()
        for member in tuple(self._members.values()):
            member.lost()


class _Hearing:
    """Plain subscriptions to the subjects of the records. They notify readers when to read the history."""

    def __init__(
        self,
        context: Context,
        subjects: list[str],
        hints: Hints,
        wake: Callable[[list[str]], None],
        lost: Callable[[], None],
    ) -> None:
        self._context = context
        self._subjects = subjects
        self._hints = hints
        self._wake = wake
        self._lost = lost
        self._inboxes: list[Inbox] = []
        self._timer = Timer(self._wake_due_readers)
        self._now = asyncio.get_running_loop().time

    @property
    def meanwhile(self) -> str:
        """How readers learn of new records in the meantime, described for an event."""
        if self._hints.all_heard:
            subjects = ", ".join(map(repr, self._subjects))
            return f"topic readers subscribe to {subjects}, and read a record from the history when they hear of it"
        return "topic readers look into the history for new records, about once a second"

    async def begin_hearing(self) -> None:
        """Subscribe. May raise any error of a request. After an error, no subscription remains."""
        connection = self._context.connection
        connection.add_listener(self._lifecycle)
        try:
            for subject in self._subjects:
                self._inboxes.append(await connection.subscribe(subject, self._receive_hints))
            if self._inboxes:
                # Wait for the PONG. If the server denies a subscription, its error arrives before the PONG.
                await connection.ping(self._context.timeout)
        except BaseException:
            await self.end_hearing()
            raise
        if any(inbox.denied is not None for inbox in self._inboxes):
            self._hints.all_heard = False

    async def end_hearing(self) -> None:
        self._timer.cancel()
        self._hints.deadline = math.inf
        self._context.connection.remove_listener(self._lifecycle)
        inboxes, self._inboxes = self._inboxes, []
        for inbox in inboxes:
            await self._context.connection.unsubscribe(inbox)

    def add_reader(self, id: str) -> None:
        self._hints.add_reader(id, self._now())
        self._set_timer()

    def remove(self, id: str) -> None:
        self._hints.remove(id)

    def missed(self) -> None:
        self._hints.missed(self._now())
        self._set_timer()

    def has_read(self, id: str, count: int) -> None:
        self._hints.found(id, count)

    def _receive_hints(self, frames: list[Frame]) -> None:
        self._hints.heard(len(frames), self._now())
        self._set_timer()

    def _wake_due_readers(self) -> None:
        readers = self._hints.due(self._now() + _EARLY)
        self._set_timer()
        self._wake(readers)

    def _set_timer(self) -> None:
        deadline = self._hints.deadline
        self._timer.set(None if deadline == math.inf else deadline)

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            self._lost()


class _Deliveries:
    """Receives the deliveries of one consumer, and detects missed deliveries."""

    inbox: Inbox
    consumer: str = ""

    def __init__(
        self,
        context: Context,
        stream: str,
        receive: Receive,
        lost: Callable[[], None],
        *,
        linked: bool,
        doubted: Doubted,
        heartbeat: float = HEARTBEAT,
        origin: Position | None = None,
    ) -> None:
        self._context = context
        self._stream = stream
        self._connection = context.connection
        self._receive = receive
        self._lost = lost
        self._reading = DeliveredRecords(linked=linked, origin=origin)
        self._doubted = doubted
        self._consumer_seq = 0
        self._last: int | None = None  # stream sequence of the previous delivery, None if unknown
        self._dropped = Foreign(context, stream)
        self._monitor = HeartbeatMonitor(heartbeat)
        self._timer = Timer(self._check_silence)
        self._now = asyncio.get_running_loop().time
        self._ended = False

    def begin_deliveries(self) -> None:
        """Start the heartbeat monitor. Call this method once the consumer exists."""
        self._connection.add_listener(self._lifecycle)
        self._monitor.heard(self._now())
        self._timer.set(self._monitor.deadline)

    async def end_deliveries(self) -> None:
        self._ended = True
        self._timer.cancel()
        self._connection.remove_listener(self._lifecycle)
        await self._connection.unsubscribe(self.inbox)

    def arrived(self, frames: list[Frame]) -> None:
        if self._ended:
            return
        self._monitor.heard(self._now())
        records: list[Record] = []
        missed = False
        # Other clients may publish to the inbox, so drop frames that are neither a delivery nor a status.
        for frame in frames:
            if is_data(frame):
                try:
                    records.append(self._record(frame))
                except NotJetStreamMessageError:
                    self._dropped.dropped(frame)
            elif frame[2] and not frame[3] and (code := inline_status(frame[2])):
                missed |= self._status(code, frame)
            else:
                self._dropped.dropped(frame)
        if records:
            self._receive(records)
        if missed and not self._ended:
            self._lost()

    def _record(self, frame: Frame) -> Record:
        seq, consumer_seq, time_ns, pending = sequences(frame[1])
        previous = self._last if consumer_seq == self._consumer_seq + 1 else None
        if (self._doubted == "all" or (self._doubted == "late" and pending)) and previous != seq - 1:
            previous = None  # unknown, because records in between may have been removed before delivery
        self._consumer_seq, self._last = consumer_seq, seq
        return self._reading.record(frame, seq, time_ns, previous)

    def _status(self, code: int, frame: Frame) -> bool:
        """Process a status message. Return True if a delivery was missed or no more deliveries will follow."""
        if code != 100:  # the consumer has ended
            return True
        last = whole_number(parse_headers(frame[2])[1].get(LAST_CONSUMER))
        if last is None or last <= self._consumer_seq:
            return False
        self._consumer_seq, self._last = last, None
        return True

    def _check_silence(self) -> None:
        if not self._ended:
            if (silent := self._monitor.check_silence(self._now())) is not None:
                if self._connection.is_connected:
                    self._context.emit(
                        HeartbeatMissed(stream=self._stream, consumer=self.consumer, silent_for=silent)
                    )
                self._lost()
            if not self._ended:
                self._timer.set(self._monitor.deadline)

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            self._lost()
