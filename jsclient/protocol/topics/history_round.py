"""When a reader reads the history: the quiet timer, and a round of requests that reads it to its end.

Source: P3Sub: "the time constant of the timer is application-specific, and may be adaptive".
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ...errors import ConfigError

__all__ = ["AskHistory", "HistoryRound", "QuietTimer"]


class AskHistory(msgspec.Struct, frozen=True):
    """Read stored records after a sequence, in order, up to these limits."""

    since: int
    limit: int  # records
    max_bytes: int


@dataclass(slots=True)
class HistoryRound:
    """Reads the history to its end, one request at a time.

    Attributes:
        wanted: Another request is needed.
        asked: The request in flight.
        by_timer: The timer started the round.
        found, moved: The number of new records so far, and whether the round advanced.
        late: A missing record was noticed after the request was sent: the answer may be older.
    """

    wanted: bool = False
    asked: AskHistory | None = None
    by_timer: bool = False
    found: int = 0
    moved: bool = False
    late: bool = False

    def ask(self, since: int, room: tuple[int, int]) -> AskHistory:
        """Start the next request."""
        self.wanted = self.late = False
        self.asked = AskHistory(since, *room)
        return self.asked

    def answered(self, asked: AskHistory) -> bool:
        """Whether this is the request in flight, which is now answered."""
        if asked is not self.asked:
            return False
        self.asked = None
        return True

    def advanced(self, count: int, *, found: bool = True) -> None:
        """Count records that were read after the floor; ``found``: they are new."""
        self.found += count if found else 0
        self.moved |= count > 0

    def over(self) -> tuple[int, bool, bool]:
        """End the round, and return ``found``, ``moved`` and ``by_timer``."""
        result = self.found, self.moved, self.by_timer
        self.found, self.moved, self.by_timer = 0, False, False
        return result


@dataclass(slots=True)
class QuietTimer:
    """The period without a record after which a reader reads the history. It adapts within its bounds.

    Without ``longest`` it is constant.

    Attributes:
        shortest, longest: Its bounds, seconds.
        period: The current period, seconds.
        factor: By which the period grows or shrinks.
    """

    shortest: float = 30.0
    longest: float = 0.0
    factor: float = 2.0
    period: float = 0.0

    def __post_init__(self) -> None:
        for seconds in (self.shortest, self.longest, self.period):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise ConfigError(f"quiet timer: {seconds!r:.40} is not a number of seconds")
        self.longest = self.longest or self.shortest
        self.period = self.period or self.shortest
        if not 0 < self.shortest <= self.period <= self.longest or self.factor < 1:
            raise ConfigError(
                f"quiet timer from {self.shortest} to {self.longest} s, now {self.period} s, factor {self.factor}: "
                "0 < shortest <= period <= longest and factor >= 1 are needed"
            )

    def found_nothing(self) -> None:
        """The history had no new record: lengthen the period."""
        self.period = min(self.period * self.factor, self.longest)

    def found_something(self) -> None:
        """The history had a record that was not pushed: shorten the period."""
        self.period = max(self.period / self.factor, self.shortest)
