"""Two readers of a topic: `TopicReader` misses nothing, `LatestReader` sees what holds now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn, Self

from ..errors import ClosedError, IterationFailed, RequestTimeoutError
from ..protocol.topics.position import Position
from ..protocol.topics.record import Kind, Record
from .log_reader import LogReader, Push
from .notifiers.stream_notifier import StreamNotifier
from .start import deadline_of

__all__ = ["LatestReader", "TopicReader"]


class _Ending:
    """The end of a topic, once it was read; it stays.

    Attributes:
        completion: What the producer finished with, once that was read; None before.
    """

    completion: bytes | None = None
    _end: Record | None = None

    def _raise_end(self, record: Record) -> NoReturn:
        self._end = record
        if record.kind is Kind.FAIL:
            raise IterationFailed(record.data.decode(errors="replace"))
        self.completion = record.data
        raise ClosedError("the topic has ended")


class TopicReader(_Ending):
    """Reads a topic, for ``async for``: each record once, in order, until the topic ends. Made by `Topic.each`.

    It ends when the topic's producer has finished, and raises `IterationFailed` with the reason when it has failed.
    A topic with wildcards does not end: the last record of each of its subjects is handed out (`Record.is_last`).
    A cancelled read loses nothing.

    Attributes:
        completion: What the producer finished with, once that was read; None before.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    @property
    def position(self) -> Position:
        """After the last record that was handed out. `Topic.since` goes on from there, in another process too."""
        return self._reader.position

    @property
    def pending(self) -> int:
        """Records that wait here."""
        return self._reader.pending

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._reader.is_closed

    def __repr__(self) -> str:
        return repr(self._reader).replace("LogReader", "TopicReader")

    def set_push(self, push: Push) -> None:
        """From now on have pushes, or only ask when it is quiet; see `Topic.each`. Nothing is lost by it."""
        self._reader.set_push(push)

    async def next(self, timeout: float | None = None) -> Record:
        """The next record.

        Raises:
            RequestTimeoutError: None came in ``timeout`` seconds.
            ClosedError: Nothing follows: the topic has ended, or this was closed.
            IterationFailed: The producer has failed; the reason is in it.
            HistoryTruncatedError: Records were removed before they were read; ``first_available`` is the first there.
            PositionInvalidError: The stream was made anew. And what the server refuses for good.
        """
        self._raise_known_end()
        waiting = self._reader.take(1)
        try:
            record = waiting[0] if waiting else await self._reader.next(timeout)
        except ClosedError:
            self._raise_known_end()
            raise
        if record.is_last and self._reader.tracker.ends:
            self._raise_end(record)
        return record

    def _raise_known_end(self) -> None:
        """If it was read, perhaps by another task: all who read are told."""
        if self._end is not None:
            self._raise_end(self._end)

    async def batches(self, max_records: int = 500) -> AsyncIterator[list[Record]]:
        """Records as they come, up to so many at once, until the topic ends or this is closed. Raises as `next`."""
        async for records in self._reader.batches(max_records):
            if records[-1].is_last and self._reader.tracker.ends:
                self._end = records.pop()
            if records:
                yield records
            if self._end is not None:
                break
        try:
            self._raise_known_end()
        except ClosedError:
            return

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """Nothing more is read: what is held on the server is given back."""
        await self._reader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class LatestReader(_Ending):
    """The newest record of a topic, for ``async for``: each time the newest since, and always the end.

    What nobody looks at is never sent. It ends when the topic's producer has finished, and raises `IterationFailed`
    with the reason when it has failed. A cancelled read loses nothing. Made by `Topic.latest`.

    Attributes:
        completion: What the producer finished with, once that was read; None before.
    """

    def __init__(self, find: Callable[[], Awaitable[StreamNotifier]]) -> None:
        self._find = find
        self._source: StreamNotifier | None = None
        self._seen = 0

    def __repr__(self) -> str:
        return f"<LatestReader at {self._seen}>"

    async def current(self) -> Record:
        """The newest record, at once, though it was given before; it waits only where there is none yet.

        `next` goes on after it. Raises as `next`.
        """
        record = await self._record_after(None)
        self._seen = record.seq
        return record

    async def next(self, timeout: float | None = None) -> Record:
        """The newest record, as soon as there is one that this has not given.

        Raises:
            RequestTimeoutError: None came in ``timeout`` seconds.
            ClosedError: The topic, or the connection, has ended.
            IterationFailed: The producer has failed; the reason is in it. And what the server refuses for good.
        """
        try:
            async with asyncio.timeout_at(deadline_of(timeout, asyncio.get_running_loop().time())):
                record = await self._record_after(self._seen or None)
        except TimeoutError:
            raise RequestTimeoutError("a newer record", timeout or 0.0) from None
        self._seen = record.seq
        return record

    async def _record_after(self, count: int | None) -> Record:
        if self._source is None:
            self._source = await self._find()
        record = await self._source.record_after(count)
        if record.is_last:
            self._raise_end(record)
        return record

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        try:
            return await self.next()
        except ClosedError:
            if self._end is None:
                raise
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is held on the server while nobody waits."""
