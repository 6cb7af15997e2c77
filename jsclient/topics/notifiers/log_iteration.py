"""Iterations whose members are records of a log: their producer and their subscription."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..._runtime.retry import Retry
from ...errors import (
    ClosedError,
    ConfigError,
    JetStreamError,
    ProducerFencedError,
    ProtocolError,
    RequestTimeoutError,
    TooManyInFlightError,
    WrongLastSequenceError,
)
from ...protocol.events import PublishFailed, RecordSkipped
from ...protocol.topics.position import Position
from ...protocol.topics.reader import QuietTimer
from ...protocol.topics.record import Kind, Record
from ...protocol.topics.record_codec import KIT_IDS, kit_id
from ...protocol.topics.value_codec import Codec
from ...protocol.wire.checks import check_count
from ..log import Log, Push, search_back
from ..log_reader import LogReader, open_reader
from .iteration import Entry, SubscriptionSource
from .newest import NewestLog

__all__ = ["EntryReader", "LogProducer", "LogSubscription", "Newest", "newest_own", "passable_reason"]


def passable_reason(reason: Any) -> Any:
    """A reason that can be encoded: an exception becomes its class and text."""
    return f"{type(reason).__name__}: {reason}" if isinstance(reason, BaseException) else reason


class EntryReader:
    """Decodes records into members of an iteration.

    Other clients can store messages under the subject as well: those that may publish to it, and those that may request
    anything, because NATS stores an answer wherever its reply subject points. A record that no kit has written, or that
    the codec cannot decode, is not a value of the iteration: it is skipped, counted, and reported with the event
    `RecordSkipped`.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._skipped = 0

    def entry(self, record: Record, log: Log | NewestLog) -> Entry | None:
        """The member in a record of this log; None: the record is skipped.

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
        return Entry(record.kind if record.is_last else Kind.VALUE, value, record.seq)

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
    """Whether a kit has written the record. An end is one of a kit or of a topic: the server has checked its link."""
    return record.is_last or bool(kit_id(record.headers))


def _foreign(record: Record) -> ProtocolError:
    return ProtocolError(f"message {record.seq} on {record.subject!r} was not written by a kit")


class Newest(NamedTuple):
    """The newest record that a kit has written, None if there is none, and the newest sequence of the subject."""

    record: Record | None
    last_seq: int


async def newest_own(log: Log) -> Newest:
    """Find the newest record of an iteration. Others after it are skipped. Raises those of any request."""
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

_MISMATCHES: Final = 3  # refusals of a record, though its predecessor is the last one

_LAST_WORDS: Final = 2.0  # seconds that closing the connection waits for members in flight


class _Failure(NamedTuple):
    """Members that could not be stored, and the error."""

    error: JetStreamError
    members: list[_Member]


@dataclass(slots=True, eq=False)
class _Member:
    """A member in flight. Awaiting it returns its number, or raises the error of its append."""

    producer: LogProducer
    kind: Kind
    data: bytes
    id: str
    future: asyncio.Future[int]
    awaited: bool = False
    failure: _Failure | None = None

    def __await__(self) -> Generator[Any, None, int]:
        self.awaited = True
        self.producer.is_awaited(self)
        try:
            return (yield from asyncio.shield(self.future).__await__())
        except asyncio.CancelledError:
            self.awaited = False
            self.producer.is_abandoned(self)
            raise


class LogProducer:
    """Appends the members of an iteration to a log, one after the other, in the background.

    Args:
        log: A log of one subject.
        last: Its newest record.
        codec: Encodes the values.
        timeout: Seconds after which a member that could not be stored has failed, including restarts of servers; the
            members before it have theirs first.
        max_pending, max_pending_bytes: Members that may wait to be stored.
    """

    def __init__(
        self,
        log: Log,
        last: Newest,
        codec: Codec,
        *,
        timeout: float = 60.0,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        if not timeout > 0:
            raise ConfigError(f"timeout is {timeout!r:.40}: seconds > 0 are needed")
        self._log = log
        self._codec = codec
        self._timeout = timeout
        self._max_pending = check_count("max_pending", max_pending)
        self._max_pending_bytes = check_count("max_pending_bytes", max_pending_bytes)
        self._name = f"{KIT_IDS}{secrets.token_hex(8)}"
        self._count = 0
        self._last = last.last_seq
        self._in_doubt = False  # whether that is still the last record, or the member last sent
        self._is_over = self._ended = last.record is not None and last.record.is_last
        self._waiting: deque[_Member] = deque()
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._unreported: _Failure | None = None
        self._closed = False

    def _over(self) -> ClosedError:
        return ClosedError(
            f"the iteration on {self._log.subject!r} has ended: no value can follow; create a kit on another subject"
        )

    def publish(self, kind: Kind, value: Any) -> _Member:
        """Start to append a member. Raises as `Producer`; also the error of earlier members, once."""
        if self._unreported is not None:
            failure, self._unreported = self._unreported, None
            raise failure.error
        if self._ended:
            raise self._over()
        if self._closed:
            raise ClosedError("the connection is closed: no value can be stored")
        data = self._codec.encode(passable_reason(value) if kind is Kind.FAIL else value)
        if self._waiting and (
            len(self._waiting) >= self._max_pending or self._bytes + len(data) > self._max_pending_bytes
        ):
            raise TooManyInFlightError(f"{len(self._waiting)} values wait to be stored: await some of them")
        self._count += 1
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        member = _Member(self, kind, data, f"{self._name}:{self._count}", future)
        self._waiting.append(member)
        self._bytes += len(data)
        self._ended = kind is not Kind.VALUE
        if self._sending is None:
            self._log.open.add(self)
            self._sending = self._log.tasks.start(self._send(), f"producer of {self._log.subject}")
        return member

    def is_awaited(self, member: _Member) -> None:
        """The member is awaited, which raises its error: the next call does not raise it."""
        if self._unreported is not None and self._unreported is member.failure:
            self._unreported = None

    def is_abandoned(self, member: _Member) -> None:
        """The wait for the member was cancelled."""
        if member.failure is not None:
            self._report(member.failure)

    async def abandon(self) -> None:
        """The connection is being closed: wait a little for members in flight."""
        self._closed = True
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=_LAST_WORDS)
        self._fail(ClosedError("closed before the value was stored"))

    async def _send(self) -> None:
        try:
            while self._waiting:
                member = self._waiting[0]
                seq = await self._store(member)
                if self._waiting and self._waiting[0] is member:
                    self._waiting.popleft()
                    self._bytes -= len(member.data)
                    member.future.set_result(seq)
        except JetStreamError as error:
            self._fail(error)
        finally:
            self._sending = None
            self._log.open.discard(self)

    async def _store(self, member: _Member) -> int:
        """Append a member, and retry while the server is unavailable.

        Its time begins here: while those before it are stored, however slowly, none of them has failed.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout
        tries, mismatches, refused = Retry(), 0, -1
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._log.wait_ready()
                    if self._in_doubt and (seq := await self._look(member)):
                        return seq
                    position = await self._log.append(
                        member.data, kind=member.kind, expected=self._last, msg_id=member.id
                    )
                    self._last = position.seq
                    return position.seq
            except WrongLastSequenceError as error:
                self._in_doubt = True
                mismatches, refused = mismatches + 1 if self._last == refused else 1, self._last
                if mismatches >= _MISMATCHES:
                    raise ProducerFencedError(self._log.subject, self._last) from error
            except JetStreamError as error:
                self._in_doubt = True
                if not await tries.again(error):
                    raise
            except TimeoutError as error:
                self._in_doubt = True
                text = f"a value of {self._log.subject!r}: whether it was stored is unknown"
                raise RequestTimeoutError(text, self._timeout, self._log.trouble) from error

    async def _look(self, member: _Member) -> int:
        """Request the newest record. If it is the member itself, return its sequence, otherwise 0.

        Raises:
            ClosedError: It is an end. ProducerFencedError: It is another producer's.
        """
        newest = await newest_own(self._log)
        record, expected, self._last = newest.record, self._last, newest.last_seq
        self._in_doubt = False
        if record is None or record.seq <= expected:
            return 0  # None: the records were removed; otherwise only foreign ones may follow it
        sent = kit_id(record.headers)
        if sent == member.id:
            return record.seq
        if record.is_last:
            self._is_over = True
            raise self._over()
        if not sent.startswith(f"{self._name}:"):
            self._last, self._in_doubt = expected, True
            raise ProducerFencedError(self._log.subject, expected, record.seq)
        return 0  # an earlier member that failed, but was stored

    def _fail(self, error: JetStreamError) -> None:
        members = [*self._waiting]
        self._waiting.clear()
        self._bytes = 0
        if not members:
            return
        self._ended = self._is_over  # none of these has ended it
        failure = _Failure(error, members)
        for member in members:
            member.failure = failure
            if not member.future.done():
                member.future.set_exception(error)
                member.future.exception()  # it is reported below
        self._report(failure)

    def _report(self, failure: _Failure) -> None:
        """Report a failure unless one of its members is awaited."""
        error, members = failure
        if any(member.awaited for member in members):
            return
        self._unreported = failure
        log = self._log
        log.emit(PublishFailed(stream=log.stream, subject=log.subject, error=error, count=len(members)))


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
    """A consumer's position in the log. Its log reader is closed at the end, by `close`, and with the last reference.

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
