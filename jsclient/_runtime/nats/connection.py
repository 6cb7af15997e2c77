"""What the rest of jsclient needs of a NATS connection, and nothing more.

Two implementations: `GuardedConnection` (guarded.py), which jsclient opens itself, and `ForeignConnection`
(foreign.py), a user's own nats-py connection through its public API.
"""

from __future__ import annotations

import abc
import asyncio
import secrets
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from ...errors import ClosedError, DisconnectedError, MaxPayloadError, PermissionDeniedError
from ...protocol.wire.frames import Frame, Sink
from ..event_hub import EventHub, OnEvent
from ..wakeup import Signal
from .write_buffer import Outbox

__all__ = ["Connection", "Inbox", "Lifecycle", "Listener"]


class Lifecycle(Enum):
    """What became of the connection."""

    DISCONNECTED = auto()
    CONNECTED = auto()  # again
    CLOSED = auto()


Listener = Callable[[Lifecycle], None]


class Inbox(Protocol):
    """A NATS subscription of ours."""

    subject: str
    denied: PermissionDeniedError | None


class Connection(abc.ABC):
    """A NATS connection as a port: frames in through sinks, bytes out, and word of what becomes of it."""

    def __init__(self, on_event: OnEvent | None, inbox_prefix: str = "_INBOX") -> None:
        self.hub = EventHub(on_event)
        self.inbox_prefix = inbox_prefix
        self.denied: list[Callable[[PermissionDeniedError], None]] = []
        self.connects = 0  # how often it has reconnected
        self._listeners: list[Listener] = []
        self._changed = Signal()

    # --- state -------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def is_connected(self) -> bool:
        """Whether bytes can be sent now. It proves nothing about the other side."""

    @property
    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Whether it is over for good."""

    @property
    @abc.abstractmethod
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server takes."""

    @property
    @abc.abstractmethod
    def server_version(self) -> str:
        """The server's version, "" where it is not known."""

    def new_inbox(self) -> str:
        """A subject nobody can guess: the prefix and 22 characters from the system's random source."""
        return f"{self.inbox_prefix}.{secrets.token_hex(11)}"

    def add_listener(self, listener: Listener) -> None:
        """Be told of disconnects, reconnects and the end."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Not any more. Harmless if it was not there."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def _notify(self, what: Lifecycle) -> None:
        self._changed.set()
        self.connects += what is Lifecycle.CONNECTED
        for listener in list(self._listeners):
            listener(what)

    async def wait_connected(self, deadline: float | None) -> None:
        """Return when bytes can be sent.

        Raises:
            ClosedError: The connection is closed.
            DisconnectedError: It was not there by ``deadline`` (monotonic seconds of the loop; None: wait on).
        """
        while not self.is_connected:
            self.check_open()
            if not await self._changed.wait_until(deadline):
                if self.is_connected:
                    return
                self.check_open()
                raise DisconnectedError("not connected to a server")

    def check_open(self) -> None:
        """Raise `ClosedError` if the connection is closed."""
        if self.is_closed:
            raise ClosedError("the connection is closed")

    def check_size(self, size: int) -> None:
        """Raise `MaxPayloadError` if headers and payload are more than the server takes."""
        if size > self.max_payload:
            raise MaxPayloadError(size, self.max_payload)

    # --- traffic -----------------------------------------------------------------------------------------

    outbox: Outbox | None = None
    """Where whole commands can be written while `is_connected`, by who sends thousands in a turn of the loop; whoever
    finds it full waits in `make_room`. None: there is only `publish`."""

    async def make_room(self) -> None:  # noqa: B027  only where there is an outbox
        """Wait until most of what the outbox holds is written. Raises `DisconnectedError`, `ClosedError`."""

    @abc.abstractmethod
    def send(self, subject: str, payload: bytes = b"", *, reply: str = "", header: bytes = b"") -> None:
        """Publish without waiting for room: for small control messages. The subject must be legal.

        Raises:
            ClosedError, DisconnectedError, MaxPayloadError: Nothing was sent.
        """

    @abc.abstractmethod
    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        header: bytes = b"",
        urgent: bool = False,
    ) -> None:
        """Publish, and wait while more is buffered than should be. Raises as `send`.

        ``urgent``: the caller will wait for the answer, so do not wait for more to write.
        """

    def send_frames(self, frames: list[Frame]) -> None:
        """Publish frames that have a reply and no illegal size, in their order and at once. Raises as `send`."""
        for subject, reply, header, payload in frames:
            self.send(subject.decode(), payload, reply=reply.decode(), header=header)

    @abc.abstractmethod
    async def ack(self, reply: bytes, payload: bytes, *, settles: bool) -> None:
        """Publish an ack to the reply exactly as it was received. Raises as `send`.

        ``settles``: the message is done with it (ACK, TERM), so it is sent again if the connection dies under it.
        """

    def ack_at_once(self, reply: bytes) -> bool:
        """Publish ``+ACK`` if that needs no waiting; False: nothing was done, `ack` does it or says why not."""
        return False

    @abc.abstractmethod
    async def subscribe(self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0) -> Inbox:
        """Make a NATS subscription whose frames go to ``sink``, in batches, in order, synchronously.

        ``limit``: the server sends so many at most; 0: no limit. It must be taken away all the same.
        """

    def expect_large(self, inbox: Inbox) -> None:  # noqa: B027  not every connection bounds what comes
        """The API answers there: pages of 100,000 subjects are larger than ``max_payload``, which bounds messages."""

    @abc.abstractmethod
    async def unsubscribe(self, inbox: Inbox) -> None:
        """Take it away. Harmless if it is gone or the connection is down."""

    @abc.abstractmethod
    async def drain(self, inbox: Inbox, timeout: float) -> None:
        """Take it away once all that is under way to it has arrived. Never raises: with the connection gone it is over.

        ``timeout``: seconds to wait for what is under way.
        """

    @abc.abstractmethod
    async def ping(self, timeout: float) -> float:
        """A round trip: all that was sent before has been read by the server, all it sent before has arrived.

        Returns: how long it took, seconds. Raises `RequestTimeoutError`, `DisconnectedError`, `ClosedError`.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Close for good."""

    def _permission_denied(self, error: PermissionDeniedError) -> None:
        for told in list(self.denied):
            told(error)

    @staticmethod
    def now() -> float:
        """Monotonic seconds of the running loop."""
        return asyncio.get_running_loop().time()
