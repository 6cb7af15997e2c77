"""nats-py's client with another reader: the only module that overrides private methods of nats-py.

nats-py connects, does TLS and authentication, discovers servers and reconnects. The parser and the read loop are
replaced; callbacks of nats-py are guarded, so that no exception ends reading or reconnecting silently.
``integration/connection/test_nats_client.py`` pins the names used here.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import Coroutine
from typing import Any, ClassVar, Protocol

import nats.aio.client
import nats.aio.transport
import nats.errors

from ...errors import PermissionDeniedError, ProtocolError
from ...protocol.wire.frames import Frame
from .urls import url_identity
from .wire import FrameReader, Host, Outbox

__all__ = ["NatsClient", "Owner", "Tap", "WireSubscription", "seam_gaps"]

_ENDED = (nats.aio.client.Client.CLOSED, nats.aio.client.Client.RECONNECTING)
_READ_SIZE = 64 * 1024
_BUFFER_SIZE = 32 * 1024  # nats-py's, of its stream reader


_METHODS = {
    "_attempt_reconnect": (),
    "_close": ("status", "do_cbs"),
    "_connect_command": (),
    "_connect_to_server": ("s",),
    "_process_headers": ("headers",),
    "_process_info": ("info",),
    "_process_msg": ("sid", "subject", "reply", "data", "headers"),
    "_process_op_err": ("e",),
    "_read_loop": (),
    "_select_next_server": (),
    "_send_ping": ("future",),
}
_ATTRIBUTES = (
    "_current_server",
    "_flush_queue",
    "_max_payload",
    "_pings_outstanding",
    "_pongs",
    "_pongs_received",
    "_ps",
    "_server_info",
    "_server_pool",
    "_sid",
    "_status",
    "_subs",
    "_transport",
)


@functools.cache
def seam_gaps() -> tuple[str, ...]:
    """The private names of nats-py that are used here and are missing, or take other arguments."""
    client = nats.aio.client.Client
    gaps = [
        name
        for name, wanted in _METHODS.items()
        if not (method := getattr(client, name, None))
        or tuple(inspect.signature(method).parameters)[1 : 1 + len(wanted)] != wanted
    ]
    if gaps:
        return tuple(gaps)
    instance = client()
    return tuple(name for name in _ATTRIBUTES if not hasattr(instance, name))


class Owner(Host, Protocol):
    """The connection that this client works for."""

    def lost(self, error: BaseException) -> None:
        """The connection broke."""

    def report(self, error: BaseException) -> None:
        """An error that has no caller."""

    def ping_sent(self) -> None:
        """A PING is about to be written."""

    def pong_received(self) -> None:
        """A PONG arrived."""


class WireSubscription:
    """The entry in nats-py's table for a subscription of jsclient: nats-py subscribes it again after a reconnect."""

    _received: ClassVar[int] = 0
    _jsi: ClassVar[None] = None
    _wait_for_msgs_task: ClassVar[None] = None
    _message_iterator: ClassVar[None] = None
    _pending_next_msgs_calls: ClassVar[None] = None

    def __init__(self, sid: int, subject: str, queue: str, limit: int = 0) -> None:
        self._id = sid
        self._max_msgs = limit
        self._subject = subject
        self._queue = queue
        self.subject = subject
        self.denied: PermissionDeniedError | None = None

    async def _drain(self) -> None:
        """A no-op: jsclient drains its own handles."""


class _ParserSeam:
    """Replaces nats-py's parser."""

    def __init__(self, reader: FrameReader) -> None:
        self._reader = reader

    async def parse(self, data: bytes = b"") -> None:
        self._reader.feed(data)

    def reset(self) -> None:
        self._reader.reset()


class _TcpTransport(nats.aio.transport.TcpTransport):
    """nats-py's transport, which after a failed TLS handshake would wait forever for a socket that is gone."""

    async def connect_tls(self, *args: Any, **options: Any) -> None:
        try:
            await super().connect_tls(*args, **options)
        except BaseException:
            writer = self._io_writer
            self._io_reader = self._io_writer = None
            if writer is not None:
                writer.transport.abort()
            raise

    def close(self) -> None:
        if self._io_writer is not None:  # before 2.15, nats-py closes it without a check
            self._io_writer.close()

    async def wait_closed(self) -> None:
        if self._io_writer is not None:
            await self._io_writer.wait_closed()


