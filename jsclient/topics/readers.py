"""Two readers of a topic: `TopicReader` reads every record, `LatestReader` the newest."""

from __future__ import annotations

import abc
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


class _EndingReader(abc.ABC):
    """A reader that keeps the end of its topic once it was read.

    Attributes:
        completion: The completion of the topic, once it was read; None before.
    """

    completion: bytes | None = None
    _end: Record | None = None

    @abc.abstractmethod
    async def close(self) -> None:
        """Release what is held on the server."""

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _raise_end(self, record: Record) -> NoReturn:
        self._end = record
        if record.kind is Kind.FAIL:
            raise IterationFailed(record.data.decode(errors="replace"))
        self.completion = record.data
        raise ClosedError("the topic has ended")


class TopicReader(_EndingReader):
    """Reads a topic, for ``async for``: each record once, in order, until the topic ends. Created by `Topic.each`.

    It ends when the topic's producer has finished, and raises `IterationFailed` with the reason when it has failed.
    A topic with wildcards does not end: the last record of each subject is returned like any other (`Record.is_last`).
    A cancelled read loses nothing.

    Attributes:
        completion: The completion of the topic, once it was read; None before.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    @property
    def position(self) -> Position:
        """The position after the last record returned. `Topic.since` resumes from it, in any process."""
        return self._reader.position

    @property
    def pending(self) -> int:
        """Records in the local queue."""
        return self._reader.pending

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._reader.is_closed

    def __repr__(self) -> str:
        return repr(self._reader).replace("LogReader", "TopicReader")

    def set_push(self, push: Push) -> None:
        """Change the way records are pushed; see `Topic.each`. No record is lost or repeated."""
        self._reader.set_push(push)

    async def next(self, timeout: float | None = None) -> Record:
        """The next record.

        Raises:
            RequestTimeoutError: No record arrived in ``timeout`` seconds.
            ClosedError: The topic has ended, or the reader was closed.
            IterationFailed: The producer has failed, for the reason in the error.
            HistoryTruncatedError: Records were removed before they were read; ``first_available`` is the first left.
            PositionInvalidError: The stream was recreated. And permanent errors of the server.
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
        """Raise the end if it was read, perhaps by another task."""
        if self._end is not None:
            self._raise_end(self._end)

    async def batches(self, max_records: int = 500) -> AsyncIterator[list[Record]]:
        """Lists of records as they arrive, until the topic ends or the reader is closed. Raises as `next`."""
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

    async def __anext__(self) -> Record:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """Stop reading and release what is held on the server."""
        await self._reader.close()


class LatestReader(_EndingReader):
    """Reads the newest record of a topic, for ``async for``: the newest one since the last read, and always the end.

    Records that are not read are never sent. It ends when the topic's producer has finished, and raises
    `IterationFailed` with the reason when it has failed. A cancelled read loses nothing. Created by `Topic.latest`.

    Attributes:
        completion: The completion of the topic, once it was read; None before.
    """

    def __init__(self, find: Callable[[], Awaitable[StreamNotifier]]) -> None:
        self._find = find
        self._source: StreamNotifier | None = None
        self._seen = 0

    def __repr__(self) -> str:
        return f"<LatestReader at {self._seen}>"

    async def current(self) -> Record:
        """The newest record, even if it was returned before. Waits only if no record exists.

        `next` continues after it. Raises as `next`.
        """
        record = await self._record_after(None)
        self._seen = record.seq
        return record

    async def next(self, timeout: float | None = None) -> Record:
        """The newest record, once one exists that was not returned before.

        Raises:
            RequestTimeoutError: No record arrived in ``timeout`` seconds.
            ClosedError: The topic has ended, or the connection was closed.
            IterationFailed: The producer has failed, for the reason in the error. And permanent errors of the server.
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

    async def __anext__(self) -> Record:
        try:
            return await self.next()
        except ClosedError:
            if self._end is None:
                raise
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """A no-op: between reads nothing is held on the server."""
