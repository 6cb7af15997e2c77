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
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

__all__ = ["Gap", "Link", "LinkTracker", "Offer"]


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
