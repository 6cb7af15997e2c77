"""The connection that jsclient opens: nats-py's client, guarded.

nats-py dials, does TLS and authentication, discovers servers and reconnects. What it does with the bytes in between is
replaced, for speed and for safety: the parser (`FrameReader`), the write buffer, the read loop. No input ends the
reader for good, no raising callback stops a reconnect, nothing stale is sent after one, TLS that was asked for is
required. Private names of nats-py are used; ``integration/test_seam.py`` pins them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from typing import Any, ClassVar
from urllib.parse import urlparse

import nats.aio.client
import nats.errors

from ..errors import (
    AuthenticationError,
    ConnectError,
    DisconnectedError,
    JetStreamError,
    PermissionDeniedError,
    ProtocolError,
    RequestTimeoutError,
)
from ..protocol.events import AcksLost, Disconnected, ErrorRaised, PermissionDenied, Reconnected
from ..protocol.frames import Frame, Sink
from .connection import Connection, Lifecycle
from .events import OnEvent
from .wire import FrameReader

__all__ = ["GuardedConnection"]

_READ_SIZE = 64 * 1024
_HIGH_WATER = 2 * 1024 * 1024  # bytes buffered for writing above which a publish waits
_UNCONFIRMED_ACKS = 4096  # acks after which a PING asks the server to confirm that it has read them
_PERMISSION = re.compile(r"permissions violation for (publish|subscription) to \"(.*?)\"", re.IGNORECASE)
_AUTH = re.compile(r"authorization|authentication|user .*(expired|revoked)", re.IGNORECASE)


class _Subscription:
    """What stands in nats-py's table for a subscription of ours: it re-subscribes it, and leaves it alone."""

    _max_msgs: ClassVar[int] = 0
    _received: ClassVar[int] = 0
    _jsi: ClassVar[None] = None
    _wait_for_msgs_task: ClassVar[None] = None
    _message_iterator: ClassVar[None] = None
    _pending_next_msgs_calls: ClassVar[None] = None

    def __init__(self, sid: int, subject: str, queue: str) -> None:
        self._id = sid
        self._subject = subject
        self._queue = queue
        self.subject = subject
        self.denied: PermissionDeniedError | None = None

    async def _drain(self) -> None:
        """Draining is the business of our own handles."""


class _ParserSeam:
    """Stands where nats-py's parser stands."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader

    async def parse(self, data: bytes = b"") -> None:
        await self._reader.feed(data)

    def reset(self) -> None:
        self._reader.reset()


class _Client(nats.aio.client.Client):
    """nats-py's client with our reader in it."""

    def __init__(self, owner: GuardedConnection) -> None:
        super().__init__()
        self.owner = owner
        self.reader = FrameReader(owner)
        self._ps = _ParserSeam(self.reader)  # type: ignore[assignment]
        self.wants_tls = False
        self.first_connect = True
        self.last_failure: BaseException | None = None

    # --- connecting ----------------------------------------------------------------------------------------

    def _connect_command(self) -> bytes:
        transport = self._transport
        secure = transport is not None and _is_secure(transport)
        wants = self.wants_tls or (
            self._current_server is not None and self._current_server.uri.scheme in {"tls", "wss"}
        )
        if wants and not secure:
            raise nats.errors.SecureConnRequiredError
        self.reader.reset()
        self.reader.max_payload = self._max_payload
        return super()._connect_command()

    async def _select_next_server(self) -> None:
        """On the first connect each server is tried once; after that nats-py's way, for ever."""
        if not self.first_connect:
            await super()._select_next_server()
            return
        while self._server_pool:
            server = self._server_pool.pop(0)
            if server.reconnects:
                self._server_pool.append(server)
                break
            self._server_pool.append(server)
            try:
                await self._connect_to_server(server)
            except Exception as error:  # noqa: BLE001  nats-py lets anything out of here
                server.reconnects += 1
                self.last_failure = error
                continue
            self._current_server = server
            return
        raise nats.errors.NoServersError

    async def _attempt_reconnect(self) -> None:
        while True:
            try:
                await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001  else reconnecting would end here, unseen
                self.owner.report(error)
                await asyncio.sleep(self.options["reconnect_time_wait"])
                if not self.is_closed:
                    continue
            return

    async def _process_op_err(self, e: Exception) -> None:
        self.owner.lost(e)
        await super()._process_op_err(e)

    # --- reading -------------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        transport = self._transport
        error: Exception
        try:
            while not (self.is_closed or self.is_reconnecting) and transport is not None:
                data = await transport.read(_READ_SIZE)
                if not data:
                    raise nats.errors.UnexpectedEOF
                await self.reader.feed(data)
            return
        except asyncio.CancelledError:
            return
        except Exception as caught:  # noqa: BLE001  whatever it was, the connection is made anew
            error = caught
        if isinstance(error, ProtocolError):
            self.owner.report(error)
        await self._process_op_err(error)

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self.owner.ping_sent()
        await super()._send_ping(future)

    async def _process_pong(self) -> None:
        self._pings_outstanding = 0
        self.owner.pong_received()
        if self._pongs:
            future = self._pongs.pop(0)
            if not future.done():
                future.set_result(True)
        self._pongs_received += 1

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except Exception as error:  # noqa: BLE001  odd headers must not end the reader
            self.owner.report(ProtocolError(f"odd headers: {error}"))
            return None


