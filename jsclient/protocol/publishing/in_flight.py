"""A publish in flight, with the reply subjects of its attempts, and the ways in which it can end.

After "no responders" (503) the message was not stored, so a retry is safe. A subject on which no stream has ever
answered gets the three attempts of ADR-22, because it is most likely a mistake. If a stream has answered there
before, or the message has an id, the cause is a leader election or a restart, and the publish is retried until its
deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import msgspec

from ...errors import ApiError, JetStreamError, NoRespondersError, RequestTimeoutError, WrongLastSequenceError
from ..wire.header_names import EXPECTED_LAST_MSG_ID, MSG_ID, ROLLUP
from ..wire.headers import encode_headers, parse_headers

if TYPE_CHECKING:
    from ..models.publish import PubAck

__all__ = [
    "ACK_EVERY",
    "ATTEMPT",
    "MAX_BYTES",
    "MAX_IN_FLIGHT",
    "PAUSE",
    "AnsweredSubjects",
    "InFlight",
    "Recovery",
    "Ticket",
    "TicketT",
    "first_reply",
    "has_id",
    "no_stream",
    "question",
    "question_about",
    "reply_of",
    "unknown",
]

MAX_IN_FLIGHT: Final = 4000  # default limit of a publisher's messages in flight
MAX_BYTES: Final = 64 * 1024 * 1024  # default limit of the size of headers and payloads in flight, in bytes
ACK_EVERY: Final = 200  # default number of messages per ack of a fast ingest

ATTEMPT = 2.0
"""How long to wait for an answer before a message with an ID is sent again, in seconds.

