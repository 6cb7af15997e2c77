"""A notifier whose values are on a server: asked for when somebody asks, and never more often."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from ..._runtime.nats.connection import Lifecycle
from ..._runtime.retry import Tries
from ..._runtime.wakeup import Signal
from ...errors import ClosedError, ConfigError, JetStreamError, PermissionDeniedError, StatusError
from ...protocol.topics.record import Record
from ...protocol.topics.value_codec import Codec
from .entries import EntryReader
from .iteration import Entry, NotifierSource
from .newest import NewestLog

__all__ = ["StreamNotifier"]

_MAX_SEQUENCE: Final = 2**64 - 1


class _Waiter(NamedTuple):
    """Who waits: the count that it has had, and as which one it came."""

    had: int
    number: int


class _Answer(NamedTuple):
    """The newest record, None if there is none. It decides for all who had come before the leader was asked."""

    record: Record | None
    decided_for: int = 0


class StreamNotifier(NotifierSource):
    """The newest record of a subject. The update count is its stream sequence.

    However many wait here, one question at a time is asked of the server, and one push is waited for.

    Args:
        log: Where the records are.
        codec: How their values travel.
        quiet: Seconds of waiting after which it is asked for again, because a push may be lost.
    """

    def __init__(self, log: NewestLog, codec: Codec, *, quiet: float = 30.0) -> None:
        if not quiet > 0:
            raise ConfigError(f"quiet is {quiet!r:.40} s: it must be over 0")
        self._log = log
        self._entries = EntryReader(codec)
        self._quiet = quiet
        self._end: Record | None = None
        self._seen = 0  # the newest sequence that came from the server
        self._reading: asyncio.Task[_Answer] | None = None
        self._next_reading: asyncio.Task[_Answer] | None = None
        self._waiting: dict[asyncio.Future[Record], _Waiter] = {}
        self._came = 0  # how many have waited so far
        self._watching: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None  # the one before, which was cancelled
        self._closing: asyncio.Task[None] | None = None  # of the push
        self._changed = Signal()
        self._must_ask = False
        self._pushed: Record | JetStreamError | None = None
        self._has_push = False

    async def entry_after(self, count: Any) -> Entry:
        while True:
            record = await self.record_after(count)
            if (entry := self._entries.entry(record, self._log)) is not None:
                return entry
            count = record.seq

    async def record_after(self, count: Any) -> Record:
        """The newest record as it is stored; else as `entry_after`."""
        had = count if type(count) is int and 0 < count <= _MAX_SEQUENCE else 0
        record = self._end
        if record is None and not had:
            record = await self._current()
        if record is None:
            record = await self._after(had)
        return record

    async def internals(self) -> dict[str, Any]:
        return self._log.at.to_dict()

    # --- asking ----------------------------------------------------------------------------------------------

    async def _current(self) -> Record | None:
        """The newest record as of now; None: there is none yet."""
        tries = Tries()
        while True:
            await self._log.context.connection.wait_connected(None)
            try:
                return (await self._newest()).record
            except JetStreamError as error:
                if not await tries.again(error):
                    raise

    async def _newest(self) -> _Answer:
        """One question for all who ask while another one is on its way: its answer may be older than they are."""
        if self._next_reading is None:
            self._next_reading = self._log.context.tasks.start(
                self._ask(self._reading), "ask for the newest value", awaited=True
            )
        reading = self._next_reading
        await asyncio.wait({reading})
        if reading.cancelled():
            raise ClosedError("closed while the newest value was asked for")
        return reading.result()

    async def _ask(self, before: asyncio.Task[_Answer] | None) -> _Answer:
        if before is not None:
            await asyncio.wait({before})
        self._reading, self._next_reading = self._next_reading, None
        try:
            answer = _Answer(await self._log.read())
            if _seq(answer.record) < max(self._seen, *(one.had for one in self._waiting.values()), 0):
                answer = await self._ask_leader(answer.record)
        finally:
            self._reading = None
        if answer.record is not None:
            self._note(answer.record)
        return answer

    async def _ask_leader(self, found: Record | None) -> _Answer:
        """Somebody has had a later one: either this replica lags, or there never was such a count, or it is gone."""
        came = self._came
        try:
            record = await self._log.read_leader()
        except PermissionDeniedError:
            if _seq(found) < self._seen:
                raise _LaggingError(503, "the replica lags", retryable=True) from None
            record = found
        self._seen = _seq(record)
        return _Answer(record, came)

    def _note(self, record: Record) -> None:
        self._seen = max(self._seen, record.seq)
        if record.is_last:
            self._end = record

    # --- waiting ---------------------------------------------------------------------------------------------

    async def _after(self, had: int) -> Record:
        """The newest record, as soon as it is another one than this; 0: as soon as there is one."""
        self._log.context.connection.check_open()
        waiter: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._came += 1
        self._waiting[waiter] = _Waiter(had, self._came)
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
                waiter.exception()  # who is cancelled at the same moment is not told
            if not self._waiting:
                self._stop_watching()

    def _stop_watching(self) -> None:
        self._ending, self._watching = self._watching, None
        if self._ending is not None:
            self._log.context.open.discard(self)
            self._ending.cancel()

    async def _watch(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait({before})  # it has the push
        tries = Tries()
        while self._has_waiters:
            try:
                await self._log.context.connection.wait_connected(None)
                await self._round()
                tries = Tries()
            except JetStreamError as error:
                if not await tries.again(error):
                    self._fail(error)
        if self._watching is asyncio.current_task():  # else it was stopped
            self._watching = None
            self._log.context.open.discard(self)

    @property
    def _has_waiters(self) -> bool:
        return any(not waiter.done() for waiter in self._waiting)

    async def _round(self) -> None:
        """Until something was pushed: it is for all who wait now."""
        connection, push = self._log.context.connection, self._log.push
        self._has_push, self._pushed, self._must_ask = False, None, True
        if self._closing is not None:
            await asyncio.wait({self._closing})
        connection.add_listener(self._lifecycle)
        try:
            await push.open(self._arrived)
            while self._has_waiters and not self._has_push:
                if self._must_ask:
                    self._must_ask = False
                    answer = await self._newest()
                    self._offer(answer)
                    if self._has_waiters:
                        push.wait(_seq(answer.record))
                elif not await self._changed.wait_until(connection.now() + self._quiet):
                    self._must_ask = True
        finally:
            connection.remove_listener(self._lifecycle)
            # As a task: whoever is cancelled here leaves nothing open.
            self._closing = self._log.context.tasks.start(push.close(), "end of a wait")
            await asyncio.wait({self._closing})
        if isinstance(self._pushed, Record) and self._pushed.seq >= self._seen:
            self._note(self._pushed)
            self._offer(_Answer(self._pushed))
        elif isinstance(self._pushed, JetStreamError):
            raise self._pushed

    def _offer(self, answer: _Answer) -> None:
        """It is for all who have had an older one; and for whom the leader says that theirs is not the newest."""
        record = answer.record
        if record is None:
            return
        for waiter, (had, number) in self._waiting.items():
            decided = number <= answer.decided_for and record.seq != had
            if (record.seq > had or decided) and not waiter.done():
                waiter.set_result(record)

    def _arrived(self, what: Record | JetStreamError | None) -> None:
        if not self._has_push:
            self._has_push, self._pushed = True, what
            self._changed.set()

    def _lifecycle(self, what: Lifecycle) -> None:
        if what is Lifecycle.CONNECTED:
            self._must_ask = True
            self._changed.set()
        elif what is Lifecycle.CLOSED:
            self._fail(ClosedError("the connection was closed while a value was waited for"))

    def _fail(self, error: JetStreamError) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(error)

    async def abandon(self) -> None:
        """The connection is being closed."""
        self._fail(ClosedError("closed while a value was waited for"))


class _LaggingError(StatusError):
    """A replica does not have yet what was read before."""


def _seq(record: Record | None) -> int:
    return 0 if record is None else record.seq
