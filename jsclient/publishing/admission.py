"""Limits the number of messages and bytes in flight, and makes callers wait while the limits are reached."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._runtime.context import Context
from .._runtime.tasks import Timer
from ..errors import ClosedError, JetStreamError, RequestTimeoutError, TooManyInFlightError
from ..protocol.publishing.publish_window import NEVER, PublishWindow

__all__ = ["YIELD_AFTER", "Admission", "Gate", "Limits", "Waiter"]

YIELD_AFTER = 0.01
"""After this many seconds, publishing yields to the event loop, which can't read or write in the meantime."""

_MUCH = 1024 * 1024  # the connection is checked for congestion only above this number of bytes in flight


class Limits(NamedTuple):
    """Limits for messages in flight, and for the time that a caller waits while these limits are reached."""

    max_in_flight: int
    max_bytes: float = NEVER
    room_timeout: float = NEVER  # seconds


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Waiter:
    """A caller that is waiting to be admitted."""

    number: int
    subject: str
    size: int
    waits_until: float  # when the caller gives up if the window is full, in monotonic seconds
    tries_until: float  # when the caller gives up if the client is disconnected, in monotonic seconds
    future: asyncio.Future[None] = field(default_factory=_future)
    admitted: bool = False


class Gate:
    """Admits callers in the order of their calls, as soon as there is capacity.

    ``fits(count, size)`` must return True if there is capacity for ``count`` messages of ``size`` bytes in total. These
    messages belong to callers that have been admitted but have not published yet.
    """

    def __init__(self, fits: Callable[[int, int], bool]) -> None:
        self._fits = fits
        self._waiting: deque[Waiter] = deque()
        self.admitted: int = 0  # number of callers that have been admitted, but whose tasks have not run yet
        self.admitted_size: int = 0
        self._number = 0

    @property
    def busy(self) -> bool:
        """Whether callers are waiting that a new caller must not overtake."""
        return bool(self._waiting or self.admitted)

    @property
    def waiting(self) -> int:
        """Number of callers that are waiting."""
        return len(self._waiting)

    async def enter(self, subject: str, size: int, waits_until: float, tries_until: float) -> Waiter:
        """Wait for admission.

        The caller must then publish immediately, call `admit` for the next callers, and call `leave`.

        If the call is cancelled, the next caller may be admitted.
        """
        self._number += 1
        waiter = Waiter(self._number, subject, size, waits_until, tries_until)
        first = not self.busy
        self._waiting.append(waiter)
        if first:
            self.admit()
        while True:
            try:
                await waiter.future
            except BaseException:
                self.leave(waiter)
                self.admit()
                raise
            if self._fits(self.admitted, self.admitted_size):
                return waiter
            # The connection was lost after this caller was admitted, so the caller waits again, ahead of later callers.
            self.leave(waiter)
            waiter.future = _future()
            self._waiting = deque(sorted((*self._waiting, waiter), key=lambda other: other.number))

    def admit(self) -> None:
        """Admit waiting callers while there is capacity."""
        while self._waiting:
            waiter = self._waiting[0]
            if not self._fits(self.admitted + 1, self.admitted_size + waiter.size):
                return
            self._waiting.popleft()
            if waiter.future.done():
                continue  # this caller was cancelled, and will leave when its task runs
            waiter.admitted = True
            self.admitted += 1
            self.admitted_size += waiter.size
            waiter.future.set_result(None)

    def leave(self, waiter: Waiter) -> None:
        """Release the capacity reserved for a caller that has published or given up."""
        if waiter.admitted:
            waiter.admitted = False
            self.admitted -= 1
            self.admitted_size -= waiter.size
        elif waiter in self._waiting:
            self._waiting.remove(waiter)

    def refuse(self, why: Callable[[Waiter], JetStreamError | None]) -> None:
        """Fail the waiters for which ``why`` returns an error."""
        for waiter in list(self._waiting):
            if (error := why(waiter)) is not None:
                self._waiting.remove(waiter)
                if not waiter.future.done():
                    waiter.future.set_exception(error)

    def next_check(self, *, connected: bool) -> float:
        """Return the time at which the first caller gives up, which depends on whether the client is connected."""
        moments = (w.waits_until if connected else w.tries_until for w in self._waiting)
        return min(moments, default=float("inf"))