The time doubles after each unanswered attempt.
"""

PAUSE = 0.25
"""How long to wait before a refused attempt is repeated, in seconds. See ADR-22 for retries."""

# The longest pause between attempts, in seconds. It is reached after three attempts, because an election takes seconds.
_LONGEST_PAUSE = 1.0
# The longest time to wait for one attempt before the message is sent again, in seconds. Elections may follow one
# another, and a leader may fail before it answers, so it doesn't help to wait longer for the same answer.
_LONGEST_ATTEMPT = 8.0
_ATTEMPTS_WITHOUT_STREAM = 3  # how often to try a subject on which no stream has answered (ADR-22)
# Error codes of the server. `_DUPLICATE_IN_PROCESS` means that the server is still storing an earlier attempt, so it
# will answer the next attempt as a duplicate.
_DUPLICATE_IN_PROCESS = 10158
_WRONG_LAST_MSG_ID = 10070
_ROLLUP_FAILED = 10111
_NO_ROLLUP = "none"

TicketT = TypeVar("TicketT", bound="Ticket")


class AnsweredSubjects:
    """The latest subjects on which a stream has answered a publish, up to ``LIMIT``."""

    __slots__ = ("subjects",)

    LIMIT = 4096

    def __init__(self) -> None:
        # The subjects, oldest first. The window adds subjects directly, and then calls `trim`.
        self.subjects: dict[bytes, None] = {}

    def __contains__(self, subject: bytes) -> bool:
        return subject in self.subjects

    def add(self, subject: bytes) -> None:
        self.subjects[subject] = None
        if len(self.subjects) > self.LIMIT:
            self.trim()

    def discard(self, subject: bytes) -> None:
        self.subjects.pop(subject, None)

    def trim(self) -> None:
        """Remove the oldest subjects above the limit, many at once so that it costs little per message."""
        for subject in list(islice(self.subjects, len(self.subjects) - self.LIMIT * 3 // 4)):
            del self.subjects[subject]


class Ticket(Protocol):
    """The receiver of an outcome, for example an ``asyncio.Future``."""

    @property
    def done(self) -> Callable[[], int]:
        """A function that returns true, or a number above 0, if the caller no longer needs the outcome."""

    @property
    def set_result(self) -> Callable[[PubAck], object]:
        """A function to call with the ack when the message is stored."""


class Recovery(msgspec.Struct):
    """The history of a publish whose first attempt was not acked in the ordinary way."""

    waits: bool = False  # the message waits to be sent again, at ``due`` or on the next connection
    tries: int = 1
    silent: int = 0  # number of attempts that were not answered in time
    refused: int = 0  # number of attempts that found no responders
    unconfirmed: bool = False  # an earlier attempt may have been stored
    # The error received while ``unconfirmed`` was true. The next attempt asks whether an earlier attempt was stored.
    mismatch: ApiError | None = None
    overtaken: ApiError | None = None  # error 10070, received while the preceding message was in flight

    @property
    def attempt(self) -> float:
        """How long to wait for an answer to the next attempt before it is repeated, in seconds."""
        return min(ATTEMPT * (1 << min(self.silent, 10)), _LONGEST_ATTEMPT)

    def refusal(
        self,
        error: JetStreamError,
        to: str,
        left: float,
        *,
        expected: bool,
        behind: bool = False,
        identified: bool = True,
    ) -> tuple[JetStreamError, float | None]:
        """Decide what follows an error answer to the last attempt.

        Args:
            error: The error in the answer.
            to: The subject, for error texts.
            left: The time until the deadline, in seconds.
            expected: Whether a stream is expected on the subject, so that "no responders" is retried until the
                deadline.
            behind: Whether its predecessor is still in flight.
            identified: Whether the message has an id. Without an id, no answer can make the outcome of an earlier
                attempt uncertain.

        Returns:
            The error that ends the publish if it is not sent again, and the pause before the next attempt, in seconds.
            If the pause is None, there is no next attempt. If it is 0, send at once, as the `question` whether an
            earlier attempt was stored.
        """
        if isinstance(error, NoRespondersError):
            final, pause = self._no_stream(error, to, left, expected=expected)
        else:
            final, pause = self._refused(error, to, behind=behind, identified=identified)
        return final, None if pause is None or left <= pause else pause

    def _no_stream(
        self, error: NoRespondersError, to: str, remaining: float, *, expected: bool
    ) -> tuple[JetStreamError, float | None]:
        self.refused += 1
        pause = min(PAUSE * (1 << min(max(self.refused - 2, 0), 10)), _LONGEST_PAUSE)
        pause = max(PAUSE, min(pause, remaining / 2))  # leave time for another attempt before the deadline
        if self.unconfirmed:
            return _unknown(to), pause
        final = NoRespondersError.of_publish(to)
        return final, pause if expected or self.refused < _ATTEMPTS_WITHOUT_STREAM else None

    def _refused(
        self, error: JetStreamError, to: str, *, behind: bool, identified: bool
    ) -> tuple[JetStreamError, float | None]:
        unknown = _unknown(to)
        code = error.err_code if isinstance(error, ApiError) else 0
        if code == _DUPLICATE_IN_PROCESS and identified:
            if self.overtaken is not None:
                # In a cluster, the ID of an overtaken message stays in use although no message is stored under it. So
                # this error doesn't mean that the message is being stored.
                return unknown if self.unconfirmed else self.overtaken, None
            self.unconfirmed = True
            return unknown, PAUSE
        if self.mismatch is not None:  # this answers the `question` whether the earlier attempt was stored
            return self.mismatch if code in (_WRONG_LAST_MSG_ID, _ROLLUP_FAILED) else unknown, None
        if code == _WRONG_LAST_MSG_ID and isinstance(error, ApiError):
            self.overtaken = error if behind else None
            return error, PAUSE if behind else None
        if self.unconfirmed and isinstance(error, ApiError):
            # The server checks sequences and limits before message IDs, so this error doesn't say whether an earlier
            # attempt was stored. Send the `question` immediately to find out.
            self.mismatch = error
            return unknown, 0.0
        if isinstance(error, WrongLastSequenceError) and error.advice:
            return error.with_advice(f"publish to {to!r}: {error.advice}"), None
        return error, None


class InFlight(msgspec.Struct, Generic[TicketT], gc=False):
    """A publish whose outcome is not known yet. Times are monotonic seconds."""

    ticket: TicketT
    subject: bytes
    header: bytes
    payload: bytes
    size: int  # bytes of header and payload
    number: int  # the position in the order of sending
    deadline: float
    due: float  # when the current attempt, the pause or the deadline ends
    repeatable: bool = False
    recovery: Recovery | None = None

    @property
    def to(self) -> str:
        """The subject as a str, for error texts."""
        return self.subject.decode()

    @property
    def waits(self) -> bool:
        """Whether the message waits to be sent again, and is not on the wire."""
        return self.recovery is not None and self.recovery.waits

    @property
    def unconfirmed(self) -> bool:
        """Whether an earlier attempt may have been stored."""
        return self.recovery is not None and self.recovery.unconfirmed

    def doubt(self) -> Recovery:
        """Mark the outcome of the last attempt as unknown, so that the message is sent again."""
        recovery = self.recovery = self.recovery or Recovery()
        recovery.waits = recovery.unconfirmed = True
        return recovery


def _unknown(to: str) -> RequestTimeoutError:
    return RequestTimeoutError(f"publish to {to!r}: whether it was stored is unknown")


def unknown(entry: InFlight[TicketT]) -> RequestTimeoutError:
    """Return the error of a publish that reached its deadline without an answer."""
    return _unknown(entry.to)


def no_stream(entry: InFlight[TicketT]) -> NoRespondersError:
    """Return the error of a publish that no stream received, so that it was not stored."""
    return NoRespondersError.of_publish(entry.to)


def has_id(header: bytes) -> bool:
    """Return whether this header block contains a message id."""
    return bool(header) and MSG_ID in parse_headers(header)[1]


def question(header: bytes, never_an_id: str) -> bytes:
    """Return the headers of a message that is never stored. Its answer shows whether the id was stored before.

    A single server checks sequences before ids, so a second attempt fails because the first attempt was stored. It
    checks the id of the last message after duplicate ids. With an id that cannot exist, the answer is "duplicate" or
    "wrong last id". A cluster checks the last id when it applies the message, and from 2.14 on, a mismatch stops the
    stream permanently. An unknown roll-up prevents that, because a cluster checks the roll-up earlier, but after
    duplicate ids.
    """
    return question_about(parse_headers(header)[1][MSG_ID], never_an_id)


def question_about(msg_id: str | Sequence[str], never_an_id: str) -> bytes:
    """Return the headers of a `question` about the message with this id."""
    return encode_headers({MSG_ID: msg_id, EXPECTED_LAST_MSG_ID: never_an_id, ROLLUP: _NO_ROLLUP})


def reply_of(reply: bytes, number: int) -> bytes:
    """Return the reply subject of attempt ``number``. It shows to which attempt an answer belongs."""
    return b"%b-%d" % (reply, number)


def first_reply(reply: bytes) -> tuple[bytes, int]:
    """Return the reply subject of the first attempt, and the number of the attempt with the subject ``reply``."""
    first, _, number = reply.rpartition(b"-")
    return first, int(number) if number.isdigit() and len(number) < 10 else 0