def _is_secure(transport: Any) -> bool:
    writer = getattr(transport, "_io_writer", None)
    if writer is not None:
        return writer.get_extra_info("ssl_object") is not None
    return bool(getattr(transport, "_using_tls", False))


def shown(url: Any) -> str:
    """A server's URL without user info."""
    try:
        parsed = urlparse(url) if isinstance(url, str) else url
        host = parsed.hostname or ""
        return f"{parsed.scheme}://{host}:{parsed.port}" if parsed.port else f"{parsed.scheme}://{host}"
    except (ValueError, AttributeError):
        return "?"


class GuardedConnection(Connection):
    """A `Connection` on nats-py's client, opened and owned by jsclient."""

    def __init__(self, on_event: OnEvent | None, inbox_prefix: str = "_INBOX") -> None:
        super().__init__(on_event, inbox_prefix)
        self._nc = _Client(self)
        self._out: list[bytes] = []
        self._out_size = 0
        self._write_scheduled = False
        self._unconfirmed: deque[bytes] = deque()  # acks that no PONG has confirmed to be read
        self._acks_written = 0
        self._ping_marks: deque[int] = deque()  # acks written before each PING under way
        self._confirming = False
        self._up = False
        self._closing = False

    async def open(self, servers: list[str], *, reconnect_time_wait: float, options: dict[str, Any]) -> None:
        """Connect to the first server that answers.

        Raises:
            ConnectError: None could be reached, or TLS was asked for and is not offered.
            AuthenticationError: A server refused the credentials.
        """
        nc = self._nc
        nc.wants_tls = options.get("tls") is not None or options.get("tls_handshake_first", False)
        try:
            await nc.connect(
                servers=servers,
                allow_reconnect=False,  # the first connect fails rather than trying for ever
                reconnect_time_wait=reconnect_time_wait,  # type: ignore[arg-type]  # it sleeps so long
                max_reconnect_attempts=-1,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                inbox_prefix=self.inbox_prefix,
                flush_timeout=10,
                **options,
            )
        except Exception as error:
            self._closing = True
            await nc._close(nats.aio.client.Client.CLOSED, False)
            raise self._connect_error(error, servers) from error
        except asyncio.CancelledError:
            self._closing = True
            await nc._close(nats.aio.client.Client.CLOSED, False)
            raise
        if not nc.is_connected:
            await nc._close(nats.aio.client.Client.CLOSED, False)
            raise ConnectError(
                f"{', '.join(shown(s) for s in servers)} closed the connection while connecting"
            )
        nc.first_connect = False
        nc.options["allow_reconnect"] = True
        nc.options["max_reconnect_attempts"] = -1
        self._up = True

    def _connect_error(self, error: Exception, servers: list[str]) -> JetStreamError:
        where = ", ".join(shown(server if "://" in server else f"nats://{server}") for server in servers)
        if isinstance(error, nats.errors.SecureConnRequiredError):
            return ConnectError(f"TLS was asked for, and {where} does not offer it")
        if isinstance(error, nats.errors.NoServersError):
            cause = self._nc.last_failure
            return ConnectError(f"no server could be reached at {where}: {_reason(cause)}")
        text = str(error)
        if isinstance(error, nats.errors.AuthorizationError) or _AUTH.search(text):
            return AuthenticationError(f"{where} refused the credentials: {text.removeprefix('nats: ')}")
        return ConnectError(f"cannot connect to {where}: {_reason(error)}")

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
        """The server now connected to, without user info."""
        server = self._nc._current_server
        return shown(server.uri) if server is not None else ""

    # --- what nats-py and the reader tell us -----------------------------------------------------------------

    def report(self, error: BaseException) -> None:
        """An error that has no caller."""
        if not isinstance(error, JetStreamError):
            error = ProtocolError(f"{type(error).__name__}: {error}")
        self.hub.emit(ErrorRaised(error=error))

    def on_sink_error(self, error: Exception) -> None:
        self.report(error)

    def lost(self, error: BaseException) -> None:
        """The connection broke: from now on nothing is sent, and what was buffered is not sent later."""
        if not self._up or self._closing:
            return
        self._up = False
        self._out.clear()
        self._out_size = 0
        self._confirming = False
        self._ping_marks.clear()
        for pong in self._nc._pongs:
            if not pong.done():
                pong.set_exception(DisconnectedError("the connection was lost before a PONG came"))
                pong.exception()  # it is no news to whoever does not wait any more
        self._nc._pongs = []
        self.hub.emit(Disconnected(reason=_reason(error)))
        self._notify(Lifecycle.DISCONNECTED)

    async def _on_error(self, error: Exception) -> None:
        """Errors of nats-py while it reconnects; the disconnect itself was told."""

    async def _on_disconnected(self) -> None:
        self.lost(DisconnectedError("disconnected"))

    async def _on_reconnected(self) -> None:
        self._up = True
        self.hub.emit(Reconnected(url=self.url))
        self._resend_acks()
        self._notify(Lifecycle.CONNECTED)

    async def _on_closed(self) -> None:
        was_open, self._closing, self._up = not self._closing, True, False
        if was_open:
            self._notify(Lifecycle.CLOSED)

    async def on_line(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self._write(b"PONG\r\n")
        elif line.startswith(b"PONG"):
            await self._nc._process_pong()
        elif line.startswith(b"-ERR"):
            await self._on_err(line[4:].strip().strip(b"'").decode("utf-8", "backslashreplace"))
        elif line.startswith(b"INFO "):
            await self._on_info(line[5:])
        elif not line.startswith(b"+OK"):
            raise ProtocolError(f"unknown protocol: {line[:40]!r}")

    async def _on_info(self, body: bytes) -> None:
        try:
            info = json.loads(body)
            await self._nc._process_info(info)
            limit = info.get("max_payload")
            if isinstance(limit, int) and 0 < limit <= 2**31:
                self._nc._max_payload = self._nc.reader.max_payload = limit
        except Exception as error:
            raise ProtocolError(f"malformed INFO: {type(error).__name__}") from error

    async def _on_err(self, text: str) -> None:
        if match := _PERMISSION.search(text):
            operation = "publish" if match[1].lower() == "publish" else "subscribe"
            error = PermissionDeniedError(operation, match[2])
            self.hub.emit(PermissionDenied(operation=operation, subject=match[2]))
            if operation == "subscribe":
                for subscription in self._nc._subs.values():
                    if subscription._subject == match[2]:
                        subscription.denied = error  # type: ignore[attr-defined]
            self._permission_denied(error)
            return
        # Expiry, too many connections, stale …: the server closes; the reconnect logic follows (ADR-40).
        error_type = AuthenticationError if _AUTH.search(text) else ProtocolError
        self.report(error_type(f"the server says: {text}"))
        if not text.lower().startswith(
            ("invalid subject", "invalid publish subject", "invalid subscription")
        ):
            await self._nc._process_op_err(nats.errors.Error(f"nats: {text}"))

    async def on_other(self, sid: bytes, frame: Frame) -> None:
        """Subscriptions made on nats-py itself; there are none unless a user reaches for them."""
        if sid.isdigit() and int(sid) in self._nc._subs:
            try:
                await self._nc._process_msg(int(sid), frame[0], frame[1], frame[3], frame[2])
            except Exception as error:  # noqa: BLE001  poison for one subscription is not poison for all
                self.report(error)

    # --- sending -------------------------------------------------------------------------------------------

    def send(self, subject: str, payload: bytes = b"", *, reply: str = "", header: bytes = b"") -> None:
        self._check_sendable()
        size = len(header) + len(payload)
        self.check_size(size)
        head = f"{subject} {reply}" if reply else subject
        if header:
            line = f"HPUB {head} {len(header)} {size}\r\n"
        else:
            line = f"PUB {head} {size}\r\n"
        self._write(b"".join((line.encode("utf-8", "surrogateescape"), header, payload, b"\r\n")))

    async def publish(
        self, subject: str, payload: bytes = b"", *, reply: str = "", header: bytes = b""
    ) -> None:
        self.send(subject, payload, reply=reply, header=header)
        if self._out_size > _HIGH_WATER:
            await self._drain_writes()

    async def ack(self, reply: bytes, payload: bytes, *, settles: bool) -> None:
        self._check_sendable()
        command = b"PUB %b %d\r\n%b\r\n" % (reply, len(payload), payload)
        self._write(command)
        if settles:
            self._unconfirmed.append(command)
            self._acks_written += 1
            if len(self._unconfirmed) >= _UNCONFIRMED_ACKS and not self._confirming:
                self._confirming = True
                self._ping()
        if self._out_size > _HIGH_WATER:
            await self._drain_writes()

    def ping_sent(self) -> None:
        """A PING goes out behind all that was written: its PONG will confirm the acks among it."""
        self._flush()
        self._ping_marks.append(self._acks_written)

    def pong_received(self) -> None:
        """The server has read all that was written before the PING."""
        self._confirming = False
        if self._ping_marks:
            unread = self._acks_written - self._ping_marks.popleft()
            while len(self._unconfirmed) > unread:
                self._unconfirmed.popleft()

    def _resend_acks(self) -> None:
        """Acks may have died with the connection. One that comes twice changes nothing, so they are sent again."""
        if not self._unconfirmed:
            return
        count = len(self._unconfirmed)
        for command in self._unconfirmed:
            self._write(command)
        self.hub.emit(AcksLost(count=count, resent=count))
        self._ping()

    def _check_sendable(self) -> None:
        if not self.is_connected:
            self.check_open()
            raise DisconnectedError("not connected to a server at this moment; nothing was sent")

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_size += len(data)
        if not self._write_scheduled:
            self._write_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """One write for all that came together in this turn of the loop."""
        self._write_scheduled = False
        if not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._out_size = 0
        transport = self._nc._transport
        if transport is not None:
            transport.write(data)

    async def _drain_writes(self) -> None:
        self._flush()
        transport = self._nc._transport
        if transport is not None:
            try:
                await transport.drain()  # type: ignore[no-untyped-call]
            except OSError as error:
                raise DisconnectedError("the connection was lost while writing") from error

    async def subscribe(self, subject: str, sink: Sink, queue: str = "") -> _Subscription:
        self.check_open()
        self._nc._sid += 1
        sid = self._nc._sid
        subscription = _Subscription(sid, subject, queue)
        self._nc.reader.sinks[b"%d" % sid] = sink
        self._nc._subs[sid] = subscription  # type: ignore[assignment]
        if self.is_connected:  # else nats-py makes it at the reconnect
            group = f"{queue} " if queue else ""
            self._write(f"SUB {subject} {group}{sid}\r\n".encode())
        return subscription

    async def unsubscribe(self, inbox: Any) -> None:
        self._nc.reader.sinks.pop(b"%d" % inbox._id, None)
        if self._nc._subs.pop(inbox._id, None) is not None and self.is_connected:
            self._write(b"UNSUB %d\r\n" % inbox._id)

    async def drain(self, inbox: Any, timeout: float) -> None:
        if self.is_connected and self._nc._subs.pop(inbox._id, None) is not None:
            # The server reads UNSUB, then PING: after the PONG nothing is under way. The sink stays until then.
            self._write(b"UNSUB %d\r\n" % inbox._id)
            try:
                await self.ping(timeout)
            except JetStreamError:
                pass
        await self.unsubscribe(inbox)

    def _ping(self) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._nc._pongs.append(future)
        self.ping_sent()
        self._write(b"PING\r\n")
        self._flush()  # at once: nats-py writes its own PINGs directly, and PONGs are told apart by their order
        return future

    async def ping(self, timeout: float) -> float:
        self._check_sendable()
        started = self.now()
        pong = self._ping()
        try:
            async with asyncio.timeout(timeout):
                await pong
        except TimeoutError:
            raise RequestTimeoutError("no PONG to a PING", timeout) from None
        return self.now() - started

    async def close(self) -> None:
        if self._nc.is_closed:
            self._closing = True
            return
        if self.is_connected:
            try:
                await asyncio.wait_for(self._drain_writes(), 2.0)
            except (DisconnectedError, TimeoutError):
                pass
        self._closing, self._up = True, False
        self._notify(Lifecycle.CLOSED)
        await self._nc.close()


def _reason(error: BaseException | None) -> str:
    if error is None:
        return "unknown"
    return str(error).removeprefix("nats: ") or type(error).__name__
