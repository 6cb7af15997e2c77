"""Delivers events to the user's ``on_event``, to the log, and to iterators of ``events()``."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Self, TypeAlias

from ..protocol.consumers.worker.reasons import Reject
from ..protocol.events import DeadLettered, Event, HandlerFailed, WorkerFailed
from .handlers import check_handler
from .tasks import Signal, Tasks

__all__ = ["EventHub", "EventLog", "OnEvent"]

OnEvent: TypeAlias = Callable[[Event], Awaitable[None] | None]

_log = logging.getLogger("jsclient")
_CAPACITY = 1000
_AT_ONCE = 100  # maximum number of ``on_event`` coroutines that run concurrently
_KINDS = 1000  # maximum number of kinds of failures to count
_SAME_OUTAGE = 60.0  # seconds within which two failures belong to one outage


class EventHub:
    """Delivers events to the user in a later iteration of the loop, so that it never blocks the caller of `emit`."""

    def __init__(self, on_event: OnEvent | None) -> None:
        """Create the hub. Raises `ConfigError` if ``on_event`` is not a function of one argument."""
        if on_event is not None:
            check_handler("on_event", on_event, "event")
        self._on_event = on_event
        self._waiting: deque[Event] = deque(maxlen=_CAPACITY)
        self._scheduled = False
        self._tasks = Tasks(_report)  # running ``on_event`` coroutines
        self._running = 0
        self._failures = _Failures()

    def emit(self, event: Event) -> None:
        """Deliver an event in the next iteration of the loop. Without ``on_event`` it is logged."""
        if self._on_event is None:
            if not (isinstance(event, HandlerFailed) and self._failures.is_counted(event)):
                _write(event)
            return
        if len(self._waiting) == self._waiting.maxlen:
            _log.warning("on_event is too slow; dropped: %s", self._waiting[0])
        self._waiting.append(event)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        while self._waiting and self._running < _AT_ONCE:
            event = self._waiting.popleft()
            assert self._on_event is not None
            try:
                result = self._on_event(event)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  a user's callback may raise anything
                _report(error, event)
                continue
            if inspect.isawaitable(result):
                self._running += 1
                self._tasks.start(_await(result, event), "on_event").add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._running -= 1
        if self._waiting:
            self._schedule()

    async def close(self) -> None:
        """Deliver the waiting events, wait up to a second for running callbacks, and stop. Later events are logged."""
        self._deliver()
        await self._tasks.settle(1.0)
        self._waiting.clear()  # `on_event` was too slow, so these events are dropped
        await self._tasks.cancel()
        # Break a reference cycle. A message stored by the application keeps the connection alive, and ``on_event``
        # keeps the application alive. The garbage collector couldn't free this cycle, because it doesn't track
        # messages.
        self._on_event = None


async def _await(result: Awaitable[None], event: Event) -> None:
    try:
        await result
    except Exception as error:  # noqa: BLE001  a user's callback may raise anything
        _report(error, event)


class _Failures:
    """Counts failures of handlers of the same kind, so that an outage does not fill the log.

    The first failure of a kind is logged with its traceback, and then each time the count doubles, with the count. All
    others are logged at level DEBUG. The count restarts for a kind that has not occurred for a minute.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, tuple[int, float]] = {}

    def is_counted(self, event: HandlerFailed) -> bool:
        """Count a failure. Returns False for the first of its kind, which the caller must log."""
        now = time.monotonic()
        kind = (event.stream, event.consumer, type(event.error))
        count, last = self._kinds.get(kind, (0, now))
        count = count + 1 if now - last < _SAME_OUTAGE else 1
        if len(self._kinds) >= _KINDS and kind not in self._kinds:
            self._kinds.clear()  # limits the memory. The next failure of each kind is logged as its first
        self._kinds[kind] = (count, now)
        if count == 1:
            return False
        doubled = count & (count - 1) == 0
        logging.getLogger(f"jsclient.{event.about}").log(
            getattr(logging, event.severity.upper()) if doubled else logging.DEBUG,
            "%s (%d failures with %s so far)",
            event,
            count,
            type(event.error).__name__,
            extra={"event": type(event).__name__, "count": count},
        )
        return True


def _write(event: Event) -> None:
    """Log an event with its fields, and with the traceback of its error.

    A dead letter has no traceback if `HandlerFailed` has already logged it (unless warnings are not logged). Nor has
    a `Reject`, which is deliberate, or the error of a worker, which comes from the library.
    """
    log = logging.getLogger(f"jsclient.{event.about}")
    level = getattr(logging, event.severity.upper())
    if log.isEnabledFor(level):
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        error = fields.get("error")
        traced = isinstance(error, BaseException) and error.__traceback__ is not None
        logged = isinstance(event, DeadLettered) and log.isEnabledFor(logging.WARNING)
        untraced = logged or isinstance(error, Reject) or isinstance(event, WorkerFailed)
        trace = error if traced and not untraced else None
        log.log(level, "%s", event, exc_info=trace, extra={"event": type(event).__name__, **fields})


def _report(error: BaseException, event: Event | None = None) -> None:
    """Log an error that ``on_event`` raised, and the event, which has not been reported otherwise."""
    _log.error("on_event raised", exc_info=error)
    if event is not None:
        _write(event)


class EventLog:
    """The latest events of one subscription, for any number of readers."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, Event]] = deque(maxlen=_CAPACITY)
        self._count = 0
        self._closed = False
        self._changed = Signal()

    def add_event(self, event: Event) -> None:
        """Store an event and wake the readers."""
        self._events.append((self._count, event))
        self._count += 1
        self._changed.set()

    def close(self) -> None:
        """End the log. Readers stop after the last event."""
        self._closed = True
        self._changed.set()

    def read_events(self) -> AsyncIterator[Event]:
        """Iterate over the stored events and then each new event, until the subscription ends."""
        return _EventReader(self)

    async def event_after(self, number: int) -> tuple[int, Event] | None:
        """Wait for the first event numbered ``number`` or higher, and return it. Return None if the log has ended."""
        while True:
            for entry in self._events:
                if entry[0] >= number:
                    return entry
            if self._closed:
                return None
            await self._changed.wait()


class _EventReader:
    """One reader's position in an `EventLog`. A cancelled ``anext`` loses no event."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._next = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        entry = await self._log.event_after(self._next)
        if entry is None:
            raise StopAsyncIteration
        self._next = entry[0] + 1
        return entry[1]
