"""Deliveries that are missing are told, once, with where to read on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.consumers.monitors import GapTracker
from jsclient.protocol.events import ConsumerReset, GapDetected


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


def test_found_consumer_starts_anywhere():
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
    """``lost`` says of each delivery whether it is; heartbeats come after some of them."""
    tracker, missed = GapTracker(consumer_seq=0), 0
    told = 0
    for number, is_lost in enumerate(lost, 1):
        events = [] if is_lost else [tracker.message(number, number)]
        missed += is_lost
        if number in beats:
            events.append(tracker.heartbeat(number, number))
        if events:
            told += sum(event.missed for event in events if event is not None)
            assert told == missed
