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

    ``async for`` stops when the producer finishes the topic, and raises `IterationFailed` with the reason if the
    producer fails. If a read is cancelled, no record is lost: the next read returns it.

    If the topic's subject contains wildcards, each subject ends separately, so the loop doesn't end by itself. The
    record that ends a subject (`Record.is_last`) is returned like any other.

    Attributes:
        completion: The payload that the producer passed to `TopicPublisher.finish`. None until the loop ends, and also
            if the producer failed.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._tracker = reader.tracker
        # The tracker's property `take_one` returns a method of its queue. Keep this method, which saves two lookups for
        # each record.
        self._take_one = reader.tracker.take_one
        self._end: Record | None = None
        self.completion: bytes | None = None

    @property
    def position(self) -> Position:
        """The position after the last record returned. Save it to resume later with `Topic.since`."""
        return self._reader.position

    @property
    def pending(self) -> int:
        """The number of records that have arrived but haven't been read yet."""
        return self._reader.pending

    @property
    def is_closed(self) -> bool:
        """Whether the reader was closed, either by `close` or because its connection was closed."""
        return self._reader.is_closed

    def __repr__(self) -> str:
        return repr(self._reader).replace("LogReader", "TopicReader")

    def set_push(self, push: Push) -> None:
        """Change how the server pushes new records, without losing or repeating any.

        Args:
            push: ``"auto"``, ``"republish"`` or ``"consumer"``, as in `Topic.each`. With None, records are no longer
                pushed, and the reader finds them by reading the stream at intervals.

        Raises:
            ConfigError: The stream can't push in this way. If the topic has several subjects, this reader can't change
                between ``"republish"`` and ``"consumer"``, so open a new one.
        """
        self._reader.set_push(push)

    async def next(self, timeout: float | None = None) -> Record:
        """Wait for the next record and return it.

        The call is safe to cancel, because the next call returns the record.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No record arrived within ``timeout`` seconds. The reader can still be used.
            ClosedError: The topic has ended, or the reader was closed.
            IterationFailed: The producer failed. The error contains the reason.
            HistoryTruncatedError: Records were removed from the stream before they were read. Its ``first_available``
                is the sequence of the first record that is still stored. To skip the removed records, open a new reader
                at `position` with ``allow_truncated=True``.
            PositionInvalidError: The stream was deleted and created again.

        An error that ends the reader is raised by every further call.

        A reader waits while the server is unavailable. It raises a request error only if retrying can't help, for
        example `PermissionDeniedError`.
        """
        if self._end is None:
            try:
                return self._checked(await self._reader.next(timeout))
            except ClosedError:
                if self._end is None:  # if it is set, a concurrent read has received the end of the topic
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
        """Yield lists of records as they arrive. This is faster than reading one record at a time.

        Each step waits for at least one record, and then returns all that have arrived, up to ``max_records``. The
        iteration ends when the topic ends or the reader is closed. It raises the same errors as `next`, except
        `ClosedError`.

        Args:
            max_records: Maximum number of records in a list.
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
        """Close the reader. If no other reader shares its consumer, the consumer is deleted.

        You can still use `position` to resume later.
        """
        await self._reader.close()
