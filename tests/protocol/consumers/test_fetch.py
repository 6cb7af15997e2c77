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
from jsclient.protocol.consumers.fetch import Pull, PullRequest, check_pull, default_heartbeat, encode_pull
from jsclient.protocol.consumers.status import Ending


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
    request.check_deadline(2.0)  # a second look
    assert not request.ended
    request.check_deadline(request.deadline)
    assert request.ending is Ending.SILENT
    assert isinstance(request.error, HeartbeatError)


@pytest.mark.parametrize(
    ("pull", "over", "ending", "error"),
    [
        (Pull(1, 3.0), 3.5, Ending.EXPIRED, type(None)),
        (Pull(1, no_wait=True), 5.0, Ending.SILENT, RequestTimeoutError),  # the server has not said
    ],
)
def test_lost_status_ends_by_time(pull, over, ending, error):
    request = PullRequest(pull, 100.0)
    assert request.deadline == 100.0 + over
    request.check_deadline(100.0 + over - 0.01)
    assert not request.ended
    request.check_deadline(100.0 + over)
    assert (request.ending, type(request.error)) == (ending, error)


def test_time_counts_from_the_last_message():
    """A batch that does not wait may take long on a slow link."""
    request = PullRequest(Pull(3, no_wait=True), 0.0, answered=2.0)
    request.data(1.9)
    request.check_deadline(3.8)
    assert not request.ended
    request.check_deadline(3.9)
    assert request.ending is Ending.SILENT
    assert "2 s" in str(request.error)


def test_only_the_first_end_counts():
    request = PullRequest(Pull(1, 3.0), 0.0)
    request.connection_lost()
    assert isinstance(request.error, DisconnectedError)
    request.status(409, "Consumer Deleted", 1.0)
    request.end_request(Ending.CLOSED)
    request.data(1.0)
    request.check_deadline(100.0)
    assert request.ending is Ending.DISCONNECTED


# --- a buffer kept filled ------------------------------------------------------------------------------------
