"""Flow control: one answer per request."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.consumers.monitors import FlowControl


@pytest.mark.covers("J101")
def test_subject_answered_not_answered_again():
    flow = FlowControl()
    assert flow.requested(b"a")
    assert flow.reached(b"a")
    assert not flow.requested(b"a")
    assert flow.requested(b"b")
    assert flow.reached(b"b")


@pytest.mark.covers("J100", "J101")
def test_stalled_waits_for_its_place():
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
        places = sum(flow.requested(subject) for _ in range(before))
        answers += [subject for _ in range(places) if flow.reached(subject)]
        assert not any(flow.requested(subject) for _ in range(after))
    assert answers == [b"fc.%d" % number for number in range(len(rounds))]


@pytest.mark.covers("J100")
def test_missed_answer_was_lost():
    flow = FlowControl()
    assert flow.requested(b"a")
    assert flow.reached(b"a")
    assert not flow.stalled(b"a", 10.0, 1.0)  # it may have been under way when the answer went out
    assert not flow.stalled(b"a", 10.1, 1.0)  # and this one was held up
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
