"""The connection that jsclient opens, on a guarded subclass of nats-py's client.

nats-py connects, does TLS and authentication, discovers servers and reconnects (`NatsClient`). Its parser, write buffer
and read loop are replaced, for speed and safety. No input ends the reader for good, no raising callback stops a
reconnect, no stale command is sent after a reconnect, and requested TLS is required.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import nats.aio.client
import nats.errors

from ...errors import (
    AuthenticationError,
    ClosedError,
    ConnectError,
    DisconnectedError,
    JetStreamError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
)
from ...protocol.consumers.rights import ack_right
from ...protocol.events import AcksLost, Disconnected, LameDuck, PermissionDenied, Reconnected
from ...protocol.wire.frames import Frame, Sink
from ...protocol.wire.server_error import read_server_error
from ..event_hub import OnEvent
from .connection import Connection, HoldingSink, Lifecycle
from .credentials import CallbackError, check_file, expiry_of
from .nats_client import NatsClient, WireSubscription
from .unconfirmed_acks import LIMIT, NAK, NOT_AGAIN, UnconfirmedAcks
from .urls import IDENTITY, connect_error, is_refusal, reason, shared_identity, shown
from .wire import CHUNK

__all__ = ["OwnConnection"]


class OwnConnection(Connection):
    """A `Connection` on nats-py's client, opened and owned by jsclient."""

    def __init__(self, on_event: OnEvent | None, inbox_prefix: str = "_INBOX") -> None:
        super().__init__(on_event, inbox_prefix)
        self._nc = NatsClient(self)
        self._out = self.outbox = self._nc.out
        self._acks = UnconfirmedAcks()
        self._late: dict[int, bytes] = {}  # SUB and UNSUB by sid, while disconnected
        self._up = False
        self._denied_acks: set[str] = set()  # permissions whose missing was reported after a denied ack
        self._closing = False
        self._leaving = False  # whether it was reported on this connection that the server is about to stop
        self._refused = False  # whether refused credentials were reported since the last disconnect
        self._lost = self._failed = ""  # why the connection was lost, and why the last attempt failed
        self._options: dict[str, Any] = {}

    async def open(
        self,
        servers: list[str],
        *,
        reconnect_time_wait: float,
        reconnect_max_wait: float,
        options: dict[str, Any],
    ) -> None:
        """Connect to the first server that answers.

        Raises:
            ConnectError: No server could be reached, or no server offered the requested TLS.
            AuthenticationError: A server refused the credentials, and no other server accepted them.
            ConfigError: The credentials file has become unusable since it was checked.

        Cancelled: the connection is closed.
        """
        nc = self._nc
        nc.identity = shared_identity(servers, options)
        nc.wants_tls = options.get("tls") is not None or options.get("tls_handshake_first", False)
        nc.longest_pause = reconnect_max_wait
        self._options = options
        self.echoes = not options.get("no_echo")
        # Otherwise nats-py sends no signature to a server with a default user, and would become that user.
        nc._auth_configured = options.get("signature_cb") is not None
        self.belong_here()
        try:
            await nc.connect(
                servers=servers,
                allow_reconnect=False,  # the first connect fails instead of retrying
                reconnect_time_wait=reconnect_time_wait,  # type: ignore[arg-type]  # it sleeps for this time
                max_reconnect_attempts=0,  # below 0, nats-py would retry endlessly without a pause
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                inbox_prefix=self.inbox_prefix,
                flush_timeout=10,
                **options,
            )
        except Exception as error:  # noqa: BLE001  nats-py raises anything
            self.abort()
            check_file([failure.error for failure in nc.failures])
            identified = bool(nc.identity) or bool(IDENTITY & options.keys())
            expiry = expiry_of(options)
            failed = connect_error(error, servers, nc.failures, identified=identified, expiry=expiry)
            raise failed from failed.__cause__
        except asyncio.CancelledError:
            self.abort()
            raise
        nc.first_connect = False
        nc.options["allow_reconnect"] = True
        nc.options["max_reconnect_attempts"] = -1
        self._up = True

    # --- state ---------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return self._up and self._nc._status == nats.aio.client.Client.CONNECTED

    @property
    def is_closed(self) -> bool:
        return self._closing or bool(self._nc.is_closed)

    @property
    def max_payload(self) -> int:
        return int(self._nc._max_payload)

    @property
    def server_version(self) -> str:
        return str(self._nc._server_info.get("version", ""))

    @property
    def url(self) -> str:
        """The current server, without user info."""
        server = self._nc._current_server
        return shown(server.uri) if server is not None else ""

    # --- callbacks of nats-py and the reader -----------------------------------------------------------------

    def on_sink_error(self, error: Exception) -> None:
        self.report(error)

    @property
    def problem(self) -> str:
        then = f", then {self._failed}" if self._failed else ""
        return "" if self._up or not self._lost else f"the connection was lost ({self._lost}){then}"

    def lost(self, error: BaseException) -> None:
        """Note that the connection was lost: discard the buffer, and refuse to send until it is restored."""
        if not self._up or self._closing:
            return
        self._up = False
        self._lost, self._failed = reason(error), ""
        self._out.clear()
        self._acks.connection_lost()
        self._no_pongs(DisconnectedError("the connection was lost before a PONG came"))
        self.hub.emit(Disconnected(reason=reason(error)))
        self._notify(Lifecycle.DISCONNECTED)

    def _no_pongs(self, error: JetStreamError) -> None:
        for pong in self._nc._pongs:
            if not pong.done():
                pong.set_exception(error)
                pong.exception()  # mark as retrieved: the waiter may be gone
        self._nc._pongs = []

    async def _on_error(self, error: Exception) -> None:
        """Report once that the server refuses the credentials. The disconnect was reported already."""
        if self._nc.first_connect:
            return
        refused: ConnectError | None = None
        if isinstance(error, CallbackError):
            refused = connect_error(error, [self.url])
        elif is_refusal(error):
            said = f"{reason(error)}{expiry_of(self._options)}"
            refused = AuthenticationError(f"{self.url} refused the credentials: {said}")
        if not self._up:
            self._failed = f"{self.url}: {reason(error)}" if refused is None else str(refused)
        if refused is not None and not self._refused:
            self._refused = True
            self.report(refused)

    async def _on_disconnected(self) -> None:
        self.lost(DisconnectedError("disconnected"))

    async def _on_reconnected(self) -> None:
        self._denied_acks.clear()
        self._up, self._refused, self._leaving = True, False, False
        for command in self._late.values():
            self._out.write(command)
        self._late.clear()
        self.hub.emit(Reconnected(url=self.url))
        self._resend_acks()
        self._notify(Lifecycle.CONNECTED)

    async def _on_closed(self) -> None:
        was_open, self._closing, self._up = not self._closing, True, False
        if was_open:
            self._notify(Lifecycle.CLOSED)

    def on_line(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._out.write(b"PONG\r\n")
        elif line.startswith(b"PONG"):
            self._nc.take_pong()
        elif line.startswith(b"-ERR"):
            self._on_err(line[4:].strip().strip(b"'").decode("utf-8", "backslashreplace"))
        elif line.startswith(b"INFO "):
            self._on_info(line[5:])
        elif not line.startswith(b"+OK"):
            raise ProtocolError(f"unknown protocol: {line[:40]!r}")

    def _on_info(self, body: bytes) -> None:
        try:
            info = json.loads(body)
            limit = info.get("max_payload")
        except Exception as error:
            raise ProtocolError(f"malformed INFO: {type(error).__name__}") from error
        if isinstance(limit, int) and 0 < limit <= 2**31:
            self._nc._max_payload = self._nc.reader.max_payload = limit
        self._nc.take_info(info)

    def lame_duck(self, others: int) -> None:
        if not self._leaving:
            self._leaving = True
            self.hub.emit(LameDuck(url=self.url, others=others))

    def _report_denied(self, error: PermissionDeniedError) -> None:
        """Report a denial. Each ack of a consumer is denied, so only the first on this connection is reported."""
        needed = ack_right(error.subject) if error.operation == "publish" else ""
        if needed not in self._denied_acks:
            if needed:
                self._denied_acks.add(needed)
            self.hub.emit(PermissionDenied(operation=error.operation, subject=error.subject, needed=needed))

    def _on_err(self, text: str) -> None:
        error, closes = read_server_error(text)
        if isinstance(error, PermissionDeniedError):
            if error.subject not in self.optional:
                self._report_denied(error)
            if error.operation == "subscribe":
                for inbox in self._nc._subs.values():
                    if inbox._subject == error.subject and isinstance(inbox, WireSubscription):
                        inbox.denied = error
            self._permission_denied(error)
            return
        self.report(error)
        if closes:
            raise nats.errors.Error(f"nats: {text}")  # the reader passes it to nats-py, which reconnects

    def on_other(self, sid: bytes, frame: Frame) -> None:
        """Pass on a message of a subscription that a user created on nats-py itself."""
        if sid.isdigit() and len(sid) < 20 and int(sid) in self._nc._subs:
            self._nc.take_message(int(sid), frame)

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
        """Return a PUB or HPUB command. Raises the errors of `send`."""
        size = len(header) + len(payload)
        if not self._up or size > self._nc._max_payload:
            self.check_sendable(size)
        head = f"{subject} {reply}" if reply else subject
        line = f"HPUB {head} {len(header)} {size}\r\n" if header else f"PUB {head} {size}\r\n"
        return b"".join((line.encode("utf-8", "surrogateescape"), header, payload, b"\r\n"))

    def write_at_once(self, command: bytes, size: int) -> bool:
        out = self._out
        if not self._up or size > self._nc._max_payload or not out.write_if_space(command):
            return False
        if out.size > CHUNK:
            out.flush()
        return True

    def send_frames(self, frames: list[Frame]) -> None:
        self.check_here()
        self.check_sendable()
        self._out.write_frames(frames)

    async def ack(self, reply: bytes, payload: bytes, *, settles: bool) -> None:
        if self._out.is_full:
            await self.wait_for_space()  # before writing: an ack that is cancelled here was not sent
        self.check_sendable()
        command = b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)
        self._out.write(command)
        if settles or payload.startswith(NAK):
            self._acks.acks.append(command if settles else NOT_AGAIN)
            if self._acks.wants_ping():
                self._ping()

    def ack_at_once(self, reply: bytes) -> bool:
        command = b"PUB %b 4\r\n+ACK\r\n" % reply
        if not self._up or not self._out.write_if_space(command):
            return False
        acks = self._acks.acks
        acks.append(command)
        if len(acks) >= LIMIT and self._acks.wants_ping():
            self._ping()
        return True

    def ping_sent(self) -> None:
        self._out.flush()
        self._acks.ping_sent(reconnecting=not self._up)

    def pong_received(self) -> None:
        self._acks.pong_received()

    def _resend_acks(self) -> None:
        """Send acks again that may have been lost with the connection, since a repeated ack changes nothing.

        Naks are not repeated: a repeated nak would cause another delivery.
        """
        count = len(self._acks.acks)
        if count:
            again = self._acks.take_again()
            for command in again:
                self._out.write(command)
            self.hub.emit(AcksLost(count=count, resent=len(again)))
            self._ping()

    async def wait_for_space(self) -> None:
        self.check_sendable()
        try:
            await self._out.drain()
        except OSError as error:
            raise DisconnectedError("the connection was lost while writing") from error

    async def subscribe(
        self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0
    ) -> WireSubscription:
        return self.subscribe_now(subject, sink, queue, limit=limit)

    def subscribe_now(self, subject: str, sink: Sink, queue: str = "", *, limit: int = 0) -> WireSubscription:
        self.check_open()
        self.check_here()
        nc = self._nc
        nc._sid = sid = nc._sid + 1
        inbox = WireSubscription(sid, subject, queue, limit)
        sinks, key = nc.reader.sinks, b"%d" % sid
        sinks[key] = sink
        if isinstance(sink, HoldingSink):
            sink.installed(sinks, key)
        nc._subs[sid] = inbox  # type: ignore[assignment]  # nats-py subscribes it again after a reconnect
        group = f"{queue} " if queue else ""
        until = f"UNSUB {sid} {limit}\r\n" if limit else ""
        self._write_late(sid, f"SUB {subject} {group}{sid}\r\n{until}".encode())
        return inbox

    def _write_late(self, sid: int, command: bytes) -> None:
        """Write now, or after the reconnect, since nats-py may have restored its subscriptions already."""
        if self.is_connected:
            self._out.write(command)
        else:
            self._late[sid] = command

    def end_after(self, inbox: Any, count: int, *, earlier: int) -> None:
        inbox._max_msgs = count - earlier  # nats-py sends it when it subscribes again after a reconnect
        if self.is_connected:
            self._out.write(b"UNSUB %d %d\r\n" % (inbox._id, count - earlier))

    def expect_large(self, inbox: Any) -> None:
        self._nc.reader.large.add(b"%d" % inbox._id)

    async def unsubscribe(self, inbox: Any) -> None:
        sid = inbox._id
        self._nc.reader.sinks.pop(b"%d" % sid, None)
        self._nc.reader.large.discard(b"%d" % sid)
        if self._nc._subs.pop(sid, None) is not None:
            self._write_late(sid, b"UNSUB %d\r\n" % sid)

    async def drain(self, inbox: Any, timeout: float) -> None:
        try:
            if self.is_connected and self._nc._subs.pop(inbox._id, None) is not None:
                self._out.write(b"UNSUB %d\r\n" % inbox._id)
                await self.ping(timeout)  # UNSUB is read first: after the PONG no message is in flight
        except JetStreamError:
            pass
        finally:
            await self.unsubscribe(inbox)

    def _ping(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._nc._pongs.append(future)
        self.ping_sent()
        self._out.write(b"PING\r\n")
        self._out.flush()  # at once: nats-py writes its own PINGs directly, and PONGs are matched by order
        return future

    async def ping(self, timeout: float) -> float:
        self.check_here()
        self.check_sendable()
        started = time.perf_counter()  # finer than the clock of uvloop's loop
        pong = self._ping()
        try:
            async with asyncio.timeout(timeout):
                await pong
        except TimeoutError:
            raise RequestTimeoutError("no PONG to a PING", timeout, self.problem) from None
        return time.perf_counter() - started

    def _end(self) -> None:
        if not self._closing:
            self._closing, self._up = True, False
            self._no_pongs(ClosedError("the connection was closed before a PONG came"))
            self._notify(Lifecycle.CLOSED)

    def abort(self) -> None:
        self._end()
        self._nc.abort()

    async def close(self) -> None:
        if not self._closing:
            if self.is_connected:
                try:
                    async with asyncio.timeout(CLOSING):
                        await self.wait_for_space()
                except (DisconnectedError, TimeoutError):
                    pass
            self._end()
        if not self._nc.is_closed:
            try:
                async with asyncio.timeout(2 * CLOSING):
                    await self._nc.close()
            except (OSError, TimeoutError):
                pass
            finally:
                self._nc.abort()  # a no-op, unless the server does not read


CLOSING = 2.0
"""Seconds to wait until the written bytes are sent."""
