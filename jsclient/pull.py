"""Pulling messages: one request at a time (`Puller`, behind ``fetch`` and ``next``). Source: ADR-37 §Fetch, ADR-13.

Each request has an inbox of its own, so that no status of one request ends another. Inboxes are kept and used again.
A caller that is cancelled leaves its request to the next one: what the server still delivers for it is not lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import overload

from ._runtime.connection import Inbox, Lifecycle
from ._runtime.context import Context
from ._runtime.signal import Signal
from .errors import (
    ClosedError,
    DisconnectedError,
    JetStreamError,
    RequestTimeoutError,
)
from .message import AckChannel, Message
from .protocol.ack import AckKind
from .protocol.events import Event, ForeignMessage
from .protocol.frames import Frame, frame_size, is_control, is_data
from .protocol.headers import parse_headers
from .protocol.pull import MARGIN, Pull, PullRequest, check_pull, default_heartbeat, encode_pull
from .protocol.status import Ending

__all__ = ["Batch", "Puller"]

_GRACE = 0.8  # seconds that a fetch waits for a lost connection to come back
_LINGER = 5.0  # seconds beyond its expiry that the inbox of an abandoned request is kept
_ORDINARY = frozenset({Ending.FULL, Ending.MAX_BYTES, Ending.NO_MESSAGES, Ending.EXPIRED})


class Batch(Sequence[Message]):
    """What a fetch brought, in the order of delivery.

    Attributes:
        ending: Why it ended.
        error: The error behind an ending that is not ordinary, else None. Where no message came at all, `fetch` raises
            it instead.
    """

    __slots__ = ("_messages", "ending", "error")

    def __init__(self, messages: list[Message], ending: Ending, error: JetStreamError | None = None) -> None:
        self._messages = messages
        self.ending = ending
        self.error = error

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages[index]

    def __repr__(self) -> str:
        error = "" if self.error is None else f", {self.error!r}"
        return f"<Batch of {len(self)}, {self.ending.value}{error}>"


class _Slot:
    """An inbox, and the request whose answers come there."""

    __slots__ = ("frames", "inbox", "puller", "request", "until")

    def __init__(self, puller: Puller) -> None:
        self.puller = puller
        self.inbox: Inbox | None = None
        self.request: PullRequest | None = None
        self.frames: deque[Frame] | None = None  # None: nobody waits, so they are left over
        self.until = 0.0  # monotonic seconds: keep listening so long

    def receive(self, frames: list[Frame]) -> None:
        puller, request = self.puller, self.request
        now = puller.context.connection.now()
        target = puller.leftover if self.frames is None else self.frames
        for frame in frames:
            if is_data(frame):
                target.append(frame)
                if request is not None:
                    request.data(now)
            elif is_control(frame):
                status, _ = parse_headers(frame[2])
                if status is not None and request is not None:
                    request.status(status.code, status.description, now)
            else:
                puller.foreign_message(frame)
        puller.changed.set()


class Puller:
    """Fetches from one consumer."""

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
        self.channel = AckChannel(context.connection, context.requests, context.timeout, silent)
        self.leftover: deque[Frame] = deque()
        self.changed = Signal()
        self._subject = context.api.consumer_next(stream, consumer)
        self._idle: list[_Slot] = []
        self._busy: set[_Slot] = set()
        self._orphans: list[_Slot] = []  # their requests live, their callers do not wait
        self._foreign = 0
        self._closed = False
        self._listening = False

    def emit(self, event: Event) -> None:
        """Tell the user."""
        if self._listener is not None:
            self._listener(event)
        self.context.emit(event)

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

    # --- fetching ------------------------------------------------------------------------------------------

    async def next(self, timeout: float) -> Message:
        """One message. Raises `RequestTimeoutError` when none comes in ``timeout`` seconds; else as `fetch`."""
        batch = await self.fetch(1, expires=timeout)
        if not batch:
            raise RequestTimeoutError("no message", timeout)
        return batch[0]

    async def fetch(
        self,
        batch: int,
        *,
        expires: float = 5.0,
        max_bytes: int | None = None,
        no_wait: bool = False,
        idle_heartbeat: float | None = None,
    ) -> Batch:
        """See `PullSubscription.fetch`."""
        if idle_heartbeat is None and not no_wait and isinstance(expires, int | float):
            idle_heartbeat = default_heartbeat(expires)
        check_pull(batch, expires, max_bytes, None if no_wait else idle_heartbeat)
        self._check_open()
        fetch = _Fetch(
            self, batch, expires=expires, max_bytes=max_bytes, no_wait=no_wait, idle_heartbeat=idle_heartbeat
        )
        try:
            ending, error = await fetch.run()
        except BaseException:
            self.leftover.extendleft(reversed(fetch.frames))
            self.changed.set()
            raise
        finally:
            fetch.release()
        if error is not None and not fetch.frames:
            raise error
        return Batch([Message(frame, self.channel) for frame in fetch.frames], ending, error)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the subscription is closed")
        self.context.connection.check_open()

    @property
    def is_closed(self) -> bool:
        """Whether it is over."""
        return self._closed or self.context.connection.is_closed

    # --- requests and their inboxes --------------------------------------------------------------------------

    async def request(self, pull: Pull) -> _Slot:
        """Send a request; its answers come to the slot."""
        if not self._listening:
            self._listening = True
            self.context.connection.add_listener(self._lifecycle)
        self._sweep()
        slot = self._idle.pop() if self._idle else _Slot(self)
        slot.frames = deque()
        self._busy.add(slot)
        try:
            if slot.inbox is None:
                slot.inbox = await self.context.connection.subscribe(
                    self.context.connection.new_inbox(), slot.receive
                )
            now = self.context.connection.now()
            slot.request = PullRequest(pull, now)
            slot.until = now + (pull.expires or 0.0) + _LINGER
            await self.context.connection.publish(self._subject, encode_pull(pull), reply=slot.inbox.subject)
        except BaseException:
            self._busy.discard(slot)
            slot.request = None
            await self._drop(slot)
            raise
        return slot

    def adopt(self, wanted: int) -> list[_Slot]:
        """Requests that live without a caller, for up to ``wanted`` messages; the caller takes them over."""
        self._sweep()
        slots: list[_Slot] = []
        while self._orphans and wanted > 0:
            slot = self._orphans.pop(0)
            assert slot.request is not None
            slot.frames = deque()
            self._busy.add(slot)
            slots.append(slot)
            wanted -= slot.request.owed
        return slots

    def give_up(self, slot: _Slot) -> None:
        """Nobody waits for this request any more."""
        self._busy.discard(slot)
        if slot.frames:
            self.leftover.extend(slot.frames)
        slot.frames = None
        request = slot.request
        if request is None or (request.ended and request.ending in _ORDINARY and request.owed <= 0):
            self._idle.append(slot)
        elif request.ended and request.ending not in {Ending.SILENT, Ending.DISCONNECTED}:
            self._idle.append(slot)  # the server has said so: nothing more comes
        else:
            self._orphans.append(slot)

    def _sweep(self) -> None:
        """Requests without a caller that have ended: their inboxes are free, or of no more use."""
        now = self.context.connection.now()
        for slot in [s for s in self._orphans if s.request is not None and s.request.ended]:
            assert slot.request is not None
            if slot.request.ending not in {Ending.SILENT, Ending.DISCONNECTED}:
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

    async def _drop(self, slot: _Slot) -> None:
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
        for slot in self._busy:
            if slot.request is not None:
                slot.request.closed()
        self.changed.set()
        slots = (*self._idle, *self._orphans, *self._busy)
        self._idle, self._orphans = [], []
        for slot in slots:
            await self._drop(slot)
        if give_back and not self.silent:
            try:
                for frame in self.leftover:
                    await connection.ack(frame[1], AckKind.NAK.value, settles=False)
            except JetStreamError:
                pass  # ack_wait does the same, later
        self.leftover.clear()


class _Fetch:
    """One call of `Puller.fetch`: what it has, what it waits for."""

    def __init__(
        self,
        puller: Puller,
        batch: int,
        *,
        expires: float,
        max_bytes: int | None,
        no_wait: bool,
        idle_heartbeat: float | None,
    ) -> None:
        self.frames: list[Frame] = []
        self._puller = puller
        self._batch = batch
        self._max_bytes = max_bytes
        self._no_wait = no_wait
        self._idle_heartbeat = idle_heartbeat
        self._started = puller.context.connection.now()
        self._deadline = self._started + expires
        self._size = 0
        self._slots: list[_Slot] = []
        self._own: _Slot | None = None  # the request that this fetch sent last
        self._offline_since: float | None = None

    async def run(self) -> tuple[Ending, JetStreamError | None]:
        puller, connection = self._puller, self._puller.context.connection
        if not self._no_wait and self._max_bytes is None:
            self._slots = puller.adopt(self._batch)
        while True:
            if not self._collect():
                return Ending.MAX_BYTES, None
            if len(self.frames) >= self._batch:
                return Ending.FULL, None
            if (outcome := self._outcome()) is not None:
                return outcome
            now = connection.now()
            if connection.is_connected:
                self._offline_since = None
                owed = sum(
                    slot.request.owed for slot in self._slots if slot.request and not slot.request.ended
                )
                missing = self._batch - len(self.frames) - owed
                if missing > 0 and now < self._deadline:
                    await self._ask(missing, now)
                    continue
            else:
                self._offline_since = self._offline_since or now
                if now >= min(self._offline_since + _GRACE, self._deadline):
                    return Ending.DISCONNECTED, DisconnectedError("not connected to a server")
            if not await puller.changed.wait_until(self._wake_at()):
                self._tick(connection.now())
                if connection.now() >= self._deadline + MARGIN:
                    return Ending.EXPIRED, None

    def _collect(self) -> bool:
        """Take what arrived. False: the next message would pass ``max_bytes``."""
        puller = self._puller
        for source in (puller.leftover, *(slot.frames for slot in self._slots if slot.frames is not None)):
            while source and len(self.frames) < self._batch:
                size = frame_size(source[0])
                if self._max_bytes is not None and self._size + size > self._max_bytes:
                    return False
                self._size += size
                self.frames.append(source.popleft())
        return True

    def _outcome(self) -> tuple[Ending, JetStreamError | None] | None:
        """How this fetch ends, if one of its requests has ended in a way that ends it."""
        puller = self._puller
        if puller.is_closed:
            return Ending.CLOSED, ClosedError("the subscription was closed while a fetch was under way")
        for slot in list(self._slots):
            request = slot.request
            if request is None or not request.ended:
                continue
            ending = request.ending
            assert ending is not None
            adopted = slot is not self._own
            if ending is Ending.DISCONNECTED or (adopted and ending in _ORDINARY) or ending is Ending.FULL:
                # Lost with the connection, or only somebody else's time was over: ask again for the rest.
                self._slots.remove(slot)
                puller.give_up(slot)
                continue
            return ending, request.error
        return None

    async def _ask(self, missing: int, now: float) -> None:
        room = None if self._max_bytes is None else self._max_bytes - self._size
        if self._no_wait:
            pull = Pull(missing, None, room, no_wait=True)
        else:
            left = self._deadline - now
            heartbeat = self._idle_heartbeat
            if heartbeat is not None and heartbeat > left / 2:
                heartbeat = None
            pull = Pull(missing, max(left, 0.001), room, idle_heartbeat=heartbeat)
        try:
            self._own = await self._puller.request(pull)
        except DisconnectedError:
            return  # noticed by the loop
        self._slots.append(self._own)

    def _wake_at(self) -> float:
        deadlines = [slot.request.deadline for slot in self._slots if slot.request is not None]
        moments = [moment for moment in deadlines if moment is not None]
        if self._offline_since is not None:
            moments.append(min(self._offline_since + _GRACE, self._deadline))
        return min([*moments, self._deadline + MARGIN])

    def _tick(self, now: float) -> None:
        for slot in self._slots:
            if (
                slot.request is not None
                and (deadline := slot.request.deadline) is not None
                and now >= deadline
            ):
                slot.request.tick(now)

    def release(self) -> None:
        """This fetch is over; requests that live go on without a caller."""
        for slot in self._slots:
            self._puller.give_up(slot)
        self._slots = []
