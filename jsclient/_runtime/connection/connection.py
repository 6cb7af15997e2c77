"""The interface of a NATS connection that the rest of jsclient uses.

There are two implementations: `OwnConnection` (own_connection.py), which jsclient opens, and `UserConnection`
(user_connection.py), which uses a user's nats-py connection through its public API.
"""

from __future__ import annotations

import abc
import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from ...errors import (
    ClosedError,
    ConfigError,
    DisconnectedError,
    JetStreamError,
    MaxPayloadError,
    PermissionDeniedError,
    ProtocolError,
    WrongLoopError,
)
from ...protocol.connection.connection_stats import ConnectionStats
from ...protocol.events import ErrorRaised
from ...protocol.wire.frames import Frame, Sink
from ..event_hub import EventHub, OnEvent
from ..tasks import Signal

if TYPE_CHECKING:
    from .wire import Outbox

__all__ = ["CLOSED", "Connection", "HoldingSink", "Inbox", "Lifecycle", "Listener"]


CLOSED: Final = "the connection is closed: connect again, with jsclient.connect()"


_OF_PROGRAM: Final = "this connection was opened by the program with nats-py, which chooses its servers"


class Lifecycle(Enum):
    """A change in the state of the connection, passed to its listeners."""

    DISCONNECTED = auto()
    CONNECTED = auto()  # the client has reconnected
    CLOSED = auto()


Listener = Callable[[Lifecycle], None]
OnDenied = Callable[[PermissionDeniedError], None]


class Inbox(Protocol):
    """A NATS subscription that jsclient created."""

    subject: str
    denied: PermissionDeniedError | None


