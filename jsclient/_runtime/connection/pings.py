"""The PINGs of a connection, which measure a round trip, confirm acks, or check whether the server answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from ...errors import JetStreamError, RequestTimeoutError
from ...protocol.connection.liveness import Liveness, PingDue
from .unconfirmed_acks import UnconfirmedAcks
from .wire import Outbox

__all__ = ["Pings"]

MOST_UNANSWERED: Final = 2
"""The number of unanswered PINGs of the timer after which the connection is dead."""


class Pings:
    """The PINGs in flight. Their PONGs arrive in the same order.

    Attributes:
        interval: Interval between the PINGs of the timer, in seconds.
    """

    def __init__(self, out: Outbox, acks: UnconfirmedAcks, stale: Callable[[], None]) -> None:
        """Prepare to send PINGs. ``stale`` is called when the server does not answer."""
        self.interval = 20.0
        self._out = out
        self._acks = acks
        self._stale = stale
        # The waiter for each PING in flight, or None if no caller waits for its PONG.
        self._waiters: deque[asyncio.Future[None] | None] = deque()
        self._liveness: Liveness | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer for a new connection."""
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._liveness = Liveness(self.interval, MOST_UNANSWERED, loop.time())
        self._timer = loop.call_at(self._liveness.due, self._tick)

    def stop(self, error: JetStreamError) -> None:
        """Stop the timer, and fail all waiters with ``error``, because their PONGs will not arrive."""
        self._stop_timer()
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
                # Mark the exception as retrieved, because the waiter may have been cancelled.
                waiter.exception()

    def _stop_timer(self) -> None:
        self._liveness = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        liveness, loop = self._liveness, asyncio.get_running_loop()
        if liveness is None:
            return
        due = liveness.tick(loop.time())
        self._timer = loop.call_at(liveness.due, self._tick)
        if due is PingDue.PING:
            self.send()
        elif due is PingDue.STALE:
            self._stale()

    def send(self, waiter: asyncio.Future[None] | None = None, *, reconnecting: bool = False) -> None:
        """Write a PING after all earlier data.

        ``reconnecting`` is true if earlier acks were written to another connection, so that the PONG confirms none of
        them.
        """
        self._out.flush()
        self._acks.ping_sent(reconnecting=reconnecting)
        self._waiters.append(waiter)
        self._out.write(b"PING\r\n")
        self._out.flush()

    def pong_received(self) -> None:
        """Wake the waiter for the oldest PING. A PONG without a PING is ignored."""
        if self._liveness is not None:
            self._liveness.pong_received()
        self._acks.pong_received()
        waiter = self._waiters.popleft() if self._waiters else None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def round_trip(
        self, timeout: float, why: Callable[[], str], *, reconnecting: bool = False
    ) -> float:
        """Send a PING, wait for its PONG, and return the seconds between them.

        Raises:
            RequestTimeoutError: The PONG did not arrive in time. ``why`` returns the reason, if it is known.
            JetStreamError: `stop` was called with this error before the PONG arrived.
        """
        started = time.perf_counter()  # this clock is finer than the clock of uvloop's loop
        waiter = asyncio.get_running_loop().create_future()
        self.send(waiter, reconnecting=reconnecting)
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            raise RequestTimeoutError("no PONG to a PING", timeout, why()) from None
        return time.perf_counter() - started
