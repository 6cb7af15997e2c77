"""What arrives, taken where asyncio delivers it: before the buffer and the wake-up of a stream reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Tap"]


class Tap(asyncio.Protocol):
    """Stands before the protocol of a stream reader: data goes to ``feed``, everything else on to the reader.

    The reader wakes only for the end of the connection, or when ``feed`` raises: it raises that to whoever reads.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        reader: asyncio.StreamReader,
        feed: Callable[[bytes], None],
    ) -> None:
        behind = transport.get_protocol()
        assert isinstance(behind, asyncio.StreamReaderProtocol)
        self._behind = behind
        self._reader = reader
        self._feed: Callable[[bytes], None] | None = feed
        transport.set_protocol(self)

    def close(self) -> None:
        """Feed nothing more."""
        self._feed = None

    def data_received(self, data: bytes) -> None:
        if self._feed is not None:
            try:
                self._feed(data)
            except Exception as error:  # noqa: BLE001  it is raised where the connection is looked after
                self._feed = None
                self._reader.set_exception(error)

    def eof_received(self) -> bool | None:
        return self._behind.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._behind.connection_lost(exc)

    def pause_writing(self) -> None:
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        self._behind.resume_writing()