class Connection(abc.ABC):
    """A NATS connection. It passes frames to sinks, writes bytes, and notifies listeners of its lifecycle."""

    def __init__(self, on_event: OnEvent | None, inbox_prefix: str = "_INBOX") -> None:
        self.hub: EventHub = EventHub(on_event)
        self.inbox_prefix = inbox_prefix
        self.denied: list[OnDenied] = []
        # Subjects of optional requests. If such a request is denied, no event reports the denial.
        self.optional: set[str] = set()
        self.echoes: bool = True  # true if the server delivers the client's own messages back to it
        self.connects: int = 0  # number of reconnects
        # The event loop of the first use, to which the connection belongs.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._listeners: list[Listener] = []
        self._changed = Signal()

    # --- state -------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def is_connected(self) -> bool:
        """Whether bytes can be sent now, as far as the client knows."""

    @property
    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Whether the connection is closed permanently."""

    @property
    @abc.abstractmethod
    def max_payload(self) -> int:
        """The maximum number of bytes of headers and payload that the server accepts."""

    @property
    @abc.abstractmethod
    def server_version(self) -> str:
        """The server's version, or "" if it is unknown."""

    # --- event loop, thread and process --------------------------------------------------------------------

    def belong_here(self) -> None:
        """Bind the connection to the running loop."""
        self.loop = asyncio.get_running_loop()

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop.

        Raises `WrongLoopError` if no loop is running, for example in a fork of the process.
        """
        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            self.enter()
            raise

    def check_here(self) -> None:
        """Raise `WrongLoopError` unless this is the event loop, thread and process of the connection."""
        try:
            here = self.loop is asyncio.get_running_loop()
        except RuntimeError:  # no loop is running
            here = False
        if not here:
            self.enter()

    def enter(self) -> None:
        """Bind the connection to the running loop at the first use. Later, raise `WrongLoopError` in any other loop."""
        if self._process != os.getpid():
            raise WrongLoopError(
                f"the connection was opened in process {self._process}, and this is its fork {os.getpid()}: "
                "connect after the fork"
            )
        if self.loop is None:
            self.belong_here()
        else:
            raise WrongLoopError(
                "the connection belongs to another event loop (or thread): open one in each event loop, or call "
                "asyncio.run_coroutine_threadsafe with the loop that opened it, as a plain handler must"
            )

    def new_inbox(self) -> str:
        """Return an unguessable subject, which is the prefix and 22 characters from the system's random source."""
        return f"{self.inbox_prefix}.{secrets.token_hex(11)}"

    def add_listener(self, listener: Listener, denied: OnDenied | None = None) -> None:
        """Register a callback for changes of the connection, and a callback for refused permissions."""
        self._listeners.append(listener)
        if denied is not None:
            self.denied.append(denied)

    def remove_listener(self, listener: Listener, denied: OnDenied | None = None) -> None:
        """Remove the callbacks. Does nothing if they are not registered."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        if denied in self.denied:
            self.denied.remove(denied)

    def _notify(self, what: Lifecycle) -> None:
        self._changed.set()
        self.connects += what is Lifecycle.CONNECTED
        for listener in list(self._listeners):
            try:
                listener(what)
            except Exception as error:  # noqa: BLE001  the other listeners must be called too
                self.report(error)

    def report(self, error: BaseException) -> None:
        """Report an error that can't be raised to a caller."""
        if not isinstance(error, JetStreamError):
            error = ProtocolError(f"{type(error).__name__}: {error}")
        self.hub.emit(ErrorRaised(error=error))

    async def wait_connected(self, deadline: float | None) -> None:
        """Wait until bytes can be sent.

        Raises:
            ClosedError: The connection is closed.
            DisconnectedError: The client was not connected by ``deadline``, in monotonic seconds of the loop. None
                means no limit.
        """
        while not self.is_connected:
            self.check_open()
            if not await self._changed.wait_until(deadline):
                if self.is_connected:
                    return
                self.check_open()
                raise self.away()

    @property
    def problem(self) -> str:
        """The known reason why the client is not connected. "" while it is connected."""
        return ""

    def away(self, text: str = "not connected to a server") -> DisconnectedError:
        """Create the error for an operation that needs a server, with the reason why there is no server."""
        return DisconnectedError(f"{text}: {self.problem}" if self.problem else text)

    def check_open(self) -> None:
        """Raise `ClosedError` if the connection is closed."""
        if self.is_closed:
            raise ClosedError(CLOSED)

    def check_sendable(self, size: int = 0) -> None:
        """Raise the error that `send` would raise for headers and payload of ``size`` bytes in total."""
        if not self.is_connected:
            self.check_here()
            self.check_open()
            raise self.away("not connected to a server at this moment; nothing was sent")
        if size:
            self.check_size(size)

    def check_size(self, size: int) -> None:
        """Raise `MaxPayloadError` if headers and payload exceed the server's limit."""
        if size > self.max_payload:
            raise MaxPayloadError(size, self.max_payload)

    # --- traffic -----------------------------------------------------------------------------------------

    outbox: Outbox | None = None
    """The write buffer, for senders that write thousands of commands per iteration of the event loop.

    Such senders must check `is_connected`, and wait with `wait_for_space` while the buffer is full. If it is None,
    only `publish` is available.
    """

    async def wait_for_space(self) -> None:  # noqa: B027  does nothing without an outbox
        """Wait until most of the outbox is written. Raises `DisconnectedError` or `ClosedError`."""

    @abc.abstractmethod
    def send(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        header: bytes = b"",
        urgent: bool = False,
    ) -> None:
        """Publish without waiting while the buffer is full, for small control messages. The subject must be valid.

        If ``urgent`` is True, the message is written at once. See `publish`. If an error is raised, the message was
        not sent.

        Raises:
            ClosedError: The connection is closed.
            DisconnectedError: The client isn't connected.
            MaxPayloadError: The message exceeds the server's size limit.
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
        """Publish, waiting while the buffer is full. May raise any error of `send`.

        If ``urgent`` is True, the message is written at once, because the caller waits for the reply.
        """

    def send_frames(self, frames: list[Frame]) -> None:
        """Publish frames that have a reply and a valid size, in order and at once. May raise any error of `send`."""
        for subject, reply, header, payload in frames:
            self.send(subject.decode(), payload, reply=reply.decode(), header=header)

    @abc.abstractmethod
    async def ack(self, reply: bytes, payload: bytes, *, settles: bool) -> None:
        """Publish an ack to the reply subject exactly as it was received. May raise any error of `send`.

        ``settles`` is true if the ack settles the message (ACK, TERM), so that it is sent again if the connection is
        lost.
        """

    def write_at_once(self, command: bytes, size: int) -> bool:
        """Write a PUB or HPUB command, and return whether that was possible without waiting.

        ``size`` is the number of bytes of headers and payload. If the result is False, nothing was written, so call
        `publish` instead.
        """
        return False

    def request_at_once(self, subject: str, reply: bytes, header: bytes, payload: bytes) -> bool:
        """Publish a request at once if that is possible without waiting.

        If it returns False, nothing was sent: call `publish` with ``urgent``.
        """
        return False

    def ack_at_once(self, reply: bytes) -> bool:
        """Publish ``+ACK`` if that is possible without waiting.

        If the result is False, nothing was sent, so call `ack`.
        """
        return False

    @abc.abstractmethod
    async def subscribe(self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0) -> Inbox:
        """Create a NATS subscription whose frames go to ``sink``, in batches, in order, synchronously.

        ``limit`` is the maximum number of messages, or 0 for no limit. `unsubscribe` must still be called.
        """

    def subscribe_now(self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0) -> Inbox:
        """Subscribe like `subscribe`, but without waiting. Only for connections with an outbox."""
        raise NotImplementedError

    @abc.abstractmethod
    def end_after(self, inbox: Inbox, count: int, *, earlier: int) -> None:
        """Let the server end a subscription after ``count`` messages, ``earlier`` of them on earlier connections.

        `unsubscribe` must still be called. While disconnected, the limit applies to the next connection.
        """

    def expect_large(self, inbox: Inbox) -> None:  # noqa: B027  not every connection limits frames
        """Accept frames over ``max_payload`` in this inbox, such as API answers with 100,000 subjects."""

    @abc.abstractmethod
    async def unsubscribe(self, inbox: Inbox) -> None:
        """Remove a subscription. Does nothing if it was removed already or the connection is down."""

    @abc.abstractmethod
    async def drain(self, inbox: Inbox, timeout: float) -> None:
        """Remove a subscription after its messages in flight have arrived. Never raises.

        ``timeout`` is the number of seconds to wait for messages in flight.
        """

    @abc.abstractmethod
    async def ping(self, timeout: float) -> float:
        """Wait for a PONG, and return the duration of the round trip in seconds.

        On return the server has read all earlier data of the client, and all earlier data of the server has arrived.

        Raises:
            RequestTimeoutError: No PONG arrived in time.
            DisconnectedError: The connection was lost first.
            ClosedError: The connection was closed first.
        """

    async def reconnect(self, timeout: float) -> None:
        """Close the connection to the server and connect again. Only for connections that jsclient opened."""
        raise ConfigError(_OF_PROGRAM)

    def set_servers(self, servers: Sequence[str]) -> None:
        """Use other servers from the next reconnect on. Only for connections that jsclient opened."""
        raise ConfigError(_OF_PROGRAM)

    def stats(self) -> ConnectionStats:
        """Return the counters of the connection. A counter that is not available is 0."""
        return ConnectionStats(reconnects=self.connects)

    @abc.abstractmethod
    async def close(self) -> None:
        """Close the connection permanently."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Close the connection at once, without waiting."""

    def _permission_denied(self, error: PermissionDeniedError) -> None:
        for report in list(self.denied):
            report(error)

    def now(self) -> float:
        """Return the monotonic time of the running loop in seconds."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            self.enter()
            raise


class HoldingSink:
    """A sink that retains frames until it is opened, and drops the frames that arrive after it is closed.

    The server may deliver messages before its answer to the create request has been read. After `open`, the sink of the
    handle replaces this sink in the reader's table, so later messages do not pass through it.
    """

    __slots__ = ("_held", "_key", "_sinks", "_target")

    def __init__(self) -> None:
        self._held: list[Frame] | None = []
        self._target: Sink | None = None
        self._sinks: dict[bytes, Sink] = {}
        self._key = b""

    def __call__(self, frames: list[Frame]) -> None:
        if self._target is not None:
            self._target(frames)
        elif self._held is not None:
            self._held.extend(frames)

    def installed(self, sinks: dict[bytes, Sink], key: bytes) -> None:
        """Remember the table in which this sink is registered under ``key``."""
        self._sinks, self._key = sinks, key

    def open(self, target: Sink) -> None:
        """Pass the retained frames and all later frames to ``target``."""
        held, self._held, self._target = self._held, None, target
        self._replace(target)
        if held:
            target(held)

    def close(self) -> None:
        """Drop all later frames."""
        self._held = self._target = None
        self._replace(self)

    def _replace(self, sink: Sink) -> None:
        if self._key in self._sinks:  # if the key is missing, the sink has been unsubscribed
            self._sinks[self._key] = sink
