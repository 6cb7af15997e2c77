"""Limits how often a driver requests the ends of streams."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace", "SharedPace"]

_SINGLE = 25  # a page of a list of streams costs as much as this many requests about one stream


class Pace:
    """Keeps the mean rate of requests at or below one per interval, for one stream.

    Args:
        interval: Seconds between requests.
        now, sleep: The monotonic clock, and a function that sleeps.
    """

    def __init__(
        self,
        interval: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interval = interval
        self._now = now
        self._sleep = sleep
        self._next = now()  # when the next request is due

    @property
    def is_due(self) -> bool:
        """Whether `wait_until_due` would not sleep."""
        return self._now() >= self._next

    def wait_until_due(self) -> None:
        """Sleep until the next request is due."""
        if (seconds := self._next - self._now()) > 0:
            self._sleep(seconds)

    def asked(self, count: int) -> None:
        """Count requests that were sent."""
        self._delay(count)

    def _delay(self, intervals: int) -> None:
        self._next = max(self._next, self._now()) + intervals * self._interval


class SharedPace(Pace):
    """The pace of a source of several streams, which checks all of them in a round.

    A round takes an interval for each page of a list, or for 25 requests about single streams. So the load of an idle
    source is the same for any number of streams, and its rounds become longer instead.
    """

    _requests = 0
    _looks = False

    def begin_round(self, *, look: bool) -> bool:
        """Begin a round. Returns whether it checks the streams: with ``look``, after a wait, or if a check is due."""
        if look:
            super().wait_until_due()
        self._looks, self._requests = look or super().is_due, 0
        return self._looks

    def end_round(self, pages: int) -> None:
        """End a round, in which this number of pages was requested."""
        if self._looks:
            self._delay(max(1, pages + -(-self._requests // _SINGLE)))
        self._looks = False

    @property
    def is_due(self) -> bool:
        """Whether this round checks the streams."""
        return self._looks

    def wait_until_due(self) -> None:
        """Do nothing, because the round has waited."""

    def asked(self, count: int) -> None:
        self._requests += count
