"""Errors and events of peers, in addition to the errors that any request can raise."""

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
    """A peer can't carry out a request, for example because a relationship doesn't exist.

    The handlers of the peer that made the request also receive the failure as an event.

    Attributes:
        event: The event that reports the failure, such as ``"wrangler:no_such_subscription_failure"``.
        reason: Human-readable reason for the failure.
    """

    def __init__(self, event: str, reason: str) -> None:
        super().__init__(event, reason)
        self.event = event
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason} ({self.event})"


class QueryRefusedError(JetStreamError):
    """The other peer refused a query or failed to answer it. Raised by `Peer.query`.

    Attributes:
        refusal: The reason as one word. It is the name of a `Refusal` such as ``"POLICY"`` or ``"NO_CHANNEL"``,
            ``"UNKNOWN"`` if the peer has no function that answers the query, ``"FAILED"`` if that function raised an
            exception, or ``"BUSY"`` if the peer is answering too many queries.
        detail: Human-readable details, or an empty string.
    """

    def __init__(self, refusal: str, detail: str = "") -> None:
        super().__init__(refusal, detail)
        self.refusal = refusal
        self.detail = detail

    def __str__(self) -> str:
        return f"the query was refused: {self.refusal}{': ' if self.detail else ''}{self.detail}"


class HostNotAllowedError(JetStreamError):
    """The other peer is on a NATS system that isn't among the ``allowed_hosts`` of the engine, so nothing was sent.

    Attributes:
        host: The URL of the NATS system, as named by the other peer.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f"the host {self.host!r:.200} is not one of the engine's allowed hosts"


class EventRefused(Event, frozen=True, kw_only=True):
    """A peer refused an event, for example because the policy of the channel doesn't accept it.

    The event won't be handled. Because strangers may send many events, only the first refusal is reported, and then one
    each time the count has doubled.

    Attributes:
        peer: Name of the peer.
        event: The refused event as ``domain:type``, or an empty string if its subject is malformed.
        eci: The channel, or an empty string if the subject is malformed.
        refusal: The reason.
        detail: Human-readable details, or an empty string.
        count: Number of events and queries refused for this reason since this process opened the peer.
    """

    peer: str
    event: str
    eci: str
    refusal: Refusal
    detail: str
    count: int


class PeerHandlerFailed(Event, frozen=True, kw_only=True):
    """A handler of a peer raised an exception. Unless ``retry_in`` is None, the event's handlers will be called again.

    Attributes:
        peer: Name of the peer.
        event: The event that was handled, as ``domain:type``, or the query that was answered, as ``rid:name``.
        error: The exception.
        attempt: Number of this attempt, starting at 1.
        retry_in: How long until the handlers are called again, in seconds. None after the last attempt (see
            `EventGivenUp`), and for a query, which is never retried.
    """

    peer: str
    event: str
    error: BaseException
    attempt: int
    retry_in: float | None


class EventGivenUp(Event, frozen=True, kw_only=True):
    """A peer abandoned an event, because its handlers failed too often, or because no stream can store it.

    Attributes:
        peer: Name of the peer.
        event: The abandoned event, as ``domain:type``.
        error: The error of the last attempt.
        attempts: Number of attempts that were made.
    """

    peer: str
    event: str
    error: BaseException
    attempts: int


class EventDelayed(Event, frozen=True, kw_only=True):
    """A message to the other side of a relationship couldn't be sent, and will be sent again later.

    Emitted after the first failed attempt, and then each time the number of attempts has doubled.

    Attributes:
        peer: Name of the peer that sends the message.
        event: The event, as ``domain:type``.
        eci: The channel of the other side.
        host: The URL of the other side's NATS system, or None for this system.
        error: Why the message couldn't be sent.
        attempt: Number of the failed attempt, starting at 1.
        retry_in: How long until the next attempt, in seconds.
    """

    peer: str
    event: str
    eci: str
    host: str | None
    error: BaseException
    attempt: int
    retry_in: float
