"""Heartbeat monitoring: detects a silent server.

Anything that arrives is a sign of life. Silence over ``factor`` intervals is an alarm, repeated while it lasts.
Source: ADR-15 §Heartbeats (3 intervals), ADR-37 §Idle Heartbeats (2 intervals).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HeartbeatMonitor"]


@dataclass(slots=True)
class HeartbeatMonitor:
    """Distinguishes silence from a busy client.

    When the deadline passes, a second check follows ``grace`` seconds later: a client that was suspended, or whose
    event loop was blocked, first reads everything that has arrived meanwhile, so that only silence is an alarm.
    """

    interval: float  # seconds
    factor: float = 3.0
    grace: float = 0.1  # seconds
    last_heard: float = 0.0  # monotonic seconds
    _due: float | None = None  # overrides last_heard + allowed: the second check, or the next alarm
    _doubting: bool = False

    @property
    def allowed(self) -> float:
        """Seconds of silence before an alarm."""
        return self.interval * self.factor

    @property
    def deadline(self) -> float:
        """When to call `tick`, monotonic seconds. It moves with every sign of life."""
        return self._due if self._due is not None else self.last_heard + self.interval * self.factor

    def heard(self, now: float) -> None:
        """Something arrived."""
        self.last_heard = now
        self._due = None
        self._doubting = False

    def tick(self, now: float) -> float | None:
        """The deadline was reached: the seconds of silence if it is an alarm, else None."""
        if now < self.deadline:
            return None
        if not self._doubting:
            self._doubting = True
            self._due = now + self.grace
            return None
        self._doubting = False
        self._due = now + self.allowed - self.grace
        return now - self.last_heard
