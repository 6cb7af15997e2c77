"""The reader of a topic: every record after a position, in order, once, whatever becomes of the pushes.

It drives `jsclient.protocol.reader.Reader`, P3Sub's subscriber, on any `Log`: asks for the history, keeps a feed open,
and tells the tracker when either fails. All readers of topics are made of it.

Source: P3Sub (seed 003).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Any, Literal, Self, TypeAlias

from ._runtime.signal import Signal
from ._runtime.timer import Timer
from .errors import (
    ApiError,
    ClosedError,
    ConfigError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
    StatusError,
    StreamNotFoundError,
)
from .log import FeedKind, Log
from .protocol.events import HistoryTruncated
from .protocol.history_round import AskHistory
from .protocol.missing import Skipped
from .protocol.position import Position
from .protocol.quiet import QuietTimer
from .protocol.reader import Command, Reader
from .protocol.record import Record
from .protocol.subscription_ids import Cancel, Subscribe
from .protocol.units import format_time, parse_time_ns

__all__ = ["LogReader", "Push", "Start", "open_reader", "start_position"]

Start: TypeAlias = Literal["first", "now"] | Position | datetime
"""Where to begin: with the first record there is, with what comes from now on, after a position, or after a time."""

Push: TypeAlias = Literal["auto"] | FeedKind | None
"""How a reader wants pushes: as the topic does it best, in one way, or not at all: then it asks when it is quiet."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0  # seconds between tries
_GRACE = 5.0  # seconds that a stream may be gone, as it looks while a cluster elects a leader
_MAX_PENDING, _MAX_PENDING_BYTES = 10_000, 64 * 1024 * 1024


def passes(error: JetStreamError) -> bool:
    """Whether this is how it looks when a server restarts, or a cluster elects a leader."""
    if isinstance(error, RequestTimeoutError | DisconnectedError | NoRespondersError):
        return True
    return (isinstance(error, StatusError) and error.retryable) or (
        isinstance(error, ApiError) and error.code == 503
    )


async def start_position(log: Log, start: Start, *, allow_truncated: bool = False) -> Position:
    """The position that is meant.

    Raises:
        PositionInvalidError: It is of another stream, or of another one that had its name, or lies behind its end.
        HistoryTruncatedError: Records after that time were removed. ConfigError: It is no start.
    """
    if isinstance(start, datetime):
        return await log.after_time(parse_time_ns(format_time(start)), allow_truncated=allow_truncated)
    extent = await log.extent()
    match start:
        case Position():
            extent.check(start)
            return start
        case "first":
            return extent.start
        case "now":
            return extent.end
    raise ConfigError(f"start is {start!r:.60}: a position, a datetime, 'first' or 'now' is needed")


async def open_reader(log: Log, start: Start = "first", **options: Any) -> LogReader:
    """A reader that has begun. Arguments as of `LogReader`; raises as `start_position`. Cancelled: nothing is left."""
    allow = bool(options.get("allow_truncated", False))
    reader = LogReader(log, await start_position(log, start, allow_truncated=allow), **options)
    reader.begin()
    return reader


