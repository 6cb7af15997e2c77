"""What an engine tells out of band, where there is nobody to raise it to: to ``on_event``."""

from __future__ import annotations

from ..protocol.events import Event
from ..protocol.peers.commands import Refusal

__all__ = ["EventDelayed", "EventGivenUp", "EventRefused", "PeerHandlerFailed"]


class EventRefused(Event, frozen=True, kw_only=True):
    """An event that came for a peer will never be handled: the channel's policy is against it, say.

    ``event`` is ``domain:type`` and ``eci`` the channel, "" where it makes no sense. ``count`` is how many with this
    ``refusal`` so far; the event comes for the first and then at each doubling, for strangers may send many.
    """

    peer: str
    event: str
    eci: str
    refusal: Refusal
    detail: str
    count: int


class PeerHandlerFailed(Event, frozen=True, kw_only=True):
    """A handler of a peer raised. The event is told again after ``retry_in`` seconds; None: it was the last time."""

    peer: str
    event: str
    error: BaseException
    attempt: int
    retry_in: float | None


class EventGivenUp(Event, frozen=True, kw_only=True):
    """An event will not be told or sent any more: its handlers failed too often, or no stream can hold it."""

    peer: str
    event: str
    error: BaseException
    attempts: int


class EventDelayed(Event, frozen=True, kw_only=True):
    """What a relationship has to tell the other side could not be sent; it is tried again, after ``retry_in`` seconds.

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
