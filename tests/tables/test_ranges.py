"""Ranges: parts are all of the whole, and batches keep to their limit, whatever lies between the sequences."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.tables.ranges import (
    SequenceRange,
    admit,
    merged,
    pieces_for,
    plan_bounded_parts,
    plan_by_messages,
    plan_ranges,
    plan_sparse,
    shares,
    without,
)

messages = st.sets(st.integers(1, 5_000), max_size=200).map(sorted)
wholes = st.tuples(st.integers(1, 5_000), st.integers(1, 5_000)).map(
    lambda ends: SequenceRange(min(ends), max(ends))
)


class Stream:
    """Messages with these sequences, and how often they were counted."""

    def __init__(self, seqs):
        self.seqs = list(seqs)
        self.requests = 0

    def count_from(self, seq):
        return len(self.seqs) - bisect_left(self.seqs, seq)

    def within(self, part):
        return self.count_from(part.first) - self.count_from(part.last + 1)

    def drive(self, counting, lie=0):
        try:
            ask = next(counting)
            while True:
                self.requests += 1
                ask = counting.send(max(0, self.count_from(ask) - lie))
        except StopIteration as done:
            return done.value


def together(parts):
    """The whole range that the parts cover, if each part begins at the end of the part before."""
    for one, following in pairwise(parts):
        assert following.first == one.last + 1
    return SequenceRange(parts[0].first, parts[-1].last)


def test_range_at_least_one_sequence():
    assert SequenceRange(3, 3).width == 1
    for first, last in ((0, 3), (4, 3), (-1, -1)):
        with pytest.raises(ValueError, match="no range"):
            SequenceRange(first, last)


def sequences(ranges):
    return {seq for one in ranges for seq in range(one.first, one.last + 1)}


few = st.builds(
    lambda first, width: SequenceRange(first, first + width), st.integers(1, 40), st.integers(0, 8)
)


@given(few, st.lists(few, max_size=6))
def test_merged_and_without(whole, ranges):
    one_each = merged(ranges)
    assert sequences(one_each) == sequences(ranges)
    assert all(one.last + 1 < following.first for one, following in pairwise(one_each))
    remainder = without(whole, one_each)
    assert sequences(remainder) == sequences([whole]) - sequences(ranges)
    assert all(one.last < following.first for one, following in pairwise(remainder))


@given(wholes, st.integers(1, 40))
def test_equal_parts_by_sequence(whole, pieces):
    parts = plan_ranges(whole, pieces)
    assert together(parts) == whole
    assert len(parts) == min(pieces, whole.width)
    widths = {part.width for part in parts}
    assert max(widths) - min(widths) <= 1


@given(messages, wholes, st.integers(1, 12))
def test_parts_by_counts_whole(seqs, whole, pieces):
    stream = Stream(seqs)
    counting = plan_sparse(whole, stream.count_from(whole.first), stream.count_from(whole.last + 1), pieces)
    parts = stream.drive(counting)
    assert together(parts) == whole
    assert 1 <= len(parts) <= pieces


@given(messages, wholes, st.integers(1, 12), st.integers(-50, 50))
def test_parts_by_wrong_counts_whole_too(seqs, whole, pieces, lie):
    """A replica that lags, or messages that go meanwhile."""
    stream = Stream(seqs)
    counting = plan_sparse(whole, stream.count_from(whole.first), stream.count_from(whole.last + 1), pieces)
    assert together(stream.drive(counting, lie)) == whole


def test_equal_parts_by_count():
    """A range that is nearly empty, with all messages at its end."""
    stream = Stream([5, *range(999_001, 1_000_001)])
    whole = SequenceRange(1, 1_000_000)
    parts = stream.drive(plan_sparse(whole, 1001, 0, 4))
    assert len(parts) == 4
    assert all(200 <= stream.within(part) <= 300 for part in parts)
    assert stream.requests <= 4 * 24


@given(messages, wholes, st.integers(1, 12))
def test_parts_by_messages(seqs, whole, pieces):
    within = [seq for seq in seqs if whole.first <= seq <= whole.last]
    parts = plan_by_messages(whole, within, pieces)
    assert together(parts) == whole
    assert len(parts) == max(1, min(pieces, len(within)))
    counts = {Stream(seqs).within(part) for part in parts}
    assert max(counts) - min(counts) <= 1


@given(messages, wholes, st.integers(1, 100))
def test_parts_within_a_maximum(seqs, whole, most):
    stream = Stream(seqs)
    remainder, after = stream.count_from(whole.first), stream.count_from(whole.last + 1)
    parts = stream.drive(plan_bounded_parts(whole, remainder, after, most))
    assert together(parts) == whole
    assert all(stream.within(part) <= most for part in parts)


@given(messages, wholes, st.integers(1, 100), st.integers(-50, 50))
def test_parts_within_a_maximum_by_wrong_counts(seqs, whole, most, lie):
    stream = Stream(seqs)
    remainder, after = stream.count_from(whole.first), stream.count_from(whole.last + 1)
    assert together(stream.drive(plan_bounded_parts(whole, remainder, after, most), lie)) == whole


def test_few_parts_within_a_maximum():
    """Messages that lie close together at first."""
    stream = Stream([*range(1, 2_001), *range(1_000_000, 50_000_001, 10_000)])
    parts = stream.drive(plan_bounded_parts(SequenceRange(1, 50_000_000), stream.count_from(1), 0, 1000))
    assert all(stream.within(part) <= 1000 for part in parts)
    assert len(parts) <= 9


@given(messages, wholes, st.integers(1, 100))
def test_batch_within_limit(seqs, whole, most):
    stream = Stream(seqs)
    last = stream.drive(admit(whole, stream.count_from(whole.first), stream.count_from(whole.last + 1), most))
    assert whole.first <= last <= whole.last
    assert stream.within(SequenceRange(whole.first, last)) <= most
    assert last >= min(whole.last, whole.first + most - 1)


def test_batch_of_sparse_stream_nearly_full():
    stream = Stream(range(1, 50_000_001, 10_000))
    whole = SequenceRange(1, 50_000_000)
    last = stream.drive(admit(whole, stream.count_from(1), 0, 1000))
    assert 900 <= stream.within(SequenceRange(1, last)) <= 1000
    assert stream.requests <= 10


@given(messages, wholes, st.integers(1, 100), st.integers(-50, 50))
def test_wrong_counts_bounded(seqs, whole, most, lie):
    stream = Stream(seqs)
    counting = admit(whole, stream.count_from(whole.first), stream.count_from(whole.last + 1), most)
    assert whole.first <= stream.drive(counting, lie) <= whole.last


@pytest.mark.parametrize(
    ("rows", "least", "most", "least_rows", "pieces"),
    [
        (0, 2, None, 1, 1),
        (1, 2, None, 1, 1),
        (10, 2, None, 1, 2),
        (10, 2, None, 512, 1),
        (1024, 2, None, 512, 2),
        (1000, 2, 100, 512, 10),
        (1001, 2, 100, 512, 11),
        (5, 8, None, 1, 5),
    ],
)
def test_how_many_parts(rows, least, most, least_rows, pieces):
    assert pieces_for(rows, least, most, least_rows) == pieces


@pytest.mark.parametrize(
    ("first", "last", "remaining"),
    [(1, 99, (10, 20)), (15, 99, (15, 20)), (1, 12, (10, 12)), (21, 99, None), (1, 9, None)],
)
def test_clipped_range(first, last, remaining):
    assert SequenceRange(10, 20).clipped(first, last) == (remaining and SequenceRange(*remaining))


@given(st.lists(st.integers(0, 10_000), max_size=12), st.integers(1, 20_000))
def test_shares_are_the_limit(counts, most):
    arguments = shares(counts, most)
    waiting = [count for count in counts if count]
    assert sum(arguments) == min(sum(counts), max(most, len(waiting)))
    assert all(min(1, count) <= share <= count for count, share in zip(counts, arguments, strict=True))


@pytest.mark.parametrize(
    ("counts", "most", "expected"),
    [([], 5, []), ([3, 2], 5, [3, 2]), ([300, 100], 100, [75, 25]), ([1000, 1, 0], 10, [9, 1, 0])],
)
def test_shares_in_proportion(counts, most, expected):
    assert shares(counts, most) == expected
