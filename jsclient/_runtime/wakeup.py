"""A wake-up signal without a queue. Cancellation loses nothing."""

from __future__ import annotations

import asyncio

__all__ = ["Signal"]


class Signal:
    """Wakes all waiting tasks. It carries no value: check the state again after waking.

    An item stays in its queue until the woken task takes it, so a task that is cancelled between the wake-up and its
    turn has taken nothing.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """Wake all waiting tasks."""
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self) -> None:
        """Return at the next `set`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.done() or waiter.cancelled():
                self._discard(waiter)

    async def wait_until(self, deadline: float | None) -> bool:
        """Return True at the next `set`, False at ``deadline`` (monotonic seconds of the loop; None: never)."""
        if deadline is None:
            await self.wait()
            return True
        loop = asyncio.get_running_loop()
        if deadline <= loop.time():
            return False
        waiter = loop.create_future()
        self._waiters.append(waiter)
        timer = loop.call_at(deadline, _expire, waiter)
        try:
            return await waiter is None
        finally:
            timer.cancel()
            self._discard(waiter)

    def _discard(self, waiter: asyncio.Future[None]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)


def _expire(waiter: asyncio.Future[object]) -> None:
    if not waiter.done():
        waiter.set_result(False)
