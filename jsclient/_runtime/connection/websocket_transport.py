"""A transport over a WebSocket, with aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import ParseResult

from ...protocol.connection.handshake import HandshakeError
from ..tasks import until_done
from .lasting_task import LastingTask
from .transport import CLOSING
from .wire import FrameReader, Outbox

if TYPE_CHECKING:
    import aiohttp

__all__ = ["WebSocketTransport"]


def _no_websocket(status: int, message: str, scheme: str) -> str:
    """Return the error text for an answer that does not open a WebSocket."""
    if "INFO {" in message:
        return f"a NATS server answers there, and no WebSocket: use {'nats' if scheme == 'ws' else 'tls'}://"
    hint = ": use wss:// if it has TLS" if scheme == "ws" and status == 400 else ""
    return f"what answers there opens no WebSocket, with the HTTP status {status}{hint}"


async def _refuse_redirect(*_: Any) -> None:
    """Refuse a redirect. aiohttp would follow it even from TLS to clear text, with the given headers."""
    raise HandshakeError("what answers there redirects to another URL: use that of the server itself")


class WebSocketTransport:
    """A WebSocket. One task sends the written bytes, and another task reads after the handshake."""

    upgradable = failed_before_tls = is_open = False  # a refusal arrives over the WebSocket, after TLS

    def __init__(self, headers: Mapping[str, str | list[str]] | None) -> None:
        self.backlog: Callable[[], int] = self._size_of_waiting
        self._headers = headers
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._secure = False
        self._raw: socket.socket | None = None  # used when closing, to discard data that aiohttp has not sent
        self._waiting: list[bytes] = []
        self._size = 0  # number of bytes that wait or are being sent
        self._sender: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None
        self._broken: Exception | None = None
        self._receiving: LastingTask | None = None

    # --- connecting ----------------------------------------------------------------------------------------

    async def connect(self, url: ParseResult, context: ssl.SSLContext | None, name: str | None) -> None:
        """Open the connection. The caller limits the time."""
        import aiohttp

        secure = url.scheme == "wss"
        # After any error the session must be closed, because aiohttp warns about an open session.
        redirects = aiohttp.TraceConfig()
        redirects.on_request_redirect.append(_refuse_redirect)
        self._session = aiohttp.ClientSession(trace_configs=[redirects])
        try:
            self._socket = await self._session.ws_connect(
                url._replace(netloc=url.netloc.rpartition("@")[2]).geturl(),
                ssl=context or True,
                server_hostname=name if secure else None,
                headers=self._pairs(),
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSING),
                max_msg_size=0,
            )
        except aiohttp.ClientResponseError as error:
            await self._session.close()
            raise HandshakeError(_no_websocket(error.status, error.message, url.scheme)) from error
        except aiohttp.ClientError as error:
            await self._session.close()
            raise ConnectionError(str(error) or type(error).__name__) from error
        except BaseException:
            await self._session.close()
            raise
        self._secure = secure

    def _pairs(self) -> list[tuple[str, str]]:
        headers = (self._headers or {}).items()
        return [(name, v) for name, vs in headers for v in ([vs] if isinstance(vs, str) else vs)]

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Raise `HandshakeError`, because an open WebSocket cannot be upgraded."""
        raise HandshakeError("TLS cannot start on an open WebSocket")

    # --- reading -------------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
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

    async def last_words(self) -> bytes:
        """Return the bytes that were received but not read when the connection ended."""
        words = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSING):
                while self._socket is not None and (data := await self.receive()):
                    words += data
        return words

    def deliver_to(
        self, reader: FrameReader, out: Outbox, ended: Callable[[Exception], None], rest: bytes
    ) -> None:
        """Pass ``rest`` and all later bytes to ``reader``.

        Call ``ended`` once, at the end or after an error of the reader.
        """

        async def deliver() -> None:
            nonlocal rest
            try:
                first, rest = rest, b""
                reader.feed(first)
                while data := await self.receive():
                    out.answered = True
                    reader.feed(data)
            except Exception as error:  # noqa: BLE001  the client reconnects after any error
                ended(error)
            else:
                ended(ConnectionResetError("the server closed the connection"))

        self._receiving = LastingTask(deliver, "websocket")
        self._receiving.start()

    def failure(self) -> BaseException | None:
        """Return None, because aiohttp raises the error itself."""
        return None

    # --- writing -------------------------------------------------------------------------------------------

    def write(self, payload: bytes) -> None:
        """Write bytes, unless the connection is lost."""
        self._waiting.append(payload)
        self._size += len(payload)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send(), name="jsclient:websocket")

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
        """Wait until all bytes are sent. Raises `OSError` if the connection is lost."""
        while self._sender is not None and not self._sender.done():
            await asyncio.wait({self._sender})
        if self._broken is not None:
            raise ConnectionError("the WebSocket is closed") from self._broken

    def _size_of_waiting(self) -> int:
        return self._size

    # --- state and end -----------------------------------------------------------------------------------------

    def is_secure(self) -> bool:
        """Return whether the connection is encrypted."""
        return self._secure

    def is_closing(self) -> bool:
        """Return whether the connection is closed, lost, or about to be closed."""
        return self._closer is not None or self._socket is None or self._socket.closed

    def peer(self) -> str:
        """Return the address of the peer, ``host:port``, or "" if it is unknown."""
        name = self._socket.get_extra_info("peername") if self._socket is not None else None
        return f"{name[0]}:{name[1]}" if name and ":" not in name[0] else ""

    def abort(self) -> None:
        """Close without waiting for unsent bytes."""
        if self._sender is not None:
            self._sender.cancel()
        self._waiting.clear()
        self.close()
        self._discard()

    def close(self) -> None:
        """Close after the written bytes are sent."""
        if self._receiving is not None:
            self._receiving.cancel()
        if self._closer is None and self._session is not None:
            self._raw = self._duplicate()
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
            self._discard()
            if self._raw is not None:
                self._raw.close()
            await self._session.close()

    def _duplicate(self) -> socket.socket | None:
        """Return another descriptor of the socket, which aiohttp does not close, or None if it is closed."""
        used = self._socket.get_extra_info("socket") if self._socket is not None else None
        with contextlib.suppress(OSError):
            return used.dup() if used is not None else None
        return None

    def _discard(self) -> None:
        """Discard unsent bytes. Otherwise they would wait for a peer that does not read, and arrive much later."""
        if self._raw is not None:
            with contextlib.suppress(OSError):  # closed by the peer, or at the end
                self._raw.shutdown(socket.SHUT_RDWR)

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        if self._closer is not None:
            await asyncio.wait({self._closer})
