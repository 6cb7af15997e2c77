"""A publish whose outcome is not known yet: what is kept of it, what its tries are called, how it can end."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import msgspec

from ..errors import ApiError, NoRespondersError, RequestTimeoutError
from .headers import EXPECTED_LAST_MSG_ID, MSG_ID, encode_headers, parse_headers
from .models.publish import PubAck

__all__ = [
    "Ticket",
    "TicketT",
    "Trouble",
    "UnderWay",
    "first_reply",
    "no_stream",
    "question",
    "reply_of",
    "unknown",
]

TicketT = TypeVar("TicketT", bound="Ticket")


class Ticket(Protocol):
    """Who waits for the outcome; an ``asyncio.Future`` is one."""

    def done(self) -> bool:
        """Nobody waits any more."""

    def set_result(self, result: PubAck, /) -> None:
        """It is stored."""


class Trouble(msgspec.Struct):
    """What has happened to a publish that was not simply acked."""

    waits: bool = False  # not on the wire: to be sent again, at ``due`` or with the connection
    tries: int = 1
    silent: int = 0  # tries that were not answered in their time
    refused: int = 0  # times that nobody took it
    in_doubt: bool = False  # an earlier try may have been stored
    mismatch: ApiError | None = None  # told while in doubt: what is there may be the message itself


class UnderWay(msgspec.Struct, Generic[TicketT], gc=False):
    """A publish whose outcome is not known yet. Times are monotonic seconds."""

    ticket: TicketT
    subject: bytes
    header: bytes
    payload: bytes
    size: int  # bytes of header and payload
    number: int  # in the order of sending
    deadline: float
    due: float  # when it is to be looked at: its try, its pause or its time is over
    repeatable: bool = False
    trouble: Trouble | None = None

    @property
    def to(self) -> str:
        """Its subject, for people."""
        return self.subject.decode()

    @property
    def waits(self) -> bool:
        """Whether it is not on the wire."""
        return self.trouble is not None and self.trouble.waits

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier try may have been stored."""
        return self.trouble is not None and self.trouble.in_doubt


def unknown(entry: UnderWay[TicketT]) -> RequestTimeoutError:
    """The error of a publish whose time is over without an answer."""
    return RequestTimeoutError(f"publish to {entry.to!r}: whether it was stored is unknown")


def no_stream(entry: UnderWay[TicketT]) -> NoRespondersError:
    """The error of a publish that nobody took: nothing was stored."""
    return NoRespondersError(503, f"no stream took the message on {entry.to!r}")


def question(header: bytes, never_an_id: str) -> bytes:
    """Headers of a message that is never stored and asks whether that of the same id was.

    Servers judge sequences before ids, so the second try of a message fails by the first one, which was stored. The id
    of the last message they judge after: with one that cannot be, the answer is "stored before" or "wrong last id".
    """
    headers = parse_headers(header)[1]
    return encode_headers({MSG_ID: headers[MSG_ID], EXPECTED_LAST_MSG_ID: never_an_id})


def reply_of(reply: bytes, number: int) -> bytes:
    """The reply subject of a further try: which try was refused must be known, for another one may be stored."""
    return b"%b-%d" % (reply, number)


def first_reply(reply: bytes) -> tuple[bytes, int]:
    """The reply subject of the first try, and which try this one belongs to."""
    first, _, number = reply.rpartition(b"-")
    return first, int(number) if number.isdigit() and len(number) < 10 else 0
