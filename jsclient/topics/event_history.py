"""Events with a history: `EventSource`, to which one subscribes without missing anything, pushed or not.

The history is what counts. Pushing an event is a performance optimisation: one that is lost, repeated, late or not sent
at all is no lost data. A subscriber keeps one `Position` and goes on from there, a week later and elsewhere too.

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
from ..protocol.wire.names import check_consumer_name
from .event_subscription import EventCallback, EventSubscription
from .log import Log
from .log_reader import LogReader, Push, open_reader
from .start import Start, check_count, start_position

__all__ = ["CurrentEvent", "EventHistory", "EventSource"]

_LINKS_KEPT: Final = 10_000  # subjects whose last event is remembered
_LAGGING: Final = (0.05, 1.0)  # seconds between two looks at a replica that lags


class CurrentEvent(NamedTuple):
    """A resource, and its stamp: subscribe ``since=at``, and nothing in between is missed.

    ``event`` is the newest one; None: there is none yet.
    """

    event: Record | None
    at: Position


class EventSource:
    """Publishes events, has their history, and hands out subscriptions.

    Made by `JetStream.events`; or on a log of your own, such as a `MemoryLog` in this process.

    Args:
        log: Where the events are; or how to find it, which is done at the first use.
    """

    def __init__(self, log: Log | Callable[[], Awaitable[Log]]) -> None:
        self._found = log if isinstance(log, Log) else None
        self._find = log
        self._linking = asyncio.Lock()
        self._last_of: dict[str, int] = {}  # by subject: the event that the next one is to follow

    def __repr__(self) -> str:
        log = self._found
        return "<EventSource>" if log is None else f"<EventSource of {log.stream}: {log.subject}>"

    async def log(self) -> Log:
        """The log that it stands on. Raises what finding it raises."""
        if self._found is None:
            assert not isinstance(self._find, Log)
            self._found = await self._find()
        return self._found

    # --- publishing ------------------------------------------------------------------------------------------

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
        """Publish an event, and wait until it is stored; where that is.

        Args:
            data: Its payload.
            subject: By default that of the source, which must then have no wildcards.
            headers: Its headers.
            expected: Refuse it unless this is the sequence of the last event of its subject, 0 for none.
            linked: It follows the last event that this source knows: the one it published last, or what was there at
                first. A producer that is not the only one is told. One event at a time is under way.
            msg_id: Stored once, however often this is called within the stream's duplicate window.

        Raises:
            WrongLastSequenceError: Another producer has published meanwhile. The next one with ``linked`` follows what
                is there then.
            ConfigError: Both ``expected`` and ``linked``; or the subject is none of the source's.
            RequestTimeoutError: Whether it was stored is not known. And others of any publish.
        """
        log = await self.log()
        subject = log.own_subject(subject)
        if not linked:
            at = await log.append(data, subject=subject, headers=headers, expected=expected, msg_id=msg_id)
            if at.seq > self._last_of.get(subject, at.seq):
                self._last_of[subject] = at.seq
            return at
        if expected is not None:
            raise ConfigError("expected and linked are given: linked knows what is expected")
        async with self._linking:
            # Of the memory of one that failed nothing is left: it may have been stored.
            last = self._last_of.pop(subject, None)
            if last is None:
                newest = await log.last(subject)
                last = 0 if newest is None else newest.seq
            # With an id it can be sent again when the answer is lost.
            msg_id = secrets.token_hex(11) if msg_id is None else msg_id
            at = await log.append(data, subject=subject, headers=headers, expected=last, msg_id=msg_id)
            self._last_of[subject] = at.seq
            if len(self._last_of) > _LINKS_KEPT:
                self._last_of.pop(next(iter(self._last_of)))
            return at

    # --- reading ---------------------------------------------------------------------------------------------

    async def current(self) -> CurrentEvent:
        """The newest event and its position. Raises those of any request."""
        log = await self.log()
        extent = await log.extent()  # first: what comes in between is behind it
        event = await log.last()
        return CurrentEvent(event, extent.end if event is None else extent.end.at(event.seq, event.time_ns))

    def history(
        self, since: Start = "first", *, limit: int | None = None, allow_truncated: bool = False
    ) -> EventHistory:
        """The events strictly after a position or a time, in order, up to now.

        Args:
            since: After there.
            limit: At most so many.
            allow_truncated: Take what is there though events were removed.
        """
        if limit is not None:
            check_count("limit", limit)
        return EventHistory(self, since, limit, allow_truncated=allow_truncated)

    @opening
    async def subscribe(
        self,
        since: Start = "now",
        *,
        id: str | None = None,
        callback: EventCallback | None = None,
        push: Push = "auto",
        quiet: float | QuietTimer = 30.0,
        catch_up: Literal["at once", "timer"] = "at once",
        allow_truncated: bool = False,
        max_pending: int = 10_000,
        max_pending_bytes: int = 64 * 1024 * 1024,
    ) -> EventSubscription:
        """Subscribe to what is strictly after a position or a time: first what there is, and then what comes.

        ``await`` it, or use it with ``async with``.

        Args:
            since: After there; "first", "now", a `Position` or an aware ``datetime``.
            id: What the ids of its subscriptions begin with; by default nobody can guess it.
            callback: Is called with each event, one after the other; a function or a coroutine function. Where it
                raises, the event `HandlerFailed` tells of it, and the next one comes.
            push: "auto": as the stream does it best, and without pushes where they are refused. "republish": no
                consumer is made on the server; "consumer": one that goes with the subscription. None: none, it asks.
            quiet: Seconds without an event after which the history is asked, or a `QuietTimer` that adapts.
            catch_up: Ask for what is missing at once, or leave it to the timer (as P3Sub has it).
            allow_truncated: Read on where events were removed before they were read; the event `HistoryTruncated`
                tells of it. Else that is an error.
            max_pending, max_pending_bytes: What may wait here; the rest is read from the history when there is room.

        Raises:
            PositionInvalidError: ``since`` is of another stream, or of one made anew, or lies behind the end.
            HistoryTruncatedError: Events after that time were removed.
            ConfigError: It cannot work. And those of any request.

        Cancelled: nothing is left.
        """
        if callback is not None and not callable(callback):
            raise ConfigError(f"callback is {type(callback).__name__}: it must be a function")
        if id is not None:
            check_consumer_name(id)
        log = await self.log()
        reader = await open_reader(
            log,
            since,
            push=push,
            quiet=quiet,
            catch_up=catch_up,
            allow_truncated=allow_truncated,
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
            # Not the id alone: of a process that died, the subscription may still be there.
            name=None if id is None else f"{id}-{secrets.token_hex(4)}",
        )
        return EventSubscription(log, reader, callback)


class EventHistory:
    """Events strictly after a place: for ``async for``, which reads page by page, or for ``await``, which gives a list.

    It ends with what was stored when it was begun, or a little later. Each iteration begins anew. Made by
    `EventSource.history`.

    Raises, when read:
        HistoryTruncatedError: Events were removed before they were read; ``first_available`` is what there is.
        PositionInvalidError: ``since`` is of another stream, or of one made anew, or lies behind the end.
        And those of any request. Servers that restart are waited for.
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
        """After what was handed out: where to go on. None: it was not begun."""
        return None if self._reader is None else self._reader.position

    async def batches(self, max_events: int = 500) -> AsyncIterator[list[Record]]:
        """Up to so many at once."""
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
