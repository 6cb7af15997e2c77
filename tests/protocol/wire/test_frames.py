"""Control is never data, data is never control."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.wire.frames import frame_size, is_control, is_data
from tests.support.strategies import data, flow_control, foreign, heartbeat, jsack, status


@pytest.mark.covers("J61", "J81")
def test_reply_makes_data():
    for header in (b"", status(100, "Idle Heartbeat")[2], status(409, "Consumer Deleted")[2], b"garbage"):
        for payload in (b"", b"x"):
            frame = data(1, payload=payload, header=header)
            assert is_data(frame)


@pytest.mark.covers("J81")
@pytest.mark.parametrize(
    "frame", [heartbeat(), flow_control(), status(404, "No Messages"), status(503), status(999, "?")]
)
def test_inline_status_without_jsack_control(frame):
    assert not is_data(frame)
    assert is_control(frame)


@pytest.mark.parametrize(
    "frame",
    [
        foreign(),
        foreign(b""),
        (b"a", b"", b"NATS/1.0\r\nA: b\r\n\r\n", b""),
        (b"a", b"", b"NATS/1.0\r\nStatus: 100\r\n\r\n", b""),
        (b"a", b"", b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", b"with a payload"),
        (b"a", b"", b"NATS/1.0 1000\r\n\r\n", b""),
        (b"a", b"", b"NATS/1.0 099\r\n\r\n", b""),
        (b"a", b"", b"HTTP/1.1 200 OK\r\n\r\n", b""),
        (b"a", b"$JS.ACK", b"", b""),
    ],
)
def test_other_frames_are_neither_data_nor_control(frame):
    assert not is_data(frame)
    assert not is_control(frame)


@given(st.tuples(st.binary(), st.binary(), st.binary(), st.binary()))
def test_any_bytes_are_classified_without_error(frame):
    is_data(frame)
    is_control(frame)
    assert frame_size(frame) == len(b"".join(frame))


def test_size_of_server():
    frame = (b"orders.new", jsack(1), b"NATS/1.0\r\nA: b\r\n\r\n", b"12345")
    assert frame_size(frame) == 10 + len(jsack(1)) + 18 + 5
