"""Limits how often the consumers of a connection are checked because no message arrives.

Every program imports this module. Few programs import the rules that decide when to check, see `stall`.
"""

from __future__ import annotations

__all__ = ["STALL_AFTER", "CheckBudget"]

# If a reader receives no message for this many seconds, its consumer is checked for the first time. The check must come
# before the server's default ack_wait of 30 s has passed, because the server no longer reports unacked messages after
# that.
STALL_AFTER = 25.0
# Maximum number of first checks per second. All readers of an application may start together. Without a limit, their
# first checks would reach the server at the same time.
_FIRST_CHECKS = 100.0
# Maximum number of other checks per second. At this rate, each of 250 idle readers is checked within 25 s.
_NEXT_CHECKS = 10.0


class CheckBudget:
    """Limits the rate of checks on a connection. Each reader gets a time, in the order in which checks are due.

    A check is one request, or two if no message waits for the reader.
    """

    __slots__ = ("_first_at", "_next_at")

    def __init__(self) -> None:
        self._first_at = 0.0
        self._next_at = 0.0

    def moment(self, now: float, *, is_first: bool) -> float:
        """Return when to check, ``now`` or later. ``is_first`` is true for the first check since a message arrived."""
        if is_first:
            moment = max(now, self._first_at)
            self._first_at = moment + 1 / _FIRST_CHECKS
        else:
            moment = max(now, self._next_at)
            self._next_at = moment + 1 / _NEXT_CHECKS
        return moment