class Admission:
    """Decides when the next message may be sent.

    The publisher checks ``clear`` and the limits for each message, and calls `enter` only if it may have to wait.
    """

    def __init__(self, context: Context, window: PublishWindow[Any], limits: Limits) -> None:
        self.gate: Gate = Gate(self._fits)
        self.max_in_flight: int = limits.max_in_flight
        self.max_bytes: float = limits.max_bytes
        self._room_timeout = limits.room_timeout
        self.watch: float = min(self.max_bytes, _MUCH)  # with more bytes in flight, `too_much` decides
        self.ready: bool = False  # True while the client is connected and has an inbox for acknowledgements
        self.closed: bool = False
        self.clear: bool = False  # True if only the limits have to be checked before publishing
        self.yield_at: float = NEVER  # time at which publishing must yield to the event loop
        self._context, self._connection = context, context.connection
        self._loop = asyncio.get_running_loop()
        self._window = window
        self._relief: asyncio.Task[None] | None = None  # runs while the write buffer is too full
        self._pausing = False

    def _fits(self, count: int, size: int) -> bool:
        """Return whether ``count`` more messages, with ``size`` bytes in total, may be sent now."""
        if not self.ready or self._relief is not None or self._pausing or self._window.is_broken:
            return False
        return self.has_room(count, size)

    def has_room(self, count: int, size: int) -> bool:
        """Return whether ``count`` more messages, with ``size`` bytes in total, stay within the limits."""
        in_flight = self._window.count
        if not in_flight and count == 1:
            # Admit even a message above the limit. Otherwise, it could never be sent.
            return True
        return in_flight + count <= self.max_in_flight and self._window.size + size <= self.max_bytes

    async def enter(
        self, subject: str, size: int, timeout: float, timer: Timer, room_timeout: float | None = None
    ) -> None:
        """Wait until a message may be sent. The caller must then send it before awaiting anything else.

        ``room_timeout`` overrides the ``room_timeout`` of the limits.
        """
        gate, now = self.gate, self._loop.time()
        # If publishing has blocked the event loop for `YIELD_AFTER`, let the event loop read and write before the next
        # message.
        if now > self.yield_at:
            self.yield_at, self._pausing = NEVER, True
            self._loop.call_soon(self._paused)
        full = self._relief is not None or not self.has_room(gate.admitted + 1, gate.admitted_size + size)
        if full and self.ready and self._room_timeout == 0:
            raise self._full()
        self.clear = False
        waits_until = now + (self._room_timeout if room_timeout is None else room_timeout)
        tries_until = now + timeout
        moment = waits_until if self.ready else tries_until
        if moment < NEVER:
            timer.set(moment)
        try:
            waiter = await gate.enter(subject, size, waits_until, tries_until)
            gate.admit()
            gate.leave(waiter)
        finally:
            self.clear = self._is_clear()

    def enter_now(self, subject: str, size: int) -> None:
        """Raise an error if a message can't be sent without waiting."""
        if not self.ready:
            raise self._connection.away(
                f"publish to {subject!r}: not connected to a server; nothing was sent"
            )
        if self.gate.busy or self._relief is not None or not self.has_room(1, size):
            raise self._full()

    def recheck(self) -> None:
        """Admit as many callers as possible, after something has changed."""
        self.gate.admit()
        self.clear = self._is_clear()

    def _is_clear(self) -> bool:
        return self.ready and self._relief is None and not self._pausing and not self.gate.busy

    def _paused(self) -> None:
        """Continue publishing in the next iteration of the event loop."""
        self._pausing = False
        self.recheck()

    def too_much(self, size: int) -> bool:
        """Return whether ``size`` bytes in flight exceed the limit, or whether the write buffer is full."""
        outbox = self._connection.outbox
        if self._relief is None and outbox is not None and outbox.is_full:
            self.clear = False
            self._relief = self._context.tasks.start(self._relieve(), "publisher: write")
        return size > self.max_bytes or self._relief is not None

    async def _relieve(self) -> None:
        try:
            await self._connection.wait_for_space()
        except JetStreamError:
            pass  # the connection was lost, and its write buffer was dropped
        finally:
            self._relief = None
            self.recheck()

    def expire(self, now: float) -> None:
        """Raise an error in the callers whose timeout has expired."""
        self.gate.refuse(lambda waiter: self._expired(waiter, now))

    def _expired(self, waiter: Waiter, now: float) -> JetStreamError | None:
        if self.ready:
            return self._full() if now >= waiter.waits_until else None
        if now < waiter.tries_until:
            return None
        text = f"publish to {waiter.subject!r}: not connected to a server in time; nothing was sent"
        return RequestTimeoutError(text, why=self._connection.problem)

    def _full(self) -> TooManyInFlightError:
        limit = f"{self._window.count} publishes of {self._window.size} bytes are in flight"
        return TooManyInFlightError(f"{limit}, no room for another one; nothing was sent")

    def close(self, why: str) -> None:
        """Admit no more messages, and raise `ClosedError` in the callers that are waiting."""
        self.closed, self.ready, self.clear = True, False, False
        self.gate.refuse(lambda waiter: ClosedError(f"{why}; nothing was sent to {waiter.subject!r}"))
