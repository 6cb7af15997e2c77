"""The books: which flights were counted, by whom, and how often they came. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from .reports import Report
from .tally import Tally

__all__ = ["Ledger"]


class Ledger:
    """Counts each stream sequence once, however often it is delivered and to whomever.

    Attributes:
        total: Flights that are to be counted: the sequences 1 to ``total``.
        tally: What the counted flights come to.
        count: How many were counted.
        redelivered: Sequences that were delivered more than once, as the deliveries themselves said.
        repeated: Sequences that were processed again after they had been counted.
        orphaned: Sequences that were counted, and whose worker was killed before it could ack them.
        unexpected: Sequences that nobody published.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.tally = Tally()
        self.count = 0
        self.redelivered: set[int] = set()
        self.repeated: set[int] = set()
        self.orphaned: set[int] = set()
        self.unexpected: set[int] = set()
        self._counted = bytearray(total + 1)

    def enter(self, report: Report) -> list[int]:
        """Count a report whole, or, where it has sequences that are counted already, not at all.

        Returns: those sequences.
        """
        counted, sequences = self._counted, report.sequences
        self.redelivered.update(report.redelivered)
        strange = [s for s in sequences if not 1 <= s <= self.total]
        if strange:
            self.unexpected.update(strange)
            return strange
        if known := [s for s in sequences if counted[s]]:
            self.repeated.update(known)
            return known
        for sequence in sequences:
            counted[sequence] = 1
        self.count += len(sequences)
        self.tally.merge(report.rows)
        return []

    def orphan(self, sequences: Iterable[int]) -> None:
        """Their worker was killed: they were counted and not acked."""
        self.orphaned.update(sequences)

    @property
    def is_complete(self) -> bool:
        """Whether every flight was counted."""
        return self.count == self.total

    @property
    def lost(self) -> int:
        """How many were not counted, by looking at each sequence."""
        return self._counted.count(0, 1)
