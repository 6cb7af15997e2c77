"""When a batch waits for more messages."""

from __future__ import annotations

import pytest

from jsclient.spark.log.delay import TriggerDelay


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


def rows(number):
    return lambda: number


def refused():
    raise AssertionError("counted")


def test_without_minimum_nothing_waits():
    delay = TriggerDelay(None, 0.0)
    assert not delay.holds(0, 1, refused)
    assert not delay.holding


def test_first_batch_does_not_wait_and_the_next_does(clock):
    delay = TriggerDelay(10, 60.0, clock)
    assert not delay.holds(0, 1, refused)
    assert delay.holds(1, 10, refused)
    assert delay.holding
    assert not delay.holds(1, 11, rows(10))
    assert not delay.holding


def test_batch_starts_when_time_since_previous_one_is_over(clock):
    delay = TriggerDelay(10, 60.0, clock)
    delay.holds(0, 1, refused)
    clock.time = 59.0
    assert delay.holds(1, 2, refused)
    clock.time = 60.0
    assert not delay.holds(1, 2, refused)
    clock.time = 119.0
    assert delay.holds(2, 3, refused)


def test_messages_not_sequences_count_and_once(clock):
    delay = TriggerDelay(10, 60.0, clock)
    delay.holds(0, 1, refused)
    assert delay.holds(1, 100, rows(9))
    assert delay.holds(1, 100, refused)
    assert not delay.holds(1, 101, rows(10))
