"""TCP, with or without TLS. Bytes are passed from asyncio's transport directly to the reader of frames."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable
from typing import Any, Final, cast
from urllib.parse import ParseResult

from ..tasks import Signal
from .transport import CLOSING, ByteReader
from .wire import READ_SIZE, Outbox

__all__ = ["TcpTransport"]

LARGE_READ: Final = 256 * 1024

_NEXT_ADDRESS: Final = 0.25
"""How long to wait before the next address of a host is tried in parallel, in seconds. See RFC 8305."""


def _nothing() -> int:
    return 0


class TcpTransport(asyncio.BufferedProtocol):
    """A TCP connection. Closing it does not wait for a peer that does not read.

    A read takes 64 KiB, so that its messages are still in the processor's cache when they are processed. For a
    message larger than a read, asyncio's size of 256 KiB is used.

    Attributes:
        backlog: A function that returns the number of bytes written but not sent yet. It is asyncio's method, because
            it is called at each write.
    """

    upgradable = True

    def __init__(self) -> None:
        self.backlog: Callable[[], int] = _nothing
        self.failed_before_tls = False
        self._transport: asyncio.Transport | None = None
        self._buffer = self._small = memoryview(bytearray(READ_SIZE))
        self._large: memoryview | None = None
        self._reader: ByteReader | None = None
        self._out: Outbox | None = None
        self._when_ended: Callable[[Exception], None] | None = None
        self._unread = bytearray()  # received bytes of the handshake
        self._changed = Signal()  # bytes have arrived, there is space to write, or the connection is lost
        self._at_end = self._paused = self._lost = False
        self._error: Exception | None = None
        self._call_soon: Callable[..., object] | None = None

    # --- connecting ----------------------------------------------------------------------------------------

    async def connect(self, url: ParseResult) -> None:
        """Open the connection. The caller limits the time."""
        loop = asyncio.get_running_loop()
        assert url.hostname is not None  # the URL was checked before
        assert url.port is not None
        options: dict[str, Any] = {}
        if not _is_uvloop(loop) and not _is_address(url.hostname):
            options["happy_eyeballs_delay"] = _NEXT_ADDRESS
        await loop.create_connection(lambda: self, url.hostname, url.port, **options)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._use(cast("asyncio.Transport", transport))  # uvloop's transports do not derive from asyncio's

    def _use(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.backlog = _backlog(transport)
        loop = asyncio.get_running_loop()
        # Without TLS, uvloop may read from the socket many times in one iteration of the event loop, so reading has to
        # be paused explicitly. With TLS, uvloop reads only once per iteration.
        plain = transport.get_extra_info("ssl_object") is None
        self._call_soon = loop.call_soon if plain and _is_uvloop(loop) else None

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Start TLS. The caller limits the time."""
        assert self._transport is not None
        self.failed_before_tls = True
        try:
            secure = await asyncio.get_running_loop().start_tls(
                self._transport, self, context, server_hostname=name
            )
            if secure is None:
                raise ConnectionResetError("the connection was lost")
        except BaseException:
            self.abort()
            self.backlog = _nothing
            raise
        self.failed_before_tls = False
        self._use(secure)

    async def receive(self) -> bytes:
        """Return the next bytes of the handshake, or b"" at the end. Raises `OSError` if the connection is lost."""
        while not self._unread:
            if self._error is not None:
                raise self._error
            if self._at_end or self._lost:
                return b""
            await self._changed.wait()
        return await self.last_words()

    async def last_words(self) -> bytes:
        """Return the bytes that were received but not read yet."""
        words = bytes(self._unread)
        self._unread.clear()
        return words

    def deliver_to(
        self, reader: ByteReader, out: Outbox, ended: Callable[[Exception], None], unread: bytes
    ) -> None:
        """Pass ``unread`` and all later bytes to ``reader``.

        Call ``ended`` once, at the end or after an error of the reader.
        """
        self._reader, self._out, self._when_ended = reader, out, ended
        self._feed(unread + bytes(self._unread))
        self._unread.clear()
        if self._at_end or self._lost:  # the connection has ended since the handshake
            asyncio.get_running_loop().call_soon(self._end, self._error)

    def _feed(self, data: bytes) -> None:
        assert self._reader is not None
        try:
            self._reader.feed(data)
        except Exception as error:  # noqa: BLE001  the client reconnects after any error
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        """Stop reading, and notify the owner once."""
        ended, self._reader, self._when_ended = self._when_ended, None, None
        if ended is not None:
            ended(error or ConnectionResetError("the server closed the connection"))

    # --- called by asyncio -----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        reader = self._reader
        self._buffer = self._small
        if reader is not None and reader.missing > READ_SIZE:
            if self._large is None:
                self._large = memoryview(bytearray(LARGE_READ))
            self._buffer = self._large
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        if reader is not None:
            self._out.answered = True  # type: ignore[union-attr]  # set together with the reader
            self._feed(bytes(self._buffer[:nbytes]))
        elif self._out is None:
            self._unread += self._buffer[:nbytes]
            self._changed.set()
        transport = self._transport
        if self._call_soon is not None and nbytes == READ_SIZE and transport and not transport.is_closing():
            # Pause reading until the messages are processed. Otherwise, uvloop would read up to 32 times before any
            # message is processed, and the first messages would no longer be in the processor's cache.
            transport.pause_reading()
            self._call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        self._at_end = True
        self._changed.set()
        if self._out is not None:
            # Close the transport immediately. asyncio would first send the buffered data, which the peer may never
            # read.
            self._end(None)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost, self._error = True, self._error or exc
        self._changed.set()
        self._end(exc)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._changed.set()

    # --- writing -------------------------------------------------------------------------------------------

    def write(self, payload: bytes) -> None:
        """Write bytes, unless the connection is lost. The reader soon notices the loss, and then fails the callers."""
        transport = self._transport
        assert transport is not None
        try:
            transport.write(payload)
        except RuntimeError:  # uvloop refuses to write while closing, and asyncio drops the bytes
            if not transport.is_closing():
                raise

    async def drain(self) -> None:
        """Wait until most bytes are sent. Raises `OSError` if the connection is lost."""
        if self.is_closing():
            await asyncio.sleep(0)  # lets `connection_lost` be called
        while self._paused and not self._lost:
            await self._changed.wait()
        if self._lost:
            raise ConnectionResetError("the connection is lost")

    # --- state and end -----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the server accepted the TCP connection."""
        return self._transport is not None

    def is_secure(self) -> bool:
        """Return whether the connection is encrypted."""
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def is_closing(self) -> bool:
        """Return whether the connection is closed, lost, or about to be closed."""
        return self._transport is None or self._transport.is_closing()

    def peer(self) -> str:
        """Return the address of the peer, ``host:port``, or "" if it is unknown."""
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        if not name:
            return ""
        host, port = name[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def failure(self) -> BaseException | None:
        """Return the error that ended reading. It is more precise than a write error, because TLS 1.3 refuses late."""
        return self._error

    def abort(self) -> None:
        """Close at once. Unsent bytes are lost."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close after the written bytes are sent."""
        if self._transport is not None:
            self._transport.close()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed, and close it at once if the peer does not read."""
        # In the first round, the bytes already written may still be sent. If this takes too long, abort the connection,
        # and wait in the second round until it has ended.
        for _ in range(2):
            deadline = asyncio.get_running_loop().time() + CLOSING
            while self._transport is not None and not self._lost:
                if not await self._changed.wait_until(deadline):
                    break
            self.abort()


def _is_uvloop(one: object) -> bool:
    return type(one).__module__.startswith("uvloop")


def _is_address(host: str | None) -> bool:
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True


def _backlog(transport: asyncio.WriteTransport) -> Callable[[], int]:
    """Return asyncio's method, or a wrapper of uvloop's, which raises once the connection is lost."""
    method = transport.get_write_buffer_size
    if not _is_uvloop(transport):
        return method

    def backlog() -> int:
        try:
            return method()
        except RuntimeError:
            return 0

    return backlog
