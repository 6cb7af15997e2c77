"""Asking again while a server restarts, or a cluster elects a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ...errors import JetStreamError
from ...log import Log
from ...reader import passes

__all__ = ["patiently"]

R = TypeVar("R")

_FIRST_PAUSE: Final = 0.05  # seconds, doubled each time
_LONGEST_PAUSE: Final = 1.0


async def patiently(log: Log, ask: Callable[[], Awaitable[R]]) -> R:
    """The answer, however long it takes. Raises what does not pass."""
    pause = _FIRST_PAUSE
    while True:
        await log.wait_ready()
        try:
            return await ask()
        except JetStreamError as error:
            if not passes(error):
                raise
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
