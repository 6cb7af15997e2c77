"""Pauses that end early when their owner ends."""

from __future__ import annotations

import asyncio
from typing import Final

from .._runtime.tasks import Signal

__all__ = ["Stopping", "backoff"]

_LONGEST: Final = 30.0


def backoff(attempt: int, first: float = 0.1, longest: float = _LONGEST) -> float:
    """Seconds after a failed attempt, counted from 1: doubled each time."""
    return float(min(longest, first * 2 ** min(attempt - 1, 20)))


class Stopping:
    """Whether an end has begun."""

    def __init__(self) -> None:
        self._signal = Signal()
        self.begun: bool = False

    def begin(self) -> None:
        """Wake all who pause."""
        self.begun = True
        self._signal.set()

    async def pause(self, seconds: float) -> bool:
        """Wait. False: the end has begun."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self.begun and await self._signal.wait_until(deadline):
            pass
        return not self.begun
