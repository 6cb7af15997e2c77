"""Flow control of push consumers: the server pauses until the reader has processed everything sent so far.

A request enters the reader's queue and is answered, with an empty message to its reply subject, when it is reached:
so the answer is accurate, and the server never has more in flight than its window. If the request or
the answer was lost, heartbeats repeat the subject in ``Nats-Consumer-Stalled``. Which subjects are answered is decided
by ``protocol.wire.replies.may_answer_flow_control``.
Source: ADR-15 §Flow Control.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FlowControl"]


@dataclass(slots=True)
class FlowControl:
    """Answers each distinct request once."""

    answered: bytes = b""  # the last one answered
    waiting: bytes = b""  # the last one in the queue that is not reached yet
    repeated_at: float | None = None  # monotonic seconds: a heartbeat repeated an answered request

    def requested(self, subject: bytes) -> bool:
        """A request, or a stalled heartbeat that repeats one: whether it enters the queue."""
        if subject in {self.answered, self.waiting}:
            return False
        self.waiting = subject
        return True

    def stalled(self, subject: bytes, now: float, interval: float) -> bool:
        """A heartbeat, one every ``interval`` seconds, reports a missing answer: whether it enters the queue.

        The first one that repeats an answered subject may have been in flight when the answer was sent; the next one
        proves that the answer was lost.
        """
        if subject == self.answered and subject != self.waiting:
            if self.repeated_at is None or now - self.repeated_at < interval / 2:
                self.repeated_at = now if self.repeated_at is None else self.repeated_at
                return False
            self.not_sent(subject)
        return self.requested(subject)

    def not_sent(self, subject: bytes) -> None:
        """The answer was not sent, or was lost: the next request for it is answered again."""
        if subject == self.answered:
            self.answered, self.repeated_at = b"", None

    def reached(self, subject: bytes) -> bool:
        """The reader reached the request: whether to answer now."""
        if subject == self.waiting:
            self.waiting = b""
        if subject == self.answered:
            return False
        self.answered, self.repeated_at = subject, None
        return True
