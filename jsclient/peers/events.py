"""Events of an engine: reports of conditions that cannot be raised to a caller."""

from __future__ import annotations

from ..protocol.events import Event
from ..protocol.peers.commands import Refusal

__all__ = ["EventDelayed", "EventGivenUp", "EventRefused", "PeerHandlerFailed"]


class EventRefused(Event, frozen=True, kw_only=True):
    """An event for a peer will never be handled, for example because the channel's policy does not accept it.

    ``event`` is ``domain:type`` and ``eci`` the channel, empty if the subject is not valid. ``count`` is the number
    with this ``refusal`` so far; the event comes for the first and then at each doubling, since strangers may send
    many.
    """

    peer: str
    event: str
    eci: str
    refusal: Refusal
    detail: str
    count: int


class PeerHandlerFailed(Event, frozen=True, kw_only=True):
    """A handler of a peer raised. It is called again after ``retry_in`` seconds; None: this was the last attempt."""

    peer: str
    event: str
    error: BaseException
    attempt: int
    retry_in: float | None


class EventGivenUp(Event, frozen=True, kw_only=True):
    """An event was abandoned: its handlers failed too often, or no stream can hold it."""

    peer: str
    event: str
    error: BaseException
    attempts: int


class EventDelayed(Event, frozen=True, kw_only=True):
    """A message of a relationship to the other side could not be sent. It is sent again after ``retry_in`` seconds.

    ``host`` is the URL of the other side's NATS system, None for the own one. It comes for the first attempt and then
    at each doubling.
    """

    peer: str
    event: str
    eci: str
    host: str | None
    error: BaseException
    attempt: int
    retry_in: float
