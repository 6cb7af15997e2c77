"""Capabilities: the times that may be sent, how they are passed on, and that a completed time stays completed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, EpochCompletedError
from jsclient.protocol.epochs.frontier import Capabilities, Int
from tests.protocol.epochs.orders import PAIR, some_order


def mint(held, time):
    return held.update([(time, 1)])


def drop(held, time):
    return held.update([(time, -1)])


def split(held, time, *into):
    return held.update([(time, -1), *((part, 1) for part in into)])


def test_starts_with_least_time():
    held = Capabilities(Int())
    assert held.frontier.elements == (0,)
    assert held.allows(0)
    assert held.allows(10**9)


def test_minted_downgraded_split_and_dropped():
    held = Capabilities(Int())
    assert mint(held, 5) == [], "5 is not seen while there is 0"
    assert split(held, 0, 3) == [(0, -1), (3, 1)]
    assert split(held, 3, 4, 7) == [(3, -1), (4, 1)]
    assert drop(held, 4) == [(4, -1), (5, 1)]
    assert drop(held, 5) == [(5, -1), (7, 1)]
    assert not held.allows(6)
    assert drop(held, 7) == [(7, -1)]
    assert not held.frontier


def test_last_of_one_time_counts():
    held = Capabilities(Int())
    mint(held, 0)
    assert drop(held, 0) == []
    assert held.count(0) == 1
    assert drop(held, 0) == [(0, -1)]


def test_advance_completes_all_before():
    held = Capabilities(Int())
    mint(held, 2)
    mint(held, 9)
    assert held.advance(5) == [(0, -1), (5, 1)]
    assert held.count(9) == 1
    assert held.advance(5) == []
    with pytest.raises(EpochCompletedError) as caught:
        held.advance(4)
    assert (caught.value.time, caught.value.frontier) == (4, (5,))


def test_advance_to_held_time_leaves_one():
    for times in ([5, 5], [3, 5, 5], [5]):
        held = Capabilities(Int(), times)
        held.advance(5)
        assert (held.count(3), held.count(5), held.frontier.elements) == (0, 1, (5,)), times
        assert drop(held, 5) == [(5, -1)]


def test_advance_leaves_no_order_with():
    held = Capabilities(PAIR)
    split(held, (0, 0), (0, 2), (1, 0))
    assert held.advance((2, 1)) == [((1, 0), -1), ((2, 1), 1)]
    assert set(held.frontier) == {(0, 2), (2, 1)}
    with pytest.raises(EpochCompletedError):
        held.advance((1, 1))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda held: held.check_time(2), EpochCompletedError),
        (lambda held: mint(held, 2), EpochCompletedError),
        (lambda held: split(held, 3, 2), EpochCompletedError),
        (lambda held: held.advance(2), EpochCompletedError),
        (lambda held: held.update([(9, 1), (1, 1)]), EpochCompletedError),
        (lambda held: drop(held, 4), ConfigError),
        (lambda held: split(held, 4, 6), ConfigError),
        (lambda held: held.update([(3, -1), (3, -1)]), ConfigError),
        (lambda held: held.check_time("3"), ConfigError),
        (lambda held: mint(held, 3.5), ConfigError),
        (lambda held: split(held, 3, "4"), ConfigError),
        (lambda held: held.advance(None), ConfigError),
    ],
)
def test_invalid_change_refused(change, error):
    held = Capabilities(Int(), [3, 5])
    with pytest.raises(error):
        change(held)
    assert held.frontier.elements == (3,)
    assert (held.count(3), held.count(5), held.count(9)) == (1, 1, 0)


def test_closed_nothing_may_be_sent_any_more():
    held = Capabilities(Int(), [3, 3, 5])
    assert held.close() == [(3, -1)]
    assert held.close() == []
    with pytest.raises(EpochCompletedError, match="closed"):
        held.check_time(9)


@pytest.mark.covers("S11")
@given(st.integers(0, 2**32))
def test_completed_never_may_be_sent_again(seed):
    chance = random.Random(seed)
    order, times = some_order(chance)
    held = Capabilities(order)
    over: set = set()
    for _ in range(20):
        what = chance.randrange(4)
        one, into = chance.choice(times), chance.choices(times, k=chance.randint(1, 2))
        try:
            if what == 0:
                mint(held, one)
            elif what == 1:
                split(held, one, *into)
            elif what == 2:
                drop(held, one)
            else:
                held.advance(one)
        # A capability cannot be created for a completed time, so this step has no effect.
        except (ConfigError, EpochCompletedError):
            pass
        assert not any(held.allows(time) for time in over)
        over |= {time for time in times if not held.allows(time)}
        for time in times:
            if any(time != element and order.less_equal(time, element) for element in held.frontier):
                assert time in over, "strictly smaller than an element of the frontier"
