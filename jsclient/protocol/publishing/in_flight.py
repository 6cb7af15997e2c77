"""A publish whose outcome is not known yet: what is kept of it, what its tries are called, how it can end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from ...errors import ApiError, JetStreamError, NoRespondersError, RequestTimeoutError
from ..models.publish import PubAck
from ..wire.headers import EXPECTED_LAST_MSG_ID, MSG_ID, ROLLUP, encode_headers, parse_headers

__all__ = [
    "ATTEMPT",
    "PAUSE",
    "Ticket",
    "TicketT",
    "Trouble",
    "UnderWay",
    "first_reply",
    "no_stream",
    "question",
    "question_about",
    "reply_of",
    "unknown",
]

ATTEMPT = 2.0
"""Seconds that a try may take where a message id makes another one safe; after each silence twice as many."""

PAUSE = 0.25
"""Seconds before a try that was refused is repeated (ADR-22)."""

_LONGEST_ATTEMPT = 8.0  # elections follow one another, and a try can go down with a leader
_TRIES_WITHOUT_RESPONDERS = 3  # that may find no stream (ADR-22)
_DUPLICATE_IN_PROCESS = 10158  # an earlier try is still being stored: the next one finds it stored
_WRONG_LAST_MSG_ID = 10070
_ROLLUP_FAILED = 10111
_NO_ROLLUP = "none"

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
    mismatch: ApiError | None = None  # told while in doubt, so it was asked whether an earlier try was stored
    overtaken: ApiError | None = None  # 10070, told while what it should follow was under way

    @property
    def attempt(self) -> float:
        """Seconds that the next try may take before another one is sent."""
        return min(ATTEMPT * (1 << min(self.silent, 10)), _LONGEST_ATTEMPT)

    def refusal(
        self, error: JetStreamError, to: str, *, behind: bool = False
    ) -> tuple[JetStreamError, float | None]:
        """The last try was answered by an error: what the publish ends with where it is not sent again, and the pause
        before it is; None: it is not. 0: at once, as the `question` whether an earlier try was stored.

        ``behind``: what it should follow is under way still.
        """
        unknown = _unknown(to)
        if isinstance(error, NoRespondersError):
            self.refused += 1
            if self.in_doubt:
                return unknown, PAUSE
            final = NoRespondersError(error.code, f"no stream took the message on {to!r}", error.retryable)
            return final, PAUSE if self.refused < _TRIES_WITHOUT_RESPONDERS else None
        code = error.err_code if isinstance(error, ApiError) else 0
        if code == _DUPLICATE_IN_PROCESS:
            if self.overtaken is not None:
                # In a cluster the id of what was overtaken stays taken, and nothing is stored under it.
                return unknown if self.in_doubt else self.overtaken, None
            self.in_doubt = True
            return unknown, PAUSE
        if self.mismatch is not None:  # it was asked
            return self.mismatch if code in (_WRONG_LAST_MSG_ID, _ROLLUP_FAILED) else unknown, None
        if code == _WRONG_LAST_MSG_ID and isinstance(error, ApiError):
            self.overtaken = error if behind else None
            return error, PAUSE if behind else None
        if self.in_doubt and isinstance(error, ApiError):
            # Sequences, limits and the like are judged before ids: it says nothing of the earlier try.
            self.mismatch = error
            return unknown, 0.0
        return error, None


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

    def doubt(self) -> Trouble:
        """What became of its try is unknown; it is to be sent again."""
        trouble = self.trouble = self.trouble or Trouble()
        trouble.waits = trouble.in_doubt = True
        return trouble


def _unknown(to: str) -> RequestTimeoutError:
    return RequestTimeoutError(f"publish to {to!r}: whether it was stored is unknown")


def unknown(entry: UnderWay[TicketT]) -> RequestTimeoutError:
    """The error of a publish whose time is over without an answer."""
    return _unknown(entry.to)


def no_stream(entry: UnderWay[TicketT]) -> NoRespondersError:
    """The error of a publish that nobody took: nothing was stored."""
    return NoRespondersError(503, f"no stream took the message on {entry.to!r}")


def question(header: bytes, never_an_id: str) -> bytes:
    """Headers of a message that is never stored and asks whether that of the same id was.

    A single server judges sequences before ids, so the second try of a message fails by the first one that was stored.
    What it judges after ids is that of the last message: with one that cannot be, the answer is "stored before" or
    "wrong last id". A cluster judges that when it applies the message, and one of 2.14 or newer breaks the stream by
    it, for good. So there is a roll-up that does not exist, too: a cluster judges it before that, and after ids.
    """
    return question_about(parse_headers(header)[1][MSG_ID], never_an_id)


def question_about(msg_id: str | Sequence[str], never_an_id: str) -> bytes:
    """`question`, of the message of this id."""
    return encode_headers({MSG_ID: msg_id, EXPECTED_LAST_MSG_ID: never_an_id, ROLLUP: _NO_ROLLUP})


def reply_of(reply: bytes, number: int) -> bytes:
    """The reply subject of a further try: which try was refused must be known, for another one may be stored."""
    return b"%b-%d" % (reply, number)


def first_reply(reply: bytes) -> tuple[bytes, int]:
    """The reply subject of the first try, and which try this one belongs to."""
    first, _, number = reply.rpartition(b"-")
    return first, int(number) if number.isdigit() and len(number) < 10 else 0
