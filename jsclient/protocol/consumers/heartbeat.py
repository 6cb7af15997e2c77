"""Heartbeat monitoring: is the server still there?

Anything that arrives is a sign of life. Silence over ``factor`` intervals is an alarm, again and again while it lasts.
Source: ADR-15 §Heartbeats (3 intervals), ADR-37 §Idle Heartbeats (2 intervals).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HeartbeatMonitor"]


@dataclass(slots=True)
class HeartbeatMonitor:
    """Tells silence from a busy client.

    When the deadline passes, a second look follows ``grace`` seconds later: a client that was stopped, or whose event
    loop was blocked, first reads what had arrived meanwhile, and only silence is an alarm.
    """

    interval: float  # seconds
    factor: float = 3.0
    grace: float = 0.1  # seconds
    last_heard: float = 0.0  # monotonic seconds
    _due: float | None = None  # set while no longer last_heard + allowed: a second look, or the next alarm
    _doubting: bool = False

    @property
    def allowed(self) -> float:
        """Seconds of silence that are no alarm."""
        return self.interval * self.factor

    @property
    def deadline(self) -> float:
        """When to call `tick`, monotonic seconds. It moves with every sign of life."""
        return self._due if self._due is not None else self.last_heard + self.allowed

    def heard(self, now: float) -> None:
        """Something arrived."""
        self.last_heard = now
        self._due = None
        self._doubting = False

    def tick(self, now: float) -> float | None:
        """The deadline was reached: seconds of silence if it is an alarm, else None."""
        if now < self.deadline:
            return None
        if not self._doubting:
            self._doubting = True
            self._due = now + self.grace
            return None
        self._doubting = False
        self._due = now + self.allowed - self.grace
        return now - self.last_heard
