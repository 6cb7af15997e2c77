"""A lossless subscription whose values are records of a log."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from ..._runtime.retry import Retry
from ...errors import ClosedError, JetStreamError
from ...protocol.topics.idle_timer import QuietTimer
from ...protocol.topics.position import Position
from ...protocol.topics.record import Record
from ...protocol.topics.value_codec import Codec
from ..log import Log
from ..log_reader import LogReader, Push, open_reader
from .entries import EntryReader
from .iteration import Entry, SubscriptionSource

__all__ = ["LogSubscription"]


class LogSubscription(SubscriptionSource):
    """The values of a log after a position.

    Args:
        log: Finds the log, which has one subject. Called on first use.
        start: The position after which the subscription starts.
        codec: Decodes the values.
        share: Returns the descriptor of a subscription that starts after a position.
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
        self._entries = EntryReader(codec)
        QuietTimer(quiet)  # an illegal value is refused now and not by the first read
        self._options: dict[str, Any] = {"push": push, "quiet": quiet}

    async def internals(self, position: Any) -> Any:
        return self._share(self._start if position is None else position)

    async def reader(self, position: Any) -> _Reader:
        start = self._start if position is None else position
        tries = Retry()
        while True:
            try:
                if self._log is None:
                    self._log = await self._open()
                await self._log.wait_ready()
                return _Reader(self._log, await open_reader(self._log, start, **self._options), self._entries)
            except JetStreamError as error:
                if not await tries.again(error):
                    raise


class _Reader:
    """A consumer's place in the log. Its log reader is closed at the end, by `close`, and with the last reference.

    Attributes:
        position: The position after the last value. The end counts as unread: a reader that starts here sees it.
    """

    __slots__ = ("__weakref__", "_end", "_entries", "_log", "_reader", "position")

    def __init__(self, log: Log, reader: LogReader, entries: EntryReader) -> None:
        self.position = reader.position
        self._log = log
        self._reader = reader
        self._entries = entries
        self._end: Record | None = None
        weakref.finalize(self, _close_later, log, reader).atexit = False

    async def read(self) -> Entry:
        reader = self._reader
        while self._end is None:
            try:
                record = await reader.next()
            except ClosedError:
                if self._end is None:  # otherwise a concurrent read has met the end
                    raise
                continue
            if record.is_last:
                self._end = record
                await reader.close()
            else:
                self.position = reader.position
                if (entry := self._entries.entry(record, self._log)) is not None:
                    return entry
        end = self._entries.entry(self._end, self._log)
        assert end is not None  # the end is never skipped
        return end

    async def close(self) -> None:
        await self._reader.close()


def _close_later(log: Log, reader: LogReader) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return  # the loop has ended, and everything that the reader holds with it
    if not reader.is_closed:
        log.tasks.start(reader.close(), "end of an iterator")
