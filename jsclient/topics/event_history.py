"""Events with a history: `EventSource` publishes events, and its subscribers miss none.

The history decides. Pushing an event is only an optimization: if a push is lost, repeated, late or not sent at all, no
data is lost. A subscriber saves one `Position` and resumes from it, a week later or in another process.

Source: P3Sub (seed 003), https://reb00ted.org/tech/20221024-pupupubsub/
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from .._runtime.handle import ReadHandle, opening
from .._runtime.handlers import Threads, check_handler, is_coroutine_function
from ..errors import ConfigError, JetStreamError
from ..protocol.events import HandlerFailed
from ..protocol.topics.position import Position
from ..protocol.topics.quiet_timer import QuietTimer
from ..protocol.topics.record import Record
from ..protocol.wire.checks import check_count
from ..protocol.wire.names import check_consumer_name
from .log import HEARTBEAT, Log, Push, Start
from .log_reader import LogReader, open_reader, start_position

__all__ = ["CurrentEvent", "EventCallback", "EventHistory", "EventSource", "EventSubscription"]

_LINKS_KEPT: Final = 10_000  # the number of subjects whose last sequence is kept
_LAGGING: Final = (0.05, 1.0)  # seconds between requests to a replica that lags


class CurrentEvent(NamedTuple):
    """The newest event and its position. A subscription that starts at the position misses no later event.

    ``event`` is None before the first event.
    """

    event: Record | None
    position: Position


class EventSource:
    """Publishes events, reads their history, and opens subscriptions.

    Created by `JetStream.events`, or from a log such as `MemoryLog`.

    Args:
        log: The log of the events, or a function that finds it on first use.
    """

    def __init__(self, log: Log | Callable[[], Awaitable[Log]]) -> None:
        self._log = log if isinstance(log, Log) else None
        self._find = log
        self._linking = asyncio.Lock()
        self._last_of: dict[str, int] = {}  # by subject: the last sequence, which the next event follows

    def __repr__(self) -> str:
        log = self._log
        return "<EventSource>" if log is None else f"<EventSource of {log.stream}: {log.subject}>"

    async def log(self) -> Log:
        """Return the log of the events. Raises the errors of finding it."""
        if self._log is None:
            assert not isinstance(self._find, Log)
            self._log = await self._find()
        return self._log

    async def publish(
        self,
        data: bytes,
        *,
        subject: str | None = None,
        headers: Mapping[str, str] | None = None,
        expected: int | None = None,
        linked: bool = False,
        msg_id: str | None = None,
    ) -> Position:
        """Publish an event, wait until it is stored, and return its position.

        Args:
            data: The payload of the event.
            subject: By default the subject of the source, which must have no wildcards then.
            headers: The headers of the event.
            expected: Store the event only if this is the sequence of the last event of its subject, 0 for none.
            linked: Link the event to the last event that this source knows: the event that it published last, or the
                last stored event at first. The publish fails if another producer has published since. Linked events are
                sent one by one.
            msg_id: An event with this id is stored once within the stream's duplicate window.

        Raises:
            WrongLastSequenceError: Another producer has published meanwhile. The next linked event follows the event
                that is last then.
            ConfigError: Both ``expected`` and ``linked`` are given, or the source does not have the subject.
            RequestTimeoutError: It is unknown whether the event was stored. Also any other error of a publish.
        """
        log = await self.log()
        subject = log.own_subject(subject)
        if not linked:
            at = await log.append(data, subject=subject, headers=headers, expected=expected, msg_id=msg_id)
            if at.seq > self._last_of.get(subject, at.seq):
                self._last_of[subject] = at.seq
            return at
        if expected is not None:
            raise ConfigError(
                "expected and linked are both given: linked sets the expected sequence; give one of them"
            )
        async with self._linking:
            # The entry is removed first, because after a failure it is unknown whether the event was stored.
            last = self._last_of.pop(subject, None)
            if last is None:
                newest = await log.last(subject)
                last = 0 if newest is None else newest.seq
            # An event with an id can be sent again if the answer is lost.
            msg_id = secrets.token_hex(11) if msg_id is None else msg_id
            at = await log.append(data, subject=subject, headers=headers, expected=last, msg_id=msg_id)
            self._last_of[subject] = at.seq
            if len(self._last_of) > _LINKS_KEPT:
                self._last_of.pop(next(iter(self._last_of)))
            return at

    async def current(self) -> CurrentEvent:
        """Return the newest event and its position. Raises the errors of any request."""
        log = await self.log()
        extent = await log.extent()  # requested first, so that events stored in between are after it
        event = await log.last()
        return CurrentEvent(event, extent.end if event is None else extent.end.at(event.seq, event.time_ns))

    def history(
        self,
        start: Start = "first",
        *,
        limit: int | None = None,
        allow_truncated: bool = False,
    ) -> EventHistory:
        """Read the stored events after a start, in order, up to now.

        Args:
            start: See `subscribe`.
            limit: The largest number of events.
            allow_truncated: Accept that events after the start were removed.
        """
        if limit is not None:
            check_count("limit", limit)
        return EventHistory(self, start, limit, allow_truncated=allow_truncated)

    @opening
    async def subscribe(
        self,
        start: Start = "now",
        *,
        id: str | None = None,
        callback: EventCallback | None = None,
        push: Push = "auto",
        quiet: float | QuietTimer = 30.0,
        catch_up: Literal["at once", "timer"] = "at once",
        allow_truncated: bool = False,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
        heartbeat: float = HEARTBEAT,
    ) -> EventSubscription:
        """Read the stored events after a start, and then new ones.

        ``await`` it, or use it with ``async with``.

        Args:
            start: ``"first"`` or ``"now"``. A `Position`, its JSON token, or an aware ``datetime`` reads the events
                strictly after it.
            id: Prefix of the subscription ids, random by default.
            callback: A function that is called with each event in turn. A coroutine function runs on the event loop, a
                plain function in a thread. If it raises, the event `HandlerFailed` reports the error, and the callback
                is called with the next event.
            push: ``"auto"`` selects the cheapest way, or none if pushes are refused. ``"republish"`` needs no consumer
                on the server, ``"consumer"`` a consumer for this subscription. With None there are no pushes.
            quiet: Seconds without an event after which the history is read, or an adaptive `QuietTimer`.
            catch_up: Whether a gap is read from the history at once, or at the next timer as in P3Sub.
            allow_truncated: Skip events that were removed before they were read, and report them with the event
                `HistoryTruncated`. Otherwise that is an error.
            max_pending, max_pending_bytes: Capacity of the local queue. Further events are read from the history later.
            heartbeat: Seconds between signs of life. After three of them without a sign from the server, the event
                `HeartbeatMissed` is reported.

        Raises:
            PositionInvalidError: The start is in another stream or incarnation, or after the end.
            HistoryTruncatedError: Events after that time were removed.
            ConfigError: An argument is invalid, or the stream cannot push in this way. Also any request error.

        Cancelling the call leaves no subscription open.
        """
        if callback is not None:
            check_handler("callback", callback, "event")
        if id is not None:
            check_consumer_name(id)
        log = await self.log()
        reader = await open_reader(
            log,
            start,
            push=push,
            quiet=quiet,
            catch_up=catch_up,
            allow_truncated=allow_truncated,
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
            heartbeat=heartbeat,
            # The id alone is not unique, because the subscription of a dead process may still exist.
            name=None if id is None else f"{id}-{secrets.token_hex(4)}",
        )
        return EventSubscription(log, reader, callback)


class EventHistory:
    """The stored events after a start. ``async for`` reads page by page, and ``await`` returns a list.

    The iteration ends with the events that were stored when it began, or shortly after. Each iteration starts from the
    beginning. Created by `EventSource.history`.

    Reading waits for restarts of servers. It raises `HistoryTruncatedError` if events were removed before they were
    read (``first_available`` is the first sequence that is still stored), `PositionInvalidError` if the start is in
    another stream or incarnation or after the end, and the errors of any request.
    """

    def __init__(
        self, source: EventSource, start: Start, limit: int | None, *, allow_truncated: bool = False
    ) -> None:
        self._source = source
        self._start = start
        self._limit = limit
        self._allow_truncated = allow_truncated
        self._reader: LogReader | None = None

    @property
    def position(self) -> Position | None:
        """The position after the last event returned. None before the iteration has begun."""
        return None if self._reader is None else self._reader.position

    async def batches(self, max_events: int = 500) -> AsyncIterator[list[Record]]:
        """Yield lists of up to ``max_events`` events."""
        log, allow, remaining = await self._source.log(), self._allow_truncated, self._limit
        start = await start_position(log, self._start, allow_truncated=allow)
        # The end is fixed now, so that the iteration ends even if events keep arriving.
        newest = await log.last()
        end = (await log.extent()).last_seq if newest is None else newest.seq
        capacity = 10_000 if remaining is None else min(remaining, 10_000)
        async with LogReader(
            log, start, push=None, quiet=QuietTimer(*_LAGGING), allow_truncated=allow, max_pending=capacity
        ) as reader:
            self._reader = reader
            reader.begin()
            while remaining is None or remaining > 0:
                count = max_events if remaining is None else min(max_events, remaining)
                if not (events := await reader.next_batch(count, up_to=end)):
                    return
                remaining = None if remaining is None else remaining - len(events)
                yield events

    async def __aiter__(self) -> AsyncIterator[Record]:
        async for events in self.batches(1):
            yield events[0]

    def __await__(self) -> Generator[Any, None, list[Record]]:
        return self._all().__await__()

    async def _all(self) -> list[Record]:
        return [event async for events in self.batches() for event in events]


EventCallback: TypeAlias = Callable[[Record], Awaitable[None] | None]

_TURN: Final = 64  # events passed to a callback before other tasks run


class EventSubscription(ReadHandle[Record]):
    """Reads each event after a position, in order, once: with `next`, ``async for``, `batches`, or a callback.

    Pushes may be lost, repeated and reordered, servers may restart, and connections may be lost. Missing events are
    then read from the history. Created by `EventSource.subscribe`.
    """

    def __init__(self, log: Log, reader: LogReader, callback: EventCallback | None) -> None:
        self._log = log
        self._reader = reader
        self._callback = callback
        self._runner: asyncio.Task[None] | None = None
        if callback is not None:
            self._runner = log.tasks.start(self._run_callback(callback), f"callback of {log.stream}")

    @property
    def position(self) -> Position:
        """The position after the last event returned: the only state that a subscriber needs to save."""
        return self._reader.position

    @property
    def is_closed(self) -> bool:
        """Whether the subscription was closed. Events in the queue can still be read."""
        return self._reader.is_closed

    @property
    def id(self) -> str | None:
        """The id of the current subscription, which changes with each subscription. None without pushes."""
        return self._reader.id

    @property
    def pending(self) -> int:
        """The number of events in the local queue."""
        return self._reader.pending

    @property
    def rejected(self) -> int:
        """The number of pushes received so far under an old id."""
        return self._reader.tracker.rejected

    def __repr__(self) -> str:
        return f"<EventSubscription {self.id or '(polls)'} of {self._log.stream} at {self.position.seq}>"

    async def next(self, timeout: float | None = None) -> Record:
        """Return the next event. Cancelling the call loses no event.

        Raises:
            RequestTimeoutError: No event arrived in ``timeout`` seconds. ClosedError: The subscription was closed, or
                the topic has ended. HistoryTruncatedError: Events were removed before they were read.
            PositionInvalidError: The stream was recreated. Also permanent errors of the server.
        """
        return await self._readable().next(timeout)

    def batches(self, max_events: int = 500) -> AsyncIterator[list[Record]]:
        """Yield lists of events as they arrive. Raises the errors of `next`."""
        return self._readable().batches(max_events)

    def __aiter__(self) -> Self:
        self._readable()
        return self

    def _readable(self) -> LogReader:
        if self._callback is not None:
            raise ConfigError(
                "the subscription has a callback, which receives its events: subscribe without one to read"
            )
        return self._reader

    async def set_push(self, push: Push) -> None:
        """Change how events are pushed. None ends the pushes. No event is lost or repeated.

        Raises:
            ConfigError: The stream cannot push in this way. See `EventSource.subscribe`.
        """
        self._reader.set_push(push)

    async def close(self) -> None:
        """Stop reading and release the resources on the server. Calling it again does nothing.

        A running callback is not interrupted, and is not called again. ``position`` is kept.
        """
        await self._reader.close()

    async def wait(self) -> None:
        """Wait until the callback is not called any more.

        Raises:
            HistoryTruncatedError, PositionInvalidError: See `next`. Also permanent errors of the server.
            ConfigError: The subscription has no callback.
        """
        if self._runner is None:
            raise ConfigError("the subscription has no callback to wait for: read it to its end")
        if self._runner is not asyncio.current_task():
            await asyncio.wait({self._runner})
        if (error := self._reader.tracker.error) is not None:
            raise error

    async def _run_callback(self, callback: EventCallback) -> None:
        reader, count = self._reader, 0
        threads = None if is_coroutine_function(callback) else Threads(1)
        try:
            async for event in reader:
                if reader.is_closed:
                    return
                await self._call(callback, event, threads)
                count += 1
                # Reading from a full queue does not suspend this task, so let other tasks run.
                if not count % _TURN:
                    await asyncio.sleep(0)
        except JetStreamError as error:
            self._log.report(error)
        finally:
            if threads is not None:
                threads.close()

    async def _call(self, callback: EventCallback, event: Record, threads: Threads | None) -> None:
        try:
            if threads is None:
                await callback(event)  # type: ignore[misc]  # its function is a coroutine function
            else:
                await threads.call(callback, event)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            self._report_handler(event, asyncio.CancelledError("the callback was cancelled"))
        except Exception as error:  # noqa: BLE001  a user's callback may raise anything
            self._report_handler(event, error)

    def _report_handler(self, event: Record, error: BaseException) -> None:
        stream, consumer = self._log.stream, self.id or ""
        self._log.emit(
            HandlerFailed(
                stream=stream, consumer=consumer, error=error, subject=event.subject, stream_seq=event.seq
            )
        )
