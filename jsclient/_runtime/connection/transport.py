"""The interface of transports, which are TCP with or without TLS, and a WebSocket."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .wire import Outbox

__all__ = ["CLOSING", "ByteReader", "Transport"]

CLOSING = 1.0
"""How long sending the written bytes may take, and how long the peer may take to confirm the end, in seconds."""


class ByteReader(Protocol):
    """The interface of an object that reads the bytes of a connection."""

    @property
    def missing(self) -> int:
        """The number of bytes that a partial frame still needs. Zero or less if the number is unknown."""

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Any exception ends the connection."""


class Transport(Protocol):
    """A stream of bytes to one server.

    Until `deliver_to` is called, the handshake reads with `receive`.

    Attributes:
        upgradable: Whether TLS can start on the open connection.
        failed_before_tls: Whether TLS was started on an open connection, and failed.
    """

    upgradable: bool
    failed_before_tls: bool

    @property
    def backlog(self) -> Callable[[], int]:
        """A function that returns the number of bytes written but not sent yet."""

    @property
    def is_open(self) -> bool:
        """Whether the server accepted the TCP connection."""

    async def start_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Start TLS on the open connection."""

    async def receive(self) -> bytes:
        """Return the next bytes, or b"" at the end. Raises `OSError` if the connection is lost."""

    async def last_words(self) -> bytes:
        """Return the bytes that were received but not read when the connection ended or TLS failed."""

    def deliver_to(
        self, reader: ByteReader, out: Outbox, ended: Callable[[Exception], None], unread: bytes
    ) -> None:
        """Pass ``unread`` and all later bytes to ``reader``.

        Call ``ended`` once, at the end or after an error of the reader.
        """

    def write(self, payload: bytes) -> None:
        """Write bytes, unless the connection is lost."""

    async def drain(self) -> None:
        """Wait until most bytes are sent. Raises `OSError` if the connection is lost."""

    def is_secure(self) -> bool:
        """Return whether the connection is encrypted."""

    def is_closing(self) -> bool:
        """Return whether the connection is closed, lost, or about to be closed."""

    def peer(self) -> str:
        """Return the address of the peer, ``host:port``, or "" if it is unknown."""

    def failure(self) -> BaseException | None:
        """Return the error that ended reading. It is more precise than a write error, because TLS 1.3 refuses late."""

    def abort(self) -> None:
        """Close at once. Unsent bytes are lost."""

    def close(self) -> None:
        """Close after the written bytes are sent."""

    async def wait_closed(self) -> None:
        """Wait until the connection is closed, and close it at once if the peer does not read."""
