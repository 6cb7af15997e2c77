"""Errors of peers, besides those of any request."""

from __future__ import annotations

from ..errors import JetStreamError

__all__ = ["HostNotAllowedError", "PeerError", "QueryRefusedError"]


class PeerError(JetStreamError):
    """A peer cannot do what was requested. Its handlers receive the event ``event``.

    Attributes:
        event: The failure as an event, such as ``"wrangler:no_such_subscription_failure"``.
        reason: The reason.
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
        refusal: The reason in one word: that of a ``Refusal`` (``"POLICY"``, ``"NO_CHANNEL"``, ``"CHANNEL_GONE"``…),
            else ``"UNKNOWN"`` (the peer has no answer to this query), ``"FAILED"`` (its answerer raised) or ``"BUSY"``.
        detail: Details, may be empty.
    """

    def __init__(self, refusal: str, detail: str = "") -> None:
        super().__init__(refusal, detail)
        self.refusal = refusal
        self.detail = detail

    def __str__(self) -> str:
        return f"the query was refused: {self.refusal}{': ' if self.detail else ''}{self.detail}"


class HostNotAllowedError(JetStreamError):
    """The host of a peer is not one of the engine's ``allowed_hosts``.

    Attributes:
        host: The URL.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f"the host {self.host!r:.200} is not one of the engine's allowed hosts"
