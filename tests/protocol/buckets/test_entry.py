from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jsclient.protocol.buckets.entry import KeyValueEntry, operation_of, payload_size


@pytest.mark.parametrize(
    ("headers", "operation"),
    [
        ({}, "PUT"),
        ({"Other": "DEL"}, "PUT"),
        ({"KV-Operation": "PUT"}, "PUT"),
        ({"KV-Operation": "DEL"}, "DEL"),
        ({"KV-Operation": "PURGE"}, "PURGE"),
        ({"KV-Operation": "unknown"}, "DEL"),
        ({"KV-Operation": ""}, "DEL"),
        ({"Nats-Marker-Reason": "MaxAge"}, "PURGE"),
        ({"Nats-Marker-Reason": "Purge"}, "PURGE"),
        ({"Nats-Marker-Reason": "Remove"}, "DEL"),
        ({"Nats-Marker-Reason": "unknown"}, "DEL"),
        ({"KV-Operation": "PUT", "Nats-Marker-Reason": "MaxAge"}, "PUT"),
    ],
)
def test_operation(headers, operation):
    assert operation_of(headers) == operation


@pytest.mark.parametrize(
    ("text", "size"), [("100", 100), ("", 0), ("-1", 0), ("1e3", 0), ("9" * 30, 0), ("١", 0)]
)
def test_size_of_payload(text, size):
    assert payload_size({"Nats-Msg-Size": text}) == size
    assert payload_size({}) == 0


def test_time():
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    ns = 1_767_323_045_678_901_234
    entry = KeyValueEntry(bucket="b", key="k", raw=b"", revision=1, created_ns=ns)
    assert entry.created == moment
    assert not entry.is_deleted
