"""One subscription of a reader: a feed that is opened under an id, and closed when it is wanted no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .._runtime.retry import Tries
from ..errors import JetStreamError
from .log import Feed, Log, Receive

__all__ = ["FeedSubscription"]


class FeedSubscription:
    """Opens a feed, again and again while what went wrong passes. It is never closed while it is being opened.

    Args:
        log, feed, id: What is opened, and under which id.
        receive: Gets the records.
        opened: Is called once the feed is open.
        lost: Is called when something may have been missed since; soon after ``opened`` if it was before.
        refused: Is called with an error that does not pass; the feed is not open then.
    """

    def __init__(
        self,
        log: Log,
        feed: Feed,
        id: str,
        *,
        receive: Receive,
        opened: Callable[[], None],
        lost: Callable[[], None],
        refused: Callable[[JetStreamError], None],
    ) -> None:
        self._log = log
        self._feed = feed
        self._id = id
        self._receive = receive
        self._opened = opened
        self._lost = lost
        self._refused = refused
        self._is_opening = self._is_open = self._missed = self._ended = False
        self._task: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        """Open it, in the background."""
        self._task = self._log.tasks.start(self._run(), "feed")

    async def end(self) -> None:
        """Close it. If it is being opened just now, that is waited for in the background."""
        self._ended = True
        if self._is_open:
            self._is_open = False
            await self._feed.close(self._id)
        elif not self._is_opening and self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        tries = Tries()
        while not self._ended:
            try:
                await self._log.wait_ready()
                await self._open()
            except JetStreamError as error:
                if self._ended or await tries.again(error):
                    continue
                self._refused(error)
                return
            if self._ended:
                await self._feed.close(self._id)
                return
            self._is_open = True
            self._opened()
            if self._missed:
                self._lost()
            return

    async def _open(self) -> None:
        self._is_opening, self._missed = True, False
        try:
            await self._feed.open(self._id, self._receive, self._may_miss)
        finally:
            self._is_opening = False

    def _may_miss(self) -> None:
        if self._is_open:
            self._lost()
        else:
            self._missed = True
