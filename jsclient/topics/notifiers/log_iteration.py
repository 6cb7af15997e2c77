"""Reads iterations whose members are records of a log."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from ..._runtime.retry import Retry
from ...errors import (
    ClosedError,
    JetStreamError,
    ProtocolError,
)
from ...protocol.events import RecordSkipped
from ...protocol.topics.position import Position
from ...protocol.topics.quiet_timer import QuietTimer
from ...protocol.topics.record import Kind, Record
from ...protocol.topics.record_codec import kit_id
from ...protocol.topics.value_codec import Codec
from ..log import Log, Push, search_back
from ..log_reader import LogReader, open_reader
from .iteration import Member, SubscriptionSource
from .newest import NewestLog

__all__ = ["EntryReader", "LogSubscription", "Newest", "newest_own", "passable_reason"]


def passable_reason(reason: Any) -> Any:
    """Return a form of a reason that can be encoded. An exception becomes its class name and text."""
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason


class EntryReader:
    """Decodes records into members of an iteration.

    Other clients can store messages under the subject too. They may have the right to publish to it, or they may have
    the answer to any of their requests sent to it, because NATS does not check reply subjects. A record that was not
    written by a kit, or that the codec cannot decode, is not a value of the iteration. It is skipped, counted, and
    reported with the event `RecordSkipped`.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._skipped = 0

    def entry(self, record: Record, log: Log | NewestLog) -> Member | None:
        """Decode a record of this log. Return its member, or None if the record is skipped.

        Raises:
            ProtocolError: The record ends the iteration, and its completion or reason cannot be decoded.
        """
        if not _is_own(record):
            self._skip(record, log, _foreign(record))
            return None
        try:
            value = self._codec.decode(record.data)
        except JetStreamError as error:
            if record.is_last:
                raise
            self._skip(record, log, error)
            return None
        return Member(record.kind if record.is_last else Kind.VALUE, value, record.seq)

    def _skip(self, record: Record, log: Log | NewestLog, error: JetStreamError) -> None:
        self._skipped += 1
        if self._skipped & (self._skipped - 1) == 0:
            _report_skipped(record, log, error, self._skipped)


def _report_skipped(record: Record, log: Log | NewestLog, error: JetStreamError, count: int) -> None:
    log.emit(
        RecordSkipped(
            stream=log.stream, subject=record.subject, stream_seq=record.seq, count=count, error=error
        )
    )


def _is_own(record: Record) -> bool:
    """Return whether the record belongs to the iteration.

    A value must have the id of a kit. The server has checked the link of a record that ends the iteration.
    """
    return record.is_last or bool(kit_id(record.headers))


def _foreign(record: Record) -> ProtocolError:
    return ProtocolError(f"message {record.seq} on {record.subject!r} was not written by a kit")


class Newest(NamedTuple):
    """The newest record of an iteration, or None, and the newest sequence of the subject."""

    record: Record | None
    last_seq: int


async def newest_own(log: Log) -> Newest:
    """Find the newest record of an iteration, ignoring later records of other clients. May raise any request error."""
    found = await log.last()
    if found is None or _is_own(found):
        return Newest(found, 0 if found is None else found.seq)
    _report_skipped(found, log, _foreign(found), 1)

    async def records(since: int, end: int) -> AsyncIterator[Record]:
        while since < end and (page := await log.history(since, _PAGE, _PAGE_BYTES)).records:
            for record in page.records:
                yield record
            since = page.records[-1].seq

    first = (await log.extent()).first_seq
    return Newest(await search_back(records, first, found.seq - 1, _is_own), found.seq)


_PAGE, _PAGE_BYTES = 5000, 8 * 1024 * 1024


class LogSubscription(SubscriptionSource):
    """The source of a subscription, which reads the values of a log after a position.

    Args:
        log: A function that opens the log, which has one subject. Called on first use.
        start: The position after which the subscription starts.
        codec: Decodes the values.
        share: Returns the descriptor of a subscription that starts after a position.
        push, quiet: See `LogReader`.
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
        QuietTimer(quiet)  # refuse an invalid value now rather than on the first read
        self._options: dict[str, Any] = {"push": push, "quiet": quiet}

    async def internals(self, position: Any) -> Any:
        return self._share(self._start if position is None else position)

    async def reader(self, position: Any) -> _LogIterationReader:
        start = self._start if position is None else position
        tries = Retry()
        while True:
            try:
                if self._log is None:
                    self._log = await self._open()
                await self._log.wait_ready()
                return _LogIterationReader(
                    self._log, await open_reader(self._log, start, **self._options), self._entries
                )
            except JetStreamError as error:
                if not await tries.again(error):
                    raise


class _LogIterationReader:
    """A consumer's position in the log. Its log reader is closed at the end, by `close`, or by garbage collection.

    Attributes:
        position: The position after the last value. The end does not move it, so a reader that starts here also
            receives the end.
    """

    __slots__ = ("__weakref__", "_end", "_entries", "_log", "_reader", "position")

    def __init__(self, log: Log, reader: LogReader, entries: EntryReader) -> None:
        self.position = reader.position
        self._log = log
        self._reader = reader
        self._entries = entries
        self._end: Record | None = None
        weakref.finalize(self, _close_later, log, reader).atexit = False

    async def read_member(self) -> Member:
        reader = self._reader
        while self._end is None:
            try:
                record = await reader.next()
            except ClosedError:
                if self._end is None:  # if it is set, a concurrent read has received the end
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
        return  # the loop has ended, together with all resources of the reader
    if not reader.is_closed:
        log.tasks.start(reader.close(), "end of an iterator")
