"""The entry that a message has, with and without headers, from a consumer and from the stream."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jsclient.buckets.key_value.entries import (
    entries_of,
    keys_of,
    recorded_entries,
    recorded_entry,
    stored_entry,
)
from jsclient.protocol.buckets.entry import KeyValueEntry
from jsclient.protocol.buckets.key_codecs import Base64Keys
from jsclient.protocol.buckets.keys import KeySpace
from jsclient.protocol.consumers.ack import sequences
from jsclient.protocol.consumers.ack_numbers import ack_numbers
from jsclient.protocol.models.message import StoredMessage
from jsclient.protocol.topics.record import Record, RecordHeaders
from jsclient.protocol.topics.value_codec import JsonCodec
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
    return decoded_alone(message._frame, is_initial, KEYS)


def decoded_alone(frame, is_initial, keys):
    [entry] = entries_of(keys, [frame], ack_numbers([frame]), is_initial=is_initial)
    return entry


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
    frames = [delivered(b"", headers=headers)._frame, delivered(b"dark")._frame]
    keys = keys_of(KEYS, frames, ack_numbers(frames), is_initial=True)
    assert keys == [("ui.theme", is_deleted), ("ui.theme", False)]


RUN = [
    (f"$KV.cfg.{key}".encode("utf-8", "surrogateescape"), *message._frame[1:])
    for key, message in [
        ("a", make_message("k", b"1", stream_seq=1, num_pending=8)),
        ("b.\udcff", make_message("k", b"", stream_seq=2, num_pending=7, headers={"KV-Operation": "DEL"})),
        ("c.é", make_message("k", b"333", stream_seq=3, num_pending=6, headers={"Nats-Msg-Id": "x"})),
        ("d", make_message("k", b"", stream_seq=4, num_pending=5, headers={"Nats-Msg-Size": "7"})),
        ("a", make_message("k", b"", stream_seq=5, num_pending=4, headers={"Nats-Marker-Reason": "MaxAge"})),
    ]
]


@pytest.mark.parametrize(
    "keys", [KEYS, KeySpace("b", "$KV.cfg.", "", codec=JsonCodec(int))], ids=["bytes", "json"]
)
@pytest.mark.parametrize("count", [1, 5])
def test_run(keys, count):
    """The entries of messages that have arrived together are those of each message by itself."""
    frames = RUN[:count]
    run = entries_of(keys, frames, ack_numbers(frames), is_initial=True)
    assert run == [decoded_alone(frame, True, keys) for frame in frames]
    expected = [
        ("a", "PUT", 1),
        ("b.\udcff", "DEL", 0),
        ("c.é", "PUT", 3),
        ("d", "PUT", 7),
        ("a", "PURGE", 0),
    ]
    assert [(entry.key, entry.operation, entry.size) for entry in run] == expected[:count]
    assert [(entry.revision, entry.delta) for entry in run] == [(n, 9 - n) for n in range(1, count + 1)]
    assert [entry.created_ns for entry in run] == [sequences(frame[1])[2] for frame in frames]
    assert run[0].value == (1 if keys.codec else b"1")


def test_run_with_another_subject():
    """A key is what follows as many bytes as the bucket's subjects have, whatever a server delivers."""
    frames = [make_message(subject, b"")._frame for subject in ("$KV.cfg.a", "$KV.abc.b", "x")]
    assert [key for key, _ in keys_of(KEYS, frames, ack_numbers(frames), is_initial=True)] == ["a", "b", ""]


def test_run_with_key_codec():
    keys = KeySpace("copy", "$KV.cfg.", "", key_codec=Base64Keys())
    frames = [make_message(f"$KV.cfg.{key}", b"")._frame for key in ("YSBi", "a!b")]
    assert [key for key, _ in keys_of(keys, frames, ack_numbers(frames), is_initial=True)] == [
        "a b",
        "a!b",
    ]


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


def test_records_of_a_snapshot():
    records = [
        Record(seq=9, time_ns=NS, subject="$KV.cfg.ui.theme", data=b"light"),
        Record(
            seq=11,
            time_ns=NS + 1,
            subject="$KV.cfg.b",
            data=b"",
            headers=RecordHeaders({"KV-Operation": "DEL"}),
        ),
    ]
    entries = recorded_entries(KEYS, records, [1, 0])
    assert entries == [
        recorded_entry(KEYS, record, delta) for record, delta in zip(records, [1, 0], strict=True)
    ]
    assert [entry.operation for entry in entries] == ["PUT", "DEL"]
    keys = KeySpace("copy", "$KV.cfg.", "", codec=JsonCodec(), key_codec=Base64Keys())
    records = [Record(seq=9, time_ns=NS, subject="$KV.cfg.YSBi", data=b"[1]")]
    [entry] = recorded_entries(keys, records, [0])
    assert (entry.key, entry.value) == ("a b", [1])
