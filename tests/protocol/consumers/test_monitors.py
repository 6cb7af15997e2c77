"""Silence, missing deliveries and flow control: each is reported, or answered, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.consumers.monitors import FlowControl, GapTracker, HeartbeatMonitor
from jsclient.protocol.events import ConsumerReset, GapDetected


def run_until(monitor: HeartbeatMonitor, end: float) -> list[float]:
    """The reports up to ``end``, with a tick at each deadline."""
    alarms = []
    while monitor.deadline <= end:
        now = monitor.deadline
        if (silent := monitor.check_silence(now)) is not None:
            alarms.append(silent)
        assert monitor.deadline > now
    return alarms


@pytest.mark.covers("J84", "J85")
def test_alarm_comes_after_three_intervals():
    monitor = HeartbeatMonitor(2.0, last_activity=100.0)
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
    assert monitor.check_silence(3600.0) is None  # an hour passed unseen
    assert monitor.deadline == pytest.approx(3600.1)
    monitor.heard(3600.05)
    assert monitor.deadline == pytest.approx(3603.05)
    assert monitor.check_silence(3600.1) is None


def test_client_stopped_twice_checks_again():
    monitor = HeartbeatMonitor(1.0)
    assert monitor.check_silence(10.0) is None
    assert monitor.check_silence(12.0) is None, "blocked again: nothing was read"
    assert monitor.deadline == pytest.approx(12.1)
    assert monitor.check_silence(12.1) == pytest.approx(12.1), "it had time to read"


def test_early_tick_is_noop():
    monitor = HeartbeatMonitor(1.0)
    for moment in (0.0, 1.0, 2.999):
        assert monitor.check_silence(moment) is None
        assert monitor.deadline == 3.0


@pytest.mark.row(40)
@given(st.lists(st.floats(0.001, 10.0), max_size=40), st.floats(0.5, 5.0))
def test_alarm_iff_too_long_silent(pauses, interval):
    monitor, now = HeartbeatMonitor(interval), 0.0
    for pause in pauses:
        reports = bool(run_until(monitor, now + pause))
        if pause < monitor.allowed:
            assert not reports
        elif pause > monitor.allowed + 2 * monitor.grace:
            assert reports
        now += pause
        monitor.heard(now)


@pytest.mark.covers("J88")
def test_in_order_is_no_gap():
    tracker = GapTracker(consumer_seq=0)
    for consumer_seq, stream_seq in enumerate([1, 2, 3, 1, 2, 4, 9], 1):
        assert tracker.message(stream_seq, consumer_seq) is None


@pytest.mark.covers("J90")
def test_jump_reports_both_sides():
    tracker = GapTracker("ORDERS", "worker", 0)
    tracker.message(11, 1)
    tracker.message(12, 2)
    assert tracker.message(20, 6) == GapDetected(
        stream="ORDERS",
        consumer="worker",
        last_consumer_seq=2,
        consumer_seq=6,
        last_stream_seq=12,
        stream_seq=20,
        missed=3,
    )
    assert tracker.message(21, 7) is None


@pytest.mark.covers("J90")
def test_resume_before_the_gap():
    tracker = GapTracker(consumer_seq=0)
    tracker.message(12, 1)
    event = tracker.message(20, 6)
    assert isinstance(event, GapDetected)
    assert event.resume_stream_seq == 13


@pytest.mark.covers("J89", "J90")
def test_heartbeat_reveals_gap():
    tracker = GapTracker(consumer_seq=0)
    tracker.message(11, 1)
    assert tracker.heartbeat(11, 1) is None
    event = tracker.heartbeat(14, 4)
    assert isinstance(event, GapDetected)
    assert (event.last_consumer_seq, event.consumer_seq, event.missed) == (1, 4, 3)
    assert (event.stream_seq, event.resume_stream_seq) == (14, 12)
    assert tracker.heartbeat(14, 4) is None, "told once"
    assert tracker.message(15, 5) is None


@pytest.mark.covers("J90")
def test_new_consumer_starts_at_one():
    event = GapTracker(consumer_seq=0).message(3, 3)
    assert isinstance(event, GapDetected)
    assert (event.last_consumer_seq, event.missed, event.resume_stream_seq) == (0, 2, 1)


def test_existing_consumer_starts_anywhere():
    tracker = GapTracker()
    assert tracker.message(900, 512) is None
    assert isinstance(tracker.message(902, 514), GapDetected)
    tracker = GapTracker()
    assert tracker.heartbeat(900, 512) is None
    assert tracker.message(901, 513) is None


def test_backward_is_other_consumer():
    tracker = GapTracker("ORDERS", "worker", 0)
    for number in range(1, 10):
        tracker.message(number, number)
    event = tracker.message(1, 1)
    assert isinstance(event, ConsumerReset)
    assert event.consumer == "worker"
    assert tracker.message(2, 2) is None
    assert isinstance(tracker.heartbeat(1, 1), ConsumerReset)


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.lists(st.integers(0, 59), max_size=10))
@pytest.mark.covers("J88", "J89", "J90")
def test_every_loss_reported_once(lost, beats):
    """``lost`` says of each delivery whether it is. Heartbeats come after some of them."""
    tracker, missed = GapTracker(consumer_seq=0), 0
    reports = 0
    for number, is_lost in enumerate(lost, 1):
        events = [] if is_lost else [tracker.message(number, number)]
        missed += is_lost
        if number in beats:
            events.append(tracker.heartbeat(number, number))
        if events:
            reports += sum(event.missed for event in events if event is not None)
            assert reports == missed


@pytest.mark.covers("J101")
def test_subject_answered_not_answered_again():
    flow = FlowControl()
    assert flow.requested(b"a")
    assert flow.reached(b"a")
    assert not flow.requested(b"a")
    assert flow.requested(b"b")
    assert flow.reached(b"b")


@pytest.mark.covers("J100", "J101")
def test_stalled_request_is_answered_once():
    flow = FlowControl()
    assert flow.requested(b"a")
    assert not flow.requested(b"a")
    assert flow.reached(b"a")
    assert not flow.requested(b"a")


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=30))
@pytest.mark.covers("J101")
def test_requests_answered_once(rounds):
    """A request, repeated by stalled heartbeats before and after its place is reached."""
    flow, answers = FlowControl(), []
    for number, (before, after) in enumerate(rounds):
        subject = b"fc.%d" % number
        positions = sum(flow.requested(subject) for _ in range(before))
        answers += [subject for _ in range(positions) if flow.reached(subject)]
        assert not any(flow.requested(subject) for _ in range(after))
    assert answers == [b"fc.%d" % number for number in range(len(rounds))]


@pytest.mark.covers("J100")
def test_missed_answer_was_lost():
    flow = FlowControl()
    assert flow.requested(b"a")
    assert flow.reached(b"a")
    assert not flow.stalled(b"a", 10.0, 1.0)  # it may have been sent before the answer
    assert not flow.stalled(b"a", 10.1, 1.0)  # and this message was delayed
    assert flow.stalled(b"a", 11.0, 1.0)
    assert not flow.stalled(b"a", 12.0, 1.0)  # its place is not reached yet
    assert flow.reached(b"a")
    assert not flow.stalled(b"a", 13.0, 1.0)
    assert flow.stalled(b"b", 13.0, 1.0)


@pytest.mark.covers("J100")
def test_unsent_answer_repeated():
    flow = FlowControl()
    assert flow.requested(b"a")
    assert flow.reached(b"a")
    flow.not_sent(b"a")
    assert flow.stalled(b"a", 10.0, 1.0)
    assert flow.reached(b"a")


def test_one_missing_heartbeat_is_a_reason_to_check():
    monitor = HeartbeatMonitor(10.0)
    monitor.heard(100.0)
    assert monitor.check_heartbeat(100.0) == (False, 112.5)
    assert monitor.check_heartbeat(112.4) == (False, 112.5)
    assert monitor.check_heartbeat(112.5) == (True, 122.5)  # and then at each interval of silence
    monitor.heard(113.0)
    assert monitor.check_heartbeat(122.5) == (False, 125.5)
    assert monitor.check_silence(122.5) is None
