"""Delay a batch until enough messages are stored (``minOffsetsPerTrigger``, ``maxTriggerDelay``)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["TriggerDelay"]


class TriggerDelay:
    """Policy that decides whether the next batch waits for more messages. The first batch of a run never waits.

    Args:
        least: Number of messages that a batch waits for, or None if batches never wait.
        most: This many seconds after the start of the previous batch, a batch starts with any number of messages.
        now: The monotonic clock.

    Attributes:
        holding: Whether the last call of `holds` returned True.
    """

    def __init__(self, least: int | None, most: float, now: Callable[[], float] = time.monotonic) -> None:
        self._least = least
        self._most = most
        self._now = now
        self._before = -math.inf  # the time at which the previous batch was started
        self._counted: tuple[int, int] | None = None  # a range that was counted and has too few messages
        self.holding: bool = False

    def holds(self, after: int, last: int, count: Callable[[], int]) -> bool:
        """Return whether a batch of the messages after ``after`` and up to ``last`` waits for more messages.

        ``count`` returns the number of these messages. It is called only for a range with enough sequences, and only
        once for the same range.
        """
        if self._least is None:
            return False
        self.holding = self._now() - self._before < self._most and self._is_less(after, last, count)
        if not self.holding:
            self._before = self._now()
        return self.holding

    def _is_less(self, after: int, last: int, count: Callable[[], int]) -> bool:
        assert self._least is not None
        if last - after < self._least or self._counted == (after, last):
            return True
        self._counted = (after, last) if count() < self._least else None
        return self._counted is not None
