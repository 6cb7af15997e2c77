"""The entry that a message has, with and without headers, from a consumer and from the stream."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jsclient.buckets.key_value.entries import entry_of, key_of, recorded_entry, stored_entry
from jsclient.protocol.buckets.entry import KeyValueEntry
from jsclient.protocol.buckets.keys import KeySpace
from jsclient.protocol.models.message import StoredMessage
from jsclient.protocol.topics.record import Record
from jsclient.testing import make_message

# A mirror: the subjects of its stream have the name of the origin.
KEYS = KeySpace("copy", "$KV.cfg.", "$KV.cfg.")
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
NS = 1_767_323_045_678_901_000


def delivered(data=b"dark", **fields):
    return make_message(
        "$KV.cfg.ui.theme", data, stream_seq=7, consumer_seq=2, num_pending=4, timestamp=MOMENT, **fields
    )


def decoded(message, is_initial=False):
    at = message.metadata
    return entry_of(
        KEYS,
        *(message._frame, at.stream_seq, at.timestamp_ns, at.num_pending),
        is_initial=is_initial,
    )


@pytest.mark.parametrize("is_initial", [False, True])
def test_without_headers(is_initial):
    assert decoded(delivered(), is_initial) == KeyValueEntry(
        bucket="copy",
        key="ui.theme",
        raw=b"dark",
        revision=7,
        created_ns=NS,
        operation="PUT",
        delta=4,
        headers=None,
        size=4,
        is_initial=is_initial,
    )


@pytest.mark.parametrize("is_initial", [False, True])
def test_with_headers(is_initial):
    entry = decoded(delivered(headers={"Who": "me"}), is_initial)
    assert dict(entry.headers) == {"Who": "me"}
    assert (entry.bucket, entry.key, entry.value) == ("copy", "ui.theme", b"dark")
    assert (entry.revision, entry.created_ns, entry.delta) == (7, NS, 4)
    assert (entry.operation, entry.size, entry.is_initial) == ("PUT", 4, is_initial)


@pytest.mark.parametrize(
    ("headers", "operation"),
    [
        ({"KV-Operation": "DEL"}, "DEL"),
        ({"KV-Operation": "PURGE", "Nats-Rollup": "sub"}, "PURGE"),
        ({"Nats-Marker-Reason": "MaxAge"}, "PURGE"),
    ],
    ids=str,
)
def test_deletion(headers, operation):
    entry = decoded(delivered(b"", headers=headers))
    assert (entry.operation, entry.is_deleted, entry.size) == (operation, True, 0)


@pytest.mark.parametrize(
    ("headers", "is_deleted"),
    [
        ({}, False),
        ({"Who": "me"}, False),
        ({"Who": "KV-Operation: DEL"}, False),
        ({"KV-Operation": "PUT"}, False),
        ({"KV-Operation": "DEL"}, True),
        ({"Nats-Marker-Reason": "Purge"}, True),
    ],
    ids=str,
)
def test_key(headers, is_deleted):
    frame = delivered(b"", headers=headers)._frame
    assert key_of(KEYS, frame, 7, NS, 4, is_initial=True) == ("ui.theme", is_deleted)


@pytest.mark.parametrize(("text", "size"), [("1234", 1234), ("0", 0), ("no number", 0)])
def test_size_without_value(text, size):
    """A consumer with headers only has the size in a header."""
    entry = decoded(delivered(b"", headers={"Nats-Msg-Size": text}))
    assert (entry.value, entry.size) == (b"", size)


def stored(**fields):
    message = {"subject": "$KV.cfg.ui.theme", "seq": 9, "data": b"light", "headers": {}}
    return StoredMessage(**message | fields, time=MOMENT, time_ns=NS + 321)


def test_stored():
    assert stored_entry(KEYS, "ui.theme", stored()) == KeyValueEntry(
        bucket="copy",
        key="ui.theme",
        raw=b"light",
        revision=9,
        created_ns=NS + 321,
        operation="PUT",
        delta=0,
        headers=None,
        size=5,
        is_initial=False,
    )
    assert stored_entry(KEYS, "ui.theme", stored(), 3).delta == 3


def test_stored_deletion():
    message = stored(data=b"", headers={"KV-Operation": "DEL"})
    entry = stored_entry(KEYS, "ui.theme", message)
    assert (entry.operation, entry.headers, entry.size) == ("DEL", {"KV-Operation": "DEL"}, 0)


def test_record_of_a_table():
    record = Record(seq=9, time_ns=NS, subject="$KV.cfg.ui.theme", data=b"light")
    assert recorded_entry(KEYS, record) == KeyValueEntry(
        bucket="copy", key="ui.theme", raw=b"light", revision=9, created_ns=NS, size=5
    )
