"""A window: each follower reads every message after its position once, unless it falls behind and has to join again."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.buckets.window import Follower, Window


def frame(size: int = 1) -> Any:
    return b"$KV.b.k", b"", b"", bytes(size)


def add(window: Window, *revisions: int, size: int = 1) -> None:
    window.add_frames([frame(size)] * len(revisions), [(revision, 0, 0) for revision in revisions])


def taken(window: Window, follower: Follower, limit: int = 500) -> list[int] | None:
    run = window.take(follower, limit)
    return None if run is None else [one.revision for one in run]


def joined(window: Window, position: int) -> Follower:
    follower = Follower()
    assert window.join_after(follower, position)
    return follower


def test_each_reads_at_its_own_pace() -> None:
    window = Window(4)
    first, second = joined(window, 4), joined(window, 4)
    add(window, 5, 7, 9)
    assert taken(window, first) == [5, 7, 9]
    assert taken(window, second, 1) == [5]
    add(window, 10)
    assert (taken(window, second), taken(window, first), taken(window, first)) == ([7, 9, 10], [10], [])


def test_joins_without_hole_or_repetition() -> None:
    window = Window(4)
    joined(window, 4)
    late = Follower()
    window.register(late)
    add(window, 5, 7, 9)
    assert window.join_after(late, 7)
    assert taken(window, late) == [9]
    far = joined(window, 12)
    add(window, 12, 13)
    assert (taken(window, far), taken(window, late)) == ([13], [12, 13])


def test_position_before_the_floor() -> None:
    window = Window(4)
    assert not window.join_after(Follower(), 3)


def test_slow_follower_falls_behind() -> None:
    window = Window(max_count=300)
    slow, fast = joined(window, 0), joined(window, 0)
    for start in range(1, 1001, 100):
        add(window, *range(start, start + 100))
        assert taken(window, fast) == [*range(start, start + 100)]
    assert taken(window, slow) is None
    assert window.floor == 700
    assert not window.join_after(slow, 650)
    assert window.join_after(slow, 720)
    assert taken(window, slow) == [*range(721, 1001)]


def test_bytes_are_bounded() -> None:
    window = Window(max_bytes=10_000)
    slow = joined(window, 0)
    for revision in range(1, 50):
        add(window, revision, size=5000)
    assert taken(window, slow) is None
    assert window.floor == 48, "a message that is larger than half of the window is kept"


def test_alone_nothing_is_kept() -> None:
    window = Window(4)
    follower = joined(window, 4)
    assert window.pass_by(follower, (5, 9), 3)
    assert (window.floor, taken(window, follower)) == (9, [])
    other = Follower()
    window.register(other)
    assert not window.pass_by(follower, (12, 12), 1)
    add(window, 12)
    assert taken(window, follower) == [12]
    assert window.join_after(other, 11)
    assert taken(window, other) == [12]


def test_recreated_stream() -> None:
    window = Window(4)
    follower, slow = joined(window, 4), joined(window, 4)
    add(window, 5, 6)
    window.begin_era()
    add(window, 1, 2)
    assert taken(window, follower) == [5, 6, 1, 2]
    assert not window.covers(6, 0)
    assert window.covers(0, 1)
    assert taken(window, slow, 1) == [5]
    late = joined(window, 1)
    assert taken(window, late) == [2], "what the former stream had is not read"


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["add", "read", "join"]), st.integers(1, 40)),
        max_size=200,
    ),
    st.integers(1, 50),
)
def test_nothing_is_missed(steps: list[tuple[int, str, int]], size: int) -> None:
    """Whatever happens, what a follower has read is what was added, or it was told that it has fallen behind."""
    window, last = Window(max_count=size), 0
    followers = [Follower() for _ in range(5)]
    positions: dict[int, int] = {}  # of those that have joined
    for number, step, count in steps:
        follower = followers[number]
        if step == "add":
            add(window, *range(last + 1, last + count + 1))
            last += count
        elif step == "join" and number not in positions:
            position = max(last - count, 0)
            if window.join_after(follower, position):
                positions[number] = position
            else:
                assert position < window.floor
        elif number in positions:
            run = taken(window, follower, count)
            if run is None:
                del positions[number]
                continue
            assert run == [*range(positions[number] + 1, positions[number] + len(run) + 1)]
            assert run or positions[number] >= last
            positions[number] += len(run)


def test_messages_that_one_follower_has_read_do_not_pass_by_again() -> None:
    """A follower may have read further than the consumer has delivered, and may be the only one."""
    window = Window(4)
    far = joined(window, 12)
    assert not window.pass_by(far, (11, 14), 4)
    add(window, 11, 12, 13, 14)
    assert taken(window, far) == [13, 14]
    assert window.pass_by(far, (15, 15), 1)
