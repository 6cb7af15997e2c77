"""Ranges of stream sequences: limits the size of a batch and splits it into parts. Does no I/O.

Generators request the counts they need: they yield a sequence and are sent the number of matching messages at or after
it. Counts only determine how ranges are split; even with wrong counts, every message of a batch is read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "SPARSE",
    "Counting",
    "SequenceRange",
    "admit",
    "merged",
    "pieces_for",
    "plan_ranges",
    "plan_sparse",
    "shares",
    "without",
]

SPARSE = 10
"""Ratio of sequences to messages above which ranges are split by message counts instead of by sequence."""

_STEPS = 24  # maximum number of counts per cut
_NEAR = 10  # a cut may be off by a tenth of a part

Counting = Generator[int, int, "list[SequenceRange]"]


@dataclass(frozen=True, slots=True, order=True)
class SequenceRange:
    """Stream sequences from ``first`` to ``last``, inclusive."""

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.last:
            raise ValueError(f"no range: {self.first} to {self.last}")

    @property
    def width(self) -> int:
        """Number of sequences, which is the maximum number of messages."""
        return self.last - self.first + 1

    def clipped(self, first: int, last: int) -> SequenceRange | None:
        """The part between two sequences, inclusive; None if it is empty."""
        first, last = max(self.first, first), min(self.last, last)
        return SequenceRange(first, last) if first <= last else None


def merged(ranges: Iterable[SequenceRange]) -> list[SequenceRange]:
    """The same sequences in as few ranges as possible, in order."""
    made: list[SequenceRange] = []
    for one in sorted(ranges):
        if made and one.first <= made[-1].last + 1:
            made[-1] = SequenceRange(made[-1].first, max(made[-1].last, one.last))
        else:
            made.append(one)
    return made


def without(whole: SequenceRange, taken: Iterable[SequenceRange]) -> list[SequenceRange]:
    """The parts of a range that are in none of others, which are in order and do not overlap."""
    rest: list[SequenceRange] = []
    first = whole.first
    for one in taken:
        if first < one.first and (part := whole.clipped(first, one.first - 1)) is not None:
            rest.append(part)
        first = max(first, one.last + 1)
    return [*rest, SequenceRange(first, whole.last)] if first <= whole.last else rest


def pieces_for(rows: int, least: int, most_rows: int | None, least_rows: int = 1) -> int:
    """The number of parts for a number of rows.

    Args:
        rows: Rows, an estimate.
        least: Preferred minimum number of parts.
        most_rows: Maximum rows per part.
        least_rows: Minimum rows for an additional part, unless ``most_rows`` requires it.
    """
    wanted = min(least, -(-rows // least_rows))
    needed = 0 if most_rows is None else -(-rows // most_rows)
    return max(1, min(rows, max(wanted, needed)))


def plan_ranges(whole: SequenceRange, pieces: int) -> list[SequenceRange]:
    """Split a range into parts of equal width, give or take one sequence."""
    pieces = min(pieces, whole.width)
    cuts = [whole.first + whole.width * piece // pieces for piece in range(pieces + 1)]
    return [SequenceRange(cuts[piece], cuts[piece + 1] - 1) for piece in range(pieces)]


def plan_sparse(whole: SequenceRange, rest: int, after: int, pieces: int) -> Counting:
    """Split a range into parts with about the same number of messages. Together they cover the whole range.

    Args:
        rest: Number of messages from the first sequence on.
        after: Number of messages after the last sequence.
        pieces: Number of parts.
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
    """Find the last sequence of a batch with at most ``most`` messages, and not many fewer.

    A batch has at least ``most`` sequences, if the range is that wide: they can't hold more messages. For ``rest`` and
    ``after`` see `plan_sparse`.
    """
    if rest - after <= most:
        return whole.last
    least = min(whole.last, whole.first + most - 1)
    floor = rest - most  # at least this many messages must remain after the batch
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


def shares(counts: Sequence[int], most: int) -> list[int]:
    """Share the messages of a batch among streams, in proportion to the messages that wait in each.

    A stream with messages gets at least one, so none starves. With more such streams than ``most``, the sum is greater.
    """
    total = sum(counts)
    if total <= most:
        return list(counts)
    waiting = sum(count > 0 for count in counts)
    over = max(0, most - waiting)  # beyond one each
    given = [min(1, count) + max(0, count - 1) * over // max(1, total - waiting) for count in counts]
    short = [at for at, count in enumerate(counts) if given[at] < count]
    short.sort(key=lambda at: given[at] * total - counts[at] * most)
    for at in short[: max(0, most - sum(given))]:  # left by rounding
        given[at] += 1
    return given


class _Search:
    """Searches for the sequence from which on a given number of messages is left."""

    def __init__(self, low: int, low_rest: int, high: int, high_rest: int) -> None:
        self._low, self._low_rest = low, low_rest
        self._high, self._high_rest = high, high_rest

    def run(self, aim: int, near: int) -> Generator[int, int, tuple[int, int]]:
        """Return the sequence, and the number of messages from it on."""
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
    """The next sequence to try between two: interpolated as if messages were evenly spread, or the midpoint."""
    if by_half or low_rest <= high_rest:
        guess = (low + high) // 2
    else:
        guess = low + (high - low) * (low_rest - aim) // (low_rest - high_rest)
    return min(max(guess, low + 1), high - 1)
