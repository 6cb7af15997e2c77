"""Feeds push the records of a stream to a reader: from a consumer of its own, or from a republished subject.

Pushes are only hints. `ConsumerFeed` needs a consumer on the server for each reader, and shows gaps at once.
`RepublishFeed` needs no state on the server: the stream republishes each record with the sequence of its predecessor in
the same subject. Any client that may publish to the republished subject can forge a record, so a reader of one subject
looks at each jump of the sequence in the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from .._runtime.calls import delete_consumer
from .._runtime.context import Context
from .._runtime.nats.connection import Inbox, Lifecycle
from .._runtime.retry import Retry
from .._runtime.tasks import Timer
from ..errors import JetStreamError, NotJetStreamMessageError
from ..protocol.consumers.ack import sequences
from ..protocol.consumers.monitors import HeartbeatMonitor
from ..protocol.consumers.ordered import ephemeral_config
from ..protocol.consumers.push import foreign_message, whole_number
from ..protocol.events import HeartbeatMissed
from ..protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
from ..protocol.topics.record_codec import DeliveredRecords, RepublishedRecords
from ..protocol.wire.frames import Frame, is_data
from ..protocol.wire.header_names import LAST_CONSUMER
from ..protocol.wire.headers import inline_status, parse_headers
from ..streams.stream import Stream
from .log import HEARTBEAT, Feed, Log, Receive

__all__ = ["ConsumerFeed", "Doubted", "FeedSubscription", "RepublishFeed"]


@dataclass(slots=True, eq=False)
class FeedSubscription:
    """Opens a feed, and retries transient errors. A feed is never closed while it is being opened.

    Attributes:
        log, feed, id: The feed to open, and its id.
        receive: Receives the records.
        opened: Called once the feed is open.
        lost: Called when a push may have been missed; directly after ``opened`` if that was before.
        refused: Called with a permanent error; the feed is not open then.
    """

    log: Log
    feed: Feed
    id: str
    receive: Receive
    opened: Callable[[], None]
    lost: Callable[[], None]
    refused: Callable[[JetStreamError], None]
    _is_opening: bool = False
    _is_open: bool = False
    _missed: bool = False
    _ended: bool = False
    _task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Open the feed, in the background."""
        self._task = self.log.tasks.start(self._run(), "feed")

    async def end(self) -> None:
        """Close the feed. If it is being opened, it is closed afterwards, in the background."""
        self._ended = True
        if self._is_open:
            self._is_open = False
            await self.feed.close(self.id)
        elif not self._is_opening and self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        tries = Retry()
        while not self._ended:
            try:
                await self.log.wait_ready()
                self._is_opening, self._missed = True, False
                try:
                    await self.feed.open(self.id, self.receive, self._may_miss)
                finally:
                    self._is_opening = False
            except JetStreamError as error:
                if self._ended or await tries.again(error):
                    continue
                self.refused(error)
                return
            if self._ended:
                await self.feed.close(self.id)
                return
            self._is_open = True
            self.opened()
            if self._missed:
                self.lost()
            return

    def _may_miss(self) -> None:
        if self._is_open:
            self.lost()
        else:
            self._missed = True


Doubted: TypeAlias = Literal["none", "late", "all"]

_FORGOTTEN: Final = 30.0  # seconds that a consumer outlives its reader


class ConsumerFeed(Feed):
    """An ephemeral push consumer for each subscription, named by its id.

    ``doubted``: The jumps of the stream sequence after which records may have been removed before their delivery: none,
    those in deliveries while others are pending, or all.
    """

    def __init__(
        self, context: Context, stream: Stream, subject: str, *, linked: bool, doubted: Doubted
    ) -> None:
        self._context = context
        self._stream = stream
        self._subject = subject
        self._linked = linked
        self._doubted = doubted
        self._open: dict[str, _Deliveries] = {}
        self._in_doubt: set[str] = set()  # consumers that may exist, though their inbox is closed

    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        connection = self._context.connection
        if id in self._in_doubt:
            await delete_consumer(self._context, self._stream.name, id)
            self._in_doubt.discard(id)
        deliveries = _Deliveries(
            self._context,
            self._stream.name,
            receive,
            lost,
            linked=self._linked,
            doubted=self._doubted,
            heartbeat=self.heartbeat,
            origin=self.origin,
        )
        deliveries.consumer = id
        inbox = connection.new_inbox()
        deliveries.inbox = await connection.subscribe(inbox, deliveries.arrived)
        self._open[id] = deliveries
        try:
            config = ConsumerConfig(
                name=id,
                deliver_subject=inbox,
                deliver_policy=DeliverPolicy.NEW,
                filter_subject=self._subject,
                idle_heartbeat=self.heartbeat,
                max_deliver=1,
            )
            await self._stream.create_consumer(ephemeral_config(config, _FORGOTTEN))
            if deliveries.inbox.denied is not None:
                raise deliveries.inbox.denied
        except BaseException:
            # Cancelled, or not answered: it may exist; the server removes it without a subscriber.
            self._in_doubt.add(id)
            await self._end(id)
            raise
        deliveries.begin()

    async def close(self, id: str) -> None:
        if await self._end(id) and self._context.connection.is_connected:
            with suppress(JetStreamError):  # the server removes it without a subscriber
                await delete_consumer(self._context, self._stream.name, id)

    async def _end(self, id: str) -> bool:
        deliveries = self._open.pop(id, None)
        if deliveries is None:
            return False
        await deliveries.end()
        return True


