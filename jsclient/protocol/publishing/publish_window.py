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
from typing import Generic, TypeAlias

import msgspec

from ...errors import DisconnectedError, JetStreamError, NoRespondersError
from ..models.publish import quick_pub_ack, read_pub_ack
from ..wire.frames import Frame
from ..wire.headers import inline_status
from .in_flight import TicketT, Trouble, UnderWay, first_reply, no_stream, question, reply_of, unknown

__all__ = ["NEVER", "Failures", "PublishWindow", "Sends"]

NEVER = float("inf")
"""The moment that does not come."""

_BETWEEN_LOOKS = 0.02  # seconds at least: a look goes through all that is under way


Failures: TypeAlias = list[tuple[UnderWay[TicketT], JetStreamError]]
"""Publishes that ended without being known to be stored, and why."""

Sends: TypeAlias = list[tuple[bytes, UnderWay[TicketT]]]
"""What to send again, in order, with its reply subjects."""


@dataclass(slots=True)
class PublishWindow(Generic[TicketT]):
    """All publishes under way. ``never_an_id`` is no message's id.

    Tickets are given what was stored; what failed is returned. What nobody waits for is not sent again.
    """

    never_an_id: str
    under_way: dict[bytes, UnderWay[TicketT]] = field(
        default_factory=dict, init=False
    )  # by reply, oldest first
    size: int = field(default=0, init=False)  # bytes of headers and payloads under way
    look_at: float = field(default=NEVER, init=False)  # when to call `tick`
    stored: int = field(default=0, init=False)
    resent: int = field(default=0, init=False)
    _connected: bool = field(default=True, init=False)

    def add(self, reply: bytes, entry: UnderWay[TicketT]) -> None:
        """A publish goes out."""
        self.under_way[reply] = entry
        self.size += entry.size
        self.look_at = min(self.look_at, entry.due)

    def remove(self, reply: bytes) -> None:
        """It could not be sent after all, or is over without being known to be stored."""
        self._take(reply)

    def _take(self, reply: bytes) -> UnderWay[TicketT] | None:
        entry = self.under_way.pop(reply, None) or self.under_way.pop(first_reply(reply)[0], None)
        if entry is not None:
            self.size -= entry.size
        return entry

    def has_older(self, number: int) -> bool:
        """Whether publishes up to ``number`` are under way."""
        oldest = next(iter(self.under_way.values()), None)
        return oldest is not None and oldest.number <= number

    # --- what happens --------------------------------------------------------------------------------------

    def answers(self, frames: Iterable[Frame], now: float) -> Failures[TicketT]:
        """Answers arrived: what failed. One that is late, or repeated, means nothing."""
        failures: Failures[TicketT] = []
        under_way = self.under_way
        size = stored = 0
        for frame in frames:
            reply, _, _, payload = frame
            entry = under_way.get(reply)
            if entry is not None:
                try:
                    ack = quick_pub_ack(payload)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    pass
                else:
                    if ack.seq and ack.stream:
                        del under_way[reply]
                        size += entry.size
                        stored += 1
                        # At once: what is freed here is what the next one is made of.
                        if not (ticket := entry.ticket).done():
                            ticket.set_result(ack)
                        continue
            failures += self._unusual(frame, now)
        self.size -= size
        self.stored += stored
        return failures

    def _unusual(self, frame: Frame, now: float) -> Failures[TicketT]:
        """An answer that is not the ack of a first try."""
        reply, number = (frame[0], 1) if frame[0] in self.under_way else first_reply(frame[0])
        entry = self.under_way.get(reply)
        if entry is None:
            return []
        try:
            if frame[2] and not frame[3] and inline_status(frame[2]) == 503:
                raise NoRespondersError
            ack = read_pub_ack(frame[3])
        except JetStreamError as error:
            trouble = entry.trouble = entry.trouble or Trouble()
            if trouble.waits or number != trouble.tries:
                return []  # of an earlier try: it says nothing of the one that is on the wire
            error.__traceback__ = error.__context__ = None  # frames would hold the entry, and be held by it
            final = self._refused(entry, trouble, error, now)
            if final is None:
                return []
            self.remove(reply)
            return [(entry, final)]
        self._take(reply)
        self.stored += 1
        if not entry.ticket.done():
            entry.ticket.set_result(ack)
        return []

    def _refused(
        self, entry: UnderWay[TicketT], trouble: Trouble, error: JetStreamError, now: float
    ) -> JetStreamError | None:
        """The answer is an error: the one that the publish ends with, None if it is to be sent again."""
        final, pause = trouble.refusal(error, entry.to, behind=self.has_older(entry.number - 1))
        if pause is None or entry.ticket.done() or entry.deadline - now < pause:
            return final
        if not pause:
            self._ask(entry)
        trouble.waits, entry.due = True, now + pause
        self.look_at = min(self.look_at, entry.due)
        return None

    def _ask(self, entry: UnderWay[TicketT]) -> None:
        """From now on it asks whether it was stored."""
        entry.header, entry.payload = question(entry.header, self.never_an_id), b""
        self.size += len(entry.header) - entry.size
        entry.size = len(entry.header)

    def disconnected(self) -> Failures[TicketT]:
        """The connection is lost: the outcome of what was on the wire is unknown."""
        self._connected = False

        def lost(entry: UnderWay[TicketT]) -> JetStreamError | None:
            if entry.waits:
                return None
            if entry.repeatable and not entry.ticket.done():
                entry.doubt()
                return None
            text = f"the connection was lost while publishing to {entry.to!r}"
            return DisconnectedError(f"{text}: whether it was stored is unknown")

        return self.fail(lost)

    def connected(self, now: float) -> Sends[TicketT]:
        """A connection is there: what to send on it.

        All of it, also what rests after a refusal: this may be another server, and the order is kept.
        """
        self._connected = True
        self._forget_unwanted()
        for entry in self.under_way.values():
            entry.due = now if entry.waits else entry.due
        return self._sends(now)

    def _forget_unwanted(self) -> None:
        """What is not on the wire and waited for by nobody is over."""
        self.fail(lambda entry: unknown(entry) if entry.waits and entry.ticket.done() else None)

    def _sends(self, now: float) -> Sends[TicketT]:
        """What is to be sent at this moment; from here on it counts as sent."""
        sends: Sends[TicketT] = []
        for reply, entry in self.under_way.items():
            trouble = entry.trouble
            if trouble is None or not trouble.waits or entry.due > now:
                continue
            trouble.waits = False
            trouble.tries += 1
            entry.due = entry.deadline
            if entry.repeatable:
                entry.due = min(entry.deadline, now + trouble.attempt)
            self.look_at = min(self.look_at, entry.due)
            sends.append((reply_of(reply, trouble.tries), entry))
        self.resent += len(sends)
        return sends

    def not_sent(self, entry: UnderWay[TicketT]) -> None:
        """It could not be sent again after all: it goes with the next connection."""
        if entry.trouble is not None:
            entry.trouble.waits = True
            self.resent -= 1

    def tick(self, now: float) -> tuple[Failures[TicketT], Sends[TicketT]]:
        """``look_at`` was reached: what failed, and what to send again."""
        self._forget_unwanted()
        failures = self.fail(lambda entry: self._over(entry) if now >= entry.deadline else None)
        for entry in self.under_way.values():
            if entry.due <= now and not entry.waits:
                self._silent(entry)
        sends = self._sends(now) if self._connected else []
        moments = (entry.due if entry.due > now else entry.deadline for entry in self.under_way.values())
        self.look_at = max(min(moments, default=NEVER), now + _BETWEEN_LOOKS)
        return failures, sends

    def _silent(self, entry: UnderWay[TicketT]) -> None:
        """The answer was lost, or takes its time."""
        if entry.ticket.done():
            entry.due = entry.deadline
        else:
            entry.doubt().silent += 1

    def _over(self, entry: UnderWay[TicketT]) -> JetStreamError:
        return no_stream(entry) if entry.waits and not entry.in_doubt else unknown(entry)

    def fail(self, why: Callable[[UnderWay[TicketT]], JetStreamError | None]) -> Failures[TicketT]:
        """End those for which there is an error."""
        failures = [
            (reply, entry, error)
            for reply, entry in self.under_way.items()
            if (error := why(entry)) is not None
        ]
        for reply, _, _ in failures:
            self.remove(reply)
        return [(entry, error) for _, entry, error in failures]
