"""`TopicReader`, which returns the records of a topic until the topic ends."""

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
    """Raise the error with which a reader ends after the last record of a topic."""
    if record.kind is Kind.FAIL:
        raise IterationFailed(record.data.decode(errors="replace"))
    raise ClosedError("the topic has ended")


class TopicReader(ReadHandle[Record]):
    """Reads every record of a topic exactly once and in order. Opened by `Topic.each` and `Topic.since`.

    A loop with ``async for`` ends when the producer has finished the topic. If the producer has failed, the loop raises
    `IterationFailed`, which contains the reason. If a read is cancelled, no record is lost.

    If the subject of the topic contains wildcards, the loop doesn't end, and the last record of a subject
    (`Record.is_last`) is returned like any other record.

    Attributes:
        completion: The payload with which the producer has finished the topic, or None until the loop has ended.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._tracker = reader.tracker
        # Bind the method of the queue directly, which saves a call for each record.
        self._take_one = reader.tracker.take_one
        self._end: Record | None = None
        self.completion: bytes | None = None

    @property
    def position(self) -> Position:
        """The position after the last record returned. Save it to resume later with `Topic.since`."""
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
        """Change how the server pushes records, without losing or repeating any. See `Topic.each` for the values."""
        self._reader.set_push(push)

    async def next(self, timeout: float | None = None) -> Record:
        """Wait for the next record and return it.

        If the call is cancelled, no record is lost. The next call returns it.

        Args:
            timeout: The number of seconds to wait. By default, there is no limit.

        Raises:
            RequestTimeoutError: No record arrived within ``timeout`` seconds.
            ClosedError: The topic has ended, or the reader was closed.
            IterationFailed: The producer has failed. The error contains the reason.
            HistoryTruncatedError: Records were removed before they were read. Its ``first_available`` is the sequence
                of the first record that is still stored.
            PositionInvalidError: The stream was recreated.

        May also raise permanent errors of the server.
        """
        if self._end is None:
            try:
                return self._checked(await self._reader.next(timeout))
            except ClosedError:
                if self._end is None:  # If it is set, a concurrent read has received the end of the topic.
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
        """Yield lists of up to ``max_records`` records. This is faster than reading one record at a time.

        A list contains the records that are already in the local queue. The iteration ends when the topic ends or the
        reader is closed. Raises the errors of `next`.
        """
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
        """Close the reader, and delete its consumer if no other reader shares it."""
        await self._reader.close()
