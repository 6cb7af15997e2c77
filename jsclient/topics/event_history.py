"""Events with a history: `EventSource` publishes events, and its subscribers miss none.

The history decides. Pushing an event is only an optimization: if a push is lost, repeated, late or not sent at all, no
data is lost. A subscriber saves one `Position` and resumes from it, a week later or in another process.

Source: P3Sub (seed 003), https://reb00ted.org/tech/20221024-pupupubsub/
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from typing import Any, Final, Literal, NamedTuple

from .._runtime.awaitable import opening
from ..errors import ConfigError
from ..protocol.topics.idle_timer import QuietTimer
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
from ..protocol.wire.checks import check_count
from ..protocol.wire.names import check_consumer_name
from .event_subscription import EventCallback, EventSubscription
from .log import Log
from .log_reader import LogReader, Push, open_reader
from .start import Start, start_position

__all__ = ["CurrentEvent", "EventHistory", "EventSource"]

_NOT_GIVEN: Final[Any] = object()
_LINKS_KEPT: Final = 10_000  # subjects whose last sequence is kept
_LAGGING: Final = (0.05, 1.0)  # seconds between requests to a replica that lags


class CurrentEvent(NamedTuple):
    """The newest event and its position: a subscription that starts ``at`` misses none.

    ``event``: None before the first event.
    """

    event: Record | None
    at: Position


class EventSource:
    """Publishes events, reads their history, and opens subscriptions.

    Created by `JetStream.events`, or from a log such as `MemoryLog`.

    Args:
        log: The log of the events, or a function that finds it on first use.
    """

    def __init__(self, log: Log | Callable[[], Awaitable[Log]]) -> None:
        self._found = log if isinstance(log, Log) else None
        self._find = log
        self._linking = asyncio.Lock()
        self._last_of: dict[str, int] = {}  # by subject: the predecessor of the next event

    def __repr__(self) -> str:
        log = self._found
        return "<EventSource>" if log is None else f"<EventSource of {log.stream}: {log.subject}>"

    async def log(self) -> Log:
        """The log of the events. Raises what finding it raises."""
        if self._found is None:
            assert not isinstance(self._find, Log)
            self._found = await self._find()
        return self._found

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
            data: Its payload.
            subject: By default the subject of the source, which must have no wildcards then.
            headers: Its headers.
            expected: Store only if this is the sequence of the last event of its subject, 0 for none.
            linked: Link it to the last event known to this source: the one it published last, or the stored one at
                first. The publish fails if another producer has published since. Linked events are sent one by one.
            msg_id: Stored once within the stream's duplicate window.

        Raises:
            WrongLastSequenceError: Another producer has published meanwhile. The next event with ``linked`` follows
                the event stored then.
            ConfigError: Both ``expected`` and ``linked``; or the subject is not one of the source's.
            RequestTimeoutError: It is unknown whether the event was stored. And others of any publish.
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
            # Removed first: after a failure it is unknown whether the event was stored.
            last = self._last_of.pop(subject, None)
            if last is None:
                newest = await log.last(subject)
                last = 0 if newest is None else newest.seq
            # With an id it can be sent again if the answer is lost.
            msg_id = secrets.token_hex(11) if msg_id is None else msg_id
            at = await log.append(data, subject=subject, headers=headers, expected=last, msg_id=msg_id)
            self._last_of[subject] = at.seq
            if len(self._last_of) > _LINKS_KEPT:
                self._last_of.pop(next(iter(self._last_of)))
            return at

    async def current(self) -> CurrentEvent:
        """The newest event and its position. Raises those of any request."""
        log = await self.log()
        extent = await log.extent()  # first, so that events stored in between are after it
        event = await log.last()
        return CurrentEvent(event, extent.end if event is None else extent.end.at(event.seq, event.time_ns))

    def history(
        self,
        start: Start = "first",
        *,
        since: Start = _NOT_GIVEN,
        limit: int | None = None,
        allow_truncated: bool = False,
    ) -> EventHistory:
        """The stored events after a start, in order, up to now.

        Args:
            start: As for `subscribe`. ``since`` is an alias.
            limit: The largest number of events.
            allow_truncated: Accept that events after the start were removed.
        """
        if limit is not None:
            check_count("limit", limit)
        return EventHistory(
            self, start if since is _NOT_GIVEN else since, limit, allow_truncated=allow_truncated
        )

    @opening
    async def subscribe(
        self,
        start: Start = "now",
        *,
        since: Start = _NOT_GIVEN,
        id: str | None = None,
        callback: EventCallback | None = None,
        push: Push = "auto",
        quiet: float | QuietTimer = 30.0,
        catch_up: Literal["at once", "timer"] = "at once",
        allow_truncated: bool = False,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
    ) -> EventSubscription:
        """Read the stored events after a start, and then new ones.

        ``await`` it, or use it with ``async with``.

        Args:
            start: "first", "now", a `Position` or its JSON token, or an aware ``datetime``: events strictly after it.
                ``since`` is an alias.
            id: Prefix of the subscription ids; random by default.
            callback: A function or coroutine function, called with one event after the other. If it raises, the event
                `HandlerFailed` reports the error, and the callback is called with the next event.
            push: "auto": the cheapest way, or none if pushes are refused. "republish": no consumer on the server.
                "consumer": a consumer for this subscription. None: no pushes.
            quiet: Seconds without an event after which the history is read, or an adaptive `QuietTimer`.
            catch_up: Whether a gap is read from the history at once, or at the next timer as in P3Sub.
            allow_truncated: Skip events that were removed before they were read, and report them with the event
                `HistoryTruncated`. Otherwise that is an error.
            max_pending, max_pending_bytes: Capacity of the local queue; the rest is read from the history later.

        Raises:
            PositionInvalidError: The start is in another stream or incarnation, or after the end.
            HistoryTruncatedError: Events after that time were removed.
            ConfigError: An argument is invalid, or the stream cannot push in this way. And those of any request.

        Cancelled: nothing is left open.
        """
        if callback is not None and not callable(callback):
            raise ConfigError(f"callback is {type(callback).__name__}: a function is needed")
        if id is not None:
            check_consumer_name(id)
        log = await self.log()
        reader = await open_reader(
            log,
            start if since is _NOT_GIVEN else since,
            push=push,
            quiet=quiet,
            catch_up=catch_up,
            allow_truncated=allow_truncated,
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
            # Not the id alone: the subscription of a dead process may still exist.
            name=None if id is None else f"{id}-{secrets.token_hex(4)}",
        )
        return EventSubscription(log, reader, callback)


class EventHistory:
    """The stored events after a start. ``async for`` reads page by page; ``await`` returns a list.

    It ends with the events stored when the iteration began, or a little later. Each iteration starts again. Created by
    `EventSource.history`.

    Raises, when read:
        HistoryTruncatedError: Events were removed before they were read; ``first_available`` is the first one left.
        PositionInvalidError: The start is in another stream or incarnation, or after the end.
        And those of any request. Restarts of servers are waited for.
    """

    def __init__(
        self, source: EventSource, since: Start, limit: int | None, *, allow_truncated: bool = False
    ) -> None:
        self._source = source
        self._since = since
        self._limit = limit
        self._allow_truncated = allow_truncated
        self._reader: LogReader | None = None

    @property
    def position(self) -> Position | None:
        """The position after the last event returned. None: the iteration has not begun."""
        return None if self._reader is None else self._reader.position

    async def batches(self, max_events: int = 500) -> AsyncIterator[list[Record]]:
        """Lists of up to ``max_events`` events."""
        log, allow, left = await self._source.log(), self._allow_truncated, self._limit
        start = await start_position(log, self._since, allow_truncated=allow)
        newest = await log.last()
        end = (await log.extent()).last_seq if newest is None else newest.seq
        room = 10_000 if left is None else min(left, 10_000)
        async with LogReader(
            log, start, push=None, quiet=QuietTimer(*_LAGGING), allow_truncated=allow, max_pending=room
        ) as reader:
            self._reader = reader
            reader.begin()
            while left is None or left > 0:
                wanted = max_events if left is None else min(max_events, left)
                if not (events := await reader.next_batch(wanted, up_to=end)):
                    return
                left = None if left is None else left - len(events)
                yield events

    async def __aiter__(self) -> AsyncIterator[Record]:
        async for events in self.batches(1):
            yield events[0]

    def __await__(self) -> Generator[Any, None, list[Record]]:
        return self._all().__await__()

    async def _all(self) -> list[Record]:
        return [event async for events in self.batches() for event in events]
