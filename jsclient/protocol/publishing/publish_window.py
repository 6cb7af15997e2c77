"""The publishes in flight, the meaning of their answers, and what follows if there is no answer.

Each publish has a separate reply subject. It stays in the `PublishWindow` from its sending until it is *stored* (an
ack), *refused* (an error) or *unknown*, at the latest until its deadline:

- After 503, "no responders", the message was not stored. If a stream is expected on the subject, the message is sent
  again until its deadline. If not, there are three attempts. See `jsclient.protocol.publishing.in_flight`.
- If the connection is lost, or no answer arrives in time, the outcome is unknown. If the message has an id, which the
  stream stores only once, it is sent again. If not, the publish ends.
- An error from the stream ends the publish.

Messages that are sent again at the same time keep the order of their first sending. The window does not depend on
futures: ``ticket`` is any object that receives the outcome.

Source: ADR-22; nats-server stream.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias

import msgspec

from ...errors import ApiError, DisconnectedError, JetStreamError, NoRespondersError
from ..models.publish import MAX_SEQUENCE, quick_pub_ack, read_pub_ack
from ..wire.frames import Frame
from ..wire.headers import inline_status
from .in_flight import (
    AnsweredSubjects,
    InFlight,
    Recovery,
    TicketT,
    first_reply,
    has_id,
    no_stream,
    question,
    reply_of,
    unknown,
)

__all__ = ["NEVER", "Failures", "PublishWindow", "Sends"]

NEVER = float("inf")
"""A moment that is never reached."""

# Minimum number of seconds between two checks, because each check visits all publishes in flight.
_BETWEEN_TICKS = 0.02


Failures: TypeAlias = list[tuple[InFlight[TicketT], JetStreamError]]
"""Publishes that ended without a confirmation that they were stored, with their errors."""

Sends: TypeAlias = list[tuple[bytes, InFlight[TicketT]]]
"""Publishes to send again, in order, with their reply subjects."""


@dataclass(slots=True)
class PublishWindow(Generic[TicketT]):
    """All publishes in flight.

    Tickets receive the acks, and failures are returned. A publish whose ticket is done is not sent again.
    """

    never_an_id: str  # an id that no message has, for a `question` that the server can't store
    answered: AnsweredSubjects = field(default_factory=AnsweredSubjects)
    # The messages in flight by reply subject, oldest first.
    in_flight: dict[bytes, InFlight[TicketT]] = field(default_factory=dict, init=False)
    size: int = field(default=0, init=False)  # bytes of headers and payloads in flight
    next_check: float = field(default=NEVER, init=False)  # when to call `check_publishes`
    stored: int = field(default=0, init=False)
    resent: int = field(default=0, init=False)
    # True if the chain must be repaired before the next publish.
    is_broken: bool = field(default=False, init=False)
    _connected: bool = field(default=True, init=False)

    @property
    def count(self) -> int:
        """The number of publishes in flight."""
        return len(self.in_flight)

    def expand(self) -> None:
        """Create a record of each publish in flight, in windows that keep publishes in another form."""

    def add_publish(self, reply: bytes, entry: InFlight[TicketT]) -> None:
        """Add a publish that is being sent."""
        self.in_flight[reply] = entry
        self.size += entry.size
        self.next_check = min(self.next_check, entry.due)

    def remove(self, reply: bytes) -> None:
        """Remove a publish that ended without a confirmation."""
        self._take(reply)

    def unsent(self, reply: bytes) -> None:
        """Undo `add_publish` because the publish could not be sent."""
        self._take(reply)

    def _take(self, reply: bytes) -> InFlight[TicketT] | None:
        entry = self.in_flight.pop(reply, None) or self.in_flight.pop(first_reply(reply)[0], None)
        if entry is not None:
            self.size -= entry.size
        return entry

    def has_older(self, number: int) -> bool:
        """Return whether a publish up to ``number`` is in flight."""
        oldest = next(iter(self.in_flight.values()), None)
        return oldest is not None and oldest.number <= number

    def answers(self, frames: list[Frame], now: float) -> Failures[TicketT]:
        """Process answers and return the failures. Late and repeated answers are ignored."""
        failures: Failures[TicketT] = []
        in_flight, answered = self.in_flight, self.answered.subjects
        size = stored = 0
        latest = b""
        for frame in frames:
            reply, _, _, payload = frame
            entry = in_flight.get(reply)
            if entry is not None:
                try:
                    ack = quick_pub_ack(payload)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    pass
                else:
                    if 0 < ack.seq <= MAX_SEQUENCE and ack.stream:
                        del in_flight[reply]
                        size += entry.size
                        stored += 1
                        if entry.subject is not latest:
                            latest = entry.subject
                            answered[latest] = None
                        # Set the result at once instead of collecting the results. The next publish then reuses the
                        # memory freed here.
                        if not (ticket := entry.ticket).done():
                            ticket.set_result(ack)
                        continue
            failures += self._unusual(frame, now)
        self._count_stored(size, stored)
        return failures

    def _count_sent(self, size: int) -> None:
        """Count publishes of ``size`` bytes that are in flight now."""
        self.size += size

    def _count_stored(self, size: int, stored: int) -> None:
        """Count publishes of ``size`` bytes that are stored now."""
        self.size -= size
        self.stored += stored
        if len(self.answered.subjects) > AnsweredSubjects.LIMIT:
            self.answered.trim()

    def _unusual(self, frame: Frame, now: float) -> Failures[TicketT]:
        """Process an answer that is not the ack of a first attempt."""
        reply, number = (frame[0], 1) if frame[0] in self.in_flight else first_reply(frame[0])
        entry = self.in_flight.get(reply)
        if entry is None:
            return []
        try:
            if frame[2] and not frame[3] and inline_status(frame[2]) == 503:
                raise NoRespondersError
            ack = read_pub_ack(frame[3])
        except JetStreamError as error:
            recovery = entry.recovery = entry.recovery or Recovery()
            if recovery.waits or number != recovery.tries:
                return []  # an answer to an earlier attempt, not to the attempt on the wire
            # Drop the traceback, because its frames would form a reference cycle with the entry.
            error.__traceback__ = error.__context__ = None
            if isinstance(error, ApiError):
                self.answered.add(entry.subject)
            final = self._settle_refusal(entry, recovery, error, now)
            if final is None:
                return []
            self.remove(reply)
            return [(entry, final)]
        self._take(reply)
        self.stored += 1
        self.answered.add(entry.subject)
        if not entry.ticket.done():
            entry.ticket.set_result(ack)
        return []

    def _settle_refusal(
        self, entry: InFlight[TicketT], recovery: Recovery, error: JetStreamError, now: float
    ) -> JetStreamError | None:
        """Return the error that ends the publish, or None if it is sent again."""
        # "No responders" can mean a leader election, which is worth a retry, only if a stream stores this subject.
        expected = entry.repeatable or entry.subject in self.answered
        behind = self.has_older(entry.number - 1)
        final, pause = recovery.refusal(
            error,
            entry.to,
            entry.deadline - now,
            expected=expected,
            behind=behind,
            identified=entry.repeatable or has_id(entry.header),
        )
        if pause is None or entry.ticket.done():
            return final
        if not pause:
            self._ask_whether_stored(entry)
        recovery.waits, entry.due = True, now + pause
        self.next_check = min(self.next_check, entry.due)
        return None

    def _ask_whether_stored(self, entry: InFlight[TicketT]) -> None:
        """Replace the message by a question whether an earlier attempt was stored."""
        entry.header, entry.payload = question(entry.header, self.never_an_id), b""
        self.size += len(entry.header) - entry.size
        entry.size = len(entry.header)

    def disconnected(self) -> Failures[TicketT]:
        """Return the failures that a lost connection causes. The outcome of each publish on the wire is unknown."""
        self._connected = False

        def lost(entry: InFlight[TicketT]) -> JetStreamError | None:
            if entry.waits:
                return None
            if entry.repeatable and not entry.ticket.done():
                entry.doubt()
                return None
            text = f"the connection was lost while publishing to {entry.to!r}"
            return DisconnectedError(f"{text}: whether it was stored is unknown")

        return self.fail_publishes(lost)

    def connected(self, now: float) -> Sends[TicketT]:
        """Return the publishes to send on a new connection.

        They include the publishes that pause after a refusal, because this may be a different server, and because the
        order must be preserved.
        """
        self._connected = True
        self._forget_unwanted()
        for entry in self.in_flight.values():
            entry.due = now if entry.waits else entry.due
        return self._sends(now)

    def _forget_unwanted(self) -> None:
        """Drop publishes that are not on the wire and whose ticket is done."""
        self.fail_publishes(lambda entry: unknown(entry) if entry.waits and entry.ticket.done() else None)

    def _sends(self, now: float) -> Sends[TicketT]:
        """Return the publishes to send now, and count them as sent."""
        sends: Sends[TicketT] = []
        for reply, entry in self.in_flight.items():
            recovery = entry.recovery
            if recovery is None or not recovery.waits or entry.due > now:
                continue
            recovery.waits = False
            recovery.tries += 1
            entry.due = entry.deadline
            if entry.repeatable:
                entry.due = min(entry.deadline, now + recovery.attempt)
            self.next_check = min(self.next_check, entry.due)
            sends.append((reply_of(reply, recovery.tries), entry))
        self.resent += len(sends)
        return sends

    def not_sent(self, entry: InFlight[TicketT]) -> None:
        """Undo the sending of a publish. It is sent on the next connection."""
        if entry.recovery is not None:
            entry.recovery.waits = True
            self.resent -= 1

    def check_publishes(self, now: float) -> tuple[Failures[TicketT], Sends[TicketT]]:
        """Return the publishes that have failed and the publishes to send again. Call this at ``next_check``."""
        self._forget_unwanted()
        failures = self.fail_publishes(lambda entry: self._over(entry) if now >= entry.deadline else None)
        for entry in self.in_flight.values():
            if entry.due <= now and not entry.waits:
                self._silent(entry)
        sends = self._sends(now) if self._connected else []
        moments = (entry.due if entry.due > now else entry.deadline for entry in self.in_flight.values())
        self.next_check = max(min(moments, default=NEVER), now + _BETWEEN_TICKS)
        return failures, sends

    def _silent(self, entry: InFlight[TicketT]) -> None:
        """Process a publish that was not answered in time, because the answer was lost or is late."""
        if entry.ticket.done():
            entry.due = entry.deadline
        else:
            entry.doubt().silent += 1

    def _over(self, entry: InFlight[TicketT]) -> JetStreamError:
        return no_stream(entry) if entry.waits and not entry.unconfirmed else unknown(entry)

    def fail_publishes(self, why: Callable[[InFlight[TicketT]], JetStreamError | None]) -> Failures[TicketT]:
        """End the publishes for which ``why`` returns an error, and return them as failures."""
        failures = [
            (reply, entry, error)
            for reply, entry in self.in_flight.items()
            if (error := why(entry)) is not None
        ]
        for reply, _, _ in failures:
            self.remove(reply)
        return [(entry, error) for _, entry, error in failures]
