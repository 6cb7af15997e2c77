"""The connection that jsclient opens, from the socket up.

No input ends the reader permanently, no callback that raises stops a reconnect, no stale command is sent after a
reconnect, and requested TLS is required.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...errors import (
    ClosedError,
    ConnectError,
    DisconnectedError,
    JetStreamError,
    PermissionDeniedError,
    ProtocolError,
)
from ...protocol.connection.connection_stats import ConnectionStats
from ...protocol.connection.handshake import RefusedError
from ...protocol.connection.server_info import ServerInfo
from ...protocol.connection.server_session import DEFAULT_MAX_PAYLOAD, ServerSession
from ...protocol.connection.subscriptions import Subscriptions, WireSubscription
from ...protocol.connection.urls import shown
from ...protocol.events import Disconnected, Reconnected, ServersChanged
from ...protocol.wire.frames import Frame, Sink
from ...protocol.wire.server_error import read_server_error
from ..event_hub import OnEvent
from .attempt import ServerLink
from .connect_errors import connect_error
from .connection import CLOSED, Connection, HoldingSink, Lifecycle
from .connector import Connector
from .credentials import check_file, expiry_of
from .denials import Denials
from .pings import Pings
from .restorer import Restorer
from .transport import Transport
from .unconfirmed_acks import LIMIT, NAK, NOT_AGAIN, UnconfirmedAcks
from .wire import PIECE, FrameReader, Outbox

__all__ = ["OwnConnection"]


class OwnConnection(Connection):
    """A `Connection` opened and owned by jsclient.

    Attributes:
        subscriptions: The subscriptions, which are repeated on each new connection.
        reader: Cuts the received bytes into frames.
        transport: The current transport, or None while there is no connection.
    """

    def __init__(self, on_event: OnEvent | None, inbox_prefix: str = "_INBOX") -> None:
        super().__init__(on_event, inbox_prefix)
        self._out = self.outbox = Outbox(self)
        self.reader = FrameReader(self)
        self.subscriptions = Subscriptions()
        self._acks = UnconfirmedAcks()
        self._pings = Pings(self._out, self._acks, self._stale)
        self.transport: Transport | None = None
        self._connector: Connector | None = None
        self._restorer = Restorer(self, self._pings)
        self._session = ServerSession(ServerInfo())
        self._max_payload = DEFAULT_MAX_PAYLOAD
        self._up = False
        self._closing = False
        self._given_up = ""  # reason why the client itself has given up the connection
        self._denials = Denials()

    async def open(
        self,
        servers: list[str],
        *,
        reconnect_time_wait: float,
        reconnect_max_wait: float,
        options: dict[str, Any],
    ) -> None:
        """Connect to the first server that answers. If the call is cancelled, the connection is closed.

        Raises:
            ConnectError: No server could be reached, or no server offered the requested TLS.
            AuthenticationError: A server refused the credentials, and no other server accepted them.
            ConfigError: The credentials file has become unusable since it was checked.
        """
        self.echoes = not options.get("no_echo")
        self.belong_here()
        connector = Connector(servers, (reconnect_time_wait, reconnect_max_wait), options)
        self._connector = connector
        self._restorer.use(connector, options)
        self._pings.interval = options["ping_interval"]
        try:
            link = await connector.first()
        except ConnectError:
            self.abort()
            check_file([failure.error for failure in connector.failures])
            identified = connector.identity.is_given
            failed = connect_error(connector.failures, identified=identified, expiry=expiry_of(options))
            raise failed from failed.__cause__
        except asyncio.CancelledError:
            self.abort()
            raise
        self._up = self._out.is_up = True
        self._pings.start()
        self.use_link(link)

    # --- state ---------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return self._up

    @property
    def is_closed(self) -> bool:
        return self._closing

    @property
    def max_payload(self) -> int:
        return self._max_payload

    @property
    def server_version(self) -> str:
        return self._session.info.version

    @property
    def url(self) -> str:
        """The URL of the current server, without user info."""
        server = self._connector.pool.current if self._connector is not None else None
        return shown(server.url) if server is not None else ""

    @property
    def problem(self) -> str:
        return "" if self._up else str(self._restorer)

    def check_open(self) -> None:
        if self._closing:
            raise ClosedError(f"{self._given_up}; {CLOSED}" if self._given_up else CLOSED)

    # --- connecting and losing the connection ------------------------------------------------------------------

    def use_link(self, link: ServerLink) -> None:
        """Send the subscriptions on a connection whose handshake is complete, and read from it."""
        self.transport = link.transport
        self._session = ServerSession(link.info, self._max_payload)
        self._take_limits()
        self.reader.reset()
        self._denials = Denials()
        for command in self.subscriptions.commands():
            self._out.write(command)
        link.transport.deliver_to(self.reader, self._out, partial(self._ended, link.transport), link.rest)

    def _take_limits(self) -> None:
        self._max_payload = self.reader.max_payload = self._session.max_payload

    def _ended(self, transport: Transport, error: Exception) -> None:
        """Handle the end of a transport. The transport calls this method when it can no longer be read."""
        if transport is not self.transport:
            return
        if not isinstance(error, OSError | RefusedError):
            self.report(error)
        if self._up:
            self._lose(error)
        else:
            self._restorer.link_ended(error)

    def _stale(self) -> None:
        self._lose(DisconnectedError("the server does not answer PINGs"))

    def _lose(self, error: BaseException) -> None:
        """Discard the buffer, refuse to send until the connection is restored, and begin to restore it."""
        if not self._up or self._closing:
            return
        why = self._restorer.begin_outage(error)
        self.drop_link()
        self._acks.connection_lost()
        self.hub.emit(Disconnected(reason=why))
        self._notify(Lifecycle.DISCONNECTED)
        self._restorer.begin()  # a no-op if a listener has closed the connection

    def drop_link(self) -> None:
        """Close the transport at once.

        An orderly close would wait until the peer has read everything, which may never happen.
        """
        self._up = self._out.is_up = False
        self._pings.stop(DisconnectedError("the connection was lost before a PONG came"))
        self._out.clear()
        if self.transport is not None:
            self.transport.abort()
            self.transport = None

    def restored(self, link: ServerLink) -> None:
        """Report that the connection is restored, and write acks again that may be lost. Called by the `Restorer`."""
        assert self._connector is not None
        self._up = self._out.is_up = True
        self._pings.start()
        self.hub.emit(Reconnected(url=self.url))
        for event in self._session.take_servers(link.info, self._connector.pool):
            self.hub.emit(event)
        if (lost := self._acks.write_again(self._out)) is not None:
            self.hub.emit(lost)
            self._pings.send()
        self._notify(Lifecycle.CONNECTED)

    def give_up(self, why: str) -> None:
        """Close permanently, because the credentials were refused too often. Called by the `Restorer`."""
        self._given_up = why
        self.report(ClosedError(why))
        self._end()

    # --- called by the reader ----------------------------------------------------------------------------------

    def on_sink_error(self, error: Exception) -> None:
        self.report(error)

    def on_other(self, sid: bytes, frame: Frame) -> None:
        pass  # the subscription has ended

    def on_line(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._out.write_pong()
        elif line.startswith(b"PONG"):
            self._pings.pong_received()
        elif line.startswith(b"-ERR"):
            self._on_err(line[4:].strip().strip(b"'").decode("utf-8", "backslashreplace"))
        elif line.startswith(b"INFO "):
            self._on_info(line[5:])
        elif not line.startswith(b"+OK"):
            raise ProtocolError(f"unknown protocol: {line[:40]!r}")

    def _on_info(self, body: bytes) -> None:
        assert self._connector is not None
        events = self._session.receive_info(body, self._connector.pool)
        self._take_limits()
        for event in events:
            self.hub.emit(event)

    def _on_err(self, text: str) -> None:
        error, closes = read_server_error(text)
        if isinstance(error, PermissionDeniedError):
            if error.subject not in self.optional and (event := self._denials.event(error)) is not None:
                self.hub.emit(event)
            if error.operation == "subscribe":
                self.subscriptions.deny(error)
            self._permission_denied(error)
            return
        if self._up or not closes:
            self.report(error)
        if closes:
            raise RefusedError(text)  # the transport passes this error to `_ended`

    # --- sending -------------------------------------------------------------------------------------------

    def send(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        header: bytes = b"",
        urgent: bool = False,
    ) -> None:
        write = self._out.write_now if urgent else self._out.write
        write(self._command(subject, payload, reply, header))

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str = "",
        header: bytes = b"",
        urgent: bool = False,
    ) -> None:
        if self._out.is_full:
            await self.wait_for_space()
        write = self._out.write_now if urgent else self._out.write
        write(self._command(subject, payload, reply, header))

    def _command(self, subject: str, payload: bytes, reply: str, header: bytes) -> bytes:
        """Return a PUB or HPUB command. May raise any error of `send`."""
        size = len(header) + len(payload)
        if not self._up or size > self._max_payload:
            self.check_sendable(size)
        head = f"{subject} {reply}" if reply else subject
        line = f"HPUB {head} {len(header)} {size}\r\n" if header else f"PUB {head} {size}\r\n"
        return b"".join((line.encode("utf-8", "surrogateescape"), header, payload, b"\r\n"))

    def write_at_once(self, command: bytes, size: int) -> bool:
        out = self._out
        if not self._up or size > self._max_payload or not out.write_if_space(command):
            return False
        if out.size > PIECE:
            out.write_out()
        return True

    def request_at_once(self, subject: str, reply: bytes, header: bytes, payload: bytes) -> bool:
        out, size = self._out, len(header) + len(payload)
        if not self._up or size > self._max_payload or out.is_full:
            return False
        to = subject.encode("utf-8", "surrogateescape")
        if header:
            command = b"HPUB %b %b %d %d\r\n%b%b\r\n" % (to, reply, len(header), size, header, payload)
        else:
            command = b"PUB %b %b %d\r\n%b\r\n" % (to, reply, size, payload)
        out.write_now(command)
        return True

    def send_frames(self, frames: list[Frame]) -> None:
        self.check_here()
        self.check_sendable()
        self._out.write_frames(frames)

    async def ack(self, reply: bytes, payload: bytes, *, settles: bool) -> None:
        if self._out.is_full:
            # Wait before writing, so that an ack whose call is cancelled during the wait is certainly not sent.
            await self.wait_for_space()
        self.check_sendable()
        command = b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)
        self._out.write(command)
        if settles or payload.startswith(NAK):
            self._acks.acks.append(command if settles else NOT_AGAIN)
            if self._acks.wants_ping():
                self._pings.send()

    def ack_at_once(self, reply: bytes) -> bool:
        command = b"PUB %b 4\r\n+ACK\r\n" % reply
        if not self._up or not self._out.write_if_space(command):
            return False
        acks = self._acks.acks
        acks.append(command)
        if len(acks) >= LIMIT and self._acks.wants_ping():
            self._pings.send()
        return True

    async def wait_for_space(self) -> None:
        self.check_sendable()
        try:
            await self._out.drain()
        except OSError as error:
            raise DisconnectedError("the connection was lost while writing") from error

    # --- subscriptions -----------------------------------------------------------------------------------------

    @property
    def _takes_commands(self) -> bool:
        """Whether a server knows the subscriptions, even if it has not confirmed them yet."""
        return self.transport is not None and not self._closing

    async def subscribe(
        self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0
    ) -> WireSubscription:
        return self.subscribe_now(subject, sink, queue, limit=limit)

    def subscribe_now(self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0) -> WireSubscription:
        self.check_open()
        self.check_here()
        inbox = self.subscriptions.add(subject, queue, limit)
        sinks, key = self.reader.sinks, inbox.key
        sinks[key] = sink
        if isinstance(sink, HoldingSink):
            sink.installed(sinks, key)
        if self._takes_commands:  # if there is no connection, the next one sends all subscriptions
            self._out.write(inbox.command())
        return inbox

    def end_after(self, inbox: Any, count: int, *, earlier: int) -> None:
        inbox.limit = count - earlier
        if self._takes_commands:
            self._out.write(b"UNSUB %d %d\r\n" % (inbox.sid, inbox.limit))

    def expect_large(self, inbox: Any) -> None:
        self.reader.large.add(inbox.key)

    async def unsubscribe(self, inbox: Any) -> None:
        self.reader.sinks.pop(inbox.key, None)
        self.reader.large.discard(inbox.key)
        if self.subscriptions.remove(inbox) and self._takes_commands:
            self._out.write(b"UNSUB %d\r\n" % inbox.sid)

    async def drain(self, inbox: Any, timeout: float) -> None:
        try:
            if self._up and self.subscriptions.remove(inbox):
                self._out.write(b"UNSUB %d\r\n" % inbox.sid)
                # The server reads the UNSUB before the PING, so after the PONG, no more messages can arrive.
                await self.ping(timeout)
        except JetStreamError:
            pass
        finally:
            await self.unsubscribe(inbox)

    async def reconnect(self, timeout: float) -> None:
        self.check_here()
        self.check_open()
        deadline = self.now() + timeout
        if self._up:
            try:
                await self.ping(timeout / 2)  # the server answers once it has read all earlier data
            except JetStreamError:
                pass  # reconnecting is all the more necessary if the server doesn't answer
            self._lose(DisconnectedError("reconnect() was called"))
        if self._connector is not None:
            self._connector.hurry()
        await self.wait_connected(deadline)

    def set_servers(self, servers: Sequence[str]) -> None:
        assert self._connector is not None
        self.check_here()
        added, removed = self._connector.set_servers(servers)
        if added or removed:
            self.hub.emit(
                ServersChanged(added=added, removed=removed, known=len(self._connector.pool.servers))
            )

    def stats(self) -> ConnectionStats:
        return ConnectionStats(
            messages_received=self.reader.messages_read,
            bytes_received=self.reader.bytes_read,
            bytes_sent=self._out.bytes_written,
            reconnects=self.connects,
            subscriptions=len(self.subscriptions),
            bytes_waiting=self._out.size + (self.transport.backlog() if self.transport is not None else 0),
            unconfirmed_acks=len(self._acks),
        )

    async def ping(self, timeout: float) -> float:
        self.check_here()
        self.check_sendable()
        return await self._pings.round_trip(timeout, lambda: self.problem)

    # --- the end -------------------------------------------------------------------------------------------

    def _end(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._up = self._out.is_up = False
        self._pings.stop(ClosedError("the connection was closed before a PONG came"))
        if self._connector is not None:
            self._connector.end()
        self._restorer.task.cancel()
        self._notify(Lifecycle.CLOSED)

    def abort(self) -> None:
        self._end()
        if self.transport is not None:
            self.transport.abort()

    async def close(self) -> None:
        if not self._closing:
            if self._up:
                try:
                    async with asyncio.timeout(CLOSING):
                        await self.wait_for_space()
                except (DisconnectedError, TimeoutError):
                    pass
            self._end()
        await self._restorer.task.wait(1.0)
        if (transport := self.transport) is not None:
            transport.close()
            try:
                await transport.wait_closed()
            finally:
                # If the server doesn't read, the transport is still open, so abort it. This has no effect if the
                # transport is closed.
                transport.abort()


CLOSING = 2.0  # seconds to wait until the written bytes are sent
