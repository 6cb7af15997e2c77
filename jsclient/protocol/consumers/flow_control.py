"""Flow control of push consumers: the server stops and waits until the reader has come this far.

A request takes its place in the reader's queue and is answered, with an empty message to its reply subject, when that
place is reached: so the answer is true, and the server never has more under way than its window. If the request or
the answer was lost, heartbeats repeat the subject in ``Nats-Consumer-Stalled``. The subject is the server's own
business and is not read, but a subject that cannot be published to, or that is an API or system subject, is not
answered: whoever can send to the deliver subject must not be able to make us call the API.
Source: ADR-15 §Flow Control.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FlowControl", "may_answer"]

_FORBIDDEN = (b"$JS.API.", b"$SYS.", b"$JS.ACK.")
_ILLEGAL = frozenset(b" \t\r\n\0")


def may_answer(subject: bytes, api_prefix: bytes = b"$JS.API") -> bool:
    """Whether an empty message may be published to this subject; ``api_prefix`` is that of the API in use."""
    if (
        not subject
        or subject.startswith(api_prefix + b".")
        or len(subject) > 1024
        or subject.startswith(_FORBIDDEN)
        or not _ILLEGAL.isdisjoint(subject)
    ):
        return False
    tokens = subject.split(b".")
    if tokens[0] == b"$JS" and (tokens[1:2] == [b"API"] or (tokens[2:3] == [b"API"] and tokens[1] != b"FC")):
        return False  # $JS.<domain>.API.…, but not $JS.FC.<a stream named API>.…
    return all(token and token not in {b"*", b">"} for token in tokens)


@dataclass(slots=True)
class FlowControl:
    """Answers each distinct request once."""

    answered: bytes = b""  # the last one answered
    waiting: bytes = b""  # the last one whose place in the queue is not reached yet
    repeated_at: float | None = None  # monotonic seconds: a heartbeat repeated what was answered

    def requested(self, subject: bytes) -> bool:
        """A request, or a stalled heartbeat that repeats one: whether it takes a place in the queue."""
        if subject in {self.answered, self.waiting}:
            return False
        self.waiting = subject
        return True

    def stalled(self, subject: bytes, now: float, interval: float) -> bool:
        """A heartbeat, one every ``interval`` seconds, says that no answer came: whether it takes a place in the queue.

        The first one that repeats an answered subject may have been under way when the answer went out; the next one
        says that the answer was lost.
        """
        if subject == self.answered and subject != self.waiting:
            if self.repeated_at is None or now - self.repeated_at < interval / 2:
                self.repeated_at = now if self.repeated_at is None else self.repeated_at
                return False
            self.not_sent(subject)
        return self.requested(subject)

    def not_sent(self, subject: bytes) -> None:
        """The answer did not go out, or was lost: it is to be asked for again."""
        if subject == self.answered:
            self.answered, self.repeated_at = b"", None

    def reached(self, subject: bytes) -> bool:
        """The reader came to its place: whether to answer now."""
        if subject == self.waiting:
            self.waiting = b""
        if subject == self.answered:
            return False
        self.answered, self.repeated_at = subject, None
        return True