class NatsClient(nats.aio.client.Client):
    """nats-py's client with our reader in it."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self.owner = owner
        self.out = Outbox(self)
        self.reader = FrameReader(owner)
        self._ps = _ParserSeam(self.reader)  # type: ignore[assignment]
        self.wants_tls = False
        self.identity: dict[str, str | None] = {}  # from the URLs, for servers whose URL has none
        self.first_connect = True
        self.last_failure: BaseException | None = None
        self._over = False
        self._doing: asyncio.Task[None] | None = None

    # --- connecting ----------------------------------------------------------------------------------------

    def _connect_command(self) -> bytes:
        transport = self._transport
        if self._over and transport is not None:
            transport.close()  # type: ignore[no-untyped-call]
        self._end_if_over()
        secure = transport is not None and _is_secure(transport)
        wants = self.wants_tls or (
            self._current_server is not None and self._current_server.uri.scheme in {"tls", "wss"}
        )
        if wants and not secure:
            raise nats.errors.SecureConnRequiredError
        if self.identity:  # nats-py looks at the current server's URL only, and does not decode it
            server = self._current_server
            self.options.update((server and url_identity(server.uri)) or self.identity)
        self.reader.reset()
        self.reader.max_payload = self._max_payload
        return super()._connect_command()

    def _end_if_over(self) -> None:
        """End a cancelled reconnect: `asyncio.wait_for` may have lost the cancellation."""
        if self._over:
            raise asyncio.CancelledError

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002  as nats-py has it
        self._over = True
        await super()._close(status, do_cbs)

    async def _connect_to_server(self, s: Any) -> None:
        self._end_if_over()
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.close()  # of an attempt that failed after connecting: nats-py would leave its socket open
        if s.uri.scheme in {"ws", "wss"}:
            await super()._connect_to_server(s)
            return
        s.last_attempt = time.monotonic()  # nats-py's clock for its pauses
        self._transport = transport = _TcpTransport()  # type: ignore[no-untyped-call]
        await transport.connect(s.uri, _BUFFER_SIZE, self.options["connect_timeout"])

    async def _select_next_server(self) -> None:
        """Try each server once on the first connect; reconnects follow nats-py's rules."""
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
            except Exception as error:  # noqa: BLE001  else reconnecting would end silently
                self.owner.report(error)
                await asyncio.sleep(self.options["reconnect_time_wait"])
                if not self._over:
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
            if isinstance(transport, _TcpTransport):
                await self._read_tapped(transport)
            while not (self.is_closed or self.is_reconnecting) and transport is not None:
                data = await transport.read(_READ_SIZE)
                if not data:
                    raise nats.errors.UnexpectedEOF
                self._feed(data)
            return
        except asyncio.CancelledError:
            return
        except Exception as caught:  # noqa: BLE001  the client reconnects after any error
            error = caught
        if isinstance(error, ProtocolError):
            self.owner.report(error)
        await self._process_op_err(error)

    async def _read_tapped(self, transport: _TcpTransport) -> None:
        """Read directly from asyncio's transport, after the bytes that arrived earlier."""
        reader, writer = transport._io_reader, transport._io_writer
        assert reader is not None
        assert writer is not None
        tap = Tap(writer.transport, reader, self)  # type: ignore[arg-type]  # it reads as well
        try:
            while data := await reader.read(_READ_SIZE):  # it does not suspend before it is empty
                self._feed(data)
            raise nats.errors.UnexpectedEOF
        finally:
            tap.close()

    def _feed(self, data: bytes) -> None:
        if self._status not in _ENDED:
            self.out.answered = True
            self.reader.feed(data)

    def take_info(self, info: dict[str, Any]) -> None:
        """Pass INFO to nats-py, which discovers other servers."""
        self._do(self._process_info(info), ends=True)

    def take_message(self, sid: int, frame: Frame) -> None:
        """A message of a subscription made on nats-py itself."""
        self._do(self._process_msg(sid, frame[0], frame[1], frame[3], frame[2]), ends=False)

    def _do(self, work: Coroutine[Any, Any, None], *, ends: bool) -> None:
        """Run coroutines of nats-py one after the other. ``ends``: an error ends the connection."""
        before = self._doing

        async def do() -> None:
            if before is not None and not before.done():
                await asyncio.wait({before})
            try:
                await work
            except Exception as caught:  # noqa: BLE001  poison for one subscription is not poison for all
                error = ProtocolError(
                    f"nats-py could not process a message: {type(caught).__name__}: {caught}"
                )
                self.owner.report(error)
                if ends:
                    await self._process_op_err(error)

        self._doing = asyncio.get_running_loop().create_task(do())

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        self.owner.ping_sent()
        await super()._send_ping(future)

    def take_pong(self) -> None:
        """Count a PONG and wake its waiter."""
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


class Tap(asyncio.Protocol):
    """Replaces the protocol of a stream reader: data goes to our frame reader, everything else to the stream reader.

    The stream reader wakes only at the end of the connection, or when the frame reader raises: it raises that error.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: asyncio.StreamReader,
        client: NatsClient,
    ) -> None:
        inner = transport.get_protocol()
        assert isinstance(inner, asyncio.StreamReaderProtocol)
        self._inner = inner
        self._reader = reader
        self._client: NatsClient | None = client
        transport.set_protocol(self)

    def close(self) -> None:
        """Stop reading."""
        self._client = None

    def data_received(self, data: bytes) -> None:
        client = self._client
        if (
            client is not None and client._status not in _ENDED
        ):  # nats-py's properties would be two calls more
            client.out.answered = True
            try:
                client.reader.feed(data)
            except Exception as error:  # noqa: BLE001  raised in the read loop
                self._client = None
                self._reader.set_exception(error)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
