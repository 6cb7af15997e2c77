"""`LogReader` reads a log: every record after a position, in order, once, even if pushes are lost.

It runs `jsclient.protocol.topics.reader.Reader`, P3Sub's subscriber, on any `Log`: it reads the history, keeps a feed
open, and reports failures of both to the tracker. All lossless readers of topics are based on it.

Source: P3Sub (seed 003).
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final, Literal, Self, TypeAlias

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
from ..protocol.topics.history_round import QuietTimer
from ..protocol.topics.links import Skipped
from ..protocol.topics.position import EndDoubt, Extent, Position
from ..protocol.topics.reader import AskHistory, Cancel, Command, Reader, Subscribe
from ..protocol.topics.record import Record
from ..protocol.wire.checks import check_count
from ..protocol.wire.units import format_time, parse_time_ns
from .feeds import FeedSubscription
from .log import FeedKind, Log

__all__ = ["LogReader", "Push", "Start", "check_position", "deadline_of", "open_reader", "start_position"]

Push: TypeAlias = Literal["auto"] | FeedKind | None
"""How a reader is pushed: "auto" selects the cheapest way; None: no pushes, it reads the history when it is idle."""

_MAX_PENDING, _MAX_PENDING_BYTES = 10_000, 64 * 1024 * 1024
_EARLY = 0.001  # seconds


async def open_reader(
    log: Log, start: Start = "first", *, extent: Extent | None = None, **options: Any
) -> LogReader:
    """Open a reader. Arguments as `LogReader`; raises as `start_position`. Cancelled: nothing is left open."""
    allow = bool(options.get("allow_truncated", False))
    reader = LogReader(log, await start_position(log, start, allow_truncated=allow, extent=extent), **options)
    reader.begin()
    return reader


class LogReader:
    """Reads a log after a position, for ``async for``: each record once, in order.

    Pushes may be lost, repeated or reordered, and servers may restart: missing records are read from the history. A
    slow reader delays no other client: records that find no room are read again later. A cancelled read loses nothing.

    Args:
        log: The log to read.
        start: The position after which reading begins.
        push: "republish" or "consumer"; None: no pushes; "auto": the cheapest way, or none if pushes are refused.
        quiet: Seconds without a record after which the history is read, or an adaptive timer.
        catch_up: Whether a gap is read from the history at once, or at the next timer as in P3Sub.
        allow_truncated: Skip records that were removed before they were read, and report them with the event
            `HistoryTruncated`. Otherwise that is an error.
        max_pending, max_pending_bytes: Capacity of the local queue.
        name: Prefix of its subscription ids; random by default.
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
        max_pending: int = _MAX_PENDING,
        max_pending_bytes: int = _MAX_PENDING_BYTES,
        name: str | None = None,
    ) -> None:
        check_count("max_pending", max_pending)
        check_count("max_pending_bytes", max_pending_bytes)
        if catch_up not in ("at once", "timer"):
            raise ConfigError(f"catch_up is {catch_up!r:.40}: 'at once' or 'timer' is needed")
        self._log = log
        self._may_poll = push == "auto"
        self._feed = log.feed(log.best_feed() if push is None or push == "auto" else push)
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
        self._feeds: dict[str, FeedSubscription] = {}
        self._reading: asyncio.Task[Any] | None = None
        self._is_asking = False
        self._arrived = Signal()
        self._timer = Timer(self._tick)
        self._closed = False

    @property
    def position(self) -> Position:
        """The position after the last record returned: the only state needed to resume, in any process."""
        return self._tracker.position

    @property
    def pending(self) -> int:
        """Records in the local queue."""
        return self._tracker.pending

    @property
    def id(self) -> str | None:
        """The id of the current subscription; None: not subscribed."""
        return self._tracker.subscriptions.present

    @property
    def is_closed(self) -> bool:
        """Whether it was closed. Records in the queue can still be taken."""
        return self._closed

    @property
    def tracker(self) -> Reader:
        """The tracker, with its counters ``rejected``, ``repeated`` and ``discarded`` and its timer."""
        return self._tracker

    def __repr__(self) -> str:
        return f"<LogReader of {self._log.stream}: {self._log.subject} at {self.position.seq}>"

    async def next(self, timeout: float | None = None) -> Record:
        """The next record.

        Raises:
            RequestTimeoutError: No record arrived in ``timeout`` seconds. ClosedError: The reader was closed, or its
                log has ended. HistoryTruncatedError: Records were removed before they were read.
            PositionInvalidError: The stream was recreated. And permanent errors of the server.
        """
        deadline = deadline_of(timeout, self._now())
        while True:
            if records := self.take(1):
                return records[0]
            self._check_end()
            if not await self._arrived.wait_until(deadline) and not self._tracker.pending:
                raise RequestTimeoutError("the next record", timeout or 0.0)

    def take(self, limit: int) -> list[Record]:
        """Take up to ``limit`` records from the queue, in order, without waiting."""
        records, commands = self._tracker.take(limit)
        if commands:
            self._carry_out(commands)
        return records

    async def batches(self, max_records: int = 500) -> AsyncIterator[list[Record]]:
        """Lists of records as they arrive, until the reader is closed or the log ends. Raises as `next`."""
        check_count("max_records", max_records)
        while True:
            if records := self.take(max_records):
                yield records
                continue
            try:
                self._check_end()
            except ClosedError:
                return
            await self._arrived.wait()

    async def next_batch(self, max_records: int = 500, *, up_to: int) -> list[Record]:
        """The next records; none: all up to ``up_to`` were returned, or the log has ended. Raises as `next`."""
        while True:
            if records := self.take(max_records):
                return records
            try:
                self._check_end()
            except ClosedError:
                return []
            if self.position.seq >= up_to:
                return []
            await self._arrived.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        try:
            return await self.next()
        except ClosedError:
            raise StopAsyncIteration from None

    def _check_end(self) -> None:
        if self._tracker.pending:
            return
        if self._tracker.error is not None:
            raise self._tracker.error
        if self._tracker.ended:
            raise ClosedError("the reader is closed, or its log has ended: no record follows")

    def begin(self) -> None:
        """Start reading. Called once."""
        self._log.open.add(self)
        self._carry_out(self._tracker.begin(self._now()))

    def set_push(self, push: Push) -> None:
        """Change the way records are pushed, without losing or repeating one. None: no pushes.

        Raises:
            ConfigError: The log has no such feed, or this reader cannot change to it.
        """
        if push is None:
            self._carry_out(self._tracker.set_push(self._now(), push=False))
            return
        feed = self._log.feed(self._log.best_feed() if push == "auto" else push)
        if feed.by_subject != self._tracker.missing.by_subject:
            raise ConfigError(
                f"push is {push!r}: a reader of {self._log.subject!r} cannot change to it; open another reader"
            )
        commands = self._tracker.set_push(self._now(), push=False)
        self._feed, self._may_poll = feed, push == "auto"
        self._carry_out(commands + self._tracker.set_push(self._now(), push=True))

    async def close(self) -> None:
        """Stop reading and release what is held on the server. Closing again is a no-op."""
        if self._closed:
            return
        self._closed = True
        self._log.open.discard(self)
        self._tracker.close()
        self._carry_out([])
        if (
            self._reading is not None and not self._is_asking
        ):  # a request in flight ends with its consumer removed
            self._reading.cancel()
        # As tasks: if this call is cancelled, they still run to their end.
        ends = [self._log.tasks.start(one.end(), "end of a feed") for one in self._feeds.values()]
        self._feeds.clear()
        if ends:
            await asyncio.wait(ends)

    async def abandon(self) -> None:
        """Close it because the connection is being closed."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case AskHistory():
                    self._reading = self._log.tasks.start(self._read_history(command), "history")
                case Subscribe():
                    self._subscribe(command.id)
                case Cancel():
                    if (subscription := self._feeds.pop(command.id, None)) is not None:
                        self._log.tasks.start(subscription.end(), "end of a feed")
                case Skipped():
                    self._log.emit(
                        HistoryTruncated(stream=self._log.stream, after=command.after, before=command.before)
                    )
        deadline = self._tracker.deadline
        self._timer.set(None if deadline == math.inf else deadline)
        self._arrived.set()

    def _tick(self) -> None:
        # Timers of the event loop may fire early, by up to the resolution of its clock.
        self._carry_out(self._tracker.tick(self._now() + _EARLY))

    def _fail(self, error: JetStreamError) -> None:
        self._carry_out(self._tracker.fail(error))

    def _subscribe(self, id: str) -> None:
        tracker, now = self._tracker, self._now
        self._feeds[id] = subscription = FeedSubscription(
            self._log,
            self._feed,
            id,
            receive=lambda records: self._carry_out(tracker.offer(id, records, now())),
            opened=lambda: self._carry_out(tracker.subscribed(id, now())),
            lost=lambda: self._carry_out(tracker.lost(id, now())),
            refused=lambda error: self._refused(id, error),
        )
        subscription.begin()

    def _refused(self, id: str, error: JetStreamError) -> None:
        tracker = self._tracker
        if id != tracker.subscriptions.present:
            return
        if not self._may_poll or isinstance(error, ClosedError):
            self._fail(error)
            return
        if not isinstance(error, PermissionDeniedError):  # the connection has reported it
            self._log.report(error)
        self._carry_out(tracker.set_push(self._now(), push=False))
        self._carry_out(tracker.tick(math.inf))

    async def _read_history(self, asked: AskHistory) -> None:
        tracker, log, tries = self._tracker, self._log, Retry()
        while True:
            try:
                await log.wait_ready()
                self._is_asking = True
                page = await log.history(asked.since, asked.limit, asked.max_bytes)
                extent = await log.extent() if tracker.needs_extent(page.records) else None
            except JetStreamError as error:
                self._is_asking = False
                if self._closed:
                    return
                tracker.interrupted()
                if not await tries.again(error):
                    self._fail(error)
                    return
                continue
            except Exception as error:  # noqa: BLE001  a defect; readers must not wait forever
                failed = ProtocolError(f"the history could not be read: {type(error).__name__}: {error}")
                failed.__cause__ = error
                self._fail(failed)
                return
            self._is_asking = False
            commands = tracker.page(
                asked, page.records, self._now(), more=page.more, extent=extent, up_to=page.up_to
            )
            self._carry_out(commands)
            return


Start: TypeAlias = Position | datetime | str

_RECHECK: Final = 0.5  # seconds between two requests for an extent that is in doubt


def deadline_of(timeout: Any, now: float) -> float | None:
    """When a timeout ends; None: never. Raises `ConfigError` if it is not a number of seconds."""
    if timeout is None:
        return None
    # The event loop cannot wait for NaN.
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout):
        raise ConfigError(f"timeout is {timeout!r:.40}: a number of seconds or None is needed")
    return now + timeout


async def start_position(
    log: Log, start: Start, *, allow_truncated: bool = False, extent: Extent | None = None
) -> Position:
    """The position that a start means. ``extent``: that of the log, if it was requested just before.

    Raises:
        PositionInvalidError: As `check_position`. HistoryTruncatedError: Records after that time were removed.
        ConfigError: It is not a start. And those of any request.
    """
    if isinstance(start, datetime):
        return await log.after_time(parse_time_ns(format_time(start)), allow_truncated=allow_truncated)
    if isinstance(start, str) and start.startswith("{"):
        start = Position.from_json(start)
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
    """Check that a reader can continue from a position. Takes 10 s or more if that is in doubt; see `EndDoubt`.

    Raises:
        PositionInvalidError: The position is in another stream or incarnation, or after the end. And those of any
            request.
    """
    doubt, tries, now = EndDoubt(), Retry(), asyncio.get_running_loop().time
    in_doubt = False
    while True:
        try:
            extent = extent or await log.extent()
            if doubt.check(extent, position, now()):
                return
            extent, in_doubt = None, True
        except PositionInvalidError:
            raise
        except JetStreamError as error:
            doubt.interrupted()
            if not in_doubt or not await tries.again(error):
                raise
        else:
            await asyncio.sleep(_RECHECK)
        await log.wait_ready()
