"""What is not in the history: was it never there, or removed before it was read?

Records that a limit removed leave no trace but a hole. A record's link to its predecessor shows whether one is missing
at all. Without links the head of the stream has to do: removed from there was only what is before it. What a limit by
subject or a time to live removes from the *middle* of a stream, links show and nothing else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from .position import Extent
from .record import Kind, Record

__all__ = ["MissingRule", "Skipped", "Verdict"]

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
