"""How often the ends of streams are asked for."""

from __future__ import annotations

import pytest

from jsclient.spark.log.pace import Pace, SharedPace


class PaceClock:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return PaceClock()


def test_one_request_per_interval(clock):
    pace = Pace(0.5, clock, clock.sleep)
    for _ in range(3):
        pace.wait_until_due()
        pace.asked(1)
    assert clock.now == 101.0
    assert not pace.is_due


def test_several_requests_take_several_intervals(clock):
    pace = Pace(0.5, clock, clock.sleep)
    pace.asked(3)
    pace.asked(1)
    pace.wait_until_due()
    assert clock.now == 102.0
    assert pace.is_due


@pytest.mark.parametrize(
    ("pages", "singles", "intervals"),
    [(0, 0, 1), (1, 0, 1), (4, 0, 4), (0, 1, 1), (0, 25, 1), (0, 26, 2), (0, 1000, 40), (4, 30, 6)],
)
def test_round_takes_the_time_of_its_requests(clock, pages, singles, intervals):
    pace = SharedPace(1.0, clock, clock.sleep)
    assert pace.begin_round(look=False)
    for _ in range(singles):
        assert pace.is_due
        pace.wait_until_due()
        pace.asked(1)
    pace.end_round(pages)
    assert clock.now == 100.0
    assert not pace.begin_round(look=False)
    assert pace.begin_round(look=True)
    assert clock.now == 100.0 + intervals


def test_round_that_does_not_look_costs_nothing(clock):
    pace = SharedPace(1.0, clock, clock.sleep)
    pace.begin_round(look=True)
    pace.end_round(1)
    for _ in range(5):
        assert not pace.begin_round(look=False)
        assert not pace.is_due
        pace.end_round(0)
    assert pace.begin_round(look=True)
    assert clock.now == 101.0
