"""Events with a history: `EventSource` publishes events, and its subscribers miss none of them.

Subscribers rely only on the history. Pushing an event is an optimization, so no event is missed if a push is lost,
repeated, late or not sent at all. A subscriber saves one `Position` and resumes from it, a week later or in another
process.

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

_LINKS_KEPT: Final = 10_000  # maximum number of subjects whose last sequence is cached
_LAGGING: Final = (
    0.05,
    1.0,
)  # shortest and longest pause in seconds before a lagging replica is asked again


class CurrentEvent(NamedTuple):
    """The latest event of a source, and the position after it. Returned by `EventSource.current`.

    ``event`` is None if no event is stored. Subscribe from ``position`` to receive all later events and no earlier one.
    """

    event: Record | None
    position: Position


class EventSource:
    """Publishes events on a subject, and lets subscribers read them without missing any. Created by `JetStream.events`.

    A subscriber saves the position after the last event that it has handled, and resumes from it a minute or a week
    later. Events published meanwhile are read from the history. For tests, an event source can do without a server::

        source = EventSource(MemoryLog("orders"))
        await source.publish(b"order 7 was paid")

    Args:
        log: The log of the events, or a coroutine function that returns it. The function is called on first use.
    """

    def __init__(self, log: Log | Callable[[], Awaitable[Log]]) -> None:
        self._log = log if isinstance(log, Log) else None
        self._find = log
        self._linking = asyncio.Lock()
        self._last_of: dict[str, int] = {}  # by subject, the sequence that the next linked event must follow

    def __repr__(self) -> str:
        log = self._log
        return "<EventSource>" if log is None else f"<EventSource of {log.stream}: {log.subject}>"

    async def log(self) -> Log:
        """Return the log of the events. The first call looks up the stream, and may raise any error of `Topic.log`."""
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
        """Publish an event, wait until it has been stored, and return the position after it.

        If the call is cancelled, the event may or may not be stored. Pass a ``msg_id`` if you want to repeat the call
        without storing the event twice.

        Args:
            data: The payload of the event.
            subject: The subject of the event. Required if the source's subject contains wildcards, and otherwise
                defaults to that subject.
            headers: The headers of the event. Defaults to none.
            expected: Store the event only if this is the stream sequence of the latest event of its subject. Pass 0 if
                the subject must not have an event yet. By default, the event is stored unconditionally.
            linked: If true, store the event only if no other producer has published to its subject since this source
                last did. The first linked event may follow any stored event. Linked events are sent one at a time.
            msg_id: An id for deduplication. If an event with this id was stored within the duplicate window of the
                stream, nothing is stored, and the position after that event is returned.

        Raises:
            WrongLastSequenceError: Another event was published meanwhile, so this one wasn't stored. The next linked
                event may follow any stored event again.
            ConfigError: Both ``expected`` and ``linked`` were given, or the source doesn't cover the subject.
            RequestTimeoutError: The server didn't answer in time. The event may or may not be stored.

        May also raise any other error that publishing can raise.
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
            # Remove the entry before publishing. If publishing fails, the event may or may not have been stored, and
            # the next call must look up the last event.
            last = self._last_of.pop(subject, None)
            if last is None:
                newest = await log.last(subject)
                last = 0 if newest is None else newest.seq
            # With an id, the event can safely be sent again if the answer is lost.
            msg_id = secrets.token_hex(11) if msg_id is None else msg_id
            at = await log.append(data, subject=subject, headers=headers, expected=last, msg_id=msg_id)
            self._last_of[subject] = at.seq
            if len(self._last_of) > _LINKS_KEPT:
                self._last_of.pop(next(iter(self._last_of)))
            return at

    async def current(self) -> CurrentEvent:
        """Return the latest event and the position after it.

        Use it to show the current state, and then subscribe from the position to receive the changes that follow::

            event, position = await source.current()
            show(event)
            async with source.subscribe(position) as subscription: ...

        May raise any request error.
        """
        log = await self.log()
        # Request the extent before the event. If another event is stored between the two requests, it comes after the
        # position, so a subscription that starts at the position doesn't miss it.
        extent = await log.extent()
        event = await log.last()
        return CurrentEvent(event, extent.end if event is None else extent.end.at(event.seq, event.time_ns))

    def history(
        self,
        start: Start = "first",
        *,
        limit: int | None = None,
        allow_truncated: bool = False,
    ) -> EventHistory:
        """Read the stored events in order, beginning at ``start``, without waiting for new events.

        Iterate over the result, or ``await`` it to get a list::

            async for event in source.history(limit=100):
                print(event.seq, event.data)

        Args:
            start: Where to start, with the same values as in `subscribe`. By default, all stored events are read.
            limit: Maximum number of events to read. By default, there is no limit.
            allow_truncated: What to do if events at or after ``start`` have been removed. If true, begin with the
                oldest event left. By default, raise `HistoryTruncatedError`.

        Raises:
            ConfigError: ``limit`` isn't a positive integer.
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
        """Subscribe to events: receive the stored events after ``start``, then new events as they are published.

        Open the subscription with ``async with``, or ``await`` the call and close the subscription yourself::

            async with source.subscribe(saved_position) as subscription:
                async for event in subscription:
                    await handle(event)
                    save(subscription.position.to_json())

        If the call is cancelled, no subscription stays open.

        Args:
            start: ``"first"`` starts with the first stored event, and ``"now"`` with the next event to be published. A
                `Position`, its JSON token, or a timezone-aware ``datetime`` selects only later events.
            id: A prefix for the ids of subscriptions, as shown in logs. By default, it is random.
            callback: A function to call with each event, one event at a time. A coroutine function runs on the event
                loop, and a plain function runs in a thread. If it raises an exception, the event `HandlerFailed`
                reports it, and the callback is called with the next event. By default, you read the events yourself.
            push: How the server pushes new events. ``"auto"`` chooses the way that costs the server the least, and does
                without pushes if they are refused. ``"republish"`` needs no consumer on the server. ``"consumer"``
                creates a consumer for this subscription. With None, events aren't pushed, and the history is read at
                intervals.
            quiet: If no event arrives for this many seconds, check the history for events whose push was lost. A
                `QuietTimer` adapts this time.
            catch_up: When to read events that are known to be missing. ``"at once"`` reads them immediately, and
                ``"timer"`` waits until the ``quiet`` time is over.
            allow_truncated: If true, skip events that were removed before they were read, and report them with the
                event `HistoryTruncated`. By default, `HistoryTruncatedError` is raised.
            max_pending: Maximum number of events in the local queue. Events that don't fit are read from the history
                later.
            max_pending_bytes: Maximum size of the events in the local queue, in bytes.
            heartbeat: Interval between heartbeats of the server, in seconds. If three in a row are missing, the event
                `HeartbeatMissed` is reported.

        Raises:
            PositionInvalidError: ``start`` is after the end of the stream, or in a stream that no longer exists.
            HistoryTruncatedError: ``start`` is a time, and events after it were removed.
            ConfigError: An argument is invalid, or the stream can't push in this way.

        May also raise any request error.
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
            # Make the id unique, because the consumer of a process that has crashed may still exist under the same id.
            name=None if id is None else f"{id}-{secrets.token_hex(4)}",
        )
        return EventSubscription(log, reader, callback)


