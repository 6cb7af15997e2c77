"""Finding claims among stored messages: what is asked for together, which message is of which claim, which are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .claim_offset import Run, claimed

__all__ = ["ClaimMatcher", "Found", "Span", "spans"]

NEAR = 64  # sequences between two runs that are cheaper to read and drop than to ask twice
_FEW = 4  # claims for which a request for many messages is not worth it
_SINGLES = 512  # claims of one span that is read one by one


@dataclass(frozen=True, slots=True)
class Span:
    """Claims that are read together, in order of their stream sequences.

    ``singly``: one by one, since they lie far apart; else from the first to the last with few requests.
    """

    runs: tuple[Run, ...]
    singly: bool = False


def spans(runs: Sequence[Run], *, by_filter: bool, batches: bool = True) -> list[Span]:
    """How to read these claims, which are in order.

    Args:
        runs: The claims.
        by_filter: Requests name the filter of the consumer, so that what lies between two claims does not come.
        batches: Whether the server answers with more than one message.
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
    """The claims of messages that were found, one entry each."""

    places: list[int]  # which of the messages
    consumer_seqs: list[int]
    delivered: list[int]
    pending: list[int]


class ClaimMatcher:
    """Goes through the claims of a span as its messages come.

    Attributes:
        left: Claims that are neither found nor passed.
        missing: Claims that were passed without their message.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs
        self._number = 0  # the run that is next
        self._offset = 0  # how much of it is done
        self.left: int = claimed(runs)
        self.missing: list[Run] = []

    @property
    def next_seq(self) -> int:
        """The stream sequence of the next claim."""
        return self._runs[self._number].stream_seq + self._offset

    def take(self, seqs: Iterable[int]) -> Found:
        """The stream sequences of messages, ascending: find those that are claimed, and pass what lies before them."""
        found = Found([], [], [], [])
        for place, seq in enumerate(seqs):
            self.passed(seq - 1)
            if not self.left:
                break
            run = self._runs[self._number]
            if seq < run.stream_seq:
                continue  # nobody claimed it, or somebody else
            found.places.append(place)
            found.consumer_seqs.append(run.consumer_seq + self._offset)
            found.delivered.append(run.delivered)
            found.pending.append(max(0, run.pending - self._offset))
            self._step(1)
        return found

    def passed(self, seq: int) -> None:
        """There is no message up to this sequence any more."""
        while self.left:
            run = self._runs[self._number]
            if run.stream_seq + self._offset > seq:
                return
            count = min(run.last, seq) - run.stream_seq - self._offset + 1
            self.missing.append(run.part(self._offset, count))
            self._step(count)

    def passed_all(self) -> None:
        """There is no further message."""
        if self.left:
            self.passed(self._runs[-1].last)

    def _step(self, count: int) -> None:
        self.left -= count
        self._offset += count
        if self._offset == self._runs[self._number].count:
            self._number, self._offset = self._number + 1, 0
