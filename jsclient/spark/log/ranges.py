"""Ranges of a stream: how the rows of a batch are shared out, and how many of them are taken.

Nothing here asks a server. What has to be counted is asked for by a generator: it yields a sequence, and is sent how
many messages that match have this sequence or a later one. Counts only say where ranges are cut; that all of a batch
is read does not depend on them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

__all__ = ["SPARSE", "Counting", "SequenceRange", "admit", "pieces_for", "plan_ranges", "plan_sparse"]

SPARSE = 10
"""From so many sequences to a message on, ranges are cut by counts instead of by sequences."""

_STEPS = 24  # questions for one cut, at most
_NEAR = 10  # a cut is good enough at a tenth of a piece from where it should be

Counting = Generator[int, int, "list[SequenceRange]"]


@dataclass(frozen=True, slots=True, order=True)
class SequenceRange:
    """Stream sequences from ``first`` to ``last``, both with it."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.last:
            raise ValueError(f"no range: {self.first} to {self.last}")

    @property
    def width(self) -> int:
        """Sequences; the messages are as many at most."""
        return self.last - self.first + 1


def pieces_for(rows: int, least: int, most_rows: int | None, least_rows: int = 1) -> int:
    """In how many parts rows are read.

    Args:
        rows: Rows, as far as known.
        least: Parts that there should be.
        most_rows: Rows of one part at most.
        least_rows: Rows for which another part is worth it, if it is not for ``most_rows``.
    """
    wanted = min(least, -(-rows // least_rows))
    needed = 0 if most_rows is None else -(-rows // most_rows)
    return max(1, min(rows, max(wanted, needed)))


def plan_ranges(whole: SequenceRange, pieces: int) -> list[SequenceRange]:
    """Parts with as many sequences each, give or take one."""
    pieces = min(pieces, whole.width)
    cuts = [whole.first + whole.width * piece // pieces for piece in range(pieces + 1)]
    return [SequenceRange(cuts[piece], cuts[piece + 1] - 1) for piece in range(pieces)]


def plan_sparse(whole: SequenceRange, rest: int, after: int, pieces: int) -> Counting:
    """Parts with as many messages each, nearly; together they are the whole.

    Args:
        rest: Messages from the first sequence on.
        after: Messages behind the last sequence.
        pieces: How many parts.
    """
    rows = rest - after
    pieces = max(1, min(pieces, rows))
    parts: list[SequenceRange] = []
    first, left = whole.first, rest
    for piece in range(pieces - 1, 0, -1):
        aim = after + rows * piece // pieces
        search = _Search(first, left, whole.last + 1, after)
        cut, left = yield from search.run(aim, max(1, rows // pieces // _NEAR))
        if first < cut <= whole.last:
            parts.append(SequenceRange(first, cut - 1))
            first = cut
    return [*parts, SequenceRange(first, whole.last)]


def admit(
    whole: SequenceRange, rest: int, after: int, most: int, steps: int = _STEPS
) -> Generator[int, int, int]:
    """The last sequence of a batch that has ``most`` messages at most, and not many fewer. Counts as of `plan_sparse`.

    As many sequences never hold more messages, so a batch has at least as many sequences.
    """
    if rest - after <= most:
        return whole.last
    least = min(whole.last, whole.first + most - 1)
    floor = rest - most  # the rest behind the batch must be this, or more
    low, high = least + 1, whole.last + 1  # the batch ends before low; high is too far
    low_rest, high_rest = rest, after
    for step in range(steps):
        if high - low <= 1 or low_rest - floor <= most // _NEAR:
            break
        ask = _between(low, low_rest, high, high_rest, floor, by_half=step % 3 == 2)
        count = yield ask
        if count >= floor:
            low, low_rest = ask, count
        else:
            high, high_rest = ask, count
    return low - 1


class _Search:
    """For the sequence from which on so many messages are left."""

    def __init__(self, low: int, low_rest: int, high: int, high_rest: int) -> None:
        self._low, self._low_rest = low, low_rest
        self._high, self._high_rest = high, high_rest

    def run(self, aim: int, near: int) -> Generator[int, int, tuple[int, int]]:
        """The sequence, and how many are left from it on."""
        for step in range(_STEPS):
            if self._high - self._low <= 1:
                break
            ask = _between(self._low, self._low_rest, self._high, self._high_rest, aim, by_half=step % 3 == 2)
            count = yield ask
            if abs(count - aim) <= near:
                return ask, count
            if count > aim:
                self._low, self._low_rest = ask, count
            else:
                self._high, self._high_rest = ask, count
        return self._high, self._high_rest


def _between(low: int, low_rest: int, high: int, high_rest: int, aim: int, *, by_half: bool) -> int:
    """A sequence between two: where the messages should be if they lie evenly, or in the middle."""
    if by_half or low_rest <= high_rest:
        guess = (low + high) // 2
    else:
        guess = low + (high - low) * (low_rest - aim) // (low_rest - high_rest)
    return min(max(guess, low + 1), high - 1)
