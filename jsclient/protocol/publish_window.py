"""The publishes under way: how many there are, what their answers mean, and what follows where no answer comes.

Each publish has a reply subject of its own. `PublishWindow` keeps it from its sending until it is *stored* (an ack),
*refused* (an error) or *unknown*, by its deadline at the latest:

- 503, no stream took it: it is sent again after 0.25 s, three times in all (ADR-22). Nothing was stored so far.
- The connection is lost, or no answer comes in time: what became of it is unknown. Where it is repeatable (it has a
  message id, which the stream stores once) it is sent again, else that is its end.
- An error of the stream is its end.

What is sent again at one time goes in the order of its first sending. The window knows no futures: ``ticket`` is
whatever the caller wants back with the outcome. Source: ADR-22; nats-server stream.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import msgspec

from ..errors import (
    ApiError,
    DisconnectedError,
    JetStreamError,
    NoRespondersError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from .frames import Frame
from .headers import EXPECTED_LAST_MSG_ID, MSG_ID, encode_headers, inline_status, parse_headers
from .models.publish import PubAck, quick_pub_ack, read_pub_ack

__all__ = ["NEVER", "Failures", "PublishWindow", "UnderWay", "question", "unknown"]

T = TypeVar("T")

NEVER = float("inf")
"""The moment that does not come."""

PAUSE = 0.25
"""Seconds before a try that was refused is repeated (ADR-22)."""

TRIES_WITHOUT_RESPONDERS = 3
"""Tries that may find no stream (ADR-22)."""

ATTEMPT = 2.0
"""Seconds that the first try may take where a message id makes another one safe; each further one twice as many."""

DUPLICATE_IN_PROCESS = 10158
"""The first try is still being stored: the next one finds it stored."""

WRONG_LAST_MSG_ID = 10070

_BETWEEN_LOOKS = 0.02  # seconds at least: a look goes through all that is under way


class UnderWay(msgspec.Struct, Generic[T], gc=False):
    """A publish whose outcome is not known yet. Times are monotonic seconds."""

    ticket: T
    subject: bytes
    header: bytes
    payload: bytes
    size: int  # bytes of header and payload
    number: int  # in the order of sending
    deadline: float
    due: float  # when it is to be looked at: its try, its pause or its time is over
    repeatable: bool = False
    waits: bool = False  # not on the wire: to be sent again, at ``due`` or with the connection
    tries: int = 1
    refused: int = 0  # times that nobody took it
    in_doubt: bool = False  # an earlier try may have been stored
    mismatch: ApiError | None = None  # told while in doubt: what is there may be the message itself

    @property
    def to(self) -> str:
        """Its subject, for people."""
        return self.subject.decode()


Failures: TypeAlias = list[tuple[UnderWay[T], JetStreamError]]
"""Publishes that ended without being known to be stored, and why."""

Sends: TypeAlias = list[tuple[bytes, UnderWay[T]]]
"""What to send again, in order, with its reply subjects."""


def unknown(entry: UnderWay[T]) -> RequestTimeoutError:
    """The error of a publish whose time is over without an answer."""
    return RequestTimeoutError(f"publish to {entry.to!r}: whether it was stored is unknown")


def no_stream(entry: UnderWay[T]) -> NoRespondersError:
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


@dataclass(slots=True)
class PublishWindow(Generic[T]):
    """All publishes under way.

    ``never_an_id`` is no message's id; ``wanted`` says whether anybody still waits for a publish: else it is not sent
    again.
    """

    never_an_id: str
    wanted: Callable[[T], bool]
    under_way: dict[bytes, UnderWay[T]] = field(default_factory=dict)  # by reply subject, oldest first
    size: int = 0  # bytes of headers and payloads under way
    look_at: float = NEVER  # when to call `tick`
    stored: int = 0
    resent: int = 0
    _connected: bool = True

    def add(self, reply: bytes, entry: UnderWay[T]) -> bool:
        """A publish goes out. True: `look_at` is earlier than it was."""
        self.under_way[reply] = entry
        self.size += entry.size
        if entry.due < self.look_at:
            self.look_at = entry.due
            return True
        return False

    def remove(self, reply: bytes) -> None:
        """It could not be sent after all, or is over."""
        entry = self.under_way.pop(reply, None) or self.under_way.pop(first_reply(reply)[0], None)
        if entry is not None:
            self.size -= entry.size

    def has_older(self, number: int) -> bool:
        """Whether publishes up to ``number`` are under way."""
        oldest = next(iter(self.under_way.values()), None)
        return oldest is not None and oldest.number <= number

    # --- what happens --------------------------------------------------------------------------------------

    def answers(self, frames: Iterable[Frame], now: float) -> tuple[list[T], list[PubAck], Failures[T]]:
        """Answers arrived: what was stored, its acks, and what failed. One that is late or repeated means nothing."""
        tickets: list[T] = []
        acks: list[PubAck] = []
        failures: Failures[T] = []
        under_way = self.under_way
        size = 0
        for frame in frames:
            entry = under_way.get(frame[0])
            if entry is not None:
                try:
                    ack = quick_pub_ack(frame[3])
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    pass
                else:
                    if ack.seq and ack.stream:
                        del under_way[frame[0]]
                        size += entry.size
                        tickets.append(entry.ticket)
                        acks.append(ack)
                        continue
            # Not an ack, or not that of a first try.
            reply, number = (frame[0], 1) if entry is not None else first_reply(frame[0])
            if (entry := under_way.get(reply)) is None:
                continue
            outcome = self._judge(entry, frame, number, now)
            if outcome is None:
                continue
            self.remove(reply)
            if isinstance(outcome, PubAck):
                tickets.append(entry.ticket)
                acks.append(outcome)
            else:
                failures.append((entry, outcome))
        self.size -= size
        self.stored += len(acks)
        return tickets, acks, failures

    def _judge(
        self, entry: UnderWay[T], frame: Frame, number: int, now: float
    ) -> PubAck | JetStreamError | None:
        """The outcome that the answer to try ``number`` means; None: it is still open."""
        try:
            if frame[2] and not frame[3] and inline_status(frame[2]) == 503:
                raise NoRespondersError
            return read_pub_ack(frame[3])
        except JetStreamError as error:
            if entry.waits or number != entry.tries:
                return None  # of an earlier try: it says nothing of the one that is on the wire
            final = self._refused(entry, error, now)
            if final is not None:
                final.__traceback__ = final.__context__ = (
                    None  # frames would hold the entry, and be held by it
                )
            return final

    def _refused(self, entry: UnderWay[T], error: JetStreamError, now: float) -> JetStreamError | None:
        """The answer is an error: the one that the publish ends with, None if it is to be sent again."""
        again, pause = True, PAUSE
        final: JetStreamError = unknown(entry)
        code = error.err_code if isinstance(error, ApiError) else 0
        if isinstance(error, NoRespondersError):
            entry.refused += 1
            if not entry.in_doubt:
                again, final = entry.refused < TRIES_WITHOUT_RESPONDERS, no_stream(entry)
        elif isinstance(error, WrongLastSequenceError) and entry.in_doubt and entry.mismatch is None:
            pause = 0.0
            self._ask(entry, error)
        elif code != DUPLICATE_IN_PROCESS:
            if entry.mismatch is None:
                return error
            # It was asked whether it was stored.
            return entry.mismatch if code == WRONG_LAST_MSG_ID else final
        if not again or not self.wanted(entry.ticket) or entry.deadline - now < pause:
            return final
        entry.waits, entry.due = True, now + pause
        self.look_at = min(self.look_at, entry.due)
        return None

    def _ask(self, entry: UnderWay[T], mismatch: ApiError) -> None:
        """From now on it asks whether it was stored."""
        entry.mismatch = mismatch
        entry.header, entry.payload = question(entry.header, self.never_an_id), b""
        self.size += len(entry.header) - entry.size
        entry.size = len(entry.header)

    def disconnected(self) -> Failures[T]:
        """The connection is lost: the outcome of what was on the wire is unknown."""
        self._connected = False

        def lost(entry: UnderWay[T]) -> JetStreamError | None:
            if entry.waits:
                return None
            if entry.repeatable and self.wanted(entry.ticket):
                entry.waits = entry.in_doubt = True
                return None
            text = (
                f"the connection was lost while publishing to {entry.to!r}: whether it was stored is unknown"
            )
            return DisconnectedError(text)

        return self.fail(lost)

    def connected(self, now: float) -> Sends[T]:
        """A connection is there: what to send on it.

        All of it, also what rests after a refusal: this may be another server, and the order is kept.
        """
        self._connected = True
        self._forget_unwanted()
        for entry in self.under_way.values():
            entry.due = now if entry.waits else entry.due
        return [
            (reply_of(reply, entry.tries), entry)
            for reply, entry in self.under_way.items()
            if self._goes_again(entry, now)
        ]

    def _forget_unwanted(self) -> None:
        """What is not on the wire and waited for by nobody is over."""
        self.fail(lambda entry: unknown(entry) if entry.waits and not self.wanted(entry.ticket) else None)

    def _goes_again(self, entry: UnderWay[T], now: float) -> bool:
        """Whether it is to be sent at this moment; then it counts as sent."""
        if not entry.waits or entry.due > now:
            return False
        entry.waits = False
        entry.tries += 1
        entry.due = entry.deadline
        if entry.repeatable:
            entry.due = min(entry.deadline, now + ATTEMPT * 2 ** min(entry.tries - 1, 10))
        self.look_at = min(self.look_at, entry.due)
        self.resent += 1
        return True

    def not_sent(self, entry: UnderWay[T]) -> None:
        """It could not be sent again after all: it goes with the next connection."""
        entry.waits = True
        self.resent -= 1

    def tick(self, now: float) -> tuple[Failures[T], Sends[T]]:
        """`look_at` was reached: what failed, and what to send again."""
        self._forget_unwanted()
        failures = self.fail(lambda entry: self._over(entry) if now >= entry.deadline else None)
        sends: Sends[T] = []
        look_at = NEVER
        for reply, entry in self.under_way.items():
            if entry.due <= now and not entry.waits:
                # The answer was lost, or takes its time.
                if self.wanted(entry.ticket):
                    entry.waits = entry.in_doubt = True
                else:
                    entry.due = entry.deadline
            if self._connected and self._goes_again(entry, now):
                sends.append((reply_of(reply, entry.tries), entry))
            look_at = min(look_at, entry.due if entry.due > now else entry.deadline)
        self.look_at = max(look_at, now + _BETWEEN_LOOKS)
        return failures, sends

    def _over(self, entry: UnderWay[T]) -> JetStreamError:
        if entry.waits and not entry.in_doubt:
            return no_stream(entry)
        return unknown(entry)

    def fail(self, why: Callable[[UnderWay[T]], JetStreamError | None]) -> Failures[T]:
        """End those for which there is an error."""
        failures = [
            (reply, entry, error)
            for reply, entry in self.under_way.items()
            if (error := why(entry)) is not None
        ]
        for reply, _, _ in failures:
            self.remove(reply)
        return [(entry, error) for _, entry, error in failures]
