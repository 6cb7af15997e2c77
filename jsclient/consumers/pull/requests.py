"""The inboxes of pull requests.

Each request has an inbox of its own, so that no status of one request ends another. Inboxes are kept and used again.
A caller that is cancelled leaves its request to the next one: what the server still delivers for it is not lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from ..._runtime.calls import nak_all
from ..._runtime.context import Closable, Context
from ..._runtime.nats.connection import Inbox, Lifecycle
from ..._runtime.wakeup import Signal
from ...errors import ClosedError, PermissionDeniedError
from ...protocol.consumers.delivery_queue import total_size
from ...protocol.consumers.fetch import Pull, PullRequest, encode_pull
from ...protocol.consumers.priority import GroupRequest, Pin, pins_clients
from ...protocol.events import Event, ForeignMessage
from ...protocol.models.consumer import ConsumerConfig
from ...protocol.wire.frames import Frame, frame_size, is_control, is_data
from ...protocol.wire.headers import parse_headers

__all__ = ["PullInboxes", "Slot"]

_FLUSH = 1.0  # seconds that an end waits for what is under way
_LINGER = 5.0  # seconds beyond its expiry that the inbox of an abandoned request is kept


class Slot:
    """An inbox, and the request whose answers come there."""

    __slots__ = ("frames", "inbox", "inboxes", "pin", "request", "until")

    def __init__(self, inboxes: PullInboxes) -> None:
        self.inboxes = inboxes
        self.inbox: Inbox | None = None
        self.request: PullRequest | None = None
        self.pin: Pin | None = None  # of the group it asks for, where the consumer pins clients
        self.frames: deque[Frame] | None = None  # None: nobody waits, so they are left over
        self.until = 0.0  # monotonic seconds: keep listening so long

    def receive(self, frames: list[Frame]) -> None:
        inboxes, request = self.inboxes, self.request
        now = inboxes.context.connection.now()
        target = inboxes.leftover if self.frames is None else self.frames
        if all(map(is_data, frames)):
            target.extend(frames)
            if request is not None:
                request.data(now, total_size(frames), len(frames))
            if self.pin is not None:
                self._pinned(self.pin, frames[-1])
            inboxes.changed.set()
            return
        for frame in frames:
            if is_data(frame):
                target.append(frame)
                if request is not None:
                    request.data(now, frame_size(frame))
                if self.pin is not None:
                    self._pinned(self.pin, frame)
            elif is_control(frame):
                status, _ = parse_headers(frame[2])
                if status is not None and request is not None:
                    request.status(status.code, status.description, now)
                    if self.pin is not None and request.is_unpinned:
                        inboxes.tell(self.pin.refused(status.code, request.pin))
            else:
                inboxes.foreign_message(frame)
        inboxes.changed.set()

    def _pinned(self, pin: Pin, frame: Frame) -> None:
        """The server gives the pin to a request, with a message."""
        self.inboxes.tell(pin.message(frame[2]))
        if self.request is not None and pin.id is not None:
            self.request.pin = pin.id


class PullInboxes:
    """The inboxes of one handle's pull requests, and what arrived for callers who left."""

    def __init__(
        self,
        context: Context,
        stream: str,
        consumer: str,
        *,
        silent: bool,
        listener: Callable[[Event], None] | None = None,
    ) -> None:
        self.context = context
        self._listener = listener
        self.stream = stream
        self.consumer = consumer
        self.silent = silent  # ack policy none
        self.leftover: deque[Frame] = deque()
        self.changed = Signal()
        self._subject = context.api.consumer_next(stream, consumer)
        self._idle: list[Slot] = []
        self._busy: set[Slot] = set()
        self._orphans: list[Slot] = []  # their requests live, their callers do not wait
        self.readers: set[Closable] = set()  # continuous ones, which end with this
        self._foreign = 0
        self._closed = False
        self._listening = False
        self.config: ConsumerConfig | None = None  # as last seen
        self._pins: dict[str, Pin] = {}  # by group

    def pin_of(self, group: GroupRequest | None) -> Pin | None:
        """The pin that requests for this group show; None where the consumer pins nobody."""
        if group is None or not pins_clients(self.config):
            return None
        if group.group not in self._pins:
            self._pins[group.group] = Pin(self.stream, self.consumer, group.group)
        return self._pins[group.group]

    def emit(self, event: Event) -> None:
        """Tell the user."""
        if self._listener is not None:
            self._listener(event)
        self.context.emit(event)

    def tell(self, event: Event | None) -> None:
        """Tell the user, if there is anything to tell."""
        if event is not None:
            self.emit(event)

    def foreign_message(self, frame: Frame) -> None:
        """Something on an inbox that the server did not send."""
        self._foreign += 1
        if self._foreign & (self._foreign - 1) == 0:
            subject = frame[0].decode("utf-8", "backslashreplace")
            self.emit(
                ForeignMessage(
                    stream=self.stream, consumer=self.consumer, subject=subject, count=self._foreign
                )
            )

    @property
    def pending(self) -> int:
        """Messages that arrived for callers who did not wait for them."""
        return len(self.leftover)

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("the subscription is closed")
        self.context.connection.check_open()

    @property
    def is_closed(self) -> bool:
        """Whether it is over."""
        return self._closed or self.context.connection.is_closed

    # --- requests and their inboxes --------------------------------------------------------------------------

    async def request(self, pull: Pull) -> Slot:
        """Send a request; its answers come to the slot."""
        if not self._listening:
            self._listening = True
            self.context.connection.add_listener(self._lifecycle)
            self.context.connection.denied.append(self._denied)
        self._sweep()
        slot = self._idle.pop() if self._idle else Slot(self)
        slot.frames = deque()
        self._busy.add(slot)
        try:
            if slot.inbox is None:
                slot.inbox = await self.context.connection.subscribe(
                    self.context.connection.new_inbox(), slot.receive
                )
            slot.pin = self.pin_of(pull.group)
            if slot.pin is not None:
                pull = msgspec.structs.replace(pull, pin=slot.pin.id)
            now = self.context.connection.now()
            slot.request = PullRequest(pull, now)
            slot.until = now + (pull.expires or 0.0) + _LINGER
            await self.context.connection.publish(
                self._subject, encode_pull(pull), reply=slot.inbox.subject, urgent=True
            )
        except asyncio.CancelledError:
            self.give_up(slot)  # it may have gone out: what comes of it is not lost
            raise
        except BaseException:
            self._busy.discard(slot)
            slot.request = None
            await self._drop(slot)
            raise
        return slot

    def adopt(self, wanted: int, group: GroupRequest | None) -> list[Slot]:
        """Requests that live without a caller, for up to ``wanted`` messages; the caller takes them over.

        Not those that say something else of their group: they are served when those of this caller would not be.
        """
        self._sweep()
        slots: list[Slot] = []
        for slot in list(self._orphans):
            request = slot.request
            if request is None or request.ended or request.pull.group != group:
                continue  # silent or disconnected: listened to, but nothing to wait for
            if wanted <= 0:
                break
            self._orphans.remove(slot)
            slot.frames = deque()
            self._busy.add(slot)
            slots.append(slot)
            wanted -= request.owed
        return slots

    def give_up(self, slot: Slot) -> None:
        """Nobody waits for this request any more."""
        self._busy.discard(slot)
        if slot.frames:
            self.leftover.extend(slot.frames)
        slot.frames = None
        request = slot.request
        if request is None or request.settled:
            self._idle.append(slot)
        else:
            self._orphans.append(slot)  # its last word may be late, and would end the next request

    def _sweep(self) -> None:
        """Requests without a caller that have ended: their inboxes are free, or of no more use."""
        now = self.context.connection.now()
        for slot in [s for s in self._orphans if s.request is not None and s.request.settled]:
            self._orphans.remove(slot)
            self._idle.append(slot)
        for slot in [s for s in self._orphans if now >= s.until]:
            self._orphans.remove(slot)
            self.context.tasks.start(self._drop(slot), "drop an inbox")

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is not Lifecycle.CONNECTED:
            for slot in (*self._busy, *self._orphans):
                if slot.request is not None:
                    slot.request.disconnected()
        self.changed.set()

    def is_denied(self, error: PermissionDeniedError, inbox: Inbox | None) -> bool:
        """Whether a permission that is missing is one to pull, or to listen on this inbox."""
        return error.subject == self._subject or (inbox is not None and error.subject == inbox.subject)

    def _denied(self, error: PermissionDeniedError) -> None:
        for slot in (*self._busy, *self._orphans):
            if slot.request is not None and self.is_denied(error, slot.inbox):
                slot.request.denied(error)
        self.changed.set()

    async def _drop(self, slot: Slot) -> None:
        inbox, slot.inbox = slot.inbox, None
        if inbox is not None:
            await self.context.connection.unsubscribe(inbox)

    # --- ending ----------------------------------------------------------------------------------------------

    async def close(self, *, give_back: bool) -> None:
        """Stop. ``give_back``: messages that nobody took are delivered elsewhere at once (nak)."""
        if self._closed:
            return
        self._closed = True
        connection = self.context.connection
        connection.remove_listener(self._lifecycle)
        if self._listening:
            connection.denied.remove(self._denied)
        for slot in self._busy:
            if slot.request is not None:
                slot.request.closed()
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
            # All at once: with a server that does not answer, each would wait its time out.
            await asyncio.gather(*(self._flush(slot) for slot in flushed))
        if gives_back:
            await nak_all(connection, list(self.leftover))
        self.leftover.clear()

    async def _flush(self, slot: Slot) -> None:
        """Listen no more once everything has arrived that is under way for its request."""
        inbox, slot.inbox = slot.inbox, None
        if inbox is not None:
            await self.context.connection.drain(inbox, min(_FLUSH, self.context.timeout))
