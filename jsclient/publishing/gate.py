"""A queue of callers who wait for room: first come, first served, and nobody overtakes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..errors import JetStreamError

__all__ = ["Gate", "Waiter"]


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
