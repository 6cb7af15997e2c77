"""What can go wrong between peers, beside what can go wrong with any request."""

from __future__ import annotations

from ..errors import JetStreamError

__all__ = ["HostNotAllowedError", "PeerError", "QueryRefusedError"]


class PeerError(JetStreamError):
    """What a peer was asked to do cannot be done. Its handlers were told, by the event ``event``.

    Attributes:
        event: The failure as an event, such as ``"wrangler:no_such_subscription_failure"``.
        reason: Why.
    """

    def __init__(self, event: str, reason: str) -> None:
        super().__init__(event, reason)
        self.event = event
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} ({self.event})"


class QueryRefusedError(JetStreamError):
    """The other peer did not answer a query.

    Attributes:
        refusal: Why, in a word: that of a ``Refusal`` (``"POLICY"``, ``"NO_CHANNEL"``, ``"CHANNEL_GONE"``…), else
            ``"UNKNOWN"`` (nobody there answers this query), ``"FAILED"`` (its answerer raised) or ``"BUSY"``.
        detail: More of it, "" for nothing.
    """

    def __init__(self, refusal: str, detail: str = "") -> None:
        super().__init__(refusal, detail)
        self.refusal = refusal
        self.detail = detail

    def __str__(self) -> str:
        return f"the query was refused: {self.refusal}{': ' if self.detail else ''}{self.detail}"


class HostNotAllowedError(JetStreamError):
    """A peer is said to be on another NATS system, and the engine's configuration does not allow to connect to it.

    Attributes:
        host: The URL.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f"the host {self.host!r:.200} is not one of the engine's allowed hosts"
