"""`LogReader`, which reads every record of a log after a position, once and in order, even if pushes are lost.

It runs `jsclient.protocol.topics.reader.Reader`, the subscriber of P3Sub, on any `Log`. It reads the history, keeps a
feed open, and reports failures of both to the tracker. All lossless readers of topics are based on it.

Source: P3Sub (seed 003).
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from .._runtime.handle import ReadHandle, State
from .._runtime.retry import Retry
from .._runtime.tasks import Signal, Timer
from ..errors import (
    ClosedError,
    ConfigError,
    JetStreamError,
    PermissionDeniedError,
    PositionInvalidError,
    ProtocolError,
    RequestTimeoutError,
)
from ..protocol.events import HistoryTruncated
from ..protocol.topics.links import Skipped
from ..protocol.topics.position import EndCheck, Extent, Position
from ..protocol.topics.quiet_timer import QuietTimer
from ..protocol.topics.reader import AskHistory, Cancel, Command, Reader, Subscribe
from ..protocol.topics.record import Record
from ..protocol.wire.checks import check_count, check_seconds, deadline_of
from ..protocol.wire.units import format_time, parse_time_ns
from .feeds import FeedSubscription
from .log import HEARTBEAT, Feed, Log, Push, SequenceStart, Start

__all__ = ["LogReader", "check_position", "open_reader", "start_position"]

_EARLY = 0.001  # event loop timers may fire up to this many seconds early
_LASTING: Final = 5.0  # seconds until a failure is reported. A restart or an election takes less
_RECHECK: Final = 0.5  # how long to wait before an uncertain extent is requested again, in seconds


async def start_position(
    log: Log, start: Start, *, allow_truncated: bool = False, extent: Extent | None = None
) -> Position:
    """Return the position for a ``start``.

    Args:
        log: The log to read.
        start: See `Topic.each`.
        allow_truncated: Whether a time is accepted although records after it were removed.
        extent: The extent of the log, if it was requested just before.

    Raises:
        PositionInvalidError: The position can't be used. See `check_position`.
        HistoryTruncatedError: ``start`` is a time, and records after it were removed.
        ConfigError: ``start`` has an unsuitable type or value.

    May also raise any request error.
    """
    if isinstance(start, datetime):
        return await log.after_time(parse_time_ns(format_time(start)), allow_truncated=allow_truncated)
    if isinstance(start, str) and start.startswith("{"):
        start = Position.from_json(start)
    if isinstance(start, SequenceStart):
        start = (extent or await log.extent()).end.at(start.seq)
    if isinstance(start, Position):
        await check_position(log, start, extent)
        return start
    if start not in ("first", "now"):
        raise ConfigError(
            f"start is {start!r:.60}: 'first', 'now', a Position or its JSON token, or a datetime is needed"
        )
    extent = extent or await log.extent()
    return extent.start if start == "first" else extent.end


async def check_position(log: Log, position: Position, extent: Extent | None = None) -> None:
    """Check that a reader can continue from a position. If the result is uncertain, this takes 10 seconds or more.

    See `EndCheck` for the reason.

    Raises:
        PositionInvalidError: The position is in another stream or incarnation, or after the end of the stream.

    May also raise any request error.
    """
    doubt, tries, now = EndCheck(), Retry(), asyncio.get_running_loop().time
    unconfirmed = False
    while True:
        try:
            extent = extent or await log.extent()
            if doubt.check_position(extent, position, now()):
                return
            extent, unconfirmed = None, True  # the next check needs a new extent
        except PositionInvalidError:
            raise
        except JetStreamError as error:
            doubt.interrupted()
            if not unconfirmed or not await tries.again(error):
                raise
        else:
            await asyncio.sleep(_RECHECK)
        await log.wait_ready()


async def open_reader(
    log: Log, start: Start = "first", *, extent: Extent | None = None, **options: Any
) -> LogReader:
    """Open a reader with the arguments of `LogReader`. May raise any error of `start_position`."""
    allow = bool(options.get("allow_truncated", False))
    reader = LogReader(log, await start_position(log, start, allow_truncated=allow, extent=extent), **options)
    reader.begin()
    return reader


class LogReader(ReadHandle[Record]):
    """Reads every record of a log after a position, once and in order. The other readers of topics are based on it.

    Applications usually open a `TopicReader` or an `EventSubscription` instead. Use a log reader to read from a `Log`
    of your own: create it, call `begin`, and read records with ``async for``, `next` or `batches`.

    Pushes may be lost, repeated or reordered, and servers may restart. The reader reads missing records from the
    history. A slow reader doesn't delay other clients, because records that don't fit in its queue are read from the
    history later. If a read is cancelled, no record is lost: the next read returns it.

    Args:
        log: The log to read.
        start: The position after which reading begins.
        push: How the log pushes new records. See `Topic.each` for the values.
        quiet: If no record arrives for this many seconds, check the history for records whose push was lost.
        catch_up: When to read records that are known to be missing. See `EventSource.subscribe`.
        allow_truncated: If true, skip records that were removed before they were read. By default, reading raises
            `HistoryTruncatedError`.
        max_pending: Maximum number of records in the queue of the reader.
        max_pending_bytes: Maximum size of the records in the queue, in bytes.
        name: A prefix for the ids of the reader's subscriptions, as shown in logs. By default, it is random.
        heartbeat: Interval between heartbeats of the server, in seconds. See `Topic.each`.

    Raises:
        ConfigError: An argument is invalid, or the log can't push in this way.
    """

    def __init__(
        self,
        log: Log,
        start: Position,
        *,
        push: Push = "auto",
        quiet: float | QuietTimer = 30.0,
        catch_up: Literal["at once", "timer"] = "at once",
        allow_truncated: bool = False,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
        name: str | None = None,
        heartbeat: float = HEARTBEAT,
    ) -> None:
        check_count("max_pending", max_pending)
        check_count("max_pending_bytes", max_pending_bytes)
        if catch_up not in ("at once", "timer"):
            raise ConfigError(f"catch_up is {catch_up!r:.40}: 'at once' or 'timer' is needed")
        self._log = log
        self._now = asyncio.get_running_loop().time
        self._heartbeat = check_seconds("heartbeat", heartbeat)
        self._shares = name is None
        self._feed = self._new_feed(push, start)
        self._tracker = Reader(
            start,
            f"jsc-{secrets.token_hex(8)}" if name is None else name,
            quiet=quiet if isinstance(quiet, QuietTimer) else QuietTimer(quiet),
            push=push is not None,
            replays=False,
            missing=log.missing_rule(self._feed, allow_truncated=allow_truncated),
            catch_up=catch_up,
            ends=log.is_one_subject,
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
        )
        self._take_one = self._tracker.take_one
        self._feeds: dict[str, FeedSubscription] = {}
        self._reading: asyncio.Task[Any] | None = None
        self._is_asking = False
        self._arrived = Signal()
        self._timer = Timer(self._tick_tracker)
        self._failure: tuple[float, JetStreamError] | None = None  # when reading the history began to fail
        self._stall_watch = log.stall_watch(
            progress=lambda: self._tracker.progress,
            waits=lambda: self._arrived.is_awaited,
            failure=self._lasting_failure,
        )

    @property
    def position(self) -> Position:
        """The position after the last record returned. Save it to resume later, in any process."""
        return self._tracker.position

    @property
    def pending(self) -> int:
        """The number of records that have arrived but haven't been read yet."""
        return self._tracker.pending

    @property
    def id(self) -> str | None:
        """The id of the current subscription to pushes, or None if records aren't pushed at the moment."""
        return self._tracker.id

    @property
    def tracker(self) -> Reader:
        """The state machine that decides what the reader does.

        Its counters are useful for monitoring. They start at 0 with the reader. ``rejected`` counts pushes for an
        earlier subscription, ``repeated`` counts records that arrived twice, and ``discarded`` counts pushes that were
        dropped because of a gap or a full queue. The dropped records are read from the history instead.
        """
        return self._tracker

    def __repr__(self) -> str:
        return f"<LogReader of {self._log.stream}: {self._log.subject} at {self.position.seq}>"

    async def next(self, timeout: float | None = None) -> Record:
        """Wait for the next record and return it.

        While the server is unavailable, the reader waits for it. The call raises a request error only if retrying can't
        help, for example `PermissionDeniedError`. Cancelling the call is safe: the next call returns the record.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No record arrived within ``timeout`` seconds. The reader can still be used.
            ClosedError: The reader was closed, or the log has ended.
            HistoryTruncatedError: Records were removed before they were read. Further calls raise the same error.
            PositionInvalidError: The stream was deleted and created again. Further calls raise the same error.
        """
        deadline = deadline_of(timeout, self._now())
        while True:
            if (record := self.take_one()) is not None:
                return record
            self._check_end()
            self._read_waits()
            if not await self._arrived.wait_until(deadline) and not self._tracker.pending:
                raise RequestTimeoutError("the next record", timeout or 0.0, self._log.problem)

    def take(self, limit: int) -> list[Record]:
        """Return up to ``limit`` records that have already arrived, in order and without waiting."""
        records, commands = self._tracker.take_records(limit)
        if commands:
            self._carry_out(commands)
        return records

    def take_one(self) -> Record | None:
        """Return the next record if it has already arrived, or None, without waiting."""
        record = self._take_one()
        if self._tracker.request_needed:
            self.taken()
        return record

    def taken(self) -> None:
        """Read on from the history if the queue was full and has room again. For internal use."""
        if commands := self._tracker.taken():
            self._carry_out(commands)

    async def __anext__(self) -> Record:
        if (record := self._take_one()) is None:
            return await super().__anext__()
        if self._tracker.request_needed:
            self.taken()
        return record

    async def batches(self, max_records: int = 500) -> AsyncGenerator[list[Record], None]:
        """Yield lists of records as they arrive, until the reader is closed or the log ends.

        Each step waits for at least one record, and then yields all records that have arrived, up to ``max_records``.

        Args:
            max_records: Maximum number of records in a list.

        Raises:
            HistoryTruncatedError: Records were removed before they were read.
            PositionInvalidError: The stream was deleted and created again.

        Like `next`, the iteration raises a request error only if retrying can't help, for example
        `PermissionDeniedError`.
        """
        check_count("max_records", max_records)
        while True:
            if records := self.take(max_records):
                yield records
                continue
            try:
                self._check_end()
            except ClosedError:
                return
            self._read_waits()
            await self._arrived.wait()

    async def next_batch(self, max_records: int = 500, *, up_to: int) -> list[Record]:
        """Wait for the next records and return them as a list.

        The list is empty if no record follows, because the reader has reached ``up_to`` or the log has ended. The call
        raises the same errors as `next`, except `ClosedError`.

        Args:
            max_records: Maximum number of records in the list.
            up_to: The stream sequence at which to stop waiting.
        """
        while True:
            if records := self.take(max_records):
                return records
            try:
                self._check_end()
            except ClosedError:
                return []
            if self.position.seq >= up_to:
                return []
            self._read_waits()
            await self._arrived.wait()

    def _read_waits(self) -> None:
        if self._stall_watch is not None:
            self._stall_watch.asked()

    @property
    def failure(self) -> JetStreamError | None:
        """The error of the latest attempt to read the history. None if it succeeded, or before the first attempt."""
        return None if self._failure is None else self._failure[1]

    def _lasting_failure(self) -> JetStreamError | None:
        """Return why the history cannot be read, if it has failed for a while."""
        if self._failure is None or self._now() - self._failure[0] < _LASTING:
            return None
        return self._failure[1]

    def _check_end(self) -> None:
        if self._tracker.pending:
            return
        if self._tracker.error is not None:
            raise self._tracker.error
        if self._tracker.ended:
            raise ClosedError("the reader is closed, or its log has ended: no record follows")

    def begin(self) -> None:
        """Start reading in the background. Call this method exactly once, before the first read."""
        self._log.open.add(self)
        self._carry_out(self._tracker.begin_reading(self._now()))

    def set_push(self, push: Push) -> None:
        """Change how records are pushed, without losing or repeating any.

        Args:
            push: ``"auto"``, ``"republish"`` or ``"consumer"``, as in `Topic.each`. With None, nothing is pushed, and
                the reader finds new records by reading the log at intervals.

        Raises:
            ConfigError: The log doesn't support this mode. Or the log has several subjects, and the change is one
                between ``"republish"`` and ``"consumer"``. Open a new reader instead.
        """
        if push is None:
            self._carry_out(self._tracker.set_push(self._now(), push=False))
            return
        feed = self._new_feed(push, self._tracker.start)
        if feed.by_subject != self._tracker.missing.by_subject:
            raise ConfigError(
                f"push is {push!r}: a reader of {self._log.subject!r} cannot change to it; open another reader"
            )
        commands = self._tracker.set_push(self._now(), push=False)
        self._feed = feed
        self._carry_out(commands + self._tracker.set_push(self._now(), push=True))

    def _new_feed(self, push: Push, start: Position) -> Feed:
        feed = self._log.feed(push)
        feed.heartbeat, feed.origin = self._heartbeat, start
        feed.shares, feed.may_listen = self._shares, push == "auto"
        return feed

    async def close(self) -> None:
        """Stop reading, and release the resources on the server. Records that have arrived can still be read."""
        if self.is_closed:
            return
        self._state = State.CLOSED
        self._log.open.discard(self)
        if self._stall_watch is not None:
            self._stall_watch.close()
        self._tracker.close()
        self._carry_out([])
        # Don't cancel a request in flight, because it removes its own consumer when it ends.
        if self._reading is not None and not self._is_asking:
            self._reading.cancel()
        # End each feed in a task of its own. The tasks continue even if this call is cancelled.
        ends = [self._log.tasks.start(feed.end_feed(), "end of a feed") for feed in self._feeds.values()]
        self._feeds.clear()
        if ends:
            await asyncio.wait(ends)

    abandon = close  # called when the connection is being closed

    def _carry_out(self, commands: Sequence[Command]) -> None:
        for command in commands:
            match command:
                case AskHistory():
                    self._reading = self._log.tasks.start(self._read_history(command), "history")
                case Subscribe():
                    self._subscribe(command.id)
                case Cancel():
                    if (subscription := self._feeds.pop(command.id, None)) is not None:
                        self._log.tasks.start(subscription.end_feed(), "end of a feed")
                case Skipped():
                    self._log.emit(
                        HistoryTruncated(stream=self._log.stream, after=command.after, before=command.before)
                    )
        deadline = self._tracker.deadline
        self._timer.set(None if deadline == math.inf else deadline)
        self._arrived.set()

    def _tick_tracker(self) -> None:
        # Add a margin, because timers of the event loop may fire early by up to the resolution of its clock.
        self._carry_out(self._tracker.tick(self._now() + _EARLY))

    def _fail_reading(self, error: JetStreamError) -> None:
        self._carry_out(self._tracker.fail_reading(error))

    def _subscribe(self, id: str) -> None:
        tracker, now, wake = self._tracker, self._now, self._arrived.set

        def receive(records: list[Record]) -> None:
            if commands := tracker.offer(id, records, now()):
                self._carry_out(commands)
            else:  # leave the timer alone, because it notices a later deadline when it fires
                wake()

        self._feeds[id] = subscription = FeedSubscription(
            self._log,
            self._feed,
            id,
            receive=receive,
            opened=lambda: self._carry_out(tracker.subscribed(id, now())),
            lost=lambda: self._carry_out(tracker.feed_lost(id, now())),
            refused=lambda error: self._feed_refused(id, error),
        )
        subscription.begin_feed()

    def _feed_refused(self, id: str, error: JetStreamError) -> None:
        tracker = self._tracker
        if id != tracker.id:
            return
        if not self._feed.may_listen or isinstance(error, ClosedError):
            self._fail_reading(error)
            return
        if not isinstance(error, PermissionDeniedError):  # the connection has already reported this one
            self._log.report(error)
        self._carry_out(tracker.set_push(self._now(), push=False))
        self._carry_out(tracker.tick(math.inf))

    async def _read_history(self, request: AskHistory) -> None:
        tracker, log, tries = self._tracker, self._log, Retry()
        while True:
            try:
                await log.wait_ready()
                self._is_asking = True
                page = await log.history(request.since, request.limit, request.max_bytes)
                extent = await log.extent() if tracker.needs_extent(page.records) else None
            except JetStreamError as error:
                self._is_asking = False
                if self.is_closed:
                    return
                tracker.interrupted()
                self._failure = (self._now() if self._failure is None else self._failure[0]), error
                # Retry transient errors, which occur for example while a server restarts.
                if not await tries.again(error):
                    self._fail_reading(error)
                    return
                continue
            except Exception as error:  # noqa: BLE001  readers would wait forever if a bug ended this task
                failed = ProtocolError(f"the history could not be read: {type(error).__name__}: {error}")
                failed.__cause__ = error
                self._fail_reading(failed)
                return
            self._is_asking, self._failure = False, None
            if tracker.id is not None:
                self._feed.has_read(tracker.id, len(page.records))
            commands = tracker.page(
                request, page.records, self._now(), more=page.more, extent=extent, up_to=page.up_to
            )
            self._carry_out(commands)
            return
