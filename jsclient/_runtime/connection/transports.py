"""The two transports of a connection: nats-py's TCP transport with time limits, and a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import ParseResult

import nats.aio.transport
import nats.errors

from ..tasks import until_done

if TYPE_CHECKING:
    import aiohttp

__all__ = ["TcpTransport", "WebSocketTransport"]

CLOSING = 1.0
"""Seconds to send the written bytes, and for the peer to confirm the end."""


def refusal_in(data: bytes) -> nats.errors.Error | None:
    """Return the reason in an ``-ERR`` line, or None."""
    for line in data.split(b"\r\n"):
        if line.startswith(b"-ERR"):
            return nats.errors.Error(f"nats: {line[4:].strip().decode('utf-8', 'backslashreplace')}")
    return None


def _greeting(line: bytes) -> bytes:
    """Check a line of the handshake and return it. Raises the reason why the server refuses the connection."""
    if (refused := refusal_in(line)) is not None:
        raise refused
    if not line:
        raise nats.errors.Error("nats: the server closed the connection while connecting")
    return line


def _nothing() -> int:
    return 0


class TcpTransport(nats.aio.transport.TcpTransport):
    """nats-py's TCP transport. Closing it does not wait for a peer that does not read.

    Attributes:
        backlog: Returns the number of bytes written but not sent yet. It is asyncio's method, as it runs at each write.
    """

    backlog: Callable[[], int] = staticmethod(_nothing)

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Open the connection. The caller limits the time: a task of `asyncio.wait_for` could outlive it."""
        reader, writer = await asyncio.open_connection(uri.hostname, uri.port, limit=buffer_size)
        self._bare_io_reader, self._bare_io_writer = reader, writer
        self._io_reader, self._io_writer = reader, writer
        self.backlog = _backlog(writer.transport)

    async def connect_tls(self, *args: Any, **options: Any) -> None:
        try:
            if (refused := refusal_in(await self.last_words())) is not None:
                raise refused  # it arrived together with the INFO
            await super().connect_tls(*args, **options)
        except BaseException:
            self.abort()  # nats-py would wait forever for a closed socket
            self._io_reader = self._io_writer = None
            self.backlog = _nothing
            raise
        assert self._io_writer is not None
        self.backlog = _backlog(self._io_writer.transport)

    def write(self, payload: bytes) -> None:
        """Write, unless the connection is lost. The reader sees that soon, and then fails the callers."""
        writer = self._io_writer
        assert writer is not None
        try:
            writer.write(payload)
        except RuntimeError:  # raised by uvloop; asyncio drops such bytes
            if not writer.transport.is_closing():
                raise

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))

    async def readline(self) -> bytes:
        return _greeting(await super().readline())  # type: ignore[no-untyped-call]

    async def last_words(self) -> bytes:
        """Return the bytes that were received but not read when the connection ended or TLS failed."""
        reader = self._io_reader or self._bare_io_reader
        return bytes(getattr(reader, "_buffer", b""))  # after an error, a stream returns no bytes

    @property
    def is_open(self) -> bool:
        """Whether the server accepted the TCP connection."""
        return self._bare_io_reader is not None

    @property
    def failed_before_tls(self) -> bool:
        """Whether TLS was started on an open connection, and failed."""
        return self._io_reader is None and self._bare_io_reader is not None

    def failure(self) -> BaseException | None:
        """Return the error that ended reading. It says more than a write error, because TLS 1.3 refuses late."""
        return self._io_reader.exception() if self._io_reader is not None else None

    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self._io_writer is not None and self._io_writer.get_extra_info("ssl_object") is not None

    def abort(self) -> None:
        """Close at once. Unsent bytes are lost."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    def close(self) -> None:
        if self._io_writer is not None:  # before 2.15, nats-py closes it without a check
            self._io_writer.close()

    async def wait_closed(self) -> None:
        if self._io_writer is not None:
            closed = asyncio.ensure_future(_closed(self._io_writer))
            if not await until_done(closed, CLOSING):
                self.abort()
                await until_done(closed, CLOSING)


def _backlog(transport: asyncio.WriteTransport) -> Callable[[], int]:
    """Return asyncio's method, or a wrapper of uvloop's, which raises once the connection is lost."""
    method = transport.get_write_buffer_size
    if not type(transport).__module__.startswith("uvloop"):
        return method

    def backlog() -> int:
        try:
            return method()
        except RuntimeError:
            return 0

    return backlog


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Wait for the end of the connection. An error is dropped, as a cancelled caller would not retrieve it."""
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _no_websocket(status: int, message: str, scheme: str) -> str:
    """Return the error text for an answer that opens no WebSocket."""
    if "INFO {" in message:
        return f"a NATS server answers there, and no WebSocket: use {'nats' if scheme == 'ws' else 'tls'}://"
    hint = ": use wss:// if it has TLS" if scheme == "ws" and status == 400 else ""
    return f"what answers there opens no WebSocket, with the HTTP status {status}{hint}"


