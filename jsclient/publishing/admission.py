"""Admission to a publisher: how many publishes and bytes may be in flight, and who waits for room."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from .._runtime.context import Context
from .._runtime.timer import Timer
from .._runtime.wakeup import Signal
from ..errors import ClosedError, JetStreamError, RequestTimeoutError, TooManyInFlightError
from ..protocol.models.publish import PubAck
from ..protocol.publishing.in_flight import InFlight
from ..protocol.publishing.publish_window import NEVER, PublishWindow

__all__ = ["Entry", "Gate", "Room", "Waiter"]


class Waiter:
    """A caller who waits."""

    __slots__ = ("admitted", "future", "number", "size", "subject", "tries_until", "waits_until")

    def __init__(self, number: int, subject: str, size: int, waits_until: float, tries_until: float) -> None:
        self.number = number
        self.subject = subject
        self.size = size
        self.waits_until = waits_until  # monotonic seconds: how long it waits for room
        self.tries_until = tries_until  # and for a connection
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.admitted = False


class Gate:
    """Lets callers in, in their order, as soon as ``fits`` says that there is room for them.

    ``fits`` is given how many callers, of how many bytes together, would be in between: admitted, not yet under way.
    """

    def __init__(self, fits: Callable[[int, int], bool]) -> None:
        self._fits = fits
        self._waiting: deque[Waiter] = deque()
        self.admitted = 0  # who may go, but have not run yet
        self.admitted_size = 0
        self._number = 0

    @property
    def busy(self) -> bool:
        """Whether somebody waits, or was admitted and has not run yet: nobody else may go first."""
        return bool(self._waiting or self.admitted)

    @property
    def waiting(self) -> int:
        """Callers who wait."""
        return len(self._waiting)

    async def enter(self, subject: str, size: int, waits_until: float, tries_until: float) -> Waiter:
        """Wait for a place. The caller takes it at once, calls `admit` for those behind, and then `leave`.

        Cancelled: the place goes to the next one.
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
            # The room is gone again, with the connection: back to the place before those who came later.
            self.leave(waiter)
            waiter.future = asyncio.get_running_loop().create_future()
            self._waiting = deque(sorted((*self._waiting, waiter), key=lambda other: other.number))

    def admit(self) -> None:
        """Let in whom there is room for."""
        while self._waiting:
            waiter = self._waiting[0]
            if not self._fits(self.admitted + 1, self.admitted_size + waiter.size):
                return
            self._waiting.popleft()
            if waiter.future.done():
                continue  # cancelled, and about to leave
            waiter.admitted = True
            self.admitted += 1
            self.admitted_size += waiter.size
            waiter.future.set_result(None)

    def leave(self, waiter: Waiter) -> None:
        """It has gone through, or does not want to any more."""
        if waiter.admitted:
            waiter.admitted = False
            self.admitted -= 1
            self.admitted_size -= waiter.size
        elif waiter in self._waiting:
            self._waiting.remove(waiter)

    def refuse(self, why: Callable[[Waiter], JetStreamError | None]) -> None:
        """Turn away those for whom there is an error."""
        for waiter in list(self._waiting):
            if (error := why(waiter)) is not None:
                self._waiting.remove(waiter)
                if not waiter.future.done():
                    waiter.future.set_exception(error)

    def look_at(self, *, connected: bool) -> float:
        """When somebody's patience ends: that with a full window, or that with a connection which is not there."""
        moments = (w.waits_until if connected else w.tries_until for w in self._waiting)
        return min(moments, default=float("inf"))


Entry: TypeAlias = InFlight[asyncio.Future[PubAck]]

_MUCH = 1024 * 1024  # bytes; less under way does not congest a connection


