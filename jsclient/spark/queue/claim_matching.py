"""Groups claims into requests, and matches them with stored messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .claim_offset import Run, claimed

__all__ = ["ClaimMatcher", "Found", "Span", "spans"]

NEAR = 64  # sequences between two runs: reading and dropping them is cheaper than a second request
_FEW = 4  # groups of up to this many claims are read one by one
_SINGLES = 512  # claims per span that is read one by one


@dataclass(frozen=True, slots=True)
class Span:
    """Claims that are read together, in order of stream sequence.

    ``singly``: one request per message, since the claims are scattered; otherwise batch requests cover the span from
    the first claim to the last.
    """

    runs: tuple[Run, ...]
    singly: bool = False


def spans(runs: Sequence[Run], *, by_filter: bool, batches: bool = True) -> list[Span]:
    """Group claims into spans.

    Args:
        runs: The claims, in order of stream sequence.
        by_filter: Requests carry the filter of the consumer, so other messages between two claims are not sent.
        batches: Whether the server supports batch direct gets.
    """
    if not batches:
        return _singles(runs)
    if by_filter:
        return [Span(tuple(runs))] if runs else []
    groups: list[list[Run]] = []
    for run in runs:
        if groups and run.stream_seq - groups[-1][-1].last <= NEAR:
            groups[-1].append(run)
        else:
            groups.append([run])
    made: list[Span] = []
    scattered: list[Run] = []
    for group in groups:
        if claimed(group) <= _FEW:
            scattered += group
            continue
        made += _singles(scattered)
        scattered = []
        made.append(Span(tuple(group)))
    return made + _singles(scattered)


def _singles(runs: Sequence[Run]) -> list[Span]:
    made: list[list[Run]] = []
    room = 0
    for run in runs:
        start = 0
        while start < run.count:
            if not room:
                made.append([])
                room = _SINGLES
            count = min(room, run.count - start)
            made[-1].append(run.part(start, count))
            start, room = start + count, room - count
    return [Span(tuple(part), singly=True) for part in made]


@dataclass(slots=True)
class Found:
    """Claims whose messages were found, as parallel lists."""

    places: list[int]  # indexes of the messages
    consumer_seqs: list[int]
    delivered: list[int]
    pending: list[int]


class ClaimMatcher:
    """Matches the messages of a span with its claims, in order.

    Attributes:
        left: Number of claims that are neither found nor missing.
        missing: Claims without a message.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._number = 0  # index of the current run
        self._offset = 0  # claims of this run that are done
        self.left: int = claimed(runs)
        self.missing: list[Run] = []

    @property
    def next_seq(self) -> int:
        """The stream sequence of the next claim."""
        return self._runs[self._number].stream_seq + self._offset

    def take(self, seqs: Iterable[int]) -> Found:
        """Match messages, given by ascending stream sequences. Claims before and between them are missing."""
        found = Found([], [], [], [])
        for place, seq in enumerate(seqs):
            self.passed(seq - 1)
            if not self.left:
                break
            run = self._runs[self._number]
            if seq < run.stream_seq:
                continue  # claimed by another client, or not at all
            found.places.append(place)
            found.consumer_seqs.append(run.consumer_seq + self._offset)
            found.delivered.append(run.delivered)
            found.pending.append(max(0, run.pending - self._offset))
            self._step(1)
        return found

    def passed(self, seq: int) -> None:
        """Record the remaining claims up to this sequence as missing."""
        while self.left:
            run = self._runs[self._number]
            if run.stream_seq + self._offset > seq:
                return
            count = min(run.last, seq) - run.stream_seq - self._offset + 1
            self.missing.append(run.part(self._offset, count))
            self._step(count)

    def passed_all(self) -> None:
        """Record all remaining claims as missing."""
        if self.left:
            self.passed(self._runs[-1].last)

    def _step(self, count: int) -> None:
        self.left -= count
        self._offset += count
        if self._offset == self._runs[self._number].count:
            self._number, self._offset = self._number + 1, 0
