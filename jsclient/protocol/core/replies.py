"""Decides when a request with several replies has received all of them. Source: ADR-47."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...errors import NoRespondersError
from ..wire.frames import Frame
from ..wire.headers import inline_status

__all__ = ["ReplyTracker"]


class ReplyTracker:
    """Tracks the replies to one request, and decides when no more replies are expected.

    The request ends when enough replies have arrived, when no reply arrives for an interval, at a reply for which
    ``is_last`` is true, or at the deadline. "No responders" ends the request with an error, because no reply can
    follow.

    Attributes:
        front: The replies that wait to be read.
        ended: Whether no more replies are accepted.
        error: The error to raise after the replies, or None.
    """

    def __init__(
        self,
        subject: str,
        *,
        deadline: float,
        stall: float | None,
        max_messages: int | None,
        is_last: Callable[[Frame], bool] | None,
    ) -> None:
        """Start to track the replies. ``deadline`` is in monotonic seconds, ``stall`` in seconds."""
        self.front: deque[Frame] = deque()
        self.ended: bool = False
        self.error: NoRespondersError | None = None
        self._subject = subject
        self._deadline = deadline
        self._stall = stall
        self._max_messages = max_messages
        self._is_last = is_last
        self._count = 0
        # The time by which the next reply must arrive, after the first reply.
        self._next_by: float | None = None

    @property
    def deadline(self) -> float:
        """The time to call `check_deadline`, in monotonic seconds."""
        return self._deadline if self._next_by is None else min(self._deadline, self._next_by)

    def receive_replies(self, frames: list[Frame], now: float) -> None:
        """Accept replies that arrived together."""
        for frame in frames:
            if self.ended:
                return
            if frame[2] and not frame[3] and inline_status(frame[2]) == 503:
                self._no_responders()
            elif self._is_last is not None and self._is_last(frame):
                self.ended = True
            else:
                self.front.append(frame)
                self._count += 1
                self.ended = self._count == self._max_messages
        if self._stall is not None and self._count:
            self._next_by = now + self._stall

    def _no_responders(self) -> None:
        """End the request. After a reply, the status is no error, because there were responders."""
        self.ended = True
        if not self._count:
            self.error = NoRespondersError(503, f"no responders on {self._subject!r}")

    def check_deadline(self, now: float) -> None:
        """End the request if the deadline or the interval between replies has passed."""
        if now >= self.deadline:
            self.ended = True
