"""The ledger: which flights were counted, and which were delivered or processed again. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from .reports import Report
from .tally import Tally

__all__ = ["Ledger"]


class Ledger:
    """Counts each stream sequence once, even if it is delivered several times or to several workers.

    Attributes:
        total: The number of flights to count: the sequences 1 to ``total``.
        tally: The sums over the counted flights.
        count: The number of counted flights.
        redelivered: Sequences whose deliveries had a ``num_delivered`` above 1.
        repeated: Sequences that were processed again after they had been counted.
        orphaned: Sequences that were counted, and whose worker was killed before it could ack them.
        unexpected: Sequences outside of 1 to ``total``.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.tally: Tally = Tally()
        self.count: int = 0
        self.redelivered: set[int] = set()
        self.repeated: set[int] = set()
        self.orphaned: set[int] = set()
        self.unexpected: set[int] = set()
        self._counted = bytearray(total + 1)

    def enter(self, report: Report) -> list[int]:
        """Count a report, unless it contains a sequence that is already counted or unexpected.

        Returns:
            These sequences; empty if the report was counted.
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
        """Record counted sequences whose worker was killed before it acked them."""
        self.orphaned.update(sequences)

    @property
    def is_complete(self) -> bool:
        """Whether every flight was counted."""
        return self.count == self.total

    @property
    def lost(self) -> int:
        """The number of sequences that were not counted, each one checked."""
        return self._counted.count(0, 1)
