"""Ranges of stream sequences, and functions that limit the size of a batch and split it into parts. Does no I/O.

Some functions are generators, because they need counts. A generator yields a sequence, and is sent the number of
matching messages at or after it. Counts only determine how ranges are split. Even with wrong counts, every message of a
batch is read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = [
    "SPARSE",
    "Counting",
    "SequenceRange",
    "admit",
    "merged",
    "pieces_for",
    "plan_bounded_parts",
    "plan_by_messages",
    "plan_ranges",
    "plan_sparse",
    "shares",
    "without",
]

SPARSE = 10
"""Ratio of sequences to messages above which ranges are split by message counts instead of by sequence."""

_STEPS = 24  # maximum number of counts per cut
_NEAR = 10  # a cut may deviate by a tenth of a part

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
        """Return the part between two sequences, inclusive, or None if it is empty."""
        first, last = max(self.first, first), min(self.last, last)
        return SequenceRange(first, last) if first <= last else None


def merged(ranges: Iterable[SequenceRange]) -> list[SequenceRange]:
    """Merge ranges that touch or overlap, and return the result in order."""
    result: list[SequenceRange] = []
    for part in sorted(ranges):
        if result and part.first <= result[-1].last + 1:
            result[-1] = SequenceRange(result[-1].first, max(result[-1].last, part.last))
        else:
            result.append(part)
    return result


def without(whole: SequenceRange, taken: Iterable[SequenceRange]) -> list[SequenceRange]:
    """Return the parts of a range outside of ``taken``, whose ranges must be in order and must not overlap."""
    remaining: list[SequenceRange] = []
    first = whole.first
    for range_ in taken:
        if first < range_.first and (part := whole.clipped(first, range_.first - 1)) is not None:
            remaining.append(part)
        first = max(first, range_.last + 1)
    return [*remaining, SequenceRange(first, whole.last)] if first <= whole.last else remaining


def pieces_for(rows: int, least: int, most_rows: int | None, least_rows: int = 1) -> int:
    """Return the number of parts for a number of rows.

    Args:
        rows: Estimated number of rows.
        least: Preferred minimum number of parts.
        most_rows: Maximum rows per part.
        least_rows: Minimum rows for an additional part, unless ``most_rows`` requires it.
    """
    preferred = min(least, -(-rows // least_rows))
    needed = 0 if most_rows is None else -(-rows // most_rows)
    return max(1, min(rows, max(preferred, needed)))


def plan_ranges(whole: SequenceRange, pieces: int) -> list[SequenceRange]:
    """Split a range into parts of equal width, give or take one sequence."""
    pieces = min(pieces, whole.width)
    cuts = [whole.first + whole.width * piece // pieces for piece in range(pieces + 1)]
    return [SequenceRange(cuts[piece], cuts[piece + 1] - 1) for piece in range(pieces)]


def plan_sparse(whole: SequenceRange, remaining: int, after: int, pieces: int) -> Counting:
    """Split a range into parts with about the same number of messages. Together they cover the whole range.

    Args:
        remaining: Number of messages from the first sequence on.
        after: Number of messages after the last sequence.
        pieces: Number of parts.
    """
    rows = remaining - after
    pieces = max(1, min(pieces, rows))
    parts: list[SequenceRange] = []
    first, remaining_count = whole.first, remaining
    for piece in range(pieces - 1, 0, -1):
        aim = after + rows * piece // pieces
        search = _RangeSearch(first, remaining_count, whole.last + 1, after)
        cut, remaining_count = yield from search.search(aim, max(1, rows // pieces // _NEAR))
        if first < cut <= whole.last:
            parts.append(SequenceRange(first, cut - 1))
            first = cut
    return [*parts, SequenceRange(first, whole.last)]


def plan_by_messages(whole: SequenceRange, messages: Sequence[int], pieces: int) -> list[SequenceRange]:
    """Split a range into parts whose numbers of messages differ by at most one.

    ``messages`` are the sequences of the messages in the range, in order.
    """
    pieces = max(1, min(pieces, len(messages)))
    firsts = [messages[len(messages) * piece // pieces] for piece in range(1, pieces)]
    ends = [whole.first, *firsts, whole.last + 1]
    return [SequenceRange(first, following - 1) for first, following in pairwise(ends)]


def plan_bounded_parts(whole: SequenceRange, remaining: int, after: int, most: int) -> Counting:
    """Split a range into parts with at most ``most`` messages each, and not many fewer, if the counts are right.

    `plan_sparse` describes ``remaining`` and ``after``.
    """
    parts: list[SequenceRange] = []
    first = whole.first
    while remaining - after > most and first < whole.last:
        last = yield from admit(SequenceRange(first, whole.last), remaining, after, most)
        parts.append(SequenceRange(first, last))
        first = last + 1
        if first > whole.last:
            return parts
        remaining = yield first
    return [*parts, SequenceRange(first, whole.last)]


def admit(
    whole: SequenceRange, remaining: int, after: int, most: int, steps: int = _STEPS
) -> Generator[int, int, int]:
    """Find the last sequence of a batch with at most ``most`` messages, and not many fewer.

    If the range is wide enough, a batch has at least ``most`` sequences, since they cannot contain more than ``most``
    messages. `plan_sparse` describes ``remaining`` and ``after``.
    """
    if remaining - after <= most:
        return whole.last
    least = min(whole.last, whole.first + most - 1)
    floor = remaining - most  # at least this many messages must remain after the batch
    # A batch that ends before `low` is small enough. A batch that ends before `high` is too large.
    low, high = least + 1, whole.last + 1
    low_remaining, high_remaining = remaining, after
    for step in range(steps):
        if high - low <= 1 or low_remaining - floor <= most // _NEAR:
            break
        ask = _between(low, low_remaining, high, high_remaining, floor, by_half=step % 3 == 2)
        count = yield ask
        if count >= floor:
            low, low_remaining = ask, count
        else:
            high, high_remaining = ask, count
    return low - 1


def shares(counts: Sequence[int], most: int) -> list[int]:
    """Divide the messages of a batch among streams, in proportion to the messages that wait in each stream.

    A stream with messages gets a share of at least 1, so that none starves. If there are more such streams than
    ``most``, the sum of the shares exceeds ``most``.
    """
    total = sum(counts)
    if total <= most:
        return list(counts)
    waiting = sum(count > 0 for count in counts)
    over = max(0, most - waiting)  # what remains after each stream was granted its first message
    granted = [min(1, count) + max(0, count - 1) * over // max(1, total - waiting) for count in counts]
    short = [at for at, count in enumerate(counts) if granted[at] < count]
    short.sort(key=lambda at: granted[at] * total - counts[at] * most)
    for at in short[: max(0, most - sum(granted))]:  # grant what rounding down has left over
        granted[at] += 1
    return granted


class _RangeSearch:
    """Search for the sequence from which a given number of messages remains."""

    def __init__(self, low: int, low_remaining: int, high: int, high_remaining: int) -> None:
        self._low, self._low_remaining = low, low_remaining
        self._high, self._high_remaining = high, high_remaining

    def search(self, aim: int, near: int) -> Generator[int, int, tuple[int, int]]:
        """Find a sequence from which ``aim`` messages remain, give or take ``near``.

        Returns the sequence and the actual number of messages from it on.
        """
        for step in range(_STEPS):
            if self._high - self._low <= 1:
                break
            ask = _between(
                self._low, self._low_remaining, self._high, self._high_remaining, aim, by_half=step % 3 == 2
            )
            count = yield ask
            if abs(count - aim) <= near:
                return ask, count
            if count > aim:
                self._low, self._low_remaining = ask, count
            else:
                self._high, self._high_remaining = ask, count
        return self._high, self._high_remaining


def _between(low: int, low_remaining: int, high: int, high_remaining: int, aim: int, *, by_half: bool) -> int:
    """Return the next sequence to try between two sequences.

    It is interpolated as if the messages were evenly spread. With ``by_half``, it is the midpoint.
    """
    if by_half or low_remaining <= high_remaining:
        guess = (low + high) // 2
    else:
        guess = low + (high - low) * (low_remaining - aim) // (low_remaining - high_remaining)
    return min(max(guess, low + 1), high - 1)
