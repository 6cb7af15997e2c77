"""Asking again while a server restarts, or a cluster elects a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from ..._runtime.retry import Tries
from ...errors import JetStreamError
from ..log import Log, Page

__all__ = ["page_up_to", "patiently"]

R = TypeVar("R")

_PAGE, _PAGE_BYTES = 5000, 8 * 1024 * 1024
_PAUSE: Final = 0.05  # seconds
_PAUSES: Final = 100


async def patiently(log: Log, ask: Callable[[], Awaitable[R]]) -> R:
    """The answer, however long it takes. Raises what does not pass."""
    tries = Tries()
    while True:
        await log.wait_ready()
        try:
            return await ask()
        except JetStreamError as error:
            if not await tries.again(error):
                raise


async def page_up_to(log: Log, since: int, end: int, *, limit: int = _PAGE) -> Page:
    """What follows a sequence; nothing only if nothing is there up to ``end``, which was stored.

    A replica may be behind, and a server that comes back may not see yet what it has.
    """
    page = Page([])
    for _ in range(_PAUSES):
        page = await patiently(log, partial(log.history, since, limit, _PAGE_BYTES))
        if page.records or page.up_to >= end:
            break
        await asyncio.sleep(_PAUSE)
    return page
