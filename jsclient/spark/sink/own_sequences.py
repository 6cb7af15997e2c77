"""Check that no two rows of a write share a message, for kinds of ids that two rows can have in common.

With ``dedup=source``, two rows that were made from one message have the same id. With ``dedup=column``, any two rows
may have the same id. The stream stores the first row, and acks the second as a duplicate, with the sequence of the
first. So each task records the sequences with which its rows were acked. If two rows have the same sequence, the driver
knows that one of them was not stored.

Repetitions are different. If a task runs again or a batch is written again, its rows are acked with the sequences of
the messages that were stored before, but each row has a different sequence.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...protocol.models.publish import PubAck

__all__ = ["RowSequences", "SequenceRanges", "Shared", "shared_sequences"]


@dataclass(frozen=True, slots=True)
class SequenceRanges:
    """Sequences as ranges in ascending order. A sequence that occurs twice belongs to two ranges."""

    starts: array[int]
    ends: array[int]  # for each range, the sequence after its last sequence


@dataclass(frozen=True, slots=True)
class Shared:
    """Consecutive messages that were acked for two rows each."""

    stream: str
    sequence: int  # the sequence of the first message
    partitions: tuple[int, int]
    count: int  # the number of consecutive messages


class RowSequences:
    """The sequences with which a task's rows were acked, by stream."""

    def __init__(self) -> None:
        self._runs: dict[str, list[array[int]]] = {}  # starts and ends, in the order of the acks

    def add_acks(self, acks: Sequence[PubAck]) -> None:
        """Record the sequences of acked messages, duplicates included."""
        if not acks:
            return
        name = acks[0].stream
        if len({ack.stream for ack in acks}) == 1:
            self.add_stored(name, [ack.seq for ack in acks])
        else:
            for ack in acks:
                self.add_stored(ack.stream, [ack.seq])

    def add_stored(self, stream: str, sequences: Sequence[int]) -> None:
        """Record the sequences of messages that a stream has stored."""
        if not sequences:
            return
        runs = self._runs.get(stream)
        if runs is None:
            runs = self._runs[stream] = [array("Q"), array("Q")]
        starts, ends = runs
        first, count = sequences[0], len(sequences)
        # Fast path: if no other task writes at the same time, the messages of a task form a single range.
        if sequences[-1] - first + 1 == count and list(range(first, first + count)) == sequences:
            if ends and ends[-1] == first:
                ends[-1] += count
            else:
                starts.append(first)
                ends.append(first + count)
            return
        starts.extend(sequences)
        ends.extend([sequence + 1 for sequence in sequences])

    def ranges(self) -> dict[str, SequenceRanges]:
        """Return the recorded sequences by stream, in ascending order."""
        return {stream: _merged(starts, ends) for stream, (starts, ends) in self._runs.items()}


def _merged(starts: Iterable[int], ends: Iterable[int]) -> SequenceRanges:
    """Sort ranges, and join adjacent ranges."""
    merged_starts, merged_ends = array("Q"), array("Q")
    for start, end in sorted(zip(starts, ends, strict=True)):
        if merged_ends and merged_ends[-1] == start:
            merged_ends[-1] = end
        else:
            merged_starts.append(start)
            merged_ends.append(end)
    return SequenceRanges(merged_starts, merged_ends)


def shared_sequences(tasks: Mapping[int, Mapping[str, SequenceRanges]]) -> Iterator[Shared]:
    """Yield the messages that two rows share. A message that three rows share is yielded twice.

    Args:
        tasks: The sequences of each task's rows, by partition and stream.
    """
    streams: dict[str, list[tuple[int, int, int]]] = {}
    for partition, of_streams in tasks.items():
        for stream, ranges in of_streams.items():
            of_stream = streams.setdefault(stream, [])
            of_stream += zip(ranges.starts, ranges.ends, [partition] * len(ranges.starts), strict=True)
    for stream, of_stream in streams.items():
        covered, owner = 0, -1  # the end of all ranges so far, and the partition of the range that ends there
        for start, end, partition in sorted(of_stream):
            if start < covered:
                yield Shared(stream, start, (owner, partition), min(end, covered) - start)
            if end > covered:
                covered, owner = end, partition
