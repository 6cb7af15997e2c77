"""Decides when to send a PING, and when missing PONGs show that a connection is dead."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Liveness", "PingDue"]


class PingDue(Enum):
    """The action that is due at a moment."""

    NOTHING = auto()
    PING = auto()
    STALE = auto()


class Liveness:
    """Schedules a PING every ``interval`` seconds. The connection is stale when ``most`` PINGs have no PONG yet.

    Attributes:
        due: The time to call `tick` next, in monotonic seconds.
    """

    def __init__(self, interval: float, most: int, now: float) -> None:
        self._interval = interval
        self._most = most
        self._unanswered = 0
        self.due: float = now + interval

    def tick(self, now: float) -> PingDue:
        """Return the action that is due. After STALE, the connection must be abandoned."""
        if now < self.due:
            return PingDue.NOTHING
        self.due = now + self._interval
        self._unanswered += 1
        return PingDue.STALE if self._unanswered > self._most else PingDue.PING

    def pong_received(self) -> None:
        """Handle a PONG. Any PONG shows that the server reads and answers."""
        self._unanswered = 0
