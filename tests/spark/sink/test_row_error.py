"""Errors of rows: their texts, and which of them are worth another try."""

from __future__ import annotations

import pickle

import pytest

from jsclient.errors import (
    ApiError,
    DisconnectedError,
    JetStreamError,
    MaxPayloadError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from jsclient.spark.sink.row_error import RowError, advice, is_passing


def test_row_error() -> None:
    """It names the row, its column, what is wrong, and how much is stored, and crosses processes."""
    error = RowError(3, 17, "a b", "subject", "it holds a space", 5000, 2)
    assert str(error) == (
        "row 17 of partition 3 (subject 'a b'), column 'subject': it holds a space. "
        "Of this partition 5000 rows are stored; of 2 more this is unknown"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.stored) == (str(error), 5000)
    assert (
        str(RowError(3, -1, "", "", "closed", 0, 0))
        == "partition 3: closed. Of this partition 0 rows are stored"
    )


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (NoRespondersError(), True),
        (RequestTimeoutError("x"), True),
        (DisconnectedError("x"), True),
        (ApiError(503, 10008, "unavailable"), True),
        (ApiError(429, 10167, "too many requests"), True),
        (ApiError(400, 10060, "wrong stream"), False),
        (PermissionDeniedError("publish", "a"), False),
        (MaxPayloadError(2, 1), False),
        (WrongLastSequenceError(400, 10071, "wrong"), False),
    ],
)
def test_what_passes(error: JetStreamError, passing: bool) -> None:
    assert is_passing(error) is passing


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (NoRespondersError(), "create a stream"),
        (PermissionDeniedError("publish", "a"), "let the user publish"),
        (PermissionDeniedError("subscribe", "_INBOX.x"), "inboxPrefix"),
        (MaxPayloadError(2, 1), "max_payload"),
        (ApiError(400, 10060, "expected stream does not match"), "expectedStream"),
        (ApiError(400, 10054, "message size exceeds maximum allowed"), "max_msg_size"),
        (ApiError(400, 10109, "invalid operation on sealed stream"), "write to another"),
        (WrongLastSequenceError(400, 10071, "wrong"), "headers"),
        (RequestTimeoutError("x"), "network (nats://a, nats://b) was too slow; options 'ackTimeout'"),
        (DisconnectedError("gone"), "DisconnectedError: gone (nats://a, nats://b)"),
        (ApiError(500, 1, "odd"), "ApiError: odd"),
    ],
)
def test_advice(error: JetStreamError, helps: str) -> None:
    """The text of the error, and its advice."""
    assert helps in advice(error, ["nats://a", "nats://b"])
