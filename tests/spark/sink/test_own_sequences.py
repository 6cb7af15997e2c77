"""Two rows that share a message are detected, however the acks are spread over tasks."""

from __future__ import annotations

import pickle
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.models.publish import PubAck
from jsclient.spark.sink.own_sequences import RowSequences, SequenceRanges, shared_sequences

tasks = st.lists(
    st.lists(st.lists(st.tuples(st.sampled_from("AB"), st.integers(1, 40)), max_size=8), max_size=5)
)


def ranges_of(bursts: list[list[tuple[str, int]]]) -> dict[str, SequenceRanges]:
    rows = RowSequences()
    for burst in bursts:
        rows.add_acks([PubAck(stream=stream, seq=seq) for stream, seq in burst])
    ranges: dict[str, SequenceRanges] = pickle.loads(pickle.dumps(rows.ranges()))
    return ranges


@given(tasks)
def test_shared_sequence_detected(bursts_of_tasks: list[list[list[tuple[str, int]]]]) -> None:
    """It is reported exactly if one exists, with two partitions that have it."""
    every = list(shared_sequences(dict(enumerate(map(ranges_of, bursts_of_tasks)))))
    shared = next(iter(every), None)
    all_rows = Counter(row for bursts in bursts_of_tasks for burst in bursts for row in burst)
    if shared is None:
        assert set(all_rows.values()) <= {1}
        return
    assert sum(one.count for one in every) == sum(all_rows.values()) - len(all_rows)
    position = shared.stream, shared.sequence
    assert all_rows[position] > 1
    owners = Counter(
        partition
        for partition, bursts in enumerate(bursts_of_tasks)
        for burst in bursts
        for row in burst
        if row == position
    )
    assert not Counter(shared.partitions) - owners


@given(st.lists(st.lists(st.integers(1, 60), max_size=9)))
def test_ranges_contain_all(bursts: list[list[int]]) -> None:
    ranges = ranges_of([[("A", seq) for seq in burst] for burst in bursts]).get("A")
    numbers = Counter(seq for burst in bursts for seq in burst)
    pairs = [] if ranges is None else list(zip(ranges.starts, ranges.ends, strict=True))
    assert Counter(seq for start, end in pairs for seq in range(start, end)) == numbers
    assert pairs == sorted(pairs)


def test_consecutive_rows_are_one_range() -> None:
    """A task that writes alone needs no memory for each row."""
    rows = RowSequences()
    for first in range(1, 10_001, 100):
        rows.add_acks([PubAck(stream="A", seq=seq) for seq in range(first, first + 100)])
    assert [*rows.ranges()["A"].starts] == [1]
    assert sum(len(one) for runs in rows._runs.values() for one in runs) == 2