class LogReader:
    """Reads a log from a position on, for ``async for``: each record after it once, in order.

    Pushes may be lost, repeated or reordered, servers may restart: what is missing is read from the history. A slow
    reader slows nobody: what finds no room is read again when there is some. A cancelled read loses nothing.

    Args:
        log: What to read.
        start: After there.
        push: See `Push`. ``"auto"`` goes on without pushes where the user may not have any.
        quiet: Seconds without a record after which the history is asked, or a timer that adapts.
        catch_up: Ask for what is missing at once, or leave it to the timer, as P3Sub has it.
        allow_truncated: Read on where records were removed before they were read; the event `HistoryTruncated`
            tells of it. Else that is an error.
        max_pending, max_pending_bytes: What may wait here.
        name: What the ids of its subscriptions begin with; by default nobody can guess it.
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
        if max_pending < 1 or max_pending_bytes < 1:
            raise ConfigError("max_pending and max_pending_bytes must be 1 or more")
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
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
        )
        self._feeds = {"": self._feed}  # by the id of the subscription that it has
        self._arrived = Signal()
        self._timer = Timer(self._tick)
        self._closed = False

    # --- what it is ------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """After what was handed out: all that must be kept to go on later, in another process too."""
        return self._tracker.position

    @property
    def pending(self) -> int:
        """Records that wait here."""
        return self._tracker.pending

    @property
    def id(self) -> str | None:
        """The id of the subscription that pushes now; None: there is none."""
        return self._tracker.subscriptions.present

    @property
    def is_closed(self) -> bool:
        """Whether it was closed; what waits can still be taken."""
        return self._closed

    @property
    def tracker(self) -> Reader:
        """What it counts: ``rejected``, ``repeated`` and ``discarded`` pushes, and its timer."""
        return self._tracker

    def __repr__(self) -> str:
        return f"<LogReader of {self._log.stream}: {self._log.subject} at {self.position.seq}>"

    # --- reading ---------------------------------------------------------------------------------------------

    async def next(self, timeout: float | None = None) -> Record:
        """The next record.

        Raises:
            RequestTimeoutError: None came in ``timeout`` seconds. ClosedError: Nothing follows, it was closed.
            HistoryTruncatedError: Records were removed before they were read. PositionInvalidError: The stream was
                made anew. And what the server refuses for good.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            if records := self.take(1):
                return records[0]
            self._check_end()
            if not await self._arrived.wait_until(deadline) and not self._tracker.pending:
                raise RequestTimeoutError("the next record", timeout or 0.0)

    def take(self, limit: int) -> list[Record]:
        """Up to so many records that wait, in order, without waiting for any."""
        records, commands = self._tracker.take(limit)
        if commands:
            self._carry_out(commands)
        elif records:
            self._timer.set(self._tracker.deadline)
        return records

    async def batches(self, max_records: int = 500) -> AsyncIterator[list[Record]]:
        """Records as they come, up to so many at once, until it is closed or the log ends. Raises as `next`."""
        while True:
            if records := self.take(max_records):
                yield records
                continue
            try:
                self._check_end()
            except ClosedError:
                return
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
            raise ClosedError("the reader is closed, or its log has ended")

    # --- pushes on and off, and the end ----------------------------------------------------------------------

    def begin(self) -> None:
        """Start reading. Once."""
        self._log.open.add(self)
        self._carry_out(self._tracker.begin(self._now()))

    def set_push(self, push: Push) -> None:
        """From now on have pushes, or only ask when it is quiet. Nothing is lost or repeated by it.

        Raises:
            ConfigError: The log has no such feed, or of another kind than this reader can go on with.
        """
        if push is None:
            self._carry_out(self._tracker.set_push(self._now(), push=False))
            return
        feed = self._log.feed(self._log.best_feed() if push == "auto" else push)
        if feed.by_subject != self._tracker.missing.by_subject:
            raise ConfigError(f"a reader of {self._log.subject!r} cannot change its feed to {push!r}")
        commands = self._tracker.set_push(self._now(), push=False)
        self._feed, self._may_poll = feed, push == "auto"
        self._carry_out(commands + self._tracker.set_push(self._now(), push=True))

    async def close(self) -> None:
        """Nobody reads any more: what is held on the server is given back. Harmless when called again."""
        if self._closed:
            return
        self._closed = True
        self._log.open.discard(self)
        self._timer.cancel()
        id = self._tracker.subscriptions.present
        self._tracker.close()
        self._arrived.set()
        if id is not None:
            await self._close_feed(id)

    async def abandon(self) -> None:
        """As `close`; for the end of the connection."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- what the tracker wants done -------------------------------------------------------------------------

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case AskHistory():
                    self._log.tasks.start(self._read_history(command), "history")
                case Subscribe():
                    self._feeds[command.id] = self._feed
                    self._log.tasks.start(self._subscribe(command.id), "feed")
                case Cancel():
                    self._log.tasks.start(self._close_feed(command.id), "end of a feed")
                case Skipped():
                    self._log.emit(
                        HistoryTruncated(stream=self._log.stream, after=command.after, before=command.before)
                    )
        tracker = self._tracker
        self._timer.set(None if self._closed or tracker.deadline == float("inf") else tracker.deadline)
        if tracker.pending or tracker.ended or tracker.error is not None:
            self._arrived.set()

    def _tick(self) -> None:
        if not self._closed:
            self._carry_out(self._tracker.tick(self._now()))

    def _receive(self, id: str, records: list[Record]) -> None:
        self._carry_out(self._tracker.offer(id, records, self._now()))

    def _lost(self, id: str) -> None:
        self._carry_out(self._tracker.lost(id, self._now()))

    def _fail(self, error: JetStreamError) -> None:
        self._carry_out(self._tracker.fail(error))

    async def _subscribe(self, id: str) -> None:
        feed, tries = self._feeds[id], _Tries()
        while id == self._tracker.subscriptions.present:
            try:
                await self._log.wait_ready()
                await feed.open(id, partial(self._receive, id), partial(self._lost, id))
            except PermissionDeniedError as error:
                if not self._may_poll:
                    self._fail(error)
                else:  # it may only ask
                    self._carry_out(self._tracker.set_push(self._now(), push=False))
                    self._carry_out(self._tracker.tick(self._tracker.deadline))
                return
            except JetStreamError as error:
                if not tries.again(error, self._now()):
                    self._fail(error)
                    return
                await tries.pause()
                continue
            self._carry_out(self._tracker.subscribed(id, self._now()))
            return
        self._feeds.pop(id, None)

    async def _close_feed(self, id: str) -> None:
        feed = self._feeds.get(id)
        if feed is not None:
            await feed.close(id)

    async def _read_history(self, asked: AskHistory) -> None:
        tracker, log, tries = self._tracker, self._log, _Tries()
        while not tracker.ended and tracker.error is None:
            try:
                await log.wait_ready()
                page = await log.history(asked.since, asked.limit, asked.max_bytes)
                extent = await log.extent() if tracker.needs_extent(page.records) else None
            except JetStreamError as error:
                if not tries.again(error, self._now()):
                    self._fail(error)
                    return
                await tries.pause()
                continue
            commands = tracker.page(
                asked, page.records, self._now(), more=page.more, extent=extent, up_to=page.up_to
            )
            self._carry_out(commands)
            return


class _Tries:
    """Whether to try again, and when."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._gone_since: float | None = None

    def again(self, error: JetStreamError, now: float) -> bool:
        if isinstance(error, StreamNotFoundError):
            self._gone_since = now if self._gone_since is None else self._gone_since
            return now - self._gone_since < _GRACE
        self._gone_since = None
        return passes(error)

    async def pause(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
