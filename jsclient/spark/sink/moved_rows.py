"""Rows of a repeated batch that were in other partitions in earlier runs. Does no I/O.

The id of a row contains its partition, so the stream does not recognize a row that has moved to another partition. A
task therefore compares its rows with the rows that earlier runs of the batch have stored. There are three kinds of
rows:

- Rows that are stored under an id of the task's own partition. The task omits them.
- Rows whose content is not stored. The task publishes them.
- Rows whose content is stored only under ids of other partitions. Such a row may have moved, or it may be equal to a
  row of another partition. A task cannot distinguish these cases, because it does not know the rows of other tasks. So
  the task does not publish the row, and reports it as *open*. The task also reports the stored rows of its partition
  that it did not receive as *missing*.

When all tasks are done, the driver can decide. If rows with the same content are open three times and missing twice,
two of the open rows have moved, and no run has stored the third. The driver publishes this row under the id that its
task would have used, because a task of an earlier run may still be running and publish the row as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Checked", "Remainder", "StoredRow", "StoredRows", "remainder_of"]

# Characters of the hash of a row's content. If equal rows are in one partition, a number follows the hash.
_CONTENT = 16


@dataclass(frozen=True, slots=True)
class StoredRow:
    """The id of a stored row, without the prefix of its batch."""

    partition: bytes
    content: bytes
    number: int  # number of the row among the equal rows of its partition

    @classmethod
    def from_suffix(cls, suffix: bytes) -> StoredRow | None:
        """Parse ``<partition>.<content>[.<n>]``. Returns None for anything else."""
        parts = suffix.split(b".")
        if len(parts) not in (2, 3) or len(parts[1]) != _CONTENT:
            return None
        try:
            return cls(parts[0], parts[1], int(parts[2], 16) if len(parts) == 3 else 0)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Checked:
    """The report of a task that has compared its rows with the rows stored by earlier runs."""

    stream: str
    start: int
    end: int  # earlier runs have stored their rows at sequences from ``start`` up to ``end``, exclusive
    # The next two fields contain ends of IDs, separated by spaces. A string takes much less memory than a list.
    open: bytes = b""  # rows that the task left to the driver
    missing: bytes = b""  # stored rows of its partition that the task did not receive
    # Unix time of the latest earlier run, if the stream has since forgotten the IDs under which earlier runs stored
    # rows of the task. Otherwise 0.
    old: int = 0


class StoredRows:
    """The rows that earlier runs of a batch have stored, as one task needs them.

    Args:
        stream: Name of the stream that stores the rows.
        sequences: The sequences at which earlier runs have stored their rows.
        partition: The partition of the task.
        old: Unix time of the latest of these runs if the stream has forgotten its ids, otherwise 0.

    Attributes:
        own: Sequences of the stored rows of the task's partition, by id without the common prefix. The task removes
            the ids of the rows that it receives.
    """

    def __init__(self, stream: str, sequences: range, partition: int, *, old: int = 0) -> None:
        self._old = old
        self._number = 0  # number of ids in `own` before the task removes any
        self._stream = stream
        self._sequences = sequences
        self._others: set[bytes] = set()
        self._open: list[bytes] = []
        self.own: dict[bytes, int] = {}
        self._mine = b"%x" % partition

    def add_row(self, suffix: bytes, sequence: int) -> None:
        """Add a stored row by its id without the prefix of the batch.

        All stored rows must be added before the task compares its rows.
        """
        row = StoredRow.from_suffix(suffix)
        if row is not None and row.partition == self._mine:
            self.own[suffix[len(self._mine) + 1 :]] = sequence
            self._number = len(self.own)
        elif row is not None:
            self._others.add(row.content)

    def is_open(self, tail: bytes) -> bool:
        """Return whether a row that is not in `own` must be left to the driver. If so, it is added to the report."""
        if tail[:_CONTENT] not in self._others:
            return False
        self._open.append(tail)
        return True

    def result(self, remaining: Mapping[bytes, int]) -> Checked:
        """Return the report of the task.

        Args:
            remaining: The ids in `own` whose rows the task did not receive, with their sequences.
        """
        missing = [tail for tail, sequence in remaining.items() if sequence in self._sequences]
        old = self._old if self._open or len(missing) < self._number else 0
        part = self._sequences
        return Checked(self._stream, part.start, part.stop, b" ".join(self._open), b" ".join(missing), old)


@dataclass(slots=True)
class Remainder:
    """The rows that remain to be published when all tasks are done."""

    ids: dict[bytes, list[bytes]] = field(default_factory=dict)  # ids of the rows to publish, by content
    missing: int = 0  # number of rows that earlier runs have stored and that the batch no longer has

    @property
    def row_count(self) -> int:
        """The number of rows that have to be published."""
        return sum(map(len, self.ids.values()))


def remainder_of(
    tasks: Mapping[int, Checked], stored: Iterable[bytes], *, not_compared: Iterable[int] = ()
) -> Remainder:
    """Compare the reports of the tasks that had rows, and return the rows that remain to be published.

    Args:
        tasks: The reports by partition.
        stored: The ids of the rows that earlier runs have stored, without the prefix of the batch.
        not_compared: Partitions that have rows, but no report in ``tasks``. It is unknown which of their stored rows
            they still have. An open row is therefore never taken for one of these rows, and may be stored twice.
    """
    missing: Counter[bytes] = Counter()
    for checked in tasks.values():
        missing.update(tail[:_CONTENT] for tail in checked.missing.split())
    own_partitions = {b"%x" % partition for partition in (*tasks, *not_compared)}
    for suffix in stored:
        row = StoredRow.from_suffix(suffix)
        if row is not None and row.partition not in own_partitions:
            missing[row.content] += 1  # the partition of the row no longer has rows
    ids: dict[bytes, list[bytes]] = {}
    for partition, checked in sorted(tasks.items()):
        for tail in checked.open.split():
            content = tail[:_CONTENT]
            if missing[content]:
                missing[content] -= 1  # the open row is a missing row that has moved to this partition
            else:
                ids.setdefault(content, []).append(b"%x.%b" % (partition, tail))
    return Remainder(ids, missing.total())