class _Foreign:
    """Counts frames that are neither data nor a status; reports the first, and then at each doubling."""

    def __init__(self, context: Context, stream: str) -> None:
        self._context = context
        self._stream = stream
        self._count = 0

    def dropped(self, frame: Frame) -> None:
        self._count += 1
        for report in foreign_message(self._stream, "", frame, self._count):
            self._context.emit(report.event)


class _Deliveries:
    """The deliveries of one consumer."""

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
        self._last: int | None = None  # stream sequence of the delivery before this one; None: unknown
        self._foreign = _Foreign(context, stream)
        self._monitor = HeartbeatMonitor(heartbeat)
        self._timer = Timer(self._tick)
        self._now = asyncio.get_running_loop().time
        self._ended = False

    def begin(self) -> None:
        """Start the heartbeat monitor: the consumer exists."""
        self._connection.add_listener(self._lifecycle)
        self._monitor.heard(self._now())
        self._timer.set(self._monitor.deadline)

    async def end(self) -> None:
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
        for frame in frames:
            if is_data(frame):
                try:
                    records.append(self._record(frame))
                except NotJetStreamMessageError:
                    self._foreign.dropped(frame)
            elif frame[2] and not frame[3] and (code := inline_status(frame[2])):
                missed |= self._status(code, frame)
            else:
                self._foreign.dropped(frame)
        if records:
            self._receive(records)
        if missed and not self._ended:
            self._lost()

    def _record(self, frame: Frame) -> Record:
        seq, consumer_seq, time_ns, pending = sequences(frame[1])
        previous = self._last if consumer_seq == self._consumer_seq + 1 else None
        if (self._doubted == "all" or (self._doubted == "late" and pending)) and previous != seq - 1:
            previous = None  # records in between may have been removed before their delivery
        self._consumer_seq, self._last = consumer_seq, seq
        return self._reading.record(frame, seq, time_ns, previous)

    def _status(self, code: int, frame: Frame) -> bool:
        """Whether a delivery was missed, or none will follow."""
        if code != 100:
            return True
        last = whole_number(parse_headers(frame[2])[1].get(LAST_CONSUMER))
        if last is None or last <= self._consumer_seq:
            return False
        self._consumer_seq, self._last = last, None
        return True

    def _tick(self) -> None:
        if not self._ended:
            if (silent := self._monitor.tick(self._now())) is not None:
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


class _Probe:
    """Looks for signs of life of the server while nothing is pushed: a round trip with each heartbeat."""

    def __init__(self, context: Context, stream: str, heartbeat: float) -> None:
        self._context = context
        self._stream = stream
        self._monitor = HeartbeatMonitor(heartbeat)
        self._timer = Timer(self._tick)
        self._now = asyncio.get_running_loop().time
        self._asking: asyncio.Task[None] | None = None
        self._ended = False

    def begin(self) -> None:
        self.heard()
        self._timer.set(self._monitor.last_heard + self._monitor.interval)

    def end(self) -> None:
        self._ended = True
        self._timer.cancel()

    def heard(self) -> None:
        self._monitor.heard(self._now())

    def _tick(self) -> None:
        connection, monitor = self._context.connection, self._monitor
        now = self._now()
        if not connection.is_connected:
            monitor.heard(now)  # that is reported by another event
        elif (silent := monitor.tick(now)) is not None:
            self._context.emit(HeartbeatMissed(stream=self._stream, silent_for=silent))
        is_quiet = now - monitor.last_heard >= monitor.interval / 2
        if is_quiet and connection.is_connected and (self._asking is None or self._asking.done()):
            self._asking = self._context.tasks.start(self._ask(), "look for a sign of life")
        self._timer.set(max(min(now + monitor.interval, monitor.deadline), now + monitor.grace))

    async def _ask(self) -> None:
        with suppress(JetStreamError):
            await self._context.connection.ping(self._monitor.allowed)
            if not self._ended:
                self.heard()


class RepublishFeed(Feed):
    """Subscriptions to the subject to which a stream republishes. They need no state on the server."""

    def __init__(self, context: Context, stream: str, subject: str, *, by_subject: bool) -> None:
        self.by_subject = by_subject
        self._context = context
        self._stream = stream
        self._subject = subject
        self._reading = RepublishedRecords(stream, jumps=by_subject)
        self._foreign = _Foreign(context, stream)
        self._open: dict[str, tuple[Inbox, Callable[[Lifecycle], None], _Probe]] = {}

    async def open(self, id: str, receive: Receive, lost: Callable[[], None]) -> None:
        connection, self._reading.origin = self._context.connection, self.origin
        probe = _Probe(self._context, self._stream, self.heartbeat)
        inbox = await connection.subscribe(self._subject, partial(self._arrived, receive, probe))

        def listen(what: Lifecycle) -> None:
            if what is Lifecycle.CONNECTED:
                lost()

        connection.add_listener(listen)
        self._open[id] = inbox, listen, probe
        try:
            await connection.ping(self._context.timeout)  # the subscription exists now, or was refused
            if inbox.denied is not None:
                raise inbox.denied
        except BaseException:
            await asyncio.shield(self.close(id))
            raise
        if id in self._open:
            probe.begin()

    async def close(self, id: str) -> None:
        if id in self._open:
            inbox, listen, probe = self._open.pop(id)
            probe.end()
            self._context.connection.remove_listener(listen)
            await self._context.connection.unsubscribe(inbox)

    def _arrived(self, receive: Receive, probe: _Probe, frames: list[Frame]) -> None:
        probe.heard()
        if records := self._reading.read(frames, self._foreign.dropped):
            receive(records)
