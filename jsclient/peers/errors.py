"""Errors and events of peers, in addition to the errors of any request."""

from __future__ import annotations

from ..errors import JetStreamError
from ..protocol.events import Event
from ..protocol.peers.rules import Refusal

__all__ = [
    "EventDelayed",
    "EventGivenUp",
    "EventRefused",
    "HostNotAllowedError",
    "PeerError",
    "PeerHandlerFailed",
    "QueryRefusedError",
]


class PeerError(JetStreamError):
    """Raised when a peer cannot do what was requested. Its handlers receive the failure as an event too.

    Attributes:
        event: The name of that event, such as ``"wrangler:no_such_subscription_failure"``.
        reason: Why the peer cannot do it.
    """

    def __init__(self, event: str, reason: str) -> None:
        super().__init__(event, reason)
        self.event = event
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} ({self.event})"


class QueryRefusedError(JetStreamError):
    """Raised when the other peer did not answer a query.

    Attributes:
        refusal: The reason in one word: the name of a ``Refusal`` (``"POLICY"``, ``"NO_CHANNEL"``,
            ``"CHANNEL_GONE"``…), ``"UNKNOWN"`` (the peer has no answer to this query), ``"FAILED"`` (its answerer
            raised) or ``"BUSY"``.
        detail: Details, which may be empty.
    """

    def __init__(self, refusal: str, detail: str = "") -> None:
        super().__init__(refusal, detail)
        self.refusal = refusal
        self.detail = detail

    def __str__(self) -> str:
        return f"the query was refused: {self.refusal}{': ' if self.detail else ''}{self.detail}"


class HostNotAllowedError(JetStreamError):
    """Raised when the NATS system of a peer is not one of the engine's ``allowed_hosts``.

    Attributes:
        host: The URL of the NATS system.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f"the host {self.host!r:.200} is not one of the engine's allowed hosts"


class EventRefused(Event, frozen=True, kw_only=True):
    """An event for a peer will never be handled, for example because the channel's policy does not accept it.

    ``event`` is ``domain:type`` and ``eci`` the channel. Both are empty if the subject is not valid. ``count`` is the
    number of events with this ``refusal`` so far. The event is reported for the first and then at each doubling,
    because strangers may send many events.
    """

    peer: str
    event: str
    eci: str
    refusal: Refusal
    detail: str
    count: int


class PeerHandlerFailed(Event, frozen=True, kw_only=True):
    """A handler of a peer raised. It is called again after ``retry_in`` seconds, or not at all if that is None."""

    peer: str
    event: str
    error: BaseException
    attempt: int
    retry_in: float | None


class EventGivenUp(Event, frozen=True, kw_only=True):
    """An event was abandoned, because its handlers failed too often, or because no stream can store it."""

    peer: str
    event: str
    error: BaseException
    attempts: int


class EventDelayed(Event, frozen=True, kw_only=True):
    """A message of a relationship to the other side could not be sent. It is sent again after ``retry_in`` seconds.

    ``host`` is the URL of the other side's NATS system, or None for this system. The event is reported for the first
    attempt and then at each doubling.
    """

    peer: str
    event: str
    eci: str
    host: str | None
    error: BaseException
    attempt: int
    retry_in: float
