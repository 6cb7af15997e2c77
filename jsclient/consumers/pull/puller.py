"""Pull requests and their inboxes.

Each request has its own inbox, because a status message doesn't say which request it belongs to. Inboxes are reused.

When a caller is cancelled, the server still delivers messages for its request. They must not be lost, so the request
stays open without a caller until another call adopts it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from ..._runtime.calls import consumer_info, is_missing, nak_all
from ..._runtime.connection.connection import Connection, Inbox, Lifecycle
from ..._runtime.connection.speedups import chosen
from ..._runtime.context import Closable, Context
from ..._runtime.tasks import Signal, Timer
from ...errors import (
    ClosedError,
    ConsumerDeletedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
)
from ...protocol.consumers.ack import PREFIX
from ...protocol.consumers.fetch import Pull, PullRequest, encode_pull
from ...protocol.consumers.priority import GroupOptions, GroupRequest, Pin, group_request, pins_clients
from ...protocol.consumers.push import foreign_message
from ...protocol.consumers.status import Ending
from ...protocol.events import Event
from ...protocol.models.consumer import AckPolicy, ConsumerConfig
from ...protocol.wire.checks import check_server
from ...protocol.wire.frames import Frame, Sink, is_control, is_data
from ...protocol.wire.headers import parse_headers
from ..message import AckChannel
from ..stall_watch import StallWatch
from .in_hand import InHand, in_hand

__all__ = ["PullInbox", "Puller", "ReaderInbox"]

_FLUSH = 1.0  # how long closing waits for messages in flight, in seconds
_CHECK_TIMEOUT = 0.5  # timeout of the request that checks whether the consumer exists, in seconds
_LINGER = 5.0  # seconds that the inbox of an abandoned request stays open after its expiry and last message
_SERVED = 1.0  # a request has certainly been served after this many seconds
_IN_FLIGHT = 60.0  # how long unsubscribing from an abandoned inbox waits for messages in flight, in seconds


class PullInbox:
    """An inbox, together with the request whose answers arrive there."""

    __slots__ = ("frames", "inbox", "is_alone", "pin", "puller", "request", "until")

    def __init__(self, puller: Puller) -> None:
        self.puller: Puller = puller
        self.inbox: Inbox | None = None
        self.request: PullRequest | None = None
        self.pin: Pin | None = None  # pin of the priority group, None if the consumer doesn't pin clients
        # Messages for the caller, None if no call is waiting for them.
        self.frames: deque[Frame] | None = None
        self.until: float = 0.0  # time until which the inbox must stay open, in monotonic seconds
        # True if the caller should wake up only when the request has ended, not for each message.
        self.is_alone: bool = False

    def receive_frames(self, frames: list[Frame]) -> None:
        """Process the frames that arrive in the inbox. The connection calls this method."""
        puller = self.puller
        now = puller.now()
        # The fast path. If all frames are messages, process them in one call.
        if not [frame for frame in frames if not frame[1].startswith(PREFIX)]:
            self._messages(frames, now)
            if self.is_alone and self.request is not None and self.request.ending is None:
                return  # don't wake up the caller before the last message
        else:
            for frame in frames:  # in order, because a status may end the request
                if is_data(frame):
                    self._messages([frame], now)
                elif is_control(frame):
                    self._status(frame, now)
                else:
                    puller.foreign_message(frame)
        puller.changed.set()

    def _messages(self, frames: list[Frame], now: float) -> None:
        request = self.request
        self.puller.arrived += len(frames)
        (self.puller.leftover if self.frames is None else self.frames).extend(frames)
        if request is not None:
            request.data(
                now, 0 if request.owed_bytes is None else chosen().runs.total_size(frames), len(frames)
            )
            self.until = max(self.until, now + _LINGER)
        if self.pin is not None:
            # Read the id of the pin from the messages. The server decides which client is pinned, and adds the id to
            # each message.
            self.puller.report_event(self.pin.message(frames[-1][2]))
            if request is not None and self.pin.id is not None:
                request.pin = self.pin.id

    def _status(self, frame: Frame, now: float) -> None:
        status, _ = parse_headers(frame[2])
        request = self.request
        if status is not None and request is not None:
            request.status(status.code, status.description, now)
            if self.pin is not None and request.is_unpinned:
                self.puller.report_event(self.pin.refused(status.code, request.pin))


class Puller:
    """Sends the pull requests of one `PullSubscription` or `Consumer`, and receives the answers.

    Attributes:
        config: The configuration of the consumer as the server last reported it, or None if it is unknown.
        silent: True if the consumer has ack policy none.
        leftover: Messages that arrived after their caller was cancelled. The next call returns them first.
        changed: Set after every arrival and change of state, to wake up the callers.
        readers: The continuous readers that were opened through the handle. They are closed with it.
        closed: True once the handle was closed.
        arrived: Total number of messages received.
        orphans: Inboxes of requests whose caller no longer waits, because messages may still arrive for them.
        watch: Checks the consumer when no message arrives for a while.
        in_hand: Keeps track of messages that the application still references.
    """

    def __init__(
        self,
        context: Context,
        stream: str,
        consumer: str,
        config: ConsumerConfig | None,
        *,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self.context = context
        self.stream = stream
        self.consumer = consumer
        self.config = config
        self.silent: bool = config is not None and config.ack_policy == AckPolicy.NONE
        self.channel: AckChannel = AckChannel(
            context.connection, context.requests, context.timeout, self.silent
        )
        self.leftover: deque[Frame] = deque()
        self.changed: Signal = Signal()
        self._timer = Timer(self.changed.set)
        self.readers: set[Closable] = set()
        self.now: Callable[[], float] = context.connection.running_loop().time
        # True if `not_answered` looked up the consumer and found it.
        self.was_there: bool = False
        self._listener = listener
        self._subject = context.api.consumer_next(stream, consumer)
        # Each inbox is in one of three collections: free inboxes, inboxes whose caller is waiting, and inboxes whose
        # caller no longer waits although the request is still in flight.
        self._idle: list[PullInbox] = []
        self._busy: set[PullInbox] = set()
        self.orphans: list[PullInbox] = []
        self._foreign = 0
        self.closed: bool = False
        self._closing: asyncio.Task[None] | None = None
        self._listening = False
        self._pins: dict[str, Pin] = {}  # by name of the priority group
        self.arrived: int = 0
        self.watch: StallWatch = StallWatch(context, self, pins=self._pin_ids)
        self.in_hand: InHand = in_hand(context)

    def group(self, options: GroupOptions) -> GroupRequest | None:
        """Return the part of a pull request that concerns priority groups, or None if there is none.

        Raises:
            ConfigError: The options don't fit the configuration of the consumer, or the server is too old.
        """
        config = self.config
        if not options and (config is None or not config.priority_groups):
            return None
        request = group_request(config, **options)
        if request is not None and config is None:
            # An old server would silently ignore the options. With a known configuration this can't happen, because an
            # old server doesn't have consumers with priority groups.
            least = (2, 11) if request.priority is None else (2, 12)
            check_server(self.context.connection.server_version, least, "a priority group")
        return request

    def pin_of(self, group: GroupRequest | None) -> Pin | None:
        """Return the pin of a priority group, or None if the consumer doesn't pin clients."""
        if group is None or not pins_clients(self.config):
            return None
        if group.group not in self._pins:
            self._pins[group.group] = Pin(self.stream, self.consumer, group.group)
        return self._pins[group.group]

    def _pin_ids(self) -> frozenset[str]:
        return frozenset(pin.id for pin in self._pins.values() if pin.id is not None)

    @property
    def is_fetching(self) -> bool:
        """True while a fetch has a request in flight, or messages that it has not returned yet."""
        return bool(self._busy)

    @property
    def is_awaited(self) -> bool:
        """True while a call is waiting for a message."""
        return self.changed.is_awaited

    def emit(self, event: Event) -> None:
        """Report an event to the subscription and to the connection's ``on_event``."""
        if self._listener is not None:
            self._listener(event)
        self.context.emit(event)

    def report_event(self, event: Event | None) -> None:
        """Report an event, or do nothing if it is None."""
        if event is not None:
            self.emit(event)

    def foreign_message(self, frame: Frame) -> None:
        """Count and report a message in an inbox that wasn't sent by JetStream."""
        self._foreign += 1
        for command in foreign_message(self.stream, self.consumer, frame, self._foreign):
            self.emit(command.event)

    @property
    def is_closed(self) -> bool:
        """True if the handle or its connection is closed."""
        return self.closed or self.context.connection.is_closed

    def check_open(self) -> None:
        """Raise `ClosedError` if the handle or its connection is closed."""
        self.context.connection.check_open()
        if self.closed:
            raise ClosedError("the subscription is closed: subscribe again")
        if self.in_hand.has_ended:
            self.in_hand.check_may_pull()

    async def request(self, pull: Pull) -> PullInbox:
        """Send a pull request, and return the inbox in which its answers arrive."""
        connection = self.context.connection
        if not self._listening:
            self._listening = True
            self.in_hand.add_puller(self)
            connection.add_listener(self._end_requests, self._end_denied_requests)
        if self.orphans:
            self._sweep()
        slot = self._idle.pop() if self._idle else PullInbox(self)
        slot.frames = deque()
        self._busy.add(slot)
        try:
            if slot.inbox is None:
                slot.inbox = await connection.subscribe(connection.new_inbox(), slot.receive_frames)
            slot.pin = None if pull.group is None else self.pin_of(pull.group)
            if slot.pin is not None:
                pull = msgspec.structs.replace(pull, pin=slot.pin.id)
            now = self.now()
            slot.request = PullRequest(pull, now)
            slot.until = slot.request.over_at + _LINGER
            body = encode_pull(pull)
            # `publish` waits if the write buffer is full, and raises if the request can't be sent.
            if not connection.request_at_once(self._subject, slot.inbox.subject.encode(), b"", body):
                await connection.publish(self._subject, body, reply=slot.inbox.subject, urgent=True)
        except asyncio.CancelledError:
            # The request may have been sent. Keep it for the next call, or its messages would be redelivered only after
            # ack_wait.
            self.abandon_request(slot)
            raise
        except BaseException:
            self._busy.discard(slot)
            slot.request = None
            await self._drop(slot)
            raise
        return slot

    async def request_all(self, pull: Pull) -> PullInbox:
        """Send a pull request, and wait until it has ended.

        All requests share one timer, which may fire early. The caller must therefore check whether the request has
        really ended.

        If the call is cancelled, no message is lost, because another call can adopt the request.
        """
        slot = await self.request(pull)
        request = slot.request
        if request is not None and request.ending is None:
            slot.is_alone = True
            try:
                self._timer.set(request.deadline)
                await self.changed.wait()
            except BaseException:
                self.abandon_request(slot)
                self.changed.set()
                raise
            slot.is_alone = False
        return slot

    async def not_answered(self, *, ends: bool) -> JetStreamError:
        """Return the error that explains why no server answered a pull request.

        Either the consumer doesn't exist, or it has no leader at the moment. To tell these cases apart, the call
        looks up the consumer if ``ends`` is True, which means that the caller will raise the error, or if the
        consumer was never seen.
        """
        if ends or self.config is None:
            self.was_there = False
            try:
                info = await consumer_info(self.context, self.stream, self.consumer, timeout=_CHECK_TIMEOUT)
                self.config, self.was_there = info.config, True
            except JetStreamError as error:
                if is_missing(error):
                    return error if self.config is None else self._deleted()
        return NoRespondersError(503, "", True, self.stream, self.consumer)

    def _deleted(self) -> ConsumerDeletedError:
        return ConsumerDeletedError(409, "Consumer Deleted", False, self.stream, self.consumer)

    def adopt(self, missing: int, group: GroupRequest | None) -> list[PullInbox]:
        """Take over requests of cancelled callers, until they can deliver ``missing`` messages.

        Requests with other group options are left alone, because the server may answer them under other conditions.
        """
        slots: list[PullInbox] = []
        if not self.orphans:
            return slots
        self._sweep()
        for slot in list(self.orphans):
            request = slot.request
            if request is None or request.ended or request.pull.group != group:
                continue  # this inbox stays open only for late messages
            if missing <= 0:
                break
            self.orphans.remove(slot)
            slot.frames = deque()
            self._busy.add(slot)
            slots.append(slot)
            missing -= request.owed
        return slots

    def abandon_request(self, slot: PullInbox) -> None:
        """Release a request when its caller stops waiting. The next call returns the messages already received."""
        self._busy.discard(slot)
        if slot.frames:
            self.leftover.extend(slot.frames)
        slot.frames, slot.is_alone = None, False
        request = slot.request
        if request is None or request.settled:
            self._idle.append(slot)
        else:
            # Don't reuse the inbox yet, because a late status could end the next request.
            self.orphans.append(slot)

    def _sweep(self) -> None:
        """Reuse the inboxes of abandoned requests that have ended, and unsubscribe from those that have expired."""
        now = self.now()
        for slot in [s for s in self.orphans if s.request is not None and s.request.settled]:
            self.orphans.remove(slot)
            self._idle.append(slot)
        for slot in [s for s in self.orphans if now >= s.until]:
            self.orphans.remove(slot)
            self.context.tasks.start(self._flush(slot, _IN_FLIGHT), "drop an inbox")

    def _end_requests(self, what: Lifecycle) -> None:
        if what is not Lifecycle.CONNECTED:
            for slot in (*self._busy, *self.orphans):
                if slot.request is not None:
                    slot.request.connection_lost()
        self.changed.set()

    def is_denied(self, error: PermissionDeniedError, inbox: Inbox | None) -> bool:
        """Return True if the server has denied the pull request, or the subscription to this inbox."""
        return error.subject == self._subject or (inbox is not None and error.subject == inbox.subject)

    def _end_denied_requests(self, error: PermissionDeniedError) -> None:
        for slot in (*self._busy, *self.orphans):
            if slot.request is not None and self.is_denied(error, slot.inbox):
                slot.request.end_request(Ending.REFUSED, error)
        self.changed.set()

    async def _drop(self, slot: PullInbox) -> None:
        inbox, slot.inbox = slot.inbox, None
        if inbox is not None:
            await self.context.connection.unsubscribe(inbox)

    async def close(self, *, give_back: bool) -> None:
        """End all requests and readers. If ``give_back`` is True, nak unread messages so that they are redelivered.

        If the call is cancelled, closing continues in the background. Another call waits until it is done.
        """
        if self._closing is None:
            self.closed = True
            self._timer.cancel()
            self.watch.close()
            self.context.connection.remove_listener(self._end_requests, self._end_denied_requests)
            for slot in self._busy:
                if slot.request is not None:
                    slot.request.end_request(Ending.CLOSED)
            self.changed.set()
            closing = self._close_inboxes(gives_back=give_back and not self.silent)
            self._closing = self.context.tasks.start(closing, "close pull requests", awaited=True)
        await asyncio.shield(self._closing)

    async def _close_inboxes(self, *, gives_back: bool) -> None:
        await asyncio.gather(*(reader.abandon() for reader in list(self.readers)))
        if gives_back:
            await self._await_service()
        slots = (*self._idle, *self.orphans, *self._busy)
        self._idle, self.orphans = [], []
        flushed = [
            slot for slot in slots if gives_back and slot.request is not None and not slot.request.settled
        ]
        for slot in slots:
            if slot not in flushed:
                await self._drop(slot)
        if flushed:
            # Close the inboxes concurrently. Otherwise, their timeouts would add up if the server doesn't answer.
            within = min(_FLUSH, self.context.timeout)
            await asyncio.gather(*(self._flush(slot, within) for slot in flushed))
        if gives_back:
            await nak_all(self.context.connection, list(self.leftover))
        self.leftover.clear()

    async def _await_service(self) -> None:
        """Wait until the server has served the requests that were just sent.

        The server answers a PING before it serves earlier requests. If the inbox is unsubscribed in between, the
        server drops the message that it delivers next, and redelivers it only after ``ack_wait``. The server serves
        requests in order. This method therefore sends one more request, with ``no_wait``, whose answer shows that the
        earlier requests were served. The ``max_bytes`` of that request is too small for any message, so it doesn't
        use up a delivery.
        """
        recent = self.now() - _SERVED
        pulls = [
            slot.request.pull
            for slot in (*self._busy, *self.orphans)
            if slot.request is not None and not slot.request.settled and slot.request.sent_at > recent
        ]
        if not pulls or not self.context.connection.is_connected:
            return
        try:
            async with asyncio.timeout(min(_FLUSH, self.context.timeout)):
                slot = await self.request(Pull(1, None, 1, no_wait=True, group=pulls[-1].group))
                try:
                    while slot.request is not None and not slot.request.ended and not slot.frames:
                        await self.changed.wait()
                finally:
                    # An old server ignores max_bytes and delivers a message, which is returned with the others.
                    self.abandon_request(slot)
        except (JetStreamError, TimeoutError):
            pass  # the connection is lost or the server is slow, so the messages are redelivered after ack_wait

    async def _flush(self, slot: PullInbox, within: float) -> None:
        """Wait up to ``within`` seconds for the messages in flight, then unsubscribe from the inbox."""
        inbox, slot.inbox = slot.inbox, None
        if inbox is not None:
            await self.context.connection.drain(inbox, within)


class ReaderInbox:
    """The inbox of a continuous reader. The number of a request is the last token of its reply subject."""

    def __init__(self, connection: Connection, sink: Sink) -> None:
        self._connection = connection
        self._sink = sink
        self._base = ""
        self.inbox: Inbox | None = None

    async def open_inbox(self) -> None:
        """Subscribe to a new, unique subject."""
        base = f"{self._connection.new_inbox()}."
        self.inbox = await self._connection.subscribe(f"{base}*", self._sink)
        self._base = base

    def reply(self, number: int) -> str:
        """Return the reply subject of the request with this number."""
        return f"{self._base}{number}"

    async def close(self) -> None:
        """Unsubscribe immediately. Messages in flight are dropped."""
        inbox, self.inbox = self.inbox, None
        if inbox is not None:
            await self._connection.unsubscribe(inbox)

    async def drain(self, timeout: float) -> None:
        """Unsubscribe once all messages in flight have arrived, or after ``timeout`` seconds."""
        inbox, self.inbox = self.inbox, None
        if inbox is not None:
            await self._connection.drain(inbox, timeout)
