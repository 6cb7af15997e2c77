"""A subscription whose values are records of a log: every one of them, from a position on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..._runtime.retry import Tries
from ...errors import ClosedError, JetStreamError
from ...protocol.topics.idle_timer import QuietTimer
from ...protocol.topics.position import Position
from ...protocol.topics.value_codec import Codec
from ..log import Log
from ..log_reader import LogReader, Push, open_reader
from .entries import entry_of
from .iteration import Entry, SubscriptionSource

__all__ = ["LogSubscription"]


class LogSubscription(SubscriptionSource):
    """The values of a log after a position.

    Args:
        log: Of one subject; it is opened when somebody first reads.
        start: After there.
        codec: How values travel.
        share: Gives what others need to read after a position.
        push, quiet: As of `LogReader`.
    """

    def __init__(
        self,
        log: Callable[[], Awaitable[Log]],
        start: Position,
        codec: Codec,
        share: Callable[[Position], Any],
        *,
        push: Push = "auto",
        quiet: float = 30.0,
    ) -> None:
        self._open = log
        self._log: Log | None = None
        self._start = start
        self._share = share
        self._codec = codec
        QuietTimer(quiet)  # refused now, not when somebody reads
        self._options: dict[str, Any] = {"push": push, "quiet": quiet}

    def reader(self, position: Any) -> _Reader:
        return _Reader(self, self._start if position is None else position)

    async def internals(self, position: Any) -> Any:
        return self._share(self._start if position is None else position)

    async def open(self, position: Position) -> tuple[Log, LogReader]:
        """Begin to read after a position. Waits while the server is away."""
        tries = Tries()
        while True:
            try:
                if self._log is None:
                    self._log = await self._open()
                await self._log.wait_ready()
                return self._log, await open_reader(self._log, position, **self._options)
            except JetStreamError as error:
                if not await tries.again(error):
                    raise

    def entry(self, record: Any) -> Entry:
        """The member in a record."""
        return entry_of(record, self._codec)


class _Reader:
    """A consumer's place. What it holds is given back at the end, when it is closed, and when nobody has it any more.

    Attributes:
        position: After what was read; the end counts as unread, so that whoever starts there sees it.
    """

    __slots__ = ("__weakref__", "_closed", "_end", "_log", "_opening", "_reader", "_source", "position")

    def __init__(self, source: LogSubscription, position: Position) -> None:
        self.position = position
        self._source = source
        self._opening = asyncio.Lock()
        self._log: Log | None = None
        self._reader: LogReader | None = None
        self._end: Entry | None = None
        self._closed = False

    async def read(self) -> Entry:
        while self._end is None:
            reader = self._reader or await self._begin()
            try:
                record = await reader.next()
            except ClosedError:
                if self._end is None:  # else another read at the same time has met it
                    raise
                continue
            if record.is_last:
                self._end = self._source.entry(record)
                await reader.close()
            else:
                self.position = reader.position
                return self._source.entry(record)
        return self._end

    async def _begin(self) -> LogReader:
        async with self._opening:
            if self._closed:
                raise ClosedError("the iterator is closed")
            if self._reader is None:
                self._log, self._reader = await self._source.open(self.position)
            return self._reader

    async def close(self) -> None:
        self._closed = True
        if self._reader is not None:
            await self._reader.close()

    def __del__(self) -> None:
        log, reader = self._log, self._reader
        if log is None or reader is None or reader.is_closed:
            return
        try:
            log.tasks.start(reader.close(), "end of an iterator")
        except RuntimeError:
            pass  # the loop has ended, and with it what the reader holds
