"""Reads bytes directly from asyncio's transport, without the buffer and the wake-up of a stream reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Tap"]


class Tap(asyncio.Protocol):
    """Replaces the protocol of a stream reader: data goes to ``feed``, everything else to the stream reader.

    The stream reader wakes only at the end of the connection, or when ``feed`` raises: it raises that error.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: asyncio.StreamReader,
        feed: Callable[[bytes], None],
    ) -> None:
        inner = transport.get_protocol()
        assert isinstance(inner, asyncio.StreamReaderProtocol)
        self._inner = inner
        self._reader = reader
        self._feed: Callable[[bytes], None] | None = feed
        transport.set_protocol(self)

    def close(self) -> None:
        """Stop feeding."""
        self._feed = None

    def data_received(self, data: bytes) -> None:
        if self._feed is not None:
            try:
                self._feed(data)
            except Exception as error:  # noqa: BLE001  raised in the read loop
                self._feed = None
                self._reader.set_exception(error)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
