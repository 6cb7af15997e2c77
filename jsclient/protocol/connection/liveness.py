"""PINGs on a quiet connection, and when missing PONGs show that it is dead."""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Liveness", "PingDue"]


class PingDue(Enum):
    """What is due at a moment."""

    NOTHING = auto()
    PING = auto()
    STALE = auto()


class Liveness:
    """A PING each ``interval`` seconds. The connection is stale when ``most`` PINGs of it are without a PONG.

    Attributes:
        due: When to call `tick` next, in monotonic seconds.
    """

    def __init__(self, interval: float, most: int, now: float) -> None:
        self._interval = interval
        self._most = most
        self._unanswered = 0
        self.due: float = now + interval

    def tick(self, now: float) -> PingDue:
        """Return what is due. After STALE, the connection has to be given up."""
        if now < self.due:
            return PingDue.NOTHING
        self.due = now + self._interval
        self._unanswered += 1
        return PingDue.STALE if self._unanswered > self._most else PingDue.PING

    def pong_received(self) -> None:
        """Any PONG shows that the server reads and answers."""
        self._unanswered = 0
