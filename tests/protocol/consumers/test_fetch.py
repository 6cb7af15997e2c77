"""One pull request, and the accounting of a reader that is kept supplied."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import (
    ConfigError,
    ConsumerDeletedError,
    DisconnectedError,
    HeartbeatError,
    NoRespondersError,
    PullLimitError,
    RequestTimeoutError,
    StatusError,
)
from jsclient.protocol.consumers.consume import PullBuffer
from jsclient.protocol.consumers.fetch import Pull, PullRequest, check_pull, default_heartbeat, encode_pull
from jsclient.protocol.consumers.status import Ending, Meaning
from jsclient.protocol.wire.headers import Headers


@pytest.mark.parametrize(
    ("batch", "expires", "max_bytes", "heartbeat"),
    [
        (0, 1.0, None, None),
        (-1, 1.0, None, None),
        (True, 1.0, None, None),
        (1.0, 1.0, None, None),
        ("1", 1.0, None, None),
        (1, 0.0, None, None),
        (1, -1.0, None, None),
        (1, float("inf"), None, None),
        (1, "1", None, None),
        (1, True, None, None),
        (1, float("nan"), None, None),
        (1, 1.0, 0, None),
        (1, 1.0, True, None),
        (1, 1.0, 1.5, None),
        (1, 1.0, None, 0.0),
        (1, 1.0, None, -1.0),
        (1, 1.0, None, float("nan")),
        (1, 1.0, None, 0.51),
        (1, None, None, 0.5),
    ],
)
def test_server_would_refuse_refused_here(batch, expires, max_bytes, heartbeat):
    with pytest.raises(ConfigError):
        check_pull(batch, expires, max_bytes, heartbeat)


@pytest.mark.parametrize(
    ("batch", "expires", "max_bytes", "heartbeat"),
    [(1, 0.001, None, None), (10**6, None, 1, None), (1, 1.0, 2**40, 0.5), (1, 1, None, 0.1)],
)
def test_server_takes_passes(batch, expires, max_bytes, heartbeat):
    check_pull(batch, expires, max_bytes, heartbeat)


def test_request_in_nanoseconds():
    assert json.loads(encode_pull(Pull(1))) == {"batch": 1}
    assert json.loads(encode_pull(Pull(5, 1.5, 100, True, 0.25))) == {
        "batch": 5,
        "expires": 1_500_000_000,
        "max_bytes": 100,
        "no_wait": True,
        "idle_heartbeat": 250_000_000,
    }


@given(st.floats(0.001, 1e6))
def test_default_heartbeat_allowed(expires):
    check_pull(1, expires, None, default_heartbeat(expires))


# --- one request ---------------------------------------------------------------------------------------------


def test_full_request_is_over():
    request = PullRequest(Pull(3, 5.0), 0.0)
    for owed in (2, 1):
        request.data(1.0)
        assert (request.owed, request.ended) == (owed, False)
    request.data(1.0)
    assert (request.ending, request.error, request.deadline) == (Ending.FULL, None, None)


@pytest.mark.covers("J103", "J104")
@pytest.mark.parametrize(
    ("code", "text", "ending"),
    [
        (404, "No Messages", Ending.NO_MESSAGES),
        (408, "Request Timeout", Ending.EXPIRED),
        (408, "Requests Pending", Ending.EXPIRED),
        (409, "Message Size Exceeds MaxBytes", Ending.MAX_BYTES),
        (409, "Batch Completed", Ending.FULL),
    ],
)
def test_ordinary_status_ends_it(code, text, ending):
    request = PullRequest(Pull(3, 5.0), 0.0)
    request.status(code, text, 1.0)
    assert (request.ending, request.error, request.owed) == (ending, None, 3)


@pytest.mark.covers("J105", "J106", "J107")
@pytest.mark.parametrize(
    ("code", "text", "ending", "error"),
    [
        (409, "Consumer Deleted", Ending.DELETED, ConsumerDeletedError),
        (409, "Exceeded MaxRequestBatch of 1", Ending.REFUSED, PullLimitError),
        (409, "New", Ending.REFUSED, StatusError),
        (503, "", Ending.NO_RESPONDERS, NoRespondersError),
        (777, "New", Ending.REFUSED, StatusError),
    ],
)
def test_error_status_ends_with_error(code, text, ending, error):
    request = PullRequest(Pull(3, 5.0), 0.0)
    request.status(code, text, 1.0)
    assert request.ending is ending
    assert type(request.error) is error
    assert (request.error.code, request.error.description) == (code, text)


@pytest.mark.covers("J102")
@pytest.mark.parametrize("text", ["Idle Heartbeat", "FlowControl Request"])
def test_heartbeat_is_sign_of_life(text):
    request = PullRequest(Pull(3, 10.0, idle_heartbeat=1.0), 0.0)
    assert request.deadline == 2.0
    request.status(100, text, 1.5)
    assert not request.ended
    assert request.deadline == 3.5


def test_two_heartbeats_missed_end():
    request = PullRequest(Pull(3, 10.0, idle_heartbeat=1.0), 0.0)
    request.tick(2.0)  # a second look
    assert not request.ended
    request.tick(request.deadline)
    assert request.ending is Ending.SILENT
    assert isinstance(request.error, HeartbeatError)


@pytest.mark.parametrize(
    ("pull", "over", "ending", "error"),
    [
        (Pull(1, 3.0), 3.5, Ending.EXPIRED, type(None)),
        (Pull(1, no_wait=True), 5.0, Ending.SILENT, RequestTimeoutError),  # is there nothing? Nobody said so
    ],
)
def test_lost_status_ends_by_time(pull, over, ending, error):
    request = PullRequest(pull, 100.0)
    assert request.deadline == 100.0 + over
    request.tick(100.0 + over - 0.01)
    assert not request.ended
    request.tick(100.0 + over)
    assert (request.ending, type(request.error)) == (ending, error)


def test_time_counts_from_the_last_message():
    """A batch that does not wait may take long on a slow link."""
    request = PullRequest(Pull(3, no_wait=True), 0.0, answered=2.0)
    request.data(1.9)
    request.tick(3.8)
    assert not request.ended
    request.tick(3.9)
    assert request.ending is Ending.SILENT
    assert "2 s" in str(request.error)


def test_only_the_first_end_counts():
    request = PullRequest(Pull(1, 3.0), 0.0)
    request.disconnected()
    assert isinstance(request.error, DisconnectedError)
    request.status(409, "Consumer Deleted", 1.0)
    request.end(Ending.CLOSED)
    request.data(1.0)
    request.tick(100.0)
    assert request.ending is Ending.DISCONNECTED


# --- a buffer kept filled ------------------------------------------------------------------------------------


def online(*limits, **fields) -> PullBuffer:
    buffer = PullBuffer(*limits, **fields)
    assert buffer.ask() is None, "not connected yet"
    buffer.connected()
    return buffer


def pending(messages: int, size: int = 0) -> Headers:
    return Headers({"Nats-Pending-Messages": str(messages), "Nats-Pending-Bytes": str(size)})


@pytest.mark.row(76)
def test_asks_again_at_threshold():
    buffer = online(10, 4)
    assert buffer.ask() == (10, None)
    for _ in range(10):
        assert buffer.ask() is None
        buffer.delivered(5)
    for _ in range(5):
        buffer.taken(5)
        assert buffer.ask() is None
    buffer.taken(5)
    assert buffer.ask() == (6, None)
    assert buffer.ask() is None


@pytest.mark.row(76)
@pytest.mark.parametrize(
    ("most", "threshold", "owed", "buffered", "asked"),
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
def test_asked_for_goes_by_owed_and_waits(most, threshold, owed, buffered, asked):
    buffer = online(most, threshold)
    buffer.owed, buffer.buffered = owed, buffered
    assert buffer.ask() == (None if asked is None else (asked, None))
    assert buffer.owed == owed + (asked or 0)


@pytest.mark.row(76)
@pytest.mark.parametrize(
    ("owed_bytes", "buffered_bytes", "asked"),
    [(0, 0, (1000, 100)), (0, 50, (999, 50)), (0, 51, None), (0, 100, None), (60, 0, None)],
)
def test_bytes_requested_at_half(owed_bytes, buffered_bytes, asked):
    buffer = online(1000, 999, 100)
    buffer.owed, buffer.owed_bytes = int(owed_bytes > 0), owed_bytes
    buffer.buffered, buffer.buffered_bytes = int(buffered_bytes > 0), buffered_bytes
    assert buffer.ask() == asked


@pytest.mark.row(76, 84)
def test_buffer_of_one():
    buffer = online(1, 0)
    for _ in range(5):
        assert buffer.ask() == (1, None)
        buffer.delivered(5)
        assert buffer.ask() is None
        buffer.taken(5)


@pytest.mark.row(76)
def test_request_ended_early_asked_for_again():
    buffer = online(10, 5)
    buffer.ask()
    buffer.delivered(1)
    buffer.ended(Meaning.ENDED, Ending.EXPIRED, pending(9), 0.0)
    assert buffer.owed == 0
    assert buffer.ask() == (9, None)


def test_no_counts_owes_nothing():
    for fields in (Headers(), pending(-1), Headers({"Nats-Pending-Messages": "9" * 400})):
        buffer = online(10, 5)
        buffer.ask()
        buffer.ended(Meaning.ENDED, Ending.EXPIRED, fields, 0.0)
        assert buffer.ask() == (10, None)


@pytest.mark.row(83)
def test_refusals_back_off():
    buffer, now, pauses = online(10, 5), 0.0, []
    for _ in range(10):
        assert buffer.ask() == (10, None)
        buffer.ended(Meaning.RETRY, Ending.REFUSED, Headers(), now)
        assert buffer.ask() is None
        buffer.tick(buffer.paused_until - 0.001)
        assert buffer.ask() is None
        pauses.append(buffer.paused_until - now)
        now = buffer.paused_until
        buffer.tick(now)
    assert pauses == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


def test_message_ends_row_of_refusals():
    buffer = online(10, 5)
    for _ in range(5):
        buffer.ended(Meaning.RETRY, Ending.REFUSED, Headers(), 0.0)
    buffer.tick(100.0)
    buffer.ask()
    buffer.delivered(1)
    buffer.ended(Meaning.RETRY, Ending.REFUSED, Headers(), 100.0)
    assert buffer.paused_until == 100.05


def test_new_connection_asked_at_once():
    buffer = online(10, 5)
    buffer.ask()
    buffer.delivered(1)
    buffer.ended(Meaning.RETRY, Ending.REFUSED, Headers(), 0.0)
    buffer.disconnected()
    assert buffer.ask() is None
    buffer.connected()
    assert buffer.ask() == (9, None)


def test_silence_gives_up_owed():
    buffer = online(10, 5)
    buffer.ask()
    buffer.silent()
    assert buffer.ask() == (10, None)


@pytest.mark.row(76)
def test_bytes_at_half_free():
    buffer = online(1000, 999, 100)
    assert buffer.ask() == (1000, 100)
    buffer.delivered(60)
    assert not buffer.ended(Meaning.ENDED, Ending.MAX_BYTES, pending(999, 40), 0.0)
    assert buffer.ask() is None
    buffer.taken(60)
    assert buffer.ask() == (1000, 100)


def test_oversized_does_not_spin():
    buffer = online(1000, 999, 100)
    buffer.ask()
    assert buffer.ended(Meaning.ENDED, Ending.MAX_BYTES, pending(1000, 100), 0.0)
    assert buffer.ask() is None
    assert buffer.paused_until == 0.05
