"""`TopicReader` returns the records of a `LogReader`, and ends with its topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NoReturn

from .._runtime.handle import ReadHandle
from ..errors import ClosedError, IterationFailed
from ..protocol.topics.position import Position
from ..protocol.topics.record import Kind, Record
from .log import Push
from .log_reader import LogReader

__all__ = ["TopicReader", "raise_end"]

_VALUE: Final = Kind.VALUE


def raise_end(record: Record) -> NoReturn:
    """Raise the error for the last record of a topic."""
    if record.kind is Kind.FAIL:
        raise IterationFailed(record.data.decode(errors="replace"))
    raise ClosedError("the topic has ended")


class TopicReader(ReadHandle[Record]):
    """Reads each record of a topic once, in order, for ``async for``, until the topic ends. Created by `Topic.each`.

    The reader ends when the topic's producer has finished, and raises `IterationFailed` with the reason when it has
    failed. A topic with wildcards does not end: the last record of each subject is returned like any other record
    (`Record.is_last`). A cancelled read loses no record.

    Attributes:
        completion: The completion of the topic after it was read, None before.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._tracker = reader.tracker
        # The method of its queue, because each record of an ``async for`` costs two calls.
        self._take_one = reader.tracker.take_one
        self._end: Record | None = None
        self.completion: bytes | None = None

    @property
    def position(self) -> Position:
        """The position after the last record returned. `Topic.since` resumes from it, in any process."""
        return self._reader.position

    @property
    def pending(self) -> int:
        """The number of records in the local queue."""
        return self._reader.pending

    @property
    def is_closed(self) -> bool:
        """Whether the reader was closed."""
        return self._reader.is_closed

    def __repr__(self) -> str:
        return repr(self._reader).replace("LogReader", "TopicReader")

    def set_push(self, push: Push) -> None:
        """Change how the server pushes records, see `Topic.each`. The reader loses and repeats no record."""
        self._reader.set_push(push)

    async def next(self, timeout: float | None = None) -> Record:
        """Return the next record.

        Raises:
            RequestTimeoutError: No record arrived in ``timeout`` seconds.
            ClosedError: The topic has ended, or the reader was closed.
            IterationFailed: The producer has failed, for the reason in the error.
            HistoryTruncatedError: Records were removed before they were read. ``first_available`` is still stored.
            PositionInvalidError: The stream was recreated. Also permanent errors of the server.
        """
        if self._end is None:
            try:
                return self._checked(await self._reader.next(timeout))
            except ClosedError:
                if self._end is None:  # neither this task nor another has read the end
                    raise
        raise_end(self._end)

    async def __anext__(self) -> Record:
        try:
            if self._end is None and (record := self._take_one()) is not None:
                if self._tracker.request_needed:
                    self._reader.taken()
                return record if record.kind is _VALUE else self._checked(record)
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def _checked(self, record: Record) -> Record:
        """Return the record. If it ends this reader, raise the error of `raise_end`."""
        if record.kind is not Kind.VALUE and record.is_last and self._tracker.ends:
            self._note_end(record)
            raise_end(record)
        return record

    def _note_end(self, record: Record) -> None:
        self._end = record
        self.completion = record.data if record.kind is Kind.FINISH else None

    async def batches(self, max_records: int = 500) -> AsyncIterator[list[Record]]:
        """Yield lists of records until the topic ends or the reader is closed. Raises the errors of `next`."""
        async for records in self._reader.batches(max_records):
            if records[-1].is_last and self._tracker.ends:
                self._note_end(records.pop())
            if records:
                yield records
            if self._end is not None:
                break
        if self._end is not None and self._end.kind is Kind.FAIL:
            raise_end(self._end)

    async def close(self) -> None:
        """Stop reading and release the resources on the server."""
        await self._reader.close()
