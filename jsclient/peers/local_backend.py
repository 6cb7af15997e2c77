"""A backend for peers in this process, without a server. Their state lives as long as the `LocalHub`."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from .._runtime.event_hub import EventHub, OnEvent
from .._runtime.tasks import Tasks
from ..buckets.state import StateConflictError, StateEntry
from ..errors import NoRespondersError, PublishError, RequestTimeoutError
from ..protocol.events import Event
from ..protocol.peers.channel import event_subject
from ..protocol.peers.options import EngineOptions
from ..protocol.peers.relationship import Send
from .backend import Answerer, Attendance, Backend, Delivery, Receiver, Store, pack, refusal
from .errors import HostNotAllowedError

__all__ = ["LocalBackend", "LocalHub", "MemoryStore"]

_IDS: Final = 10_000  # number of message ids that are remembered
_QUERIES: Final = 100  # maximum number of queries that a peer answers at the same time


class MemoryStore:
    """A `Store` that keeps its entries in memory."""

    def __init__(self) -> None:
        self._entries: dict[str, StateEntry] = {}
        self._revision = 0

    async def get(self, key: str) -> StateEntry:
        return self._entries.get(key) or StateEntry(key, None, 0)

    async def update(self, key: str, value: bytes | None, revision: int) -> int:
        stored = await self.get(key)
        if stored.revision != revision:
            raise StateConflictError(stored)
        if value is None:
            self._entries.pop(key, None)
            return 0
        self._revision += 1
        self._entries[key] = StateEntry(key, value, self._revision)
        return self._revision

    async def entries(self, after: int = 0) -> list[StateEntry]:
        return [entry for entry in self._entries.values() if entry.revision > after]

    async def purge(self) -> None:
        self._entries.clear()


@dataclass(slots=True)
class _Letter:
    """An event in an inbox, with the number of its deliveries."""

    seq: int
    subject: str
    data: bytes
    deliveries: int = 0

    @property
    def channel(self) -> str:
        return ".".join(self.subject.split(".")[-4:-2])


class LocalHub:
    """Keeps the state and the waiting events of peers in this process. Pass it to ``Engine.local``.

    Engines that share a hub can reach each other's peers, and a new engine continues where a closed one stopped. You
    don't need to close a hub.
    """

    def __init__(self) -> None:
        self.stores: dict[str, MemoryStore] = {}
        self.inboxes: dict[str, _Inbox] = {}
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._seq = 0

    def inbox(self, peer: str) -> _Inbox:
        """Return the inbox of a peer, and create it if necessary. For internal use."""
        return self.inboxes.setdefault(peer, _Inbox())

    def put(self, subject: str, peer: str, data: bytes, id: str, limit: int) -> None:
        """Store an event in the inbox of a peer, unless the hub has already stored one with the same ``id``.

        For internal use.

        Args:
            subject: The subject of the event.
            peer: Name of the peer that receives the event.
            data: The attributes of the event, encoded.
            id: Identifies the event.
            limit: Maximum number of events in the inbox.

        Raises:
            PublishError: The inbox already holds ``limit`` events.
        """
        if id in self._ids:
            return
        inbox = self.inbox(peer)
        if inbox.held >= limit:
            raise PublishError(f"the inbox of peer {peer!r} is full: {limit} events wait")
        inbox.held += 1
        self._seq += 1
        self._ids[id] = None
        if len(self._ids) > _IDS:
            self._ids.popitem(last=False)
        inbox.add_letter(_Letter(self._seq, subject, data))


@dataclass
class _Inbox:
    """The waiting events of one peer, and its reader."""

    held: int = 0  # number of events, including events that are being handled
    waiting: deque[_Letter] = field(default_factory=deque)
    reader: _LocalAttendance | None = None

    def add_letter(self, letter: _Letter) -> None:
        if self.reader is None:
            self.waiting.append(letter)
        else:
            self.reader.take_letter(letter)


class LocalBackend(Backend):
    """A `Backend` for peers on a hub in this process."""

    def __init__(self, hub: LocalHub, options: EngineOptions, on_event: OnEvent | None) -> None:
        super().__init__(options)
        self._hub = hub
        self._events = EventHub(on_event)

    async def open_streams(self) -> None:
        pass

    def store(self, peer: str) -> Store:
        return self._hub.stores.setdefault(peer, MemoryStore())

    async def attend(self, peer: str, receiver: Receiver, answerer: Answerer) -> Attendance:
        inbox = self._hub.inbox(peer)
        if inbox.reader is not None:
            raise PublishError(f"the peer {peer!r} is in another engine of this hub")
        inbox.reader = _LocalAttendance(self, inbox, receiver, answerer)
        return inbox.reader

    async def publish(self, send: Send) -> None:
        if send.host is not None and send.host != self.options.host:
            raise HostNotAllowedError(send.host)
        subject = event_subject(send.eci, send.domain, send.type, self.options.prefix)
        peer, _, _ = send.eci.partition(".")
        self._hub.put(subject, peer, pack(send.attrs), send.id, self.options.max_waiting)

    async def ask(self, subject: str, data: bytes, host: str | None, timeout: float) -> bytes:
        if host is not None and host != self.options.host:
            raise HostNotAllowedError(host)
        inbox = self._hub.inboxes.get(subject.split(".")[-4])
        if inbox is None or inbox.reader is None:
            raise NoRespondersError(503, f"no responders on {subject!r}")
        try:
            async with asyncio.timeout(timeout):
                return await inbox.reader.answer(subject, data)
        except TimeoutError:
            raise RequestTimeoutError(f"query {subject}", timeout) from None

    async def forget_peer(self, peer: str) -> None:
        self._hub.inboxes.pop(peer, None)
        self._hub.stores.pop(peer, None)

    def emit(self, event: Event) -> None:
        self._events.emit(event)

    async def close(self) -> None:
        await self._events.close()

    def abort(self, end: Coroutine[Any, Any, None]) -> None:
        self._ending = asyncio.create_task(end, name="jsclient:close the engine")


class _LocalAttendance(Attendance):
    """Delivers the events of each channel in order, in a task that ends when no events remain."""

    def __init__(self, backend: LocalBackend, inbox: _Inbox, receiver: Receiver, answerer: Answerer) -> None:
        self._inbox = inbox
        self._receiver = receiver
        self._answerer = answerer
        self._tasks = Tasks(backend.report_error)
        self._busy = asyncio.Semaphore(backend.options.concurrency)
        self._queues: dict[str, deque[_Letter]] = {}
        self._later: dict[asyncio.TimerHandle, _Letter] = {}
        self._started = False
        self._closed = False
        self._answering = 0

    def begin_delivery(self) -> None:
        self._started = True
        waiting = [*self._inbox.waiting]
        self._inbox.waiting.clear()
        for letter in waiting:
            self.take_letter(letter)

    def take_letter(self, letter: _Letter) -> None:
        """Queue a new or redelivered event for its channel, or keep it in the inbox if delivery is stopped."""
        if not self._started or self._closed:
            self._inbox.waiting.append(letter)
        elif letter.channel in self._queues:
            self._queues[letter.channel].append(letter)
        else:
            self._queues[letter.channel] = deque([letter])
            self._tasks.start(self._handle_channel(letter.channel), "events of a local peer")

    async def _handle_channel(self, channel: str) -> None:
        queue = self._queues[channel]
        try:
            while queue and not self._closed:
                async with self._busy:
                    await self._deliver(queue)
        finally:
            del self._queues[channel]
            self._inbox.waiting.extend(queue)

    async def _deliver(self, queue: deque[_Letter]) -> None:
        letter = queue[0]
        letter.deliveries += 1
        loop = asyncio.get_running_loop()
        again = False

        async def later(delay: float) -> None:
            nonlocal again
            again = True
            handle: asyncio.TimerHandle
            handle = loop.call_later(delay, lambda: self.take_letter(self._later.pop(handle)))
            self._later[handle] = letter

        async def refuse(reason: str) -> None:
            pass  # an event is finished unless its redelivery was requested

        ident = f"{letter.seq}".encode()
        await self._receiver(Delivery(letter.subject, letter.data, ident, letter.deliveries, later, refuse))
        queue.popleft()
        self._inbox.held -= not again

    async def answer(self, subject: str, data: bytes) -> bytes:
        """Answer a query, or refuse it if too many queries are running."""
        if self._answering >= _QUERIES:
            return refusal("BUSY")
        self._answering += 1
        try:
            return await self._answerer(subject, data)
        finally:
            self._answering -= 1

    def stop_delivery(self, grace: float) -> None:
        self._closed = True

    async def close(self, grace: float) -> None:
        self.stop_delivery(grace)
        await self._tasks.settle(grace)
        for handle, letter in self._later.items():
            handle.cancel()
            self._inbox.waiting.append(letter)
        self._later.clear()
        if self._inbox.reader is self:
            self._inbox.reader = None
            self._inbox.waiting = deque(sorted(self._inbox.waiting, key=lambda letter: letter.seq))
