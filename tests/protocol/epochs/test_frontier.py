"""Orders, antichains, and frontiers that change."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient.errors import ConfigError, ProtocolError
from jsclient.protocol.epochs.frontier import Antichain, Int, MutableAntichain, Product, in_order
from tests.protocol.epochs.orders import PAIR, Poset, some_order

INT = Int()
pairs = st.tuples(st.integers(0, 4), st.integers(0, 4))


# --- orders ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("S5")
@given(st.integers(0, 2**32))
def test_they_partial_orders_with_least_time(seed):
    order, times = some_order(random.Random(seed))
    for one, other, third in itertools.islice(itertools.product(times, times, times), 600):
        assert order.less_equal(one, one)
        assert order.less_equal(order.bottom, one)
        if order.less_equal(one, other) and order.less_equal(other, one):
            assert one == other
        if order.less_equal(one, other) and order.less_equal(other, third):
            assert order.less_equal(one, third)


@given(st.integers(0, 2**32))
def test_times_as_json_and_back(seed):
    order, times = some_order(random.Random(seed))
    for time in times:
        assert order.decode(order.encode(time)) == time


NESTED = Product(Int(), Product(Int(-5), Int()))


@pytest.mark.parametrize("time", [True, 1.0, "1", None, -1, [1], (1, 2)])
def test_no_number_no_time(time):
    with pytest.raises(ConfigError, match="not a valid time"):
        INT.encode(time)
    with pytest.raises(ConfigError, match="not a valid time"):
        INT.decode(time)


@pytest.mark.parametrize("time", [(1,), (1, 2, 3), [1, 2], 1, (1, -1), (1, "2"), None])
def test_no_tuple_of_right_parts_no_time(time):
    with pytest.raises(ConfigError, match="not a valid time"):
        PAIR.encode(time)


@pytest.mark.parametrize("value", [[1], [1, 2, 3], "12", {"a": 1}, 1, [1, True], None])
def test_nor_is_it_in_json(value):
    with pytest.raises(ConfigError, match="not a valid time"):
        PAIR.decode(value)


def test_products_of_products():
    assert NESTED.bottom == (0, (-5, 0))
    assert NESTED.decode(NESTED.encode((1, (-2, 3)))) == (1, (-2, 3))
    assert NESTED.less_equal((1, (2, 3)), (1, (2, 4)))
    assert not NESTED.less_equal((1, (2, 3)), (2, (1, 9)))


@given(st.lists(pairs, max_size=12))
def test_total_order_sorts(times):
    ordered = in_order(PAIR, times)
    assert sorted(ordered) == sorted(times)
    for index, later in enumerate(ordered):
        for earlier in ordered[:index]:
            assert earlier == later or not PAIR.less_equal(later, earlier)


# --- antichains -----------------------------------------------------------------------------------------------


@pytest.mark.covers("S15", "S16", "S17")
@given(st.lists(pairs, max_size=12))
def test_minimal_and_maximal_of_some_times(times):
    low, high = Antichain.minimal(PAIR, times), Antichain.maximal(PAIR, times)
    for chain in (low, high):
        assert set(chain) <= set(times)
        for one, other in itertools.combinations(chain, 2):
            assert not PAIR.less_equal(one, other)
            assert not PAIR.less_equal(other, one)
    assert all(low.some_below(time) and high.some_above(time) for time in times)
    for a, b in itertools.product(range(5), range(5)):
        assert low.some_below((a, b)) == any(PAIR.less_equal(time, (a, b)) for time in times)
        assert high.some_above((a, b)) == any(PAIR.less_equal((a, b), time) for time in times)


@pytest.mark.covers("S15")
@given(st.lists(st.integers(0, 9), min_size=1))
def test_where_all_have_order_there_one(times):
    assert Antichain.minimal(INT, times).elements == (min(times),)
    assert Antichain.maximal(INT, times).elements == (max(times),)


def test_equality_ignores_order():
    one, other = Antichain.minimal(PAIR, [(0, 1), (1, 0)]), Antichain.maximal(PAIR, [(1, 0), (0, 1)])
    assert one == other
    assert hash(one) == hash(other)
    assert one != Antichain(PAIR)
    assert (1, 0) in one
    assert (1, 1) not in one
    assert len(one) == 2


def test_adds_nothing_same_antichain():
    high = Antichain.maximal(INT, [5])
    assert high.with_maximal(3, 5) is high
    assert high.with_maximal(6).elements == (6,)


# --- multisets ------------------------------------------------------------------------------------------------


@pytest.mark.covers("S36", "S42")
def test_only_seen_outside_change():
    held = MutableAntichain.of(INT, [0])
    assert held.update([(3, 1)]) == []
    assert held.update([(0, 1)]) == []
    assert held.update([(0, -1)]) == [], "there is another one"
    assert held.update([(0, -1)]) == [(0, -1), (3, 1)]
    assert held.update([(3, -1), (3, 1)]) == []
    assert held.update([(2, 1), (2, -1)]) == []
    assert held.update([(3, -1)]) == [(3, -1)]
    assert not held.frontier


def test_missing_time_refused():
    held = MutableAntichain.of(INT, [1, 1])
    for changes in ([(1, -3)], [(5, 1), (2, -1)], [(1, -1), (1, -1), (1, -1)]):
        with pytest.raises(ProtocolError, match="does not have it"):
            held.update(changes)
    assert (held.count(1), held.count(5), [*held]) == (2, 0, [1])
    assert held.update([(1, -1), (1, 1), (1, -1)]) == [], "in one update only the sum counts"


changes = st.lists(st.lists(st.tuples(pairs, st.integers(-2, 2)), max_size=4), max_size=12)


@pytest.mark.covers("S16", "S36")
@settings(max_examples=60)
@given(changes)
def test_changes_sum_to_frontier(steps):
    held, counts, outside = MutableAntichain(PAIR), {}, set()
    for step in steps:
        after = dict(counts)
        for time, change in step:
            after[time] = after.get(time, 0) + change
        if min(after.values(), default=0) < 0:
            with pytest.raises(ProtocolError):
                held.update(step)
            continue
        counts = {time: count for time, count in after.items() if count}
        for time, change in held.update(step):
            assert change in (1, -1)
            assert (time in outside) == (change < 0)
            outside ^= {time}
        assert held.frontier == Antichain.minimal(PAIR, counts)
        assert outside == set(held.frontier)
        assert all(held.count(time) == count for time, count in counts.items())


@pytest.mark.covers("S47")
@settings(max_examples=40)
@given(st.lists(changes, min_size=1, max_size=3))
def test_partition_changes_sum(partitions):
    merged = MutableAntichain(PAIR)
    helds = [MutableAntichain(PAIR) for _ in partitions]
    for held, steps in zip(helds, partitions, strict=True):
        for step in steps:
            try:
                merged.update(held.update(step))
            except ProtocolError:
                continue
    everything = [time for held in helds for time in held]
    assert merged.frontier == Antichain.minimal(PAIR, everything)


def test_random_order_is_partial():
    order = Poset(random.Random(1), 9, 0.3)
    related = sum(order.less_equal(a, b) for a, b in itertools.combinations(range(9), 2))
    assert 8 < related < 36
