"""Pull requests and their inboxes.

Each request has its own inbox, so that the status of one request cannot end another. Inboxes are reused. A cancelled
caller leaves its request to the next caller, so that messages that the server still delivers for it are not lost.
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

_FLUSH = 1.0  # seconds that a close waits for messages in flight
_CHECK_TIMEOUT = 0.5  # seconds to find out whether the consumer exists
_LINGER = 5.0  # seconds to keep the inbox of an abandoned request after its expiry and last message
_IN_FLIGHT = 60.0  # seconds to wait for messages in flight before that inbox is removed


class PullInbox:
    """An inbox, and the request whose answers arrive there."""

    __slots__ = ("frames", "inbox", "is_alone", "pin", "puller", "request", "until")

    def __init__(self, puller: Puller) -> None:
        self.puller: Puller = puller
        self.inbox: Inbox | None = None
        self.request: PullRequest | None = None
        self.pin: Pin | None = None  # the pin of the request's group, if the consumer pins clients
        self.frames: deque[Frame] | None = None  # None: no caller waits, so messages go to ``leftover``
        self.until: float = 0.0  # monotonic seconds: keep listening until then
        self.is_alone: bool = (
            False  # the caller waits for the end of this request, and not for its first message
        )

    def receive_frames(self, frames: list[Frame]) -> None:
        """The sink of the inbox: it receives the frames of its requests."""
        puller = self.puller
        now = puller.now()
        # Usually all frames are messages: handling them together saves a call per message.
        if not [frame for frame in frames if not frame[1].startswith(PREFIX)]:
            self._messages(frames, now)
            if self.is_alone and self.request is not None and self.request.ending is None:
                return  # more messages follow
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
            # The server assigns the pin to a request, and names it in a header of each message.
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
    """Sends the pull requests of one handle.

    Attributes:
        config: The consumer's configuration as the server last reported it. None if it is unknown.
        silent: Whether the consumer has ack policy none.
        leftover: Messages that arrived for callers that no longer wait.
        changed: Set after every arrival and change of state.
        readers: The continuous readers of the handle, which end with it.
        closed: Whether the handle was closed.
        arrived: The number of messages that have arrived.
        watch: Checks the consumer when no message arrives.
        in_hand: The messages that the program has.
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
        self.was_there: bool = (
            False  # whether the consumer existed at the last check, after requests without an answer
        )
        self._listener = listener
        self._subject = context.api.consumer_next(stream, consumer)
        # A slot is either free, has a caller, or has a request whose caller is gone.
        self._idle: list[PullInbox] = []
        self._busy: set[PullInbox] = set()
        self._orphans: list[PullInbox] = []
        self._foreign = 0
        self.closed: bool = False
        self._listening = False
        self._pins: dict[str, Pin] = {}  # by group
        self.arrived: int = 0
        self.watch: StallWatch = StallWatch(context, self, pins=self._pin_ids)
        self.in_hand: InHand = in_hand(context)

    def group(self, options: GroupOptions) -> GroupRequest | None:
        """Return the priority group part of requests. Raises `ConfigError` if it does not fit the consumer."""
        config = self.config
        if not options and (config is None or not config.priority_groups):
            return None
        request = group_request(config, **options)
        if request is not None and config is None:
            # A server without support for priority groups would ignore the options.
            least = (2, 11) if request.priority is None else (2, 12)
            check_server(self.context.connection.server_version, least, "a priority group")
        return request

    def pin_of(self, group: GroupRequest | None) -> Pin | None:
        """Return the pin that requests for this group name, or None if the consumer pins no clients."""
        if group is None or not pins_clients(self.config):
            return None
        if group.group not in self._pins:
            self._pins[group.group] = Pin(self.stream, self.consumer, group.group)
        return self._pins[group.group]

    def _pin_ids(self) -> frozenset[str]:
        return frozenset(pin.id for pin in self._pins.values() if pin.id is not None)

    @property
    def is_awaited(self) -> bool:
        """Whether a call is waiting for a message."""
        return self.changed.is_awaited

    def emit(self, event: Event) -> None:
        """Report an event to the user."""
        if self._listener is not None:
            self._listener(event)
        self.context.emit(event)

    def report_event(self, event: Event | None) -> None:
        """Emit an event. Does nothing with None."""
        if event is not None:
            self.emit(event)

    def foreign_message(self, frame: Frame) -> None:
        """Count and report a message that did not come from the server on an inbox."""
        self._foreign += 1
        for command in foreign_message(self.stream, self.consumer, frame, self._foreign):
            self.emit(command.event)

    @property
    def is_closed(self) -> bool:
        """Whether the handle or its connection is closed."""
        return self.closed or self.context.connection.is_closed

    def check_open(self) -> None:
        """Raise `ClosedError` if the handle or its connection is closed."""
        self.context.connection.check_open()
        if self.closed:
            raise ClosedError("the subscription is closed: subscribe again")
        if self.in_hand.has_ended:
            self.in_hand.check_may_pull()

    async def request(self, pull: Pull) -> PullInbox:
        """Send a request. Its answers arrive in the slot that is returned."""
        connection = self.context.connection
        if not self._listening:
            self._listening = True
            self.in_hand.add_puller(self)
            connection.add_listener(self._end_requests, self._end_denied_requests)
        if self._orphans:
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
            await connection.publish(self._subject, encode_pull(pull), reply=slot.inbox.subject, urgent=True)
        except asyncio.CancelledError:
            self.abandon_request(slot)  # it may have been sent: its messages must not be lost
            raise
        except BaseException:
            self._busy.discard(slot)
            slot.request = None
            await self._drop(slot)
            raise
        return slot

    @property
    def is_idle(self) -> bool:
        """Whether the next messages can only come from a new request."""
        return not self.leftover and not self._orphans and self.context.connection.is_connected

    async def request_all(self, pull: Pull) -> PullInbox:
        """Send a request, and wait until it has probably ended: all its messages have arrived, or another event has
        occurred.

        One timer serves all requests and may fire early, so the caller must check. No message is lost on cancellation.
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
        """Return why no server answered a pull request: the consumer does not exist, or has no leader at the moment.

        ``ends``: the caller raises this error, so the consumer is always looked up. A reader that continues looks up a
        known consumer later.
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
        """Take over abandoned requests, for up to ``missing`` messages.

        Requests with different group options are not taken over, because the server may serve them at different times.
        """
        slots: list[PullInbox] = []
        if not self._orphans:
            return slots
        self._sweep()
        for slot in list(self._orphans):
            request = slot.request
            if request is None or request.ended or request.pull.group != group:
                continue  # silent or disconnected: its inbox stays open, but no message is expected
            if missing <= 0:
                break
            self._orphans.remove(slot)
            slot.frames = deque()
            self._busy.add(slot)
            slots.append(slot)
            missing -= request.owed
        return slots

    def abandon_request(self, slot: PullInbox) -> None:
        """Release a request whose caller no longer waits."""
        self._busy.discard(slot)
        if slot.frames:
            self.leftover.extend(slot.frames)
        slot.frames, slot.is_alone = None, False
        request = slot.request
        if request is None or request.settled:
            self._idle.append(slot)
        else:
            self._orphans.append(slot)  # a late status in a reused inbox would end the next request

    def _sweep(self) -> None:
        """Free the inboxes of ended requests without a caller, and drop the inboxes that are past their time."""
        now = self.now()
        for slot in [s for s in self._orphans if s.request is not None and s.request.settled]:
            self._orphans.remove(slot)
            self._idle.append(slot)
        for slot in [s for s in self._orphans if now >= s.until]:
            self._orphans.remove(slot)
            self.context.tasks.start(self._flush(slot, _IN_FLIGHT), "drop an inbox")

    def _end_requests(self, what: Lifecycle) -> None:
        if what is not Lifecycle.CONNECTED:
            for slot in (*self._busy, *self._orphans):
                if slot.request is not None:
                    slot.request.connection_lost()
        self.changed.set()

    def is_denied(self, error: PermissionDeniedError, inbox: Inbox | None) -> bool:
        """Return whether the user lacks the permission to pull or to subscribe to this inbox."""
        return error.subject == self._subject or (inbox is not None and error.subject == inbox.subject)

    def _end_denied_requests(self, error: PermissionDeniedError) -> None:
        for slot in (*self._busy, *self._orphans):
            if slot.request is not None and self.is_denied(error, slot.inbox):
                slot.request.end_request(Ending.REFUSED, error)
        self.changed.set()

    async def _drop(self, slot: PullInbox) -> None:
        inbox, slot.inbox = slot.inbox, None
        if inbox is not None:
            await self.context.connection.unsubscribe(inbox)

    async def close(self, *, give_back: bool) -> None:
        """End all requests and readers. With ``give_back``, return unread messages to the server (nak)."""
        if self.closed:
            return
        self.closed = True
        self._timer.cancel()
        self.watch.close()
        connection = self.context.connection
        connection.remove_listener(self._end_requests, self._end_denied_requests)
        for slot in self._busy:
            if slot.request is not None:
                slot.request.end_request(Ending.CLOSED)
        self.changed.set()
        await asyncio.gather(*(reader.abandon() for reader in list(self.readers)))
        slots = (*self._idle, *self._orphans, *self._busy)
        self._idle, self._orphans = [], []
        gives_back = give_back and not self.silent
        flushed = [
            slot for slot in slots if gives_back and slot.request is not None and not slot.request.settled
        ]
        for slot in slots:
            if slot not in flushed:
                await self._drop(slot)
        if flushed:
            # Close them concurrently: if the server does not answer, each takes the whole timeout.
            within = min(_FLUSH, self.context.timeout)
            await asyncio.gather(*(self._flush(slot, within) for slot in flushed))
        if gives_back:
            await nak_all(connection, list(self.leftover))
        self.leftover.clear()

    async def _flush(self, slot: PullInbox, within: float) -> None:
        """Unsubscribe, but first wait up to ``within`` seconds for the messages in flight."""
        inbox, slot.inbox = slot.inbox, None
        if inbox is not None:
            await self.context.connection.drain(inbox, within)


class ReaderInbox:
    """The inbox for replies to the requests of one reader. It is closed at first."""

    def __init__(self, connection: Connection, sink: Sink) -> None:
        self._connection = connection
        self._sink = sink
        self._base = ""
        self.inbox: Inbox | None = None

    async def open_inbox(self) -> None:
        """Subscribe to a new subject."""
        base = f"{self._connection.new_inbox()}."
        self.inbox = await self._connection.subscribe(f"{base}*", self._sink)
        self._base = base

    def reply(self, number: int) -> str:
        """Return the reply subject of a request. ``number`` is its last token."""
        return f"{self._base}{number}"

    async def close(self) -> None:
        """Unsubscribe. Does nothing if the inbox is closed."""
        inbox, self.inbox = self.inbox, None
        if inbox is not None:
            await self._connection.unsubscribe(inbox)

    async def drain(self, timeout: float) -> None:
        """Unsubscribe once all messages in flight have arrived, or after ``timeout`` seconds."""
        inbox, self.inbox = self.inbox, None
        if inbox is not None:
            await self._connection.drain(inbox, timeout)
