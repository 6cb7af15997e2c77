"""Decides when to check a consumer from which no message arrives, and what to report.

A reader is polled twenty times within `StallTracker.after`, so that a message costs no time here. A reader is stalled
if its application waits and no message arrives. Its consumer is then checked every ``after`` seconds (`diagnosis`).
After a reason has been reported, the pauses double up to five minutes. All readers of a connection share a
`CheckBudget`, so that thousands of idle readers don't send requests all the time.

Source: ADR-15 (asynchronous error callback).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..events import ConsumerResumed, ConsumerStalled, Event
from .check_budget import CheckBudget

if TYPE_CHECKING:
    from ..models.consumer import ConsumerInfo
    from .diagnosis import Finding

__all__ = [
    "HandlerTimes",
    "Look",
    "StallTracker",
    "handler_hangs",
    "nothing_to_deliver",
]

_REPORTED = ("warning", "error", "unknown")
_LONGEST = 300.0  # longest time between two checks, in seconds
_SLOW = 2.0  # a handler hangs only if it runs for more than this many intervals of ack_wait
_EXCEEDS = 2.0  # a handler hangs only if it also runs this many times as long as the longest earlier run
# If the first check can't explain why pending messages don't arrive, check again after this fraction of
# `StallTracker.after`, and report them then.
_AGAIN = 0.42
# The application counts as busy if this many polls in a row find no call waiting for messages. One poll isn't enough,
# because it may fall between two calls.
_BUSY = 2
# If an application never acks, the reason "max_ack_pending" goes away briefly at each redelivery, so it isn't reported
# each time that it comes back.
_RECURS = "max_ack_pending"
_LONGEST_MUTE = 3600.0  # maximum pause between two reports of `_RECURS`, in seconds
# Number of polls until the first check is due. With this many polls, even a check that is one poll late comes before
# the default ack_wait has passed.
_POLLS = 20


def nothing_to_deliver(info: ConsumerInfo, waited: float) -> str:
    """Return the text to log about a reader that waits without a message to deliver. "" if there are messages."""
    if info.num_pending or info.num_ack_pending:
        return ""
    filters = ", ".join(map(repr, info.config.filters))
    which = f" match {filters}" if filters else " are in its stream"
    return (
        f"a reader of consumer {info.name!r} of stream {info.stream_name!r} has waited {waited:.0f} s: no messages"
        f"{which} that it has not delivered. That is no fault; next(timeout=...) ends a wait"
    )


@dataclass(frozen=True, slots=True)
class Look:
    """The command to check the consumer, and then to call `StallTracker.looked`.

    ``stood_for`` is the time without a message, in seconds.
    """

    stood_for: float


@dataclass(slots=True)
class StallTracker:
    """Decides when to check the consumer and what to report.

    Attributes:
        after: If no message arrives for this many seconds, the first check is made.
        budget: The budget of the reader's connection.
        before: The info at the last check, if it showed no reason and no message arrived since.
    """

    after: float
    budget: CheckBudget = field(default_factory=CheckBudget)
    before: ConsumerInfo | None = None
    _arrived: int | None = None
    _asks: int = 0
    _misses: int = 0  # number of polls in a row that found no call waiting
    _since: float = 0.0  # when the application began to wait for the message that hasn't arrived
    _requested_at: float = 0.0
    _check_at: float = 0.0
    _pause: float = 0.0  # seconds until the next check
    _is_first: bool = True  # whether the next check is the first since a message arrived
    _has_moment: bool = False  # whether the budget has set the time of the next check
    _reason: str = ""
    _stalled_at: float = 0.0
    _is_muted: bool = False  # don't report the current reason, because it was reported recently
    _recurs_at: float = 0.0  # the time at which `_RECURS` may be reported again
    _mute: float = 0.0  # pause after the last report of `_RECURS`, in seconds, or 0.0 before the first one

    @property
    def interval(self) -> float:
        """Interval between polls, in seconds."""
        return self.after / _POLLS

    def poll(
        self, now: float, arrived: int, asks: int, *, asking: bool, stream: str, consumer: str
    ) -> list[Event | Look]:
        """Process the current state of the reader. Return an event to emit, or a `Look` if a check is due.

        Args:
            now: Monotonic seconds.
            arrived: Number of messages that have arrived so far. With handlers, it counts messages whose handler has
                ended.
            asks: Number of times that the application has requested a message so far.
            asking: Whether the application waits for a message now, or a handler runs.
            stream, consumer: The names for events.
        """
        asks_now = asking or asks != self._asks
        self._asks = asks
        self._misses = 0 if asks_now else self._misses + 1
        if asks_now:
            self._requested_at = now
        if arrived != self._arrived:
            is_first = self._arrived is None
            self._arrived = arrived
            self._begin_wait(now)
            return [] if is_first else [*self._resumed(now, stream, consumer)]
        if self._misses >= _BUSY:
            self._begin_wait(now)  # the application is busy with other work and does not wait for a message
        elif asks_now and now >= self._check_at:
            return self._due(now)
        return []

    def _due(self, now: float) -> list[Event | Look]:
        """Return a check that is due now, or postpone it to the time that the budget allows."""
        if not self._has_moment:
            self._check_at = self.budget.moment(now, is_first=self._is_first)
            self._has_moment = True
            if self._check_at > now:
                return []
        self._check_at, self._has_moment, self._is_first = now + self._pause, False, False
        if self._reason:
            self._pause = min(2 * self._pause, _LONGEST)
        return [Look(now - self._since)]

    def is_idle(self, now: float) -> bool:
        """Return True if the last request is so long ago that polling may stop until the next request."""
        return now - self._requested_at >= self.after

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
        """Process the findings of a check. Return the events to emit.

        Args:
            now: Monotonic seconds.
            findings: The result of `diagnose` or `cannot_look`, the likeliest cause first.
            stood_for: The value in the `Look`.
            stream, consumer: The names for events.
            info: The consumer's state, if it was received.
            due: How long until a handler counts as hanging, in seconds. The next check is made then.
        """
        if due is not None:
            self._check_at = min(self._check_at, now + due)
        causes = [finding for finding in findings if finding.level in _REPORTED]
        self.before = None if causes else info
        if not causes:
            self._check_at, self._pause = min(self._check_at, now + self.after), self.after
            if info is not None and info.num_pending:
                # Messages are pending, and no finding explains why they don't arrive. Check again soon, and report the
                # messages if they are still pending.
                self._check_at = min(self._check_at, now + _AGAIN * self.after)
            return self._resumed(now, stream, consumer)
        cause = causes[0]
        if cause.code == self._reason and not self._is_muted:
            return []
        if cause.code != self._reason:
            self._reason, self._stalled_at, self._pause = cause.code, now - stood_for, self.after
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
        """Return whether a reason that recurs with each redelivery may be reported now.

        The pauses between reports double.
        """
        if now < self._recurs_at:
            return False
        if now > self._recurs_at + _LONGEST_MUTE:
            self._mute = 0.0  # the reason has not recurred for a long time
        self._mute = min(2 * self._mute or 4 * self.after, _LONGEST_MUTE)
        self._recurs_at = now + self._mute
        return True

    def _begin_wait(self, now: float) -> None:
        self._since, self._check_at, self._pause, self.before = now, now + self.after, self.after, None
        self._is_first, self._has_moment = True, False

    def _resumed(self, now: float, stream: str, consumer: str) -> list[Event]:
        reason, self._reason = self._reason, ""
        if not reason or reason == "could_not_look" or self._is_muted:
            self._is_muted = False
            return []
        stood_for = now - self._stalled_at
        return [ConsumerResumed(stream=stream, consumer=consumer, reason=reason, stood_for=stood_for)]


@dataclass(slots=True)
class HandlerTimes:
    """Tracks how long handlers run, from occasional observations."""

    longest: float = 0.0  # the longest time that a handler was seen running before it ended, in seconds
    _seen: dict[Hashable, float] = field(default_factory=dict)  # the start time of each running handler
    _seen_at: float = 0.0
    _reported: dict[Hashable, float] = field(default_factory=dict)  # the start time of each reported handler
    _hung_since: float | None = None

    def seen(self, now: float, running: Iterable[tuple[Hashable, float]]) -> float:
        """Record the handlers that run now with their start times. Return for how long the longest has run, or 0.0."""
        current = dict(running)
        for ident, began in self._seen.items():
            if ident not in current:
                self.longest = max(self.longest, self._seen_at - began)
        # Keep the first start time that was reported for a handler. A reader may report a later one for the same
        # handler, because the reader knows only that the handler runs, not since when.
        self._seen = {ident: self._seen.get(ident, began) for ident, began in current.items()}
        self._seen_at = now
        self._reported = {ident: began for ident, began in self._reported.items() if ident in current}
        return max((now - began for began in self._seen.values()), default=0.0)

    def hanging(self, now: float, ack_wait: float) -> list[tuple[Hashable, float]]:
        """Return the handlers that hang and were not reported before, with their run times, the longest first.

        A handler hangs when it has run for twice the ``ack_wait`` and twice as long as the longest handler that has
        ended. So an application whose handlers are always slow gets one report, not a report for each handler.
        """
        limit = max(_SLOW * ack_wait, _EXCEEDS * self.longest)
        late = {
            ident: began
            for ident, began in self._seen.items()
            if now - began > limit and ident not in self._reported
        }
        if late and not self._reported:
            self._hung_since = min(late.values())
        self._reported.update(late)
        return sorted(((ident, now - began) for ident, began in late.items()), key=lambda item: -item[1])

    def all_ended(self, now: float) -> float | None:
        """Return for how many seconds handlers hung, if all of them have ended since the last call. Otherwise None."""
        if self._reported or self._hung_since is None:
            return None
        since, self._hung_since = self._hung_since, None
        return now - since


def handler_hangs(
    stream: str, consumer: str, message: str, ran: float, ack_wait: float, *, others: int, keeps_alive: bool
) -> ConsumerStalled:
    """Return the event for handlers that hang. The longest handles ``message``, and ``others`` more hang as well."""
    also = (
        f", and so do {others} more handlers"
        if others > 1
        else ", and so does another handler"
        if others
        else ""
    )
    redelivery = (
        "it is kept alive, so that the server delivers it to no one else"
        if keeps_alive
        else "the server delivers it again"
    )
    return ConsumerStalled(
        stream=stream,
        consumer=consumer,
        reason="handler",
        evidence=f"the handler of {message} has run for {ran:.0f} s, longer than twice the ack_wait{also}: ack_wait is "
        f"{ack_wait:g} s; {redelivery}",
        fix="look at what the handler waits for; handler_timeout= ends one that hangs, concurrency= lets others "
        "run, and a larger ack_wait says that it takes this long",
        stood_for=ran,
    )
