"""Limits on how often the driver requests the ends of streams."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace", "SharedPace"]

_SINGLE = 25  # one page of a list of streams costs as much as this many requests about single streams


class Pace:
    """Rate limit for requests about one stream, with a mean rate of at most one request per interval.

    Args:
        interval: Interval between requests, in seconds.
        now: The monotonic clock.
        sleep: A function that sleeps for a number of seconds.
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
        self._next = now()  # time when the next request is due

    @property
    def is_due(self) -> bool:
        """Whether `wait_until_due` would return immediately."""
        return self._now() >= self._next

    def wait_until_due(self) -> None:
        """Sleep until the next request is due."""
        if (seconds := self._next - self._now()) > 0:
            self._sleep(seconds)

    def asked(self, count: int) -> None:
        """Count requests that were sent, which delay the next request."""
        self._delay(count)

    def _delay(self, intervals: int) -> None:
        self._next = max(self._next, self._now()) + intervals * self._interval


class SharedPace(Pace):
    """Rate limit for a source of several streams, which checks all streams in a round.

    A round takes an interval for each page of a list, and for each 25 requests about single streams. The load of an
    idle source is therefore the same for any number of streams. Only its rounds become longer.
    """

    _requests = 0
    _looks = False

    def begin_round(self, *, look: bool) -> bool:
        """Begin a round. Returns whether the round checks the streams.

        If ``look`` is True, the round checks the streams, after a sleep until the check is due. Otherwise it checks
        them only if a check is due now.
        """
        if look:
            super().wait_until_due()
        self._looks, self._requests = look or super().is_due, 0
        return self._looks

    def end_round(self, pages: int) -> None:
        """End a round in which ``pages`` pages of lists were requested."""
        if self._looks:
            self._delay(max(1, pages + -(-self._requests // _SINGLE)))
        self._looks = False

    @property
    def is_due(self) -> bool:
        """Whether this round checks the streams."""
        return self._looks

    def wait_until_due(self) -> None:
        """Do nothing, because `begin_round` has waited already."""

    def asked(self, count: int) -> None:
        self._requests += count
