"""The requests of a continuous pull reader, and when it sends them."""

from __future__ import annotations

import pytest

from jsclient.protocol.consumers.consume import PullBuffer
from jsclient.protocol.consumers.status import Ending, Meaning
from jsclient.protocol.wire.headers import Headers


def online(*limits, **fields) -> PullBuffer:
    buffer = PullBuffer(*limits, **fields)
    assert buffer.next_amount() is None, "not connected yet"
    buffer.connected()
    return buffer


def pending(messages: int, size: int = 0) -> Headers:
    return Headers({"Nats-Pending-Messages": str(messages), "Nats-Pending-Bytes": str(size)})


@pytest.mark.row(76)
def test_asks_again_at_threshold():
    buffer = online(10, 4)
    assert buffer.next_amount() == (10, None)
    for _ in range(10):
        assert buffer.next_amount() is None
        buffer.delivered(5)
    for _ in range(5):
        buffer.taken(5)
        assert buffer.next_amount() is None
    buffer.taken(5)
    assert buffer.next_amount() == (6, None)
    assert buffer.next_amount() is None


@pytest.mark.row(76)
@pytest.mark.parametrize(
    ("most", "threshold", "owed", "buffered", "requested"),
    [
        (10, 5, 0, 0, 10),
        (10, 5, 5, 0, 5),
        (10, 5, 0, 5, 5),
        (10, 5, 3, 2, 5),
        (10, 5, 3, 3, None),
        (10, 5, 10, 0, None),
        (10, 5, 0, 10, None),
        (10, 0, 0, 0, 10),
        (10, 0, 1, 0, None),
        (10, 0, 0, 1, None),
        (10, 9, 9, 0, 1),
        (10, 9, 1, 8, 1),
        (1, 0, 0, 0, 1),
        (1, 0, 0, 1, None),
        (500, 250, 250, 0, 250),
        (500, 250, 0, 251, None),
    ],
)
def test_asked_for_goes_by_owed_and_waits(most, threshold, owed, buffered, requested):
    buffer = online(most, threshold)
    buffer.owed, buffer.buffered = owed, buffered
    assert buffer.next_amount() == (None if requested is None else (requested, None))
    assert buffer.owed == owed + (requested or 0)


@pytest.mark.row(76)
@pytest.mark.parametrize(
    ("owed_bytes", "buffered_bytes", "requested"),
    [(0, 0, (1000, 100)), (0, 50, (999, 50)), (0, 51, None), (0, 100, None), (60, 0, None)],
)
def test_bytes_requested_at_half(owed_bytes, buffered_bytes, requested):
    buffer = online(1000, 999, 100)
    buffer.owed, buffer.owed_bytes = int(owed_bytes > 0), owed_bytes
    buffer.buffered, buffer.buffered_bytes = int(buffered_bytes > 0), buffered_bytes
    assert buffer.next_amount() == requested


@pytest.mark.row(76, 84)
def test_buffer_of_one():
    buffer = online(1, 0)
    for _ in range(5):
        assert buffer.next_amount() == (1, None)
        buffer.delivered(5)
        assert buffer.next_amount() is None
        buffer.taken(5)


@pytest.mark.row(76)
def test_request_ended_early_asked_for_again():
    buffer = online(10, 5)
    buffer.next_amount()
    buffer.delivered(1)
    buffer.ended(Meaning.ENDED, Ending.EXPIRED, pending(9), 0.0)
    assert buffer.owed == 0
    assert buffer.next_amount() == (9, None)


def test_no_counts_owes_nothing():
    for fields in (Headers(), pending(-1), Headers({"Nats-Pending-Messages": "9" * 400})):
        buffer = online(10, 5)
        buffer.next_amount()
        buffer.ended(Meaning.ENDED, Ending.EXPIRED, fields, 0.0)
        assert buffer.next_amount() == (10, None)


@pytest.mark.row(83)
def test_refusals_back_off():
    buffer, now, pauses = online(10, 5), 0.0, []
    for _ in range(10):
        assert buffer.next_amount() == (10, None)
        buffer.ended(Meaning.RETRY, Ending.REFUSED, Headers(), now)
        assert buffer.next_amount() is None
        buffer.end_pause(buffer.paused_until - 0.001)
        assert buffer.next_amount() is None
        pauses.append(buffer.paused_until - now)
        now = buffer.paused_until
        buffer.end_pause(now)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_message_ends_row_of_refusals():
    buffer = online(10, 5)
    for _ in range(5):
        buffer.ended(Meaning.RETRY, Ending.REFUSED, Headers(), 0.0)
    buffer.end_pause(100.0)
    buffer.next_amount()
    buffer.delivered(1)
    buffer.ended(Meaning.RETRY, Ending.REFUSED, Headers(), 100.0)
    assert buffer.paused_until == 100.05


def test_new_connection_gets_request_at_once():
    buffer = online(10, 5)
    buffer.next_amount()
    buffer.delivered(1)
    buffer.ended(Meaning.RETRY, Ending.REFUSED, Headers(), 0.0)
    buffer.disconnected()
    assert buffer.next_amount() is None
    buffer.connected()
    assert buffer.next_amount() == (9, None)


def test_silence_gives_up_owed():
    buffer = online(10, 5)
    buffer.next_amount()
    buffer.silent()
    assert buffer.next_amount() == (10, None)


@pytest.mark.row(76)
def test_bytes_at_half_free():
    buffer = online(1000, 999, 100)
    assert buffer.next_amount() == (1000, 100)
    buffer.delivered(60)
    assert not buffer.ended(Meaning.ENDED, Ending.MAX_BYTES, pending(999, 40), 0.0)
    assert buffer.next_amount() is None
    buffer.taken(60)
    assert buffer.next_amount() == (1000, 100)


def test_oversized_does_not_spin():
    buffer = online(1000, 999, 100)
    buffer.next_amount()
    assert buffer.ended(Meaning.ENDED, Ending.MAX_BYTES, pending(1000, 100), 0.0)
    assert buffer.next_amount() is None
    assert buffer.paused_until == 0.05
