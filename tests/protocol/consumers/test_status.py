"""Every status that nats-server sends, and what it means."""

from __future__ import annotations

import pytest

from jsclient import errors
from jsclient.protocol.consumers.status import Ending, Meaning, classify

M, E = Meaning, Ending

# Every status literal of nats-server 2.15 (consumer.go, stream.go, jetstream.go, client.go) that reaches a reader.
CATALOGUE = [
    (100, "Idle Heartbeat", M.HEARTBEAT, None, None),
    (100, "FlowControl Request", M.FLOW_CONTROL, None, None),
    (400, "Bad Request - heartbeat value too large", M.REFUSED, E.REFUSED, errors.BadRequestError),
    (400, "Bad Request - Priority Group missing", M.REFUSED, E.REFUSED, errors.BadRequestError),
    (400, "Bad Request - Invalid Priority Group", M.REFUSED, E.REFUSED, errors.BadRequestError),
    (400, "Bad Request - Not a Overflow Priority consumer", M.REFUSED, E.REFUSED, errors.BadRequestError),
    (
        400,
        "Bad Request - Not a Pinned Client Priority consumer",
        M.REFUSED,
        E.UNPINNED,
        errors.BadRequestError,
    ),
    (400, "Bad Request - Priority must be between 0 and 9", M.REFUSED, E.REFUSED, errors.BadRequestError),
    (404, "No Messages", M.ENDED, E.NO_MESSAGES, None),
    (408, "Request Timeout", M.ENDED, E.EXPIRED, None),
    (408, "Interest Expired", M.ENDED, E.EXPIRED, None),
    (408, "Requests Pending", M.ENDED, E.EXPIRED, None),
    (409, "Batch Completed", M.ENDED, E.FULL, None),
    (409, "Message Size Exceeds MaxBytes", M.ENDED, E.MAX_BYTES, None),
    (409, "Exceeded MaxWaiting", M.RETRY, E.REFUSED, errors.PullLimitError),
    (409, "Exceeded MaxRequestBatch of 10", M.REFUSED, E.REFUSED, errors.PullLimitError),
    (409, "Exceeded MaxRequestExpires of 1s", M.REFUSED, E.REFUSED, errors.PullLimitError),
    (409, "Exceeded MaxRequestMaxBytes of 100", M.REFUSED, E.REFUSED, errors.PullLimitError),
    (409, "Consumer Deleted", M.GONE, E.DELETED, errors.ConsumerDeletedError),
    (409, "Consumer is push based", M.GONE, E.REFUSED, errors.PushBasedError),
    (409, "Leadership Change", M.RETRY, E.MOVED, errors.LeadershipChangeError),
    (409, "Server Shutdown", M.RETRY, E.MOVED, errors.LeadershipChangeError),
    (412, "Required Api Level", M.REFUSED, E.REFUSED, errors.BadRequestError),
    (423, "Nats-Wrong-Pin-Id", M.RETRY, E.UNPINNED, errors.StatusError),
    (423, "Nats-Pin-Id mismatch", M.RETRY, E.UNPINNED, errors.StatusError),
    (429, "Too Many Requests", M.RETRY, E.REFUSED, errors.StatusError),
    (503, "", M.RETRY, E.NO_RESPONDERS, errors.NoRespondersError),
]


@pytest.mark.row(45, 49)
@pytest.mark.covers("J103", "J104", "J105", "J106")
@pytest.mark.parametrize(("code", "description", "meaning", "ending", "error"), CATALOGUE)
def test_the_catalogue(code, description, meaning, ending, error):
    status = classify(code, description)
    assert (status.meaning, status.ending, status.error) == (meaning, ending, error)
    assert status.retryable == (meaning is M.RETRY)


@pytest.mark.row(49)
@pytest.mark.parametrize(("code", "description"), [row[:2] for row in CATALOGUE])
@pytest.mark.parametrize("change", [str.upper, str.lower, str.swapcase, lambda text: f"  {text} "])
def test_descriptions_normalized(code, description, change):
    assert classify(code, change(description)) == classify(code, description)


@pytest.mark.row(49)
def test_both_flow_control_spellings():
    assert classify(100, "Flow Control Request") == classify(100, "FlowControl Request")


@pytest.mark.covers("J105")
def test_unknown_409_error_may_pass():
    status = classify(409, "Something New")
    assert status.error is errors.StatusError
    assert status.retryable


@pytest.mark.covers("J107")
@pytest.mark.parametrize("code", [101, 200, 204, 304, 413, 418, 500, 504, 999])
@pytest.mark.parametrize("description", ["", "Idle Heartbeat", "Consumer Deleted", "EOB"])
def test_unknown_status_is_final(code, description):
    status = classify(code, description)
    assert status.meaning is M.REFUSED
    assert status.ending is E.REFUSED
    assert status.error is errors.StatusError
    assert not status.retryable


@pytest.mark.covers("J105", "J106", "J107")
def test_verdict_is_end_or_error():
    for code in range(100, 1000):
        for description in ("", "x", *(row[1] for row in CATALOGUE)):
            status = classify(code, description)
            assert (status.error is None) == (status.meaning in {M.HEARTBEAT, M.FLOW_CONTROL, M.ENDED}), (
                code,
                description,
            )
            assert (status.ending is None) == (status.meaning in {M.HEARTBEAT, M.FLOW_CONTROL})