class Room:
    """The bounds, and the callers who wait for a place."""

    __slots__ = (  # more attributes than Python keeps fast without
        "_changed",
        "_clear",
        "_closed",
        "_connection",
        "_context",
        "_gate",
        "_loop",
        "_max",
        "_max_bytes",
        "_out",
        "_pausing",
        "_ready",
        "_relief",
        "_room_timeout",
        "_timer",
        "_watch",
        "_window",
        "_yield_at",
    )

    def __init__(self, context: Context, max_in_flight: int, max_bytes: float, room_timeout: float) -> None:
        self._context, self._connection = context, context.connection
        self._out = context.connection.outbox
        self._loop = asyncio.get_running_loop()
        self._max, self._max_bytes, self._room_timeout = max_in_flight, max_bytes, room_timeout
        self._window: PublishWindow[asyncio.Future[PubAck]] = PublishWindow(
            secrets.token_hex(11), context.answered
        )
        self._gate = Gate(self._fits)
        self._timer = Timer(self._tick)
        self._changed = Signal()  # what is under way, or waits, has become less
        self._ready = False  # there is a connection, and an inbox for the answers
        self._closed = False
        self._relief: asyncio.Task[None] | None = None  # while more waits to be written than should
        self._watch = min(max_bytes, _MUCH)  # bytes under way, from which on that is looked at
        self._yield_at = NEVER  # when publishing has kept the loop for long enough
        self._pausing = False
        self._clear = False  # nothing but the bounds is in the way of the next publish

    def _tick(self) -> None:
        raise NotImplementedError

    def _begin(self) -> None:
        raise NotImplementedError

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the publisher is closed")
        self._connection.check_open()

    def _fits(self, count: int, size: int) -> bool:
        """Whether so many more, of so many bytes together, may go out now."""
        return self._ready and self._relief is None and not self._pausing and self._has_room(count, size)

    def _has_room(self, count: int, size: int) -> bool:
        in_flight = len(self._window.in_flight)
        if not in_flight and count == 1:
            return True  # though it be larger than the bound: else it never could go out
        return in_flight + count <= self._max and self._window.size + size <= self._max_bytes

    async def _enter(self, subject: str, size: int, timeout: float) -> None:
        """Wait until a publish may go out. On return it must go out before anything else happens."""
        self._check_open()
        self._begin()
        gate, now = self._gate, self._loop.time()
        if now > self._yield_at:
            self._yield_at, self._pausing = NEVER, True
            self._loop.call_soon(self._paused)
        full = self._relief is not None or not self._has_room(gate.admitted + 1, gate.admitted_size + size)
        if full and self._ready and self._room_timeout == 0:
            raise self._full()
        self._clear = False
        waits_until, tries_until = now + self._room_timeout, now + timeout
        moment = waits_until if self._ready else tries_until
        if moment < NEVER:
            self._timer.set(moment)
        try:
            waiter = await gate.enter(subject, size, waits_until, tries_until)
            gate.admit()
            gate.leave(waiter)
        finally:
            self._clear = self._is_clear()
            self._changed.set()

    def _recheck(self) -> None:
        """Let in who fits; open the short way if nobody waits."""
        self._gate.admit()
        self._clear = self._is_clear()

    def _is_clear(self) -> bool:
        return self._ready and self._relief is None and not self._pausing and not self._gate.busy

    def _paused(self) -> None:
        """The loop had its turn."""
        self._pausing = False
        self._recheck()

    def _too_much(self, size: int) -> bool:
        """Whether so many bytes may not be under way now, because of the bound or because the wire is slower."""
        if self._relief is None and self._out is not None and self._out.is_full:
            self._clear = False
            self._relief = self._context.tasks.start(self._relieve(), "publisher: write")
        return size > self._max_bytes or self._relief is not None

    async def _relieve(self) -> None:
        try:
            await self._connection.make_room()
        except JetStreamError:
            pass  # with the connection goes what waited to be written
        finally:
            self._relief = None
            self._recheck()

    # --- who is turned away --------------------------------------------------------------------------------

    def _full(self) -> TooManyInFlightError:
        limit = f"{len(self._window.in_flight)} publishes of {self._window.size} bytes are under way"
        return TooManyInFlightError(f"{limit}, and there was no room for another one; nothing was sent")

    def _out_of_patience(self, waiter: Waiter, now: float) -> JetStreamError | None:
        """Why it waits no longer, if so."""
        if self._ready:
            return self._full() if now >= waiter.waits_until else None
        if now < waiter.tries_until:
            return None
        text = f"publish to {waiter.subject!r}: not connected to a server in time; nothing was sent"
        return RequestTimeoutError(text)

    def _refuse_more(self, why: str) -> None:
        """Take nothing more."""
        self._closed, self._ready, self._clear = True, False, False
        self._gate.refuse(lambda waiter: ClosedError(f"{why}; nothing was sent to {waiter.subject!r}"))
