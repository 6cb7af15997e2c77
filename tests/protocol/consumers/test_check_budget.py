"""When the readers of a connection may be checked."""

from __future__ import annotations

import pytest

from jsclient.protocol.consumers.check_budget import STALL_AFTER, CheckBudget


def moments(budget, count, now=1000.0, *, is_first):
    return [budget.moment(now, is_first=is_first) for _ in range(count)]


def test_one_reader_is_checked_at_once():
    budget = CheckBudget()
    assert budget.moment(1000.0, is_first=True) == 1000.0
    assert budget.moment(1000.0, is_first=False) == 1000.0
    assert budget.moment(1025.0, is_first=False) == 1025.0


@pytest.mark.parametrize(("is_first", "rate"), [(True, 100), (False, 10)])
def test_rate(is_first, rate):
    """Readers get their times in the order of the calls, and no two of them the same."""
    expected = [1000 + number / rate for number in range(50)]
    assert moments(CheckBudget(), 50, is_first=is_first) == pytest.approx(expected)


@pytest.mark.parametrize("is_first", [True, False])
def test_first_checks_do_not_delay_others(is_first):
    budget = CheckBudget()
    moments(budget, 500, is_first=is_first)
    assert budget.moment(1000.0, is_first=not is_first) == 1000.0


@pytest.mark.parametrize(("is_first", "pause"), [(True, 0.01), (False, 0.1)])
def test_unused_time_is_not_saved(is_first, pause):
    budget = CheckBudget()
    moments(budget, 3, is_first=is_first)
    assert moments(budget, 2, 5000.0, is_first=is_first) == pytest.approx([5000, 5000 + pause])


def test_queue_continues_while_time_passes():
    budget = CheckBudget()
    moments(budget, 20, is_first=False)
    assert budget.moment(1001.5, is_first=False) == pytest.approx(1002.0)


def test_idle_readers_are_each_checked_in_time():
    """As many as the module says: the last consumer is checked before the first is due again."""
    assert moments(CheckBudget(), 250, is_first=False)[-1] < 1000 + STALL_AFTER < 1030
