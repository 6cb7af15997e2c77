"""Silence is an alarm; a busy client is not silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.consumers.monitors import HeartbeatMonitor


def run_until(monitor: HeartbeatMonitor, end: float) -> list[float]:
    """What is told up to ``end``, with a tick at each deadline."""
    alarms = []
    while monitor.deadline <= end:
        now = monitor.deadline
        if (silent := monitor.tick(now)) is not None:
            alarms.append(silent)
        assert monitor.deadline > now
    return alarms


@pytest.mark.covers("J84", "J85")
def test_alarm_comes_after_three_intervals():
    monitor = HeartbeatMonitor(2.0, last_heard=100.0)
    assert monitor.allowed == 6.0
    assert run_until(monitor, 105.99) == []
    assert run_until(monitor, 106.2) == [pytest.approx(6.1)]


@pytest.mark.covers("J86")
@pytest.mark.parametrize("factor", [1.0, 2.0, 2.5, 10.0])
def test_how_many_may_be_missed_can_be_set(factor):
    monitor = HeartbeatMonitor(1.0, factor)
    assert run_until(monitor, factor - 0.01) == []
    assert len(run_until(monitor, factor + 0.2)) == 1


@pytest.mark.covers("J83")
def test_whatever_arrives_begins_time_anew():
    monitor = HeartbeatMonitor(1.0)
    for second in range(100):
        monitor.heard(float(second))
        assert run_until(monitor, second + 0.99) == []


@pytest.mark.row(40)
@pytest.mark.covers("J87")
def test_alarm_repeats_in_silence():
    monitor = HeartbeatMonitor(1.0)
    alarms = run_until(monitor, 30.0)
    assert len(alarms) == 9
    assert alarms == sorted(alarms)


def test_sign_of_life_resets():
    monitor = HeartbeatMonitor(1.0)
    assert run_until(monitor, 10.0)
    monitor.heard(10.0)
    assert monitor.deadline == 13.0
    assert run_until(monitor, 12.99) == []
    assert len(run_until(monitor, 13.2)) == 1


def test_client_stopped_reads_before_judges():
    monitor = HeartbeatMonitor(1.0)
    assert monitor.tick(3600.0) is None  # an hour passed unseen
    assert monitor.deadline == pytest.approx(3600.1)
    monitor.heard(3600.05)
    assert monitor.deadline == pytest.approx(3603.05)
    assert monitor.tick(3600.1) is None


def test_early_tick_is_noop():
    monitor = HeartbeatMonitor(1.0)
    for moment in (0.0, 1.0, 2.999):
        assert monitor.tick(moment) is None
        assert monitor.deadline == 3.0


@pytest.mark.row(40)
@given(st.lists(st.floats(0.001, 10.0), max_size=40), st.floats(0.5, 5.0))
def test_alarm_iff_too_long_silent(pauses, interval):
    monitor, now = HeartbeatMonitor(interval), 0.0
    for pause in pauses:
        told = bool(run_until(monitor, now + pause))
        if pause < monitor.allowed:
            assert not told
        elif pause > monitor.allowed + 2 * monitor.grace:
            assert told
        now += pause
        monitor.heard(now)
