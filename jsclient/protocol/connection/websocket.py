"""A WebSocket: the request that opens it, the answer, and frames. Source: RFC 6455."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import ParseResult, quote

from ...errors import ProtocolError
from .handshake import HandshakeError

__all__ = [
    "HttpAnswer",
    "HttpRefusedError",
    "WebSocketFrames",
    "accept_key",
    "check_opened",
    "closing_frame",
    "frame",
    "masked",
    "opening_request",
    "pong",
]

Header = tuple[str, str]

_LONGEST_HEAD: Final = 64 * 1024
"""The maximum number of bytes of the status line and headers of an HTTP answer."""

_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [^\r\n]*)?\r?\n")

_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x2, 0x8, 0x9, 0xA

_PATH: Final = "%/?:@!$&'()*+,;=~-._"
"""Characters of a path and a query that are not percent-encoded. Source: RFC 3986."""

_NO_HTTP: Final = "what answers there is no WebSocket: it does not speak HTTP"

_PIECE: Final = 4 * 1024
"""Bytes that are masked together, so that they stay in the cache of the processor. A multiple of the mask."""

_LARGEST: Final = 2**63 - 1
"""The largest size of a frame. Source: RFC 6455, section 5.2."""

_ODD_PLACE: Final = ("continues no message", "begins a message within another message")

_NORMAL: Final = (1000).to_bytes(2)
"""The payload of the frame that closes a WebSocket normally."""


def opening_request(url: ParseResult, key: str, headers: Iterable[Header]) -> bytes:
    """Return the request that opens a WebSocket. A ``Host`` header replaces the host of the URL."""
    own = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Version", "13")]
    given = list(headers)
    if not any(name.lower() == "host" for name, _ in given):
        given.insert(0, ("Host", _host(url)))
    path = url._replace(scheme="", netloc="", fragment="").geturl()
    path = quote(path if path.startswith("/") else f"/{path}", safe=_PATH)
    lines = [f"{name}: {value}" for name, value in (*given, *own, ("Sec-WebSocket-Key", key))]
    return "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode("latin-1")


def _host(url: ParseResult) -> str:
    """Return the host and the port, unless it is the default port of the scheme."""
    host, default = url.netloc.rpartition("@")[2], ":443" if url.scheme == "wss" else ":80"
    return host.removesuffix(default)


def accept_key(key: str) -> str:
    """Return the ``Sec-WebSocket-Accept`` that answers a ``Sec-WebSocket-Key``."""
    digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False)
    return base64.b64encode(digest.digest()).decode()


class HttpRefusedError(HandshakeError):
    """An HTTP server or a proxy requires other credentials, in a header or in the URL of the proxy."""


class HttpAnswer:
    """The head of an HTTP answer.

    Attributes:
        status: The status code.
        headers: The headers by their names in lower case. If a name occurs several times, its last value is kept.
    """

    def __init__(self, head: bytes) -> None:
        matched = _STATUS.match(head)
        if matched is None:
            raise HandshakeError(_NO_HTTP)
        self.status: int = int(matched[1])
        lines = head[matched.end() :].decode("latin-1").splitlines()
        pairs = (line.partition(":") for line in lines)
        self.headers: dict[str, str] = {name.strip().lower(): value.strip() for name, _, value in pairs}

    @classmethod
    def cut_from(cls, received: bytearray, scheme: str) -> HttpAnswer | None:
        """Remove the head of an answer from the received bytes and return it, or None if it is not complete.

        ``scheme`` is the scheme of the server's URL.

        Raises:
            HandshakeError: The bytes are not the beginning of an HTTP answer.
        """
        head, end, _ = bytes(received[:_LONGEST_HEAD]).partition(b"\r\n\r\n")
        if head.startswith(b"INFO {"):
            use = "nats" if scheme == "ws" else "tls"
            raise HandshakeError(f"a NATS server answers there, and no WebSocket: use {use}://")
        if not end:
            if not head.startswith(b"HTTP/"[: len(head)]) or len(head) == _LONGEST_HEAD:
                raise HandshakeError(_NO_HTTP)
            return None
        answer, unread = cls(head + b"\r\n"), bytes(received[len(head) + len(end) :])
        received[:] = unread
        return answer


def check_opened(answer: HttpAnswer, key: str, scheme: str) -> None:
    """Raise `HandshakeError` unless the answer opens the WebSocket that was requested with ``key``."""
    status = answer.status
    if 300 <= status < 400:
        # Don't follow redirects. A redirect could lead from TLS to clear text, and would reveal the headers.
        raise HandshakeError("what answers there redirects to another URL: use that of the server itself")
    if status in {401, 403}:
        raise HttpRefusedError(
            f"what answers there refuses the WebSocket, with the HTTP status {status}: check ws_connection_headers"
        )
    hint = ": use wss:// if it has TLS" if scheme == "ws" and status == 400 else ""
    if status != 101:
        raise HandshakeError(f"what answers there opens no WebSocket, with the HTTP status {status}{hint}")
    headers = answer.headers
    is_upgrade = headers.get("upgrade", "").lower() == "websocket"
    if not is_upgrade or headers.get("sec-websocket-accept") != accept_key(key):
        raise HandshakeError("what answers there opens no WebSocket: its answer belongs to another request")
    if "sec-websocket-extensions" in headers:
        raise HandshakeError("what answers there uses an extension of WebSocket that was not requested")


def masked(payload: bytes, mask: bytes) -> bytes:
    """Return the payload with the 4 bytes of ``mask`` applied. Integers of any size are the fastest way in Python."""
    size = len(payload)
    if size <= _PIECE:
        masks = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
        return (int.from_bytes(payload, "little") ^ masks).to_bytes(size, "little")
    masks, whole = int.from_bytes(mask * (_PIECE // 4), "little"), size - size % _PIECE
    pieces = [
        (int.from_bytes(payload[at : at + _PIECE], "little") ^ masks).to_bytes(_PIECE, "little")
        for at in range(0, whole, _PIECE)
    ]
    return b"".join([*pieces, masked(payload[whole:], mask)])


def frame(
    payload: bytes, mask: bytes, code: int = _BINARY, apply_mask: Callable[[bytes, bytes], bytes] = masked
) -> bytes:
    """Return a frame of the client, whose payload is masked with the 4 random bytes of ``mask``."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | code, 0x80 | size))
    elif size < 0x10000:
        head = bytes((0x80 | code, 0xFE)) + size.to_bytes(2)
    else:
        head = bytes((0x80 | code, 0xFF)) + size.to_bytes(8)
    return b"".join((head, mask, apply_mask(payload, mask)))


