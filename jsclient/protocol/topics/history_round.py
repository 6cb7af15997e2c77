"""Reading a history to its end, page by page: what is asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

__all__ = ["AskHistory", "HistoryRound", "Result"]


class AskHistory(msgspec.Struct, frozen=True):
    """Read what is stored after a sequence, in order, at most so much."""

    since: int
    limit: int  # records
    max_bytes: int


class Result(msgspec.Struct, frozen=True):
    """What came of a round: how many records were new, whether it went on at all, and whether the timer asked."""

    found: int
    moved: bool
    by_timer: bool


@dataclass(slots=True)
class HistoryRound:
    """One question at a time, until there is no more.

    Attributes:
        wanted: There is something to be asked for.
        asked: The question that is under way.
        by_timer, found, moved: As in `Result`, so far.
        late: What is missing was told of after the present question was asked: its answer may be older.
    """

    wanted: bool = False
    asked: AskHistory | None = None
    by_timer: bool = False
    found: int = 0
    moved: bool = False
    late: bool = False

    def ask(self, since: int, room: tuple[int, int]) -> AskHistory:
        """The next question."""
        self.wanted = self.late = False
        self.asked = AskHistory(since, *room)
        return self.asked

    def answered(self, asked: AskHistory) -> bool:
        """Whether this answers the present question, which is none any more."""
        if asked is not self.asked:
            return False
        self.asked = None
        return True

    def went_on(self, count: int, *, found: bool = True) -> None:
        """So many records were read that lie behind where it stood; ``found``: they were not had."""
        self.found += count if found else 0
        self.moved |= count > 0

    def over(self) -> Result:
        """There is no more."""
        result = Result(self.found, self.moved, self.by_timer)
        self.found, self.moved, self.by_timer = 0, False, False
        return result
