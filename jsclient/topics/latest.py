"""`LatestReader`, which reads the newest record of a topic, or the changes of a table if the subject has wildcards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import attrgetter
from typing import Protocol

from .._runtime.context import Context
from .._runtime.handle import ReadHandle, State
from ..errors import ClosedError, RequestTimeoutError
from ..protocol.topics.record import Kind, Record
from ..protocol.wire.checks import deadline_of
from .notifiers.stream_notifier import StreamNotifier
from .stream_log import StreamLog
from .table import TopicTable
from .topic_reader import raise_end

__all__ = ["LatestReader", "NewestSource", "OneSubject", "SeveralSubjects"]


class NewestSource(Protocol):
    """Provides a `LatestReader` with the newest record of a subject, or of several subjects.

    Attributes:
        ends: Whether the reader stops at the record that ends the topic. With several subjects, it doesn't.
    """

    ends: bool

    async def newest(self) -> Record:
        """Return the newest record. Wait only if no record exists."""

    async def record_after(self, seen: int) -> Record:
        """Wait until there is a record newer than the sequence ``seen`` (0 for none), and return the newest record."""

    async def close(self) -> None:
        """Release the resources on the server."""


class OneSubject:
    """The newest record of a single subject."""

    ends = True

    def __init__(self, notifier: StreamNotifier, log: StreamLog) -> None:
        self._notifier = notifier
        self._waits = 0  # number of reads that are waiting
        self._stall_watch = log.stall_watch(
            progress=lambda: self._notifier.seen, waits=lambda: self._waits > 0
        )

    async def newest(self) -> Record:
        return await self._read_newest(None)

    async def record_after(self, seen: int) -> Record:
        return await self._read_newest(seen or None)

    async def _read_newest(self, seen: int | None) -> Record:
        self._waits += 1
        if self._stall_watch is not None:
            self._stall_watch.asked()
        try:
            return await self._notifier.record_after(seen)
        finally:
            self._waits -= 1

    async def close(self) -> None:
        """Stop watching. The server keeps no state for this source between reads."""
        if self._stall_watch is not None:
            self._stall_watch.close()


class SeveralSubjects:
    """The newest record of each of several subjects."""

    ends = False

    def __init__(self, table: TopicTable) -> None:
        self._table = table
        self._changes = table.changes("first")

    async def newest(self) -> Record:
        await self._table.wait_for(len)
        record = max(self._table.values(), key=attrgetter("seq"))
        self._changes.skip(record)
        return record

    async def record_after(self, seen: int) -> Record:
        while True:
            if (record := (await self._changes.next()).record) is not None:
                return record

    async def close(self) -> None:
        await self._table.close()


class LatestReader(ReadHandle[Record]):
    """Reads the latest record of a topic, and skips the records that a slow reader misses. Created by `Topic.latest`.

    ``async for`` stops when the producer finishes the topic, and raises `IterationFailed` with the reason if the
    producer fails. The end of the topic is never skipped. If a read is cancelled, no record is lost.

    If the topic's subject contains wildcards, the reader first returns the latest record of each subject, and then the
    latest record of each subject that changes. The loop then doesn't end by itself, and the record that ends a subject
    (`Record.is_last`) is returned like any other. Subjects that are removed from the stream aren't reported. To learn
    of removed subjects, use `TopicTable.changes`.

    Attributes:
        completion: The payload that the producer passed to `TopicPublisher.finish`. None until the loop ends, and also
            if the producer failed.
    """

    def __init__(self, find: Callable[[], Awaitable[NewestSource]], context: Context) -> None:
        self._find = find
        self._tasks, self._connection = context.tasks, context.connection
        self._source: NewestSource | None = None
        # The task that opens the source. It continues if the read that started it is cancelled.
        self._finding: asyncio.Task[None] | None = None
        self._seen = 0
        self._ended = False
        self.completion: bytes | None = None

    def __repr__(self) -> str:
        return f"<LatestReader at {self._seen}>"

    async def current(self) -> Record:
        """Return the latest record, even if it was returned before.

        If there is no record yet, the call waits for the first one, without a timeout. A later call of `next` waits for
        a newer record. Raises the same errors as `next`, except `RequestTimeoutError` for a missing record.
        """
        return self._seen_now(await (await self._opened()).newest())

    async def next(self, timeout: float | None = None) -> Record:
        """Wait until there is a record newer than the last one returned, and return the latest record.

        Records in between are skipped. If no record has been returned yet, any stored record counts as newer.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No newer record arrived within ``timeout`` seconds. The reader can still be used.
            ClosedError: The topic has ended, or the reader or its connection was closed.
            IterationFailed: The producer failed. The error contains the reason.
            NoMatchingStreamError: The first read found no stream that stores the subject, or several that store parts
                of it.
            ConfigError: The first read found that the stream doesn't keep records after they were read.

        While the server is unavailable, the reader waits for it. The call raises a request error only if retrying can't
        help, for example `PermissionDeniedError`.
        """
        try:
            async with asyncio.timeout_at(deadline_of(timeout, asyncio.get_running_loop().time())):
                record = await (await self._opened()).record_after(self._seen)
        except TimeoutError:
            raise RequestTimeoutError("a newer record", timeout or 0.0, self._connection.problem) from None
        return self._seen_now(record)

    async def _opened(self) -> NewestSource:
        while self._source is None and not self.is_closed:
            if self._finding is None:
                self._finding = self._tasks.start(
                    self._open_source(), "opening of newest records", awaited=True
                )
            finding = self._finding
            # Use `wait`, because several callers may wait for this task. If one of them is cancelled, the task must
            # continue for the others.
            await asyncio.wait({finding})
            if self._finding is finding:
                self._finding = None
            if not finding.cancelled():
                finding.result()
            elif self._source is None:
                raise ClosedError("closed while the newest records were read")
        if self._source is None or self.is_closed:
            raise ClosedError("the reader is closed: no record can be read")
        return self._source

    async def _open_source(self) -> None:
        self._source = await self._find()

    def _seen_now(self, record: Record) -> Record:
        assert self._source is not None
        if record.is_last and self._source.ends:
            self._ended = True
            self.completion = record.data if record.kind is Kind.FINISH else None
            raise_end(record)
        self._seen = record.seq
        return record

    async def __anext__(self) -> Record:
        try:
            return await self.next()
        except ClosedError:
            if not self._ended and not self.is_closed:
                raise  # the connection was closed before the topic ended, so don't end the loop silently
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """Close the reader, and release what it uses on the server. Further reads raise `ClosedError`."""
        self._state = State.CLOSED
        if (finding := self._finding) is not None:
            finding.cancel()
            await asyncio.wait({finding})
        if self._source is not None:
            await self._source.close()
