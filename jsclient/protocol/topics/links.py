"""Does this record directly follow what was had? Links between records, each of which names its predecessor.

A record that was lost on its way shows when the next one names a predecessor that was never had. Where the links come
from is the feed's matter: ``Nats-Expected-Last-Subject-Sequence``, ``Nats-Last-Sequence`` of a republished message, the
consumer sequence. (`GapTracker` is the sibling that follows one consumer and tells of gaps, but takes in everything.)

Links among *some* subjects only show gaps of each subject by itself: when the newest record of one is lost, the others
go on without a sign of it. So a tracker that goes by subject knows two things: up to where everything was had
(`LinkTracker.floor`), and what was had beyond that, subject by subject.

Source: P3Sub (the queue of a subscriber); nats-server server/stream.go (republish).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from .position import Extent
from .record import Kind, Record

__all__ = ["Gap", "Link", "LinkTracker", "MissingRule", "Offer", "Skipped", "Verdict"]


class Link(enum.Enum):
    """What a record is that may be taken, or need not be."""

    ACCEPT = enum.auto()
    """It directly follows: it was taken."""
    DUPLICATE = enum.auto()
    """It was had before."""


class Gap(msgspec.Struct, frozen=True):
    """Something may be missing after the record ``after``, and before the record ``before``, which was not taken."""

    after: int
    before: int


Offer: TypeAlias = Link | Gap


@dataclass(slots=True)
class LinkTracker:
    """Says of each record whether it directly follows.

    Attributes:
        floor: Everything up to this sequence was had. At first: where the reader begins.
        by_subject: Links are among the records of one subject, and there may be several. Else they are among all
            records of the feed, and ``floor`` is the last one that was taken.
    """

    floor: int = 0
    by_subject: bool = False
    # The last sequence had of a subject, where it is over the floor.
    _beyond: dict[str, int] = field(init=False, default_factory=dict)

    @property
    def beyond(self) -> int:
        """Subjects of which something was had beyond the floor."""
        return len(self._beyond)

    def had(self, seq: int, subject: str = "") -> bool:
        """Whether this record was had."""
        return seq <= self.floor or seq <= self._beyond.get(subject, 0)

    def offer(self, seq: int, previous: int | None, subject: str = "") -> Offer:
        """A record that came in any order, or again; ``previous`` is its predecessor, 0 if it has none.

        None: not known. Then it follows only if nothing at all can lie between. So with 0 where something was had: all
        that was there was removed before it was stored, and nobody knows whether that was all that was had.
        """
        last = max(self.floor, self._beyond.get(subject, 0)) if self._beyond else self.floor
        if seq <= last:
            return Link.DUPLICATE
        if seq == self.floor + 1:
            self.caught_up(seq)
        # A predecessor before the last one: that one was deleted before this record was stored.
        elif previous is None or previous > last:
            return Gap(last, seq)
        elif self.by_subject:  # there the history is read over it in any case
            self._beyond[subject] = seq
        elif not previous and last:
            return Gap(last, seq)
        else:
            self.floor = seq
        return Link.ACCEPT

    def caught_up(self, seq: int) -> None:
        """Everything up to this sequence was had, or is not there: a history was read up to it."""
        if seq > self.floor:
            self.floor = seq
            if self._beyond:
                self._beyond = {subject: last for subject, last in self._beyond.items() if last > seq}


Verdict: TypeAlias = Literal["nothing", "skipped", "lost"]


class Skipped(msgspec.Struct, frozen=True):
    """Tell the user: what was between these sequences was removed before it was read, and is passed over."""

    after: int
    before: int


@dataclass(frozen=True, slots=True)
class MissingRule:
    """Judges holes in a history.

    Attributes:
        by_subject: Links are among the records of one subject, and there are several: they say nothing of the others.
        holes_are_deletions: Nothing but a delete removes records from the middle of the stream.
        allow_truncated: What is lost is passed over.
    """

    by_subject: bool = False
    holes_are_deletions: bool = False
    allow_truncated: bool = False

    def may_miss(self, record: Record, floor: int) -> bool:
        """Whether something between the floor, up to which all was had, and this record may have been there."""
        if record.seq <= floor + 1:
            return False
        previous = self._link(record.previous, floor)
        return previous is None or previous > floor

    def _link(self, previous: int | None, floor: int) -> int | None:
        """What a link says; None: nothing. So if it is 0 and something was had: all else was removed before it."""
        return None if self.by_subject or (not previous and floor) else previous

    def run(self, records: Sequence[Record], floor: int, extent: Extent | None) -> int:
        """How many of these, from the first on, need no look at each by itself.

        Nothing is missing before any of them, none was had, and none but the last of them ends the topic. ``floor`` and
        ``extent`` as of `before`.
        """
        whole = extent is not None and extent.first_seq <= floor + 1  # nothing was removed at the head
        count = 0
        for record in records:
            seq = record.seq
            if seq != floor + 1:
                previous = self._link(record.previous, floor)
                if seq <= floor or not (whole if previous is None else previous <= floor):
                    break
            floor = seq
            count += 1
            if record.kind is not Kind.VALUE and record.is_last:
                break
        return count

    def needs_extent(self, records: Sequence[Record], floor: int) -> bool:
        """Whether these cannot be judged without knowing what the stream holds."""
        count = self.run(records, floor, None)
        floor = records[count - 1].seq if count else floor
        for record in records[count:]:
            if self.may_miss(record, floor):
                return True
            floor = max(floor, record.seq)
        return False

    def before(self, record: Record, floor: int, extent: Extent | None) -> Verdict:
        """What is missing between the floor and a record that follows it in the history.

        ``extent``: what the stream holds, asked for *after* the history was read; None: it cannot be had, and then what
        may be missing is taken for lost.
        """
        if not self.may_miss(record, floor):
            return "nothing"
        previous = self._link(record.previous, floor)
        if previous is None:
            if extent is None:
                return "nothing" if self.allow_truncated else "lost"
            return self._lost if extent.first_seq > floor + 1 else "nothing"
        if extent is None:
            return self._lost
        if previous >= extent.first_seq and self.holes_are_deletions:
            return "skipped"
        return self._lost

    def at_end(self, up_to: int, floor: int, extent: Extent | None) -> Verdict:
        """What is missing between the floor and the end of a history that has nothing there."""
        if up_to > floor and extent is not None and extent.first_seq > floor + 1:
            return self._lost
        return "nothing"

    @property
    def _lost(self) -> Verdict:
        return "skipped" if self.allow_truncated else "lost"
