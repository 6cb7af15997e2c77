"""A WebSocket over TCP, with TLS or without, directly or through an HTTP proxy."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import ParseResult

from ....protocol.connection.handshake import HandshakeError
from ....protocol.connection.websocket import (
    HttpAnswer,
    WebSocketFrames,
    check_opened,
    closing_frame,
    frame,
    opening_request,
    pong,
)
from ..speedups import chosen
from .proxy import Proxy
from .upgrade_headers import UpgradeHeaders

if TYPE_CHECKING:
    from ..tcp_transport import TcpTransport
    from ..transport import ByteReader
    from ..wire import Outbox

__all__ = ["WebSocketTransport"]


_UNSENT: Final = 64 * 1024  # pings aren't answered while more bytes than this wait to be sent


class WebSocketTransport:
    """A TCP connection whose bytes are in WebSocket frames once `open_websocket` has returned."""

    upgradable = failed_before_tls = False  # a refusal arrives over the WebSocket, after TLS

    def __init__(self, tcp: TcpTransport, headers: UpgradeHeaders, proxy: Proxy | None) -> None:
        self._tcp = tcp
        self._headers = headers
        self._proxy = proxy
        self._frames: WebSocketFrames | None = None  # None until the WebSocket is open
        self._received = bytearray()  # bytes of an HTTP answer, or of frames that follow it
        self._reader: ByteReader | None = None
        self._unread = b""  # payload that the handshake has not read
        self._apply_mask = chosen().masked

    # --- connecting ----------------------------------------------------------------------------------------

    async def open_websocket(self, url: ParseResult, context: ssl.SSLContext | None, name: str) -> None:
        """Connect, with TLS if there is a context, and open the WebSocket. The caller limits the time."""
        headers = await self._headers.pairs()
        await (self._tcp.connect(url) if self._proxy is None else self._tunnel(self._proxy, url))
        if context is not None:
            await self._tcp.start_tls(context, name)
        key = base64.b64encode(os.urandom(16)).decode()
        self._tcp.write(opening_request(url, key, headers))
        check_opened(await self._answer(url.scheme), key, url.scheme)
        self._frames = WebSocketFrames()

    async def _tunnel(self, proxy: Proxy, url: ParseResult) -> None:
        try:
            await self._tcp.connect(proxy.url)
            self._tcp.write(proxy.tunnel_request(url))
            answer = await self._answer(url.scheme)
        except OSError as error:
            raise ConnectionError(f"the proxy {proxy.shown} cannot be used: {error}") from error
        except HandshakeError as error:
            raise HandshakeError(f"the proxy {proxy.shown} cannot be used: {error}") from None
        proxy.check_answer(answer)
        if self._received:
            raise HandshakeError(f"the proxy {proxy.shown} sent something after its answer")

    async def _answer(self, scheme: str) -> HttpAnswer:
        while (answer := HttpAnswer.cut_from(self._received, scheme)) is None:
            data = await self._tcp.receive()
            if not data:
                raise HandshakeError("what answers there closed the connection, without an answer")
            self._received += data
        return answer

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Raise `HandshakeError`, because an open WebSocket can't be upgraded."""
        raise HandshakeError("TLS cannot start on an open WebSocket")

    # --- reading -------------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Return the next bytes of the handshake, or b"" at the end.

        Raises:
            OSError: The connection is lost.
            ProtocolError: The bytes are not WebSocket frames, or have an extension or text.
        """
        assert self._frames is not None
        payload = self._unwrap(b"")
        while not payload and not self._frames.closed:
            if self._frames.error is not None:
                raise self._frames.error
            data = await self._tcp.receive()
            if not data:
                break
            payload = self._unwrap(data)
        return payload

    async def last_words(self) -> bytes:
        """Return the bytes that were received but not read yet."""
        return self._unwrap(await self._tcp.last_words())

    def deliver_to(
        self, reader: ByteReader, out: Outbox, ended: Callable[[Exception], None], unread: bytes
    ) -> None:
        """Pass ``unread`` and all later bytes to ``reader``.

        Call ``ended`` once, at the end or after an error of the reader.
        """
        self._reader, self._unread = reader, unread
        self._tcp.deliver_to(self, out, ended, b"")

    @property
    def missing(self) -> int:
        """The number of bytes that a partial NATS frame still needs, not counting the WebSocket frames around them."""
        assert self._reader is not None
        return self._reader.missing

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the TCP connection. Called by the TCP transport, which any exception ends."""
        assert self._frames is not None
        assert self._reader is not None
        payload, self._unread = self._unread + self._unwrap(data), b""
        if payload:
            self._reader.feed(payload)
        if self._frames.error is not None:
            raise self._frames.error
        if self._frames.closed:
            raise ConnectionResetError("the server closed the connection")

    def _unwrap(self, data: bytes) -> bytes:
        """Return the payloads of the frames in these bytes, and answer the last ping."""
        frames = self._frames
        if frames is None:  # the answer did not open a WebSocket
            return b""
        data = bytes(self._received) + data
        self._received.clear()
        payload = frames.receive(data)
        # Don't let a server that sends pings without reading fill the buffer. A later ping is answered instead.
        if frames.ping is not None and not self.is_closing() and self._tcp.backlog() <= _UNSENT:
            self._tcp.write(pong(frames.ping, os.urandom(4)))
            frames.ping = None
        return payload

    # --- writing -------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> Callable[[], int]:
        """A function that returns the number of bytes written but not sent yet."""
        return self._tcp.backlog

    def write(self, payload: bytes) -> None:
        """Write bytes, unless the connection is lost. The reader soon notices the loss, and then fails the callers."""
        self._tcp.write(frame(payload, os.urandom(4), apply_mask=self._apply_mask))

    async def drain(self) -> None:
        """Wait until most bytes are sent. Raises `OSError` if the connection is lost."""
        await self._tcp.drain()

    # --- state and end -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the server, or the proxy, accepted the TCP connection."""
        return self._tcp.is_open

    def is_secure(self) -> bool:
        """Return whether the connection is encrypted."""
        return self._tcp.is_secure()

    def is_closing(self) -> bool:
        """Return whether the connection is closed, lost, or about to be closed."""
        return self._tcp.is_closing()

    def peer(self) -> str:
        """Return the address of the server, ``host:port``, or "" if it is unknown, as behind a proxy."""
        return self._tcp.peer() if self._proxy is None else ""

    def failure(self) -> BaseException | None:
        """Return the error that ended reading."""
        return self._tcp.failure()

    def abort(self) -> None:
        """Close at once. Unsent bytes are lost."""
        self._tcp.abort()

    def close(self) -> None:
        """Close the WebSocket, and the connection after the written bytes are sent."""
        if self._frames is not None and not self.is_closing():
            self._tcp.write(closing_frame(os.urandom(4)))
        self._tcp.close()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed, and close it at once if the peer does not read."""
        await self._tcp.wait_closed()
