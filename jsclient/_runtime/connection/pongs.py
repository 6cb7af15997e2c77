"""The PINGs of a connection that wait for their PONGs, which come in the same order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ...errors import JetStreamError
from ...protocol.connection.liveness import Due, Liveness

__all__ = ["PingTimer", "Pongs"]

MOST_UNANSWERED = 2
"""PINGs without a PONG after which the next one is not sent, since the connection is dead."""


class Pongs:
    """The waiters for PONGs, in the order of their PINGs. None stands for a PING that nobody waits for."""

    def __init__(self) -> None:
        self._waiters: deque[asyncio.Future[None] | None] = deque()

    def expect(self, *, awaited: bool) -> asyncio.Future[None] | None:
        """Record a PING."""
        waiter = asyncio.get_running_loop().create_future() if awaited else None
        self._waiters.append(waiter)
        return waiter

    def received(self) -> None:
        """Wake the waiter for the oldest PING. A PONG without a PING is ignored."""
        waiter = self._waiters.popleft() if self._waiters else None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, error: JetStreamError) -> None:
        """Raise an error to all waiters, since their PONGs will not come."""
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # mark as retrieved: the waiter may be gone


class PingTimer:
    """Sends a PING at each interval while connected, and reports when the server does not answer."""

    def __init__(self, interval: float, ping: Callable[[], None], stale: Callable[[], None]) -> None:
        self._interval = interval
        self._ping = ping
        self._stale = stale
        self._liveness: Liveness | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start for a new connection."""
        self.stop()
        loop = asyncio.get_running_loop()
        self._liveness = Liveness(self._interval, MOST_UNANSWERED, loop.time())
        self._handle = loop.call_at(self._liveness.due, self._tick)

    def stop(self) -> None:
        """Stop, because the connection is lost or closed."""
        self._liveness = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def pong_received(self) -> None:
        """Note that the server answers."""
        if self._liveness is not None:
            self._liveness.pong_received()

    def _tick(self) -> None:
        liveness, loop = self._liveness, asyncio.get_running_loop()
        if liveness is None:
            return
        due = liveness.tick(loop.time())
        self._handle = loop.call_at(liveness.due, self._tick)
        if due is Due.PING:
            self._ping()
        elif due is Due.STALE:
            self._stale()
