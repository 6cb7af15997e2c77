"""A round of requests by which a reader reads the history to its end."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

__all__ = ["AskHistory", "HistoryRound", "RoundResult"]


class AskHistory(msgspec.Struct, frozen=True):
    """Read stored records after a sequence, in order, up to these limits."""

    since: int
    limit: int  # records
    max_bytes: int


class RoundResult(msgspec.Struct, frozen=True):
    """The result of a round: the number of new records, whether it advanced, and whether the timer started it."""

    found: int
    moved: bool
    by_timer: bool


@dataclass(slots=True)
class HistoryRound:
    """Reads the history to its end, one request at a time.

    Attributes:
        wanted: Another request is needed.
        asked: The request in flight.
        by_timer, found, moved: As in `RoundResult`, so far.
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

    def over(self) -> RoundResult:
        """End the round."""
        result = RoundResult(self.found, self.moved, self.by_timer)
        self.found, self.moved, self.by_timer = 0, False, False
        return result