def closing_frame(mask: bytes) -> bytes:
    """Return the frame that closes the WebSocket."""
    return frame(_NORMAL, mask, _CLOSE)


def pong(payload: bytes, mask: bytes) -> bytes:
    """Return the answer to a ping with this payload."""
    return frame(payload, mask, _PONG)


class WebSocketFrames:
    """Unwraps the bytes that a server sends in frames.

    The payload is returned as it arrives. A frame is not collected, so its size costs no memory, however large the
    server announces it to be.

    Attributes:
        closed: Whether the server has closed the WebSocket. Later bytes are ignored.
        error: The error in the frame after the payloads that were returned, or None. Later bytes are ignored.
        ping: The payload of the newest ping that was not answered yet, or None.
    """

    def __init__(self) -> None:
        self.closed: bool = False
        self.error: ProtocolError | None = None
        self.ping: bytes | None = None
        self._head = b""  # the beginning of a frame whose size is not known yet, or of a control frame
        self._remaining = 0  # bytes of the current frame that have not arrived yet
        self._unfinished = False  # true if more frames of the current message follow

    def receive(self, data: bytes) -> bytes:
        """Return the payloads in the next bytes, up to a malformed frame, which sets ``error``."""
        if self._remaining >= len(data):  # the middle of a large frame
            self._remaining -= len(data)
            return data
        parts: list[bytes] = []
        if self._remaining:
            parts.append(data[: self._remaining])
            data = data[self._remaining :]
            self._remaining = 0
        try:
            self._read_frames(self._head + data, parts)
        except ProtocolError as error:
            self.error, self._head = error, b""
        return b"".join(parts)

    def _read_frames(self, data: bytes, parts: list[bytes]) -> None:
        """Append the payloads to ``parts``. Raises `ProtocolError`."""
        pos = 0
        while not self.closed and self.error is None and (begin := self._begin(data, pos)) is not None:
            code, body, size = begin
            after = body + size
            if code in {_BINARY, _CONTINUATION}:  # pass on the part of the payload that has arrived
                self._unfinished = not data[pos] & 0x80
                parts.append(data[body:after])
                self._remaining = max(0, after - len(data))
            elif after > len(data):
                break
            elif code == _PING:
                self.ping = data[body:after]
            else:
                self.closed = code == _CLOSE
            pos = after
        self._head = data[pos:]

    def _begin(self, data: bytes, pos: int) -> tuple[int, int, int] | None:
        """Return the kind of the frame at an offset, its payload's offset and its size, or None if it is incomplete."""
        if len(data) - pos < 2:
            return None
        first, size = data[pos], data[pos + 1]
        code = first & 0x0F
        if first & 0x70 or size & 0x80 or code not in {_CONTINUATION, _BINARY, _CLOSE, _PING, _PONG}:
            raise ProtocolError(f"a WebSocket frame that begins with {data[pos : pos + 2].hex()}")
        if code >= _CLOSE and (size > 125 or not first & 0x80):
            raise ProtocolError("a control frame of the WebSocket that is fragmented or too long")
        # Control frames may come between the frames of a message (RFC 6455, section 5.4), so check only other frames.
        if code < _CLOSE and (code == _CONTINUATION) != self._unfinished:
            raise ProtocolError(f"a WebSocket frame that {_ODD_PLACE[self._unfinished]}")
        body, more = pos + 2, {126: 2, 127: 8}.get(size, 0)
        if len(data) - body < more:
            return None
        if more and (size := int.from_bytes(data[body : body + more])) > _LARGEST:
            raise ProtocolError(f"a WebSocket frame of {size:,} bytes")
        return code, body + more, size
