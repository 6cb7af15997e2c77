"""When to look at a consumer from which nothing comes, and what to tell.

A reader is polled twenty times within `StallTracker.after`; a message costs nothing here. It stands still if its
program asks and no message arrives. Each ``after`` seconds the consumer is looked at (`diagnosis`); once a reason is
told, the pauses double up to five minutes. All readers of a connection share a `LookBudget`, so that thousands of idle
readers do not ask all the time. Source: ADR-15 (asynchronous error callback).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..events import ConsumerResumed, ConsumerStalled, Event

if TYPE_CHECKING:
    from ..models.consumer import ConsumerInfo
    from .diagnosis import Finding

__all__ = ["STALL_AFTER", "HandlerTimes", "Look", "LookBudget", "StallTracker", "handler_hangs"]

STALL_AFTER = 25.0  # seconds: under the server's default ack_wait of 30 s, which would hide unacked messages
_TOLD = ("warning", "error", "unknown")
_LONGEST = 300.0  # seconds between looks
_SLOW = 2.0  # intervals of ack_wait after which a handler counts as hanging
_EXCEEDS = 2.0  # times the longest of the handlers before it: slow handlers are not hanging ones
_AGAIN = 0.42  # of ``after``: the second look, which finds what nothing explains
_BUSY = 2  # polls in a row without a call that waits: one may fall between two calls
_FIRST_LOOKS = 100.0  # a second at most, after a message: all readers of a program may begin at once
_NEXT_LOOKS = 10.0  # a second at most: 250 idle readers are each looked at in 25 s
_RECURS = "max_ack_pending"  # each redelivery to a program that never acks ends it for a moment
_LONGEST_MUTE = 3600.0  # seconds until that reason is told again
_POLLS = 20  # until the first look: each may be late by one, and it must not reach the default ack_wait


@dataclass(frozen=True, slots=True)
class Look:
    """Look at the consumer, then call `StallTracker.looked`. ``stood_for``: seconds without a message."""

    stood_for: float


@dataclass(slots=True)
class LookBudget:
    """How many looks the readers of one connection take: each gets its moment, in the order in which they come due.

    A look is one request, or two if no message waits for the reader.
    """

    _first_at: float = 0.0
    _next_at: float = 0.0

    def moment(self, now: float, *, is_first: bool) -> float:
        """When to look, ``now`` or later; ``is_first``: the first time since a message came."""
        if is_first:
            moment = max(now, self._first_at)
            self._first_at = moment + 1 / _FIRST_LOOKS
        else:
            moment = max(now, self._next_at)
            self._next_at = moment + 1 / _NEXT_LOOKS
        return moment


@dataclass(slots=True)
class StallTracker:
    """Decides when to look and what to tell.

    Attributes:
        after: Seconds without a message until the first look.
        budget: That of its connection.
        before: The info at the last look, if it showed no reason and no message came since.
    """

    after: float
    budget: LookBudget = field(default_factory=LookBudget)
    before: ConsumerInfo | None = None
    _arrived: int | None = None
    _asks: int = 0
    _misses: int = 0  # polls in a row at which no call waited
    _since: float = 0.0  # the program has asked, and nothing has arrived, since then
    _asked_at: float = 0.0
    _look_at: float = 0.0
    _pause: float = 0.0  # until the next look
    _is_first: bool = True  # the next look is the first since a message came
    _has_moment: bool = False  # the budget has given the moment of the next look
    _reason: str = ""
    _told_at: float = 0.0
    _is_muted: bool = False  # the reason was told not long ago
    _recurs_at: float = 0.0  # when `_RECURS` may be told again
    _mute: float = 0.0  # seconds; 0.0: it was not told

    @property
    def interval(self) -> float:
        """Seconds between polls."""
        return self.after / _POLLS

    def poll(
        self, now: float, arrived: int, asks: int, *, asking: bool, stream: str, consumer: str
    ) -> list[Event | Look]:
        """The state of the reader now.

        Args:
            now: Monotonic seconds.
            arrived: Messages that have arrived so far; with handlers, those that have ended.
            asks: Times that the program has asked for a message so far.
            asking: It waits for one now, or a handler runs.
            stream, consumer: For events.
        """
        asks_now = asking or asks != self._asks
        self._asks = asks
        self._misses = 0 if asks_now else self._misses + 1
        if asks_now:
            self._asked_at = now
        if arrived != self._arrived:
            is_first = self._arrived is None
            self._arrived = arrived
            self._begin(now)
            return [] if is_first else [*self._resumed(now, stream, consumer)]
        if self._misses >= _BUSY:
            self._begin(now)  # the program does something else: nothing is owed
        elif asks_now and now >= self._look_at:
            return self._due(now)
        return []

    def _due(self, now: float) -> list[Event | Look]:
        """A look is due: now, or at the moment that the budget gives."""
        if not self._has_moment:
            self._look_at = self.budget.moment(now, is_first=self._is_first)
            self._has_moment = True
            if self._look_at > now:
                return []
        self._look_at, self._has_moment, self._is_first = now + self._pause, False, False
        if self._reason:
            self._pause = min(2 * self._pause, _LONGEST)
        return [Look(now - self._since)]

    def is_idle(self, now: float) -> bool:
        """Whether the program has not asked for so long that polling may stop until it does."""
        return now - self._asked_at >= self.after

    def looked(
        self,
        now: float,
        findings: list[Finding],
        *,
        stood_for: float,
        stream: str,
        consumer: str,
        info: ConsumerInfo | None = None,
        due: float | None = None,
    ) -> list[Event]:
        """The findings of a look.

        Args:
            now: Monotonic seconds.
            findings: Of `diagnose` or `cannot_look`, the likeliest cause first.
            stood_for: As in the `Look`.
            stream, consumer: For events.
            info: What was seen.
            due: Seconds after which a handler counts as hanging: then the next look follows.
        """
        if due is not None:
            self._look_at = min(self._look_at, now + due)
        causes = [found for found in findings if found.level in _TOLD]
        self.before = None if causes else info
        if not causes:
            self._look_at, self._pause = min(self._look_at, now + self.after), self.after
            if info is not None and info.num_pending:
                self._look_at = min(
                    self._look_at, now + _AGAIN * self.after
                )  # nothing explains it: soon again
            return self._resumed(now, stream, consumer)
        cause = causes[0]
        if cause.code == self._reason and not self._is_muted:
            return []
        if cause.code != self._reason:
            self._reason, self._told_at, self._pause = cause.code, now - stood_for, self.after
        self._is_muted = cause.code == _RECURS and not self._may_recur(now)
        if self._is_muted:
            return []
        evidence = f"{cause.what}: {cause.evidence}" if cause.evidence else cause.what
        return [
            ConsumerStalled(
                stream=stream,
                consumer=consumer,
                reason=cause.code,
                evidence=evidence,
                fix=cause.fix,
                stood_for=stood_for,
            )
        ]

    def _may_recur(self, now: float) -> bool:
        """Whether a reason that comes again with each redelivery may be told: after pauses that double."""
        if now < self._recurs_at:
            return False
        if now > self._recurs_at + _LONGEST_MUTE:
            self._mute = 0.0  # it did not come again for long
        self._mute = min(2 * self._mute or 4 * self.after, _LONGEST_MUTE)
        self._recurs_at = now + self._mute
        return True

    def _begin(self, now: float) -> None:
        self._since, self._look_at, self._pause, self.before = now, now + self.after, self.after, None
        self._is_first, self._has_moment = True, False

    def _resumed(self, now: float, stream: str, consumer: str) -> list[Event]:
        reason, self._reason = self._reason, ""
        if not reason or reason == "could_not_look" or self._is_muted:
            self._is_muted = False
            return []
        stood_for = now - self._told_at
        return [ConsumerResumed(stream=stream, consumer=consumer, reason=reason, stood_for=stood_for)]


@dataclass(slots=True)
class HandlerTimes:
    """How long handlers run, seen from time to time."""

    longest: float = 0.0  # seconds that the longest one had run when it was last seen; it has ended
    _seen: dict[Hashable, float] = field(default_factory=dict)  # when each began
    _seen_at: float = 0.0
    _told: dict[Hashable, float] = field(default_factory=dict)  # hanging ones, and when each began
    _hung_since: float | None = None

    def seen(self, now: float, running: Iterable[tuple[Hashable, float]]) -> float:
        """These run now, each with the time of its start; returns the seconds that the longest has run, 0.0: none."""
        current = dict(running)
        for ident, began in self._seen.items():
            if ident not in current:
                self.longest = max(self.longest, self._seen_at - began)
        # The start of one that was seen before is kept: its caller may know only that it runs.
        self._seen = {ident: self._seen.get(ident, began) for ident, began in current.items()}
        self._seen_at = now
        self._told = {ident: began for ident, began in self._told.items() if ident in current}
        return max((now - began for began in self._seen.values()), default=0.0)

    def hanging(self, now: float, ack_wait: float) -> list[tuple[Hashable, float]]:
        """Those that hang and were not told before, with the seconds that each has run, the longest first.

        One hangs when it has run for twice the ``ack_wait``, and for twice as long as the longest that has ended:
        handlers that take long by nature are told once, not each time.
        """
        limit = max(_SLOW * ack_wait, _EXCEEDS * self.longest)
        late = {
            ident: began
            for ident, began in self._seen.items()
            if now - began > limit and ident not in self._told
        }
        if late and not self._told:
            self._hung_since = min(late.values())
        self._told.update(late)
        return sorted(((ident, now - began) for ident, began in late.items()), key=lambda one: -one[1])

    def all_ended(self, now: float) -> float | None:
        """Seconds since the first hanging one began, if all of them have ended since the last call; else None."""
        if self._told or self._hung_since is None:
            return None
        since, self._hung_since = self._hung_since, None
        return now - since


def handler_hangs(
    stream: str, consumer: str, message: str, ran: float, ack_wait: float, *, others: int, keeps_alive: bool
) -> ConsumerStalled:
    """The event for handlers that hang: ``message`` is that of the longest, ``others`` hang as well."""
    also = (
        f", and so do {others} more handlers"
        if others > 1
        else ", and so does another handler"
        if others
        else ""
    )
    kept = (
        "it is kept alive, so that the server delivers it to no one else"
        if keeps_alive
        else "the server delivers it again"
    )
    return ConsumerStalled(
        stream=stream,
        consumer=consumer,
        reason="handler",
        evidence=f"the handler of {message} has run for {ran:.0f} s, longer than twice the ack_wait{also}: ack_wait is "
        f"{ack_wait:g} s; {kept}",
        fix="look at what the handler waits for; handler_timeout= ends one that hangs, concurrency= lets others "
        "run, and a larger ack_wait says that it takes this long",
        stood_for=ran,
    )
