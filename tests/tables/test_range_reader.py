"""Reading a range to its end: the messages that belong to it, when it is over, and what may have been lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.tables.range_reader import RangeTracker


def took(tracked: RangeTracker, *sequences: int) -> list[int]:
    """The sequences of the messages that it takes."""
    return tracked.take_messages([*sequences], int)


def test_both_ends_belong_to_it() -> None:
    tracked = RangeTracker(5, 8)
    assert tracked.remaining == 4
    assert took(tracked, 5, 6, 7) == [5, 6, 7]
    assert (tracked.position, tracked.remaining, tracked.is_over) == (7, 1, False)
    assert len(took(tracked, 8)) == 1
    assert (tracked.remaining, tracked.is_over) == (0, True)


def test_later_message_is_the_end() -> None:
    tracked = RangeTracker(5, 8)
    assert len(took(tracked, 5, 6, 12, 13)) == 2
    assert (tracked.position, tracked.is_over) == (8, True)


def test_range_ends_before_begins_over() -> None:
    assert RangeTracker(5, 4).is_over


@pytest.mark.parametrize(("seq", "goes_on"), [(8, True), (9, False), (None, False)])
def test_leader_decides_when_idle(seq: int | None, *, goes_on: bool) -> None:
    tracked = RangeTracker(5, 8)
    took(tracked, 5)
    assert tracked.next_found(seq) is goes_on
    assert tracked.is_over is not goes_on


def test_hole_below_head_may_be_loss() -> None:
    tracked = RangeTracker(5, 20)
    took(tracked, 9, 10)
    assert tracked.lost_from(9) == 5


def test_hole_at_head_or_behind_there_before() -> None:
    tracked = RangeTracker(5, 20)
    took(tracked, 5, 9)
    assert tracked.lost_from(6) is None
    assert tracked.lost_from(18) is None, "told once, and what was looked at is sure"
    took(tracked, 12)
    assert tracked.lost_from(18) == 10


def test_hole_before_reported_end_may_be_loss() -> None:
    tracked = RangeTracker(5, 20)
    took(tracked, *range(5, 11))
    tracked.next_found(None)
    assert tracked.lost_from(16) == 11


def test_without_hole_head_may_be_anywhere() -> None:
    tracked = RangeTracker(5, 8)
    took(tracked, 5, 6, 7, 8)
    assert tracked.lost_from(1000) is None


@given(
    there=st.sets(st.integers(1, 60)),
    bounds=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    cuts=st.lists(st.integers(1, 9), min_size=60, max_size=60),
)
def test_range_takes_own_messages(there: set[int], bounds: tuple[int, int], cuts: list[int]) -> None:
    first, last = bounds
    arriving = sorted(seq for seq in there if seq >= first)
    tracked = RangeTracker(first, last)
    got: list[int] = []
    for cut in cuts:
        if tracked.is_over or not arriving:
            break
        got += took(tracked, *arriving[:cut])
        arriving = arriving[cut:]
    if not tracked.is_over:
        assert not tracked.next_found(None)
    assert got == [seq for seq in sorted(there) if first <= seq <= last]
    whole = set(range(first, last + 1)) <= there
    assert (tracked.lost_from(100) is None) is (whole or first > last)
