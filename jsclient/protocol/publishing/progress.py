"""The time at which a call that publishes many messages fails, because no message was stored during its timeout."""

from __future__ import annotations

from .publish_window import NEVER

__all__ = ["Progress"]


class Progress:
    """Tracks the moment at which a call fails. Times are monotonic seconds.

    Each stored message restarts the timeout. Time that the caller spends elsewhere, to create the next messages, does
    not count, because acks that arrive in the meantime may not be read before the caller returns.

    Attributes:
        gives_up_at: The time at which the call fails. Infinite while the call does not wait.
    """

    __slots__ = ("_remaining", "_timeout", "gives_up_at")

    def __init__(self, timeout: float) -> None:
        self._timeout = self._remaining = timeout
        self.gives_up_at: float = NEVER

    def begin(self, now: float, *, in_flight: bool) -> None:
        """Resume when the caller returns. ``in_flight`` is true if messages without an outcome are in flight."""
        self.gives_up_at = now + (self._remaining if in_flight else self._timeout)

    def moved(self, now: float) -> None:
        """Restart the timeout, because a message was stored."""
        self._remaining = self._timeout
        if self.gives_up_at < NEVER:
            self.gives_up_at = now + self._timeout

    def pause(self, now: float) -> None:
        """Stop the timeout while the caller does something else."""
        self._remaining = max(0.0, self.gives_up_at - now)
        self.gives_up_at = NEVER
