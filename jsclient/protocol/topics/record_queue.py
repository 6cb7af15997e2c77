"""The queue of a reader: records that wait, and where the reader stands once they are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .record import Record, total_size

__all__ = ["Aside", "RecordQueue"]


@dataclass(slots=True)
class RecordQueue:
    """A bounded queue. An empty one takes a record of any size: it could never be read otherwise.

    Attributes:
        max_records, max_bytes: What may wait.
        kept: All up to this sequence was taken, with everything that belongs before it.
        kept_time_ns: Time stamp of the last record taken.
        pending_bytes: Of what waits.
    """

    max_records: int
    max_bytes: int
    kept: int = 0
    kept_time_ns: int = 0
    pending_bytes: int = 0
    _records: deque[Record] = field(default_factory=deque)
    # Up to where all is had once a record is taken, where that is not the record itself.
    _kept: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def is_half_empty(self) -> bool:
        """Whether half of the room is free."""
        return len(self._records) <= self.max_records // 2 and self.pending_bytes <= self.max_bytes // 2

    @property
    def room(self) -> tuple[int, int]:
        """Records and bytes that may still come, at least 1 of each."""
        return max(self.max_records - len(self._records), 1), max(self.max_bytes - self.pending_bytes, 1)

    def has_room(self, record: Record) -> bool:
        """Whether this one can be added."""
        if not self._records:
            return True
        return len(self._records) < self.max_records and self.pending_bytes + record.size <= self.max_bytes

    def add(self, record: Record, kept: int) -> None:
        """A record; and up to where all is had once it is taken."""
        self._records.append(record)
        self.pending_bytes += record.size
        if kept != record.seq:
            self._kept[record.seq] = kept

    def extend(self, records: Sequence[Record]) -> bool:
        """Records that follow one another, all of them. False: there is no room for that, and none is added."""
        pending_bytes = self.pending_bytes + total_size(records)
        if len(self._records) + len(records) > self.max_records or pending_bytes > self.max_bytes:
            return False
        self._records += records
        self.pending_bytes = pending_bytes
        return True

    def take(self, limit: int) -> list[Record]:
        """Up to so many, in order."""
        records = self._records
        if limit >= len(records):
            taken = list(records)
            records.clear()
            self.pending_bytes = 0
        elif limit == 1:
            taken = [records.popleft()]
            self.pending_bytes -= taken[0].size
        else:
            taken = [records.popleft() for _ in range(limit)]
            self.pending_bytes -= total_size(taken)
        if taken:
            last = taken[-1]
            self.kept, self.kept_time_ns = last.seq, last.time_ns
            if self._kept:
                for record in taken:
                    self.kept = self._kept.pop(record.seq, record.seq)
        return taken


@dataclass(slots=True)
class Aside:
    """Pushes that came before what precedes them. They are offered again when the history was read so far."""

    max_records: int
    max_bytes: int
    _records: list[Record] = field(default_factory=list)
    _bytes: int = 0

    def add(self, record: Record) -> bool:
        """Whether there is room for it; if not, it is left out, and the history will have it."""
        size = self._bytes + record.size
        if len(self._records) >= self.max_records or size > self.max_bytes:
            return False
        self._records.append(record)
        self._bytes = size
        return True

    def take_all(self) -> list[Record]:
        """All of them, in order of their sequence."""
        records = sorted(self._records, key=_sequence)
        self._records, self._bytes = [], 0
        return records


def _sequence(record: Record) -> int:
    return record.seq
