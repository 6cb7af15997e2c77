"""Reads an ordered consumer in runs of raw messages, for several tasks that share them."""

from __future__ import annotations

from ...protocol.consumers.consume import reader_window
from ...protocol.wire.frames import Frame
from .consumer import OrderedMessages, ReaderLock
from .puller import OrderedPuller

__all__ = ["SharedMessages"]


class SharedMessages(OrderedMessages):
    """Takes messages from a puller, many at a time. Any number of tasks may wait for them."""

    def __init__(self, puller: OrderedPuller) -> None:
        pull, threshold = reader_window(
            max_messages=None, max_bytes=None, threshold_messages=None, expires=30.0, idle_heartbeat=None
        )
        super().__init__(puller, ReaderLock(puller), pull, threshold, stays=False)

    def take_run(self, limit: int) -> list[Frame]:
        """Return up to ``limit`` messages already received, as raw frames. May raise any error of `next`."""
        self._acquire()
        if self._puller.front:
            return self._puller.take_frames(limit)
        self._see_end()
        return []

    async def wait_change(self) -> None:
        """Wait until messages may have arrived, or `take_run` may raise an error."""
        self._waiting += 1
        self._puller.watch.asked()
        try:
            await self._puller.changed.wait()
        finally:
            self._waiting -= 1
