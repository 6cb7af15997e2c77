"""The texts of the events about full buffers and flow control."""

from __future__ import annotations

import pytest

from jsclient.protocol.flow_events import FlowControlStalled, SlowConsumer


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dropped": 1}, "the buffer is full: 1 message (5) was dropped so far. Take messages faster"),
        ({"dropped": 4}, "the buffer is full: 4 messages, from 5 to 9, were dropped so far"),
        ({"dropped": 4, "ended": True}, "the buffer was full: 4 messages, from 5 to 9, were dropped"),
    ],
)
def test_dropped_messages_of_stream(fields, says):
    assert says in str(SlowConsumer(first_stream_seq=5, last_stream_seq=9, **fields))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dropped": 1}, "the buffer of the subscription to 'a.*' is full: 1 message was dropped so far"),
        ({"dropped": 4}, "4 messages were dropped so far, and are lost"),
        (
            {"dropped": 4, "ended": True},
            "the buffer of the subscription to 'a.*' was full: 4 messages were dropped",
        ),
    ],
)
def test_dropped_plain_messages(fields, says):
    """They have no sequence, and nothing delivers them again."""
    assert says in str(SlowConsumer(subject="a.*", **fields))


def test_answer_sent_again():
    assert "is sent again once" in str(FlowControlStalled(subject="x", again=True))
    assert "is sent once" in str(FlowControlStalled(subject="x"))
