"""Delays the batches of a query until enough messages are stored (``minOffsetsPerTrigger``, ``maxTriggerDelay``)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

__all__ = ["TriggerDelay"]


class TriggerDelay:
    """Decides whether the next batch waits for more messages. The first batch of a run does not wait.

    Args:
        least: Number of messages that a batch waits for, or None if it does not wait.
        most: Seconds after the previous batch at which a batch with any messages starts.
        now: The monotonic clock.

    Attributes:
        holding: Whether the last answer was to wait.
    """

    def __init__(self, least: int | None, most: float, now: Callable[[], float] = time.monotonic) -> None:
        self._least = least
        self._most = most
        self._now = now
        self._before = -math.inf  # the time at which the previous batch was started
        self._counted: tuple[int, int] | None = None  # a range that was counted and has too few messages
        self.holding: bool = False

    def holds(self, after: int, last: int, count: Callable[[], int]) -> bool:
        """Return whether the messages after one sequence and up to another should wait for more messages.

        ``count`` counts these messages. It is called once for a range that has enough sequences.
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
