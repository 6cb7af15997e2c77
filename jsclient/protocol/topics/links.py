"""Links between records. Each record names its predecessor, so that a missing record is noticed.

A record was lost if its successor names a predecessor that was never received. The feed supplies the links:
``Nats-Expected-Last-Subject-Sequence``, ``Nats-Last-Sequence`` of a republished message, or the consumer sequence.
(`GapTracker` follows one consumer and reports gaps, but accepts every message.)

Links *per subject* reveal only gaps within a subject. If the newest record of a subject is lost, records of other
subjects don't reveal the loss. A tracker of such links therefore stores the sequence up to which every record was
received (`LinkTracker.floor`), and for each subject the last sequence received after the floor.

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

__all__ = ["Link", "LinkTracker", "MissingRule", "Skipped", "Verdict"]


class Link(enum.Enum):
    """The verdict on a record."""

    ACCEPT = enum.auto()
    """The record directly follows the records before it, and was accepted."""
    DUPLICATE = enum.auto()
    """The record was received before."""
    GAP = enum.auto()
    """Records before it may be missing, so the record was not accepted."""


@dataclass(slots=True)
class LinkTracker:
    """Decides for each record whether it directly follows the records received before.

    Attributes:
        floor: Every record up to this sequence was received. Initially it is the sequence of the start position.
        by_subject: Whether links connect the records of each subject. Otherwise they connect all records of the feed,
            and ``floor`` is the sequence of the last record accepted.
    """

    floor: int = 0
    by_subject: bool = False
    # Maps each subject to the last sequence received on it, if that sequence is after the floor.
    _beyond: dict[str, int] = field(init=False, default_factory=dict)

    @property
    def beyond(self) -> int:
        """Number of subjects with records received after the floor."""
        return len(self._beyond)

    def had(self, seq: int, subject: str = "") -> bool:
        """Return whether this record was received."""
        return seq <= self.floor or seq <= self._beyond.get(subject, 0)

    def offer(self, seq: int, previous: int | None, subject: str = "") -> Link:
        """Classify a record, which may be out of order or a duplicate, and accept it if it directly follows.

        Args:
            seq, subject: Sequence and subject of the record.
            previous: The sequence of the record's predecessor, 0 if the record is the first, or None if the
                predecessor is unknown. A record whose predecessor is unknown is accepted only if it has the next
                sequence. The same applies to a first record that arrives after other records, because the records
                before it were removed, and some of them may not have been received.
        """
        last = max(self.floor, self._beyond.get(subject, 0)) if self._beyond else self.floor
        if seq <= last:
            return Link.DUPLICATE
        if seq == self.floor + 1:
            self.caught_up(seq)
        # If the predecessor is before the last record received, there is no gap, because the last record received must
        # have been deleted before this record was stored.
        elif previous is None or previous > last:
            return Link.GAP
        elif self.by_subject:  # keep the floor, because records of other subjects may be missing after it
            self._beyond[subject] = seq
        elif not previous and last:
            return Link.GAP
        else:
            self.floor = seq
        return Link.ACCEPT

    def caught_up(self, seq: int) -> None:
        """Advance the floor, because the history was read up to this sequence."""
        if seq > self.floor:
            self.floor = seq
            if self._beyond:
                self._beyond = {subject: last for subject, last in self._beyond.items() if last > seq}


Verdict: TypeAlias = Literal["nothing", "skipped", "lost"]


class Skipped(msgspec.Struct, frozen=True):
    """Report that the records between these sequences were removed before they were read, and are skipped."""

    after: int
    before: int


@dataclass(frozen=True, slots=True)
class MissingRule:
    """Decides which gaps in a history are errors.

    Attributes:
        by_subject: Whether links connect the records of each subject, and do not show gaps in other subjects.
        holes_are_deletions: Whether only explicit deletion removes records from the middle of the stream.
        allow_truncated: Whether lost records are skipped.
        newest_only: Whether only the newest record of each subject is needed, and records before it may be missing.
    """

    by_subject: bool = False
    holes_are_deletions: bool = False
    allow_truncated: bool = False
    newest_only: bool = False

    def may_miss(self, record: Record, floor: int) -> bool:
        """Return whether the reader may have missed a record between the floor and ``record``."""
        if self.newest_only or record.seq <= floor + 1:
            return False
        previous = self._link(record.previous, floor)
        return previous is None or previous > floor

    def _link(self, previous: int | None, floor: int) -> int | None:
        """Return the predecessor, or None if unknown. A predecessor of 0 after other records counts as unknown."""
        return None if self.by_subject or (not previous and floor) else previous

    def run_length(self, records: Sequence[Record], floor: int, extent: Extent | None) -> int:
        """Return the number of leading records that can be added together.

        No record is missing before any of them, none is a duplicate, and only the last of them may end the topic.
        For ``floor`` and ``extent`` see `before`.
        """
        # True if no record after the floor was removed from the start of the stream.
        whole = extent is not None and extent.first_seq <= floor + 1
        count, value = 0, Kind.VALUE
        for record in records:
            seq = record.seq
            if seq != floor + 1:
                previous = self._link(record.previous, floor)
                if seq <= floor or not (whole if previous is None else previous <= floor):
                    break
            floor = seq
            count += 1
            if record.kind is not value and record.is_last:
                break
        return count

    def needs_extent(self, records: Sequence[Record], floor: int, count: int) -> bool:
        """Return whether judging the records needs the extent.

        ``count`` is the result of `run_length` for the records.
        """
        floor = records[count - 1].seq if count else floor
        for record in records[count:]:
            if self.may_miss(record, floor):
                return True
            floor = max(floor, record.seq)
        return False

    def before(self, record: Record, floor: int, extent: Extent | None) -> Verdict:
        """Return whether records are missing between the floor and the record that follows it in the history.

        ``extent`` must be requested *after* the history was read. It is None if it is unavailable. Records that may
        be missing then count as lost.
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
        """Return whether records after the floor were missed, although the history has no record after it."""
        if not self.newest_only and up_to > floor and extent is not None and extent.first_seq > floor + 1:
            return self._lost
        return "nothing"

    @property
    def _lost(self) -> Verdict:
        return "skipped" if self.allow_truncated else "lost"
