"""A notifier whose values are stored on a server. They are requested only when a consumer reads."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from ..._runtime.connection.connection import Lifecycle
from ..._runtime.retry import Retry
from ..._runtime.tasks import Signal
from ...errors import ClosedError, ConfigError, JetStreamError, PermissionDeniedError, StatusError
from ...protocol.events import StreamReset
from ...protocol.models.back_doubt import BackwardCheck
from ...protocol.topics.record import Record
from ...protocol.topics.value_codec import Codec
from .iteration import Member, NotifierSource
from .log_iteration import EntryReader
from .newest import NewestLog

__all__ = ["StreamNotifier"]

_MAX_SEQUENCE: Final = 2**64 - 1
_RECHECK: Final = 0.5  # seconds until the request is repeated after an answer with an older record


class _Waiter(NamedTuple):
    """A waiting call of a consumer.

    ``had`` is the sequence of the consumer's last record, or 0. ``number`` counts the calls that have waited.
    """

    had: int
    number: int


class _Answer(NamedTuple):
    """An answer to a request for the newest record.

    Attributes:
        record: The newest record, or None if no record exists.
        decided_for: The leader has decided that this is the newest record for waiting calls up to this number.
        replaced: Whether the stream was recreated, and the record has the sequence of an older record.
    """

    record: Record | None
    decided_for: int = 0
    replaced: bool = False


class StreamNotifier(NotifierSource):
    """Reads the newest record of a subject. The update count is the stream sequence of the record.

    All consumers in this process share one request and one push.

    Args:
        log: Requests the records, and receives their pushes.
        codec: Decodes the values of the records.
        quiet: After waiting for this many seconds, request the newest record again, because a push may be lost.
    """

    def __init__(self, log: NewestLog, codec: Codec, *, quiet: float = 30.0) -> None:
        if not quiet > 0:
            raise ConfigError(f"quiet is {quiet!r:.40}: seconds > 0 are needed")
        self._log = log
        self._entries = EntryReader(codec)
        self._quiet = quiet
        self._end: Record | None = None
        self._seen = 0  # the newest sequence received
        self._seen_at = 0  # the time of that record in nanoseconds, or 0 if it is unknown
        # True if the stream may have been recreated, so the next record needs a new position.
        self._is_unconfirmed = False
        self._back = BackwardCheck()
        self._reading: asyncio.Task[_Answer] | None = None
        self._next_reading: asyncio.Task[_Answer] | None = None
        self._waiting: dict[asyncio.Future[Record], _Waiter] = {}
        self._waited = 0  # number of calls that have waited so far
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None  # the previous task, which was cancelled
        self._closing: asyncio.Task[None] | None = None  # closes the push
        self._changed = Signal()
        self._must_ask = False
        self._pushed: Record | JetStreamError | None = None
        self._has_push = False

    @property
    def seen(self) -> int:
        """The newest sequence received so far."""
        return self._seen

    async def entry_after(self, count: Any) -> Member:
        while True:
            record = await self.record_after(count)
            if (entry := self._entries.entry(record, self._log)) is not None:
                return entry
            count = record.seq

    async def record_after(self, count: Any) -> Record:
        """Return the newest record without decoding it. Waits and raises like `entry_after`."""
        had = count if type(count) is int and 0 < count <= _MAX_SEQUENCE else 0
        record = self._end
        if record is None and not had:
            record = await self._current()
        if record is None:
            record = await self._after(had)
        return record

    async def internals(self) -> dict[str, Any]:
        return self._log.at.to_dict()

    async def _current(self) -> Record | None:
        """Return the newest record, or None if no record exists."""
        tries = Retry()
        while True:
            await self._log.context.connection.wait_connected(None)
            try:
                return (await self._newest()).record
            except JetStreamError as error:
                if not await tries.again(error):
                    raise

    async def _newest(self) -> _Answer:
        """Request the newest record.

        Calls that are made during a request share the next request, because the answer in flight may be older than
        the calls.
        """
        if self._next_reading is None:
            self._next_reading = self._log.context.tasks.start(
                self._read_newest(self._reading), "ask for the newest value", awaited=True
            )
        reading = self._next_reading
        await asyncio.wait({reading})
        if reading.cancelled():
            raise ClosedError("closed during the request for the newest value")
        return reading.result()

    async def _read_newest(self, before: asyncio.Task[_Answer] | None) -> _Answer:
        if before is not None:
            await asyncio.wait({before})
        self._reading, self._next_reading = self._next_reading, None
        try:
            answer = _Answer(await self._log.read_newest())
            if _seq(answer.record) < self._had:
                answer = await self._ask_leader(answer.record)
            else:
                self._back.start_again()
            if answer.record is not None:
                answer = answer._replace(record=await self._placed(answer.record))
        finally:
            self._reading = None
        return answer

    async def _placed(self, record: Record) -> Record:
        """Note the record, and return it with a position in the current stream."""
        # The same sequence with a later time means that the stream was recreated, so the record is new to readers.
        replaced = record.seq == self._seen and 0 < self._seen_at < record.time_ns
        if replaced or self._is_unconfirmed:
            record = await self._log.placed_again(record)
            self._is_unconfirmed = False
        self._note(record)
        if replaced:
            self._offer(_Answer(record, self._waited, replaced=True))
        return record

    @property
    def _had(self) -> int:
        """The highest sequence that was read, or that a waiting consumer has passed. A consumer may pass any number."""
        return max(self._seen, *(one.had for one in self._waiting.values()), 0)

    async def _ask_leader(self, last_known: Record | None) -> _Answer:
        """Ask the leader for the newest record, because a later sequence than the answer's is known.

        The replica may lag. Otherwise, the later record was removed or has never existed.
        """
        waited = self._waited
        try:
            record = await self._log.read_leader()
        except PermissionDeniedError:
            if _seq(last_known) < self._seen:
                raise _LaggingError(503, "the replica lags", retryable=True) from None
            return self._decided(last_known, waited)
        if record is None or record.seq >= self._had:
            self._back.start_again()
        elif not await self._goes_back(record):
            if record.seq < self._seen:
                raise _LaggingError(503, "a former leader has answered", retryable=True)
            return _Answer(record)  # only for consumers that have not received a later record
        return self._decided(record, waited)

    def _decided(self, record: Record | None, waited: int) -> _Answer:
        """Accept this record as the newest, even if a later record was read before."""
        self._is_unconfirmed = self._is_unconfirmed or _seq(record) < self._seen
        if record is not None and record.seq != self._seen:
            self._seen, self._seen_at = record.seq, 0
        return _Answer(record, waited)

    async def _goes_back(self, record: Record) -> bool:
        """Return whether this is certainly the newest record, although a later record was read before.

        If False, the leader must be asked again.
        """
        log, had = self._log, self._had
        try:
            extent = await log.extent()
        except JetStreamError:
            self._back.start_again()
            raise
        verdict = self._back.check_end(had, extent, log.context.connection.now(), incarnation=log.incarnation)
        if verdict == "restored" and record.seq < self._seen:
            log.emit(StreamReset(stream=log.stream, last_stream_seq=self._seen, stream_seq=record.seq))
        return verdict != "ask again"

    def _note(self, record: Record) -> None:
        if record.seq >= self._seen:
            self._seen, self._seen_at = record.seq, record.time_ns
        if record.is_last:
            self._end = record

    async def _after(self, had: int) -> Record:
        """Wait for a record other than the record with the sequence ``had``. With 0, wait for the first record."""
        self._log.context.connection.check_open()
        waiter: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._waited += 1
        self._waiting[waiter] = _Waiter(had, self._waited)
        self._must_ask = True
        self._changed.set()
        if self._watching is None:
            self._log.context.open.add(self)
            self._watching = self._log.context.tasks.start(self._watch(self._ending), "watch for a notifier")
        try:
            return await waiter
        finally:
            del self._waiting[waiter]
            if waiter.done() and not waiter.cancelled():
                # Mark the exception as retrieved, because the call may have been cancelled.
                waiter.exception()
            if not self._waiting and not self._has_push:  # after a push, `_round` ends by itself
                self._stop_watching()

    def _stop_watching(self) -> None:
        self._ending, self._watching = self._watching, None
        if self._ending is not None:
            self._log.context.open.discard(self)
            self._ending.cancel()

    async def _watch(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})  # the previous task still uses the push
        tries = Retry()
        while self._has_waiters:
            try:
                await self._log.context.connection.wait_connected(None)
                await self._round()
                tries = Retry()
            except JetStreamError as error:
                if not await tries.again(error):
                    self._fail_waiters(error)
        if self._watching is asyncio.current_task():  # if it is another task, the watch was stopped
            self._watching = None
            self._log.context.open.discard(self)

    @property
    def _has_waiters(self) -> bool:
        return any(not waiter.done() for waiter in self._waiting)

    @property
    def _pause(self) -> float:
        """How long to wait for a push before the newest record is requested again, in seconds."""
        return self._quiet if self._back.since is None else min(self._quiet, _RECHECK)

    async def _round(self) -> None:
        """Wait until a record is pushed, and pass it to all waiters."""
        log, connection = self._log, self._log.context.connection
        self._has_push, self._pushed, self._must_ask = False, None, True
        if self._closing is not None:
            await asyncio.wait({self._closing})
        connection.add_listener(self._ask_after_reconnect)
        try:
            await log.open_pushes(self._arrived)
            while self._has_waiters and not self._has_push:
                if self._must_ask:
                    self._must_ask = False
                    answer = await self._newest()
                    self._offer(answer)
                    if self._has_waiters:
                        log.wait_for_newer(_seq(answer.record))
                elif not await self._changed.wait_until(connection.now() + self._pause):
                    self._must_ask = True
        finally:
            connection.remove_listener(self._ask_after_reconnect)
            # Close the push in a task of its own, so that it is closed even if this task is cancelled.
            self._closing = log.context.tasks.start(log.close(), "end of a wait")
            try:
                await asyncio.wait({self._closing})
            finally:
                self._has_push = False
        if isinstance(self._pushed, JetStreamError):
            raise self._pushed

    def _offer(self, answer: _Answer) -> None:
        """Resolve every waiter whose last record is older, or is not the newest according to the leader."""
        record = answer.record
        if record is None:
            return
        for waiter, (had, number) in self._waiting.items():
            decided = number <= answer.decided_for and (record.seq != had or answer.replaced)
            if (record.seq > had or decided) and not waiter.done():
                waiter.set_result(record)

    def _arrived(self, what: Record | JetStreamError | None) -> None:
        if self._has_push:
            return
        self._has_push, self._pushed = True, what
        # Pass this record to the waiters immediately, before the push is closed. If it may not be the newest record,
        # request the newest one instead.
        if isinstance(what, Record) and what.seq >= self._seen and not self._is_unconfirmed:
            self._note(what)
            self._offer(_Answer(what))
        self._changed.set()

    def _ask_after_reconnect(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            self._must_ask = True
            self._changed.set()
        elif what is Lifecycle.CLOSED:
            self._fail_waiters(ClosedError("the connection was closed during the wait for a value"))

    def _fail_waiters(self, error: JetStreamError) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)

    async def abandon(self) -> None:
        """Fail all waiters, because the connection is being closed."""
        self._fail_waiters(ClosedError("closed during the wait for a value"))


class _LaggingError(StatusError):
    """A replica lacks a record that was read before."""


def _seq(record: Record | None) -> int:
    return 0 if record is None else record.seq