class WebSocketTransport(nats.aio.transport.Transport):
    """A WebSocket by aiohttp. A task sends the written bytes, while nats-py's transport sends only in ``drain``."""

    def __init__(self, headers: Mapping[str, str | list[str]] | None) -> None:
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._secure = False
        self._unread = b""
        self._waiting: list[bytes] = []
        self._size = 0  # bytes that wait or are being sent
        self._sender: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        self._broken: Exception | None = None

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: float) -> None:
        """Open the connection. The caller limits the time."""
        await self._open(uri, None)

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: float,
        server_hostname: str | None = None,
    ) -> None:
        """Open an encrypted connection. A no-op if the connection is encrypted already."""
        if self._secure:
            return
        if self._socket is not None or isinstance(uri, str):
            raise nats.errors.SecureConnRequiredError  # an open WebSocket cannot be upgraded
        await self._open(uri, ssl_context, server_hostname)
        self._secure = True

    async def _open(
        self, uri: ParseResult, context: ssl.SSLContext | None, server_hostname: str | None = None
    ) -> None:
        import aiohttp

        # After any error the session must be closed: aiohttp warns of a session that is not.
        self._session = aiohttp.ClientSession()
        try:
            self._socket = await self._session.ws_connect(
                uri._replace(netloc=uri.netloc.rpartition("@")[2]).geturl(),
                ssl=True if context is None else context,
                server_hostname=server_hostname,
                headers=self._pairs(),
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSING),
                max_msg_size=0,
            )
        except aiohttp.ClientResponseError as error:
            await self._session.close()
            raise nats.errors.Error(
                f"nats: {_no_websocket(error.status, error.message, uri.scheme)}"
            ) from error
        except aiohttp.ClientError as error:
            await self._session.close()
            raise ConnectionError(str(error) or type(error).__name__) from error
        except BaseException:
            await self._session.close()
            raise

    def _pairs(self) -> list[tuple[str, str]]:
        headers = (self._headers or {}).items()
        return [(name, v) for name, vs in headers for v in ([vs] if isinstance(vs, str) else vs)]

    async def read(self, buffer_size: int) -> bytes:
        data, self._unread = self._unread, b""
        return data or await self._receive()

    async def readline(self) -> bytes:
        while b"\n" not in self._unread:
            data = await self._receive()
            if not data:
                return _greeting(b"")
            self._unread += data
        line, end, self._unread = self._unread.partition(b"\n")
        return _greeting(line + end)

    failed_before_tls = is_open = False  # a refusal arrives over the WebSocket, after TLS

    def failure(self) -> BaseException | None:
        """Return None, since aiohttp raises the error itself."""
        return None

    async def last_words(self) -> bytes:
        """Return the bytes that were received but not read when the connection ended."""
        words = self._unread
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSING):
                while self._socket is not None and (data := await self._receive()):
                    words += data
        return words

    async def _receive(self) -> bytes:
        """Return the next bytes, or b"" at the end of the connection."""
        import aiohttp

        assert self._socket is not None
        while True:
            message = await self._socket.receive()
            if message.type is aiohttp.WSMsgType.ERROR:
                raise ConnectionError(f"the WebSocket failed: {message.data}")
            if message.type is not aiohttp.WSMsgType.BINARY:
                return b""
            if message.data:
                return bytes(message.data)

    def write(self, payload: bytes) -> None:
        self._waiting.append(payload)
        self._size += len(payload)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send(), name="jsclient:websocket")

    def writelines(self, payload: list[bytes]) -> None:
        self.write(b"".join(payload))

    async def _send(self) -> None:
        assert self._socket is not None
        while self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            try:
                await self._socket.send_bytes(data)
            except Exception as error:  # noqa: BLE001  the reader sees the end of the connection too
                self._broken = error
                self._waiting.clear()
            finally:
                self._size = sum(map(len, self._waiting))

    async def drain(self) -> None:
        while self._sender is not None and not self._sender.done():
            await asyncio.wait({self._sender})
        if self._broken is not None:
            raise ConnectionError("the WebSocket is closed") from self._broken

    def is_secure(self) -> bool:
        """Whether the connection is encrypted."""
        return self._secure

    def backlog(self) -> int:
        """Return the number of bytes written but not sent yet."""
        return self._size

    def abort(self) -> None:
        """Close without waiting for unsent bytes."""
        if self._sender is not None:
            self._sender.cancel()
        self._waiting.clear()
        self.close()

    def close(self) -> None:
        if self._closer is None and self._session is not None:
            self._closer = asyncio.get_running_loop().create_task(self._finish(), name="jsclient:websocket")

    async def _finish(self) -> None:
        assert self._session is not None
        try:
            if self._sender is not None:
                await until_done(self._sender, CLOSING)
            if self._socket is not None:
                async with asyncio.timeout(CLOSING):
                    await self._socket.close()
        except (OSError, TimeoutError):
            pass
        finally:
            await self._session.close()

    async def wait_closed(self) -> None:
        if self._closer is not None:
            await asyncio.wait({self._closer})

    def at_eof(self) -> bool:
        return self._socket is None or self._socket.closed

    def __bool__(self) -> bool:
        return self._socket is not None