class EventHistory:
    """The stored events of a source after a given start. Returned by `EventSource.history`.

    ``async for`` reads the events page by page, and ``await`` returns them as a list. Each iteration reads them again
    from the start, up to the last event that was stored when the iteration began. If servers restart, reading waits
    until they are back.

    Raises:
        HistoryTruncatedError: Events were removed before they were read. Its ``first_available`` is the sequence of the
            first event that is still stored.
        PositionInvalidError: The start is after the end of the stream, or in a stream that no longer exists.

    Reading may also raise any request error.
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
        """The position after the last event returned, from which you can subscribe. None if no iteration has begun."""
        return None if self._reader is None else self._reader.position

    async def batches(self, max_events: int = 500) -> AsyncIterator[list[Record]]:
        """Yield lists of events. This is faster than reading one event at a time.

        Args:
            max_events: Maximum number of events in a list.
        """
        log, allow, remaining = await self._source.log(), self._allow_truncated, self._limit
        start = await start_position(log, self._start, allow_truncated=allow)
        # Determine the end before reading, so that the iteration ends even if events keep arriving.
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

_TURN: Final = 64  # number of calls of a callback after which other tasks get a chance to run


class EventSubscription(ReadHandle[Record]):
    """Receives every event after a position exactly once and in order. Opened by `EventSource.subscribe`.

    Read events with ``async for``, `next` or `batches`, or pass a callback when you open the subscription.

    The subscription survives reconnects and restarts of servers. If a push is lost, repeated or reordered, the
    subscription reads the missing events from the history of the stream.
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
        """The position after the last event returned. Save it to resume later with `EventSource.subscribe`.

        With a callback, it is the position after the last event that the callback was called with.
        """
        return self._reader.position

    @property
    def is_closed(self) -> bool:
        """Whether the subscription was closed. Events that have already arrived can still be read."""
        return self._reader.is_closed

    @property
    def id(self) -> str | None:
        """The id of the current subscription to pushes, or None if events aren't pushed at the moment.

        It changes whenever the subscription is renewed, for example after a reconnect.
        """
        return self._reader.id

    @property
    def pending(self) -> int:
        """The number of events that have arrived but haven't been read yet."""
        return self._reader.pending

    @property
    def rejected(self) -> int:
        """How many pushes were ignored since the opening, because they were for an earlier id. No event is lost."""
        return self._reader.tracker.rejected

    def __repr__(self) -> str:
        return f"<EventSubscription {self.id or '(polls)'} of {self._log.stream} at {self.position.seq}>"

    async def next(self, timeout: float | None = None) -> Record:
        """Wait for the next event and return it.

        The call is safe to cancel, because the next call returns the event.

        Args:
            timeout: How long to wait, in seconds. By default, wait indefinitely.

        Raises:
            RequestTimeoutError: No event arrived within ``timeout`` seconds. The subscription can still be used.
            ClosedError: The subscription was closed, or the topic has ended.
            HistoryTruncatedError: Events were removed before they were read.
            PositionInvalidError: The stream was deleted and created again.
            ConfigError: The subscription has a callback, so it passes all events to the callback.

        A subscription waits while the server is unavailable. It raises a request error only if retrying can't help, for
        example `PermissionDeniedError`.
        """
        return await self._readable().next(timeout)

    def batches(self, max_events: int = 500) -> AsyncIterator[list[Record]]:
        """Yield lists of events as they arrive.

        Each step waits for at least one event, and then returns all that have arrived, up to ``max_events``. The
        iteration ends when the subscription is closed or the topic ends. It raises the same errors as `next`, except
        `ClosedError`.

        Args:
            max_events: Maximum number of events in a list.
        """
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
        """Change how the server pushes events, without losing or repeating any.

        Args:
            push: ``"auto"``, ``"republish"`` or ``"consumer"``, as in `EventSource.subscribe`. With None, the server
                stops pushing events, and the history is read at intervals.

        Raises:
            ConfigError: The stream can't push in this way.
        """
        self._reader.set_push(push)

    async def close(self) -> None:
        """Close the subscription, and delete its consumer if it has one. Calling this method again does nothing.

        A callback that is running isn't interrupted, but it isn't called again. Events that have already arrived can
        still be read, and you can use ``position`` to resume later.
        """
        await self._reader.close()

    async def wait(self) -> None:
        """Wait until a subscription with a callback ends, because it was closed or has failed.

        Raises:
            HistoryTruncatedError: Events were removed before they were read.
            PositionInvalidError: The stream was deleted and created again.
            ConfigError: The subscription has no callback, so there is nothing to wait for.

        May also raise a request error that retrying can't fix, for example `PermissionDeniedError`. Even if nobody
        waits, the event `ErrorRaised` reports the error.
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
                # Reading an event that has already arrived doesn't suspend this task. If the callback doesn't wait
                # either, other tasks would starve until no event is left, so let them run now and then.
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
