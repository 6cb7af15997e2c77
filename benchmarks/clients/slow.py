"""A handler that cannot keep up, while hundreds of thousands of messages wait."""

from __future__ import annotations

import asyncio
import time

from benchmarks.job import Part

__all__ = ["Slow"]

SLOW = 3.0  # seconds during which each message takes a pause, then every hundredth, so that the windows of servers grow
PAUSE = 0.001  # seconds


class Slow:
    """The handler. It checks that each message comes once and in order. ``done`` is set after the last."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.expected = part.start
        self.until = time.monotonic() + SLOW
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, sequence: int) -> None:
        """Handle the message with this stream sequence."""
        if sequence != self.expected:
            self.done.set_exception(RuntimeError(f"message {sequence} came, not {self.expected}"))
        self.expected += 1
        if not sequence % 100 or time.monotonic() < self.until:
            await asyncio.sleep(PAUSE)
        if sequence == self.part.last:
            self.part.done(sequence - self.part.start + 1, sequence)
            self.done.set_result(None)
