"""A WebSocket over TCP, with TLS or without, directly or through an HTTP proxy."""

from __future__ import annotations

import base64
import os
import ssl
from urllib.parse import ParseResult

from ...errors import ProtocolError
from ...protocol.connection.handshake import HandshakeError
from ...protocol.connection.websocket import (
    HttpAnswer,
    WebSocketFrames,
    check_opened,
    closing_frame,
    frame,
    opening_request,
    pong,
)
from .proxy import Proxy
from .tcp_transport import TcpTransport
from .upgrade_headers import UpgradeHeaders

__all__ = ["WebSocketTransport"]


class WebSocketTransport(TcpTransport):
    """A TCP connection whose bytes are in WebSocket frames, after `open`."""

    upgradable = False

    def __init__(self, headers: UpgradeHeaders, proxy: Proxy | None) -> None:
        super().__init__()
        self._headers = headers
        self._proxy = proxy
        self._frames: WebSocketFrames | None = None  # None until the WebSocket is open

    # --- connecting ----------------------------------------------------------------------------------------

    async def open(self, url: ParseResult, context: ssl.SSLContext | None, name: str) -> None:
        """Connect, with TLS if there is a context, and open the WebSocket. The caller limits the time."""
        headers = await self._headers.pairs()
        await (self.connect(url) if self._proxy is None else self._tunnel(self._proxy, url))
        if context is not None:
            await super().start_tls(context, name)
        key = base64.b64encode(os.urandom(16)).decode()
        super().write(opening_request(url, key, headers))
        check_opened(await self._answer(url.scheme), key, url.scheme)
        self._frames = WebSocketFrames()

    async def _tunnel(self, proxy: Proxy, url: ParseResult) -> None:
        try:
            await self.connect(proxy.url)
            super().write(proxy.request(url))
            answer = await self._answer(url.scheme)
        except OSError as error:
            raise ConnectionError(f"the proxy {proxy.shown} cannot be used: {error}") from error
        except HandshakeError as error:
            raise HandshakeError(f"the proxy {proxy.shown} cannot be used: {error}") from None
        proxy.check(answer)
        if self._unread:
            raise HandshakeError(f"the proxy {proxy.shown} sent something after its answer")

    async def _answer(self, scheme: str) -> HttpAnswer:
        while (answer := HttpAnswer.cut_from(self._unread, scheme)) is None:
            if not await self._more():
                raise HandshakeError("what answers there closed the connection, without an answer")
        return answer

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Raise `HandshakeError`: an open WebSocket cannot be upgraded."""
        raise HandshakeError("TLS cannot start on an open WebSocket")

    # --- reading -------------------------------------------------------------------------------------------

    async def receive(self) -> bytes:
        """Return the next bytes of the handshake, or b"" at the end. Raises `OSError` if the connection is lost."""
        assert self._frames is not None
        while not (data := await super().receive()):
            if self._frames.closed or self._at_end or self._lost:
                break
        return data

    async def last_words(self) -> bytes:
        """Return the bytes that were received but not read yet."""
        return self._unwrapped(await super().last_words())

    def _arrived(self, data: bytes) -> None:
        try:
            payload = self._unwrapped(data)
        except ProtocolError as error:
            self._end(error)
            return
        if payload:
            self._feed(payload)
        if self._frames is not None and self._frames.closed:
            self._end(None)

    def _unwrapped(self, data: bytes) -> bytes:
        """Return the payloads of the frames in received bytes, and answer the last ping. Raises `ProtocolError`."""
        frames = self._frames
        if frames is None:  # the reply did not open a WebSocket
            return b""
        payload = frames.receive(data)
        if frames.ping is not None and not self.is_closing():
            super().write(pong(frames.ping, os.urandom(4)))
            frames.ping = None
        return payload

    # --- writing and the end -----------------------------------------------------------------------------------

    def write(self, payload: bytes) -> None:
        """Write bytes, unless the connection is lost. The reader notices the loss soon, and then fails the callers."""
        super().write(frame(payload, os.urandom(4)))

    def close(self) -> None:
        """Close after the written bytes are sent."""
        if self._frames is not None and not self.is_closing():
            super().write(closing_frame(os.urandom(4)))
        super().close()

    def peer(self) -> str:
        """Return the address of the server, ``host:port``, or "" if it is unknown, as behind a proxy."""
        return super().peer() if self._proxy is None else ""
