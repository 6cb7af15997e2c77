"""Records of a log, as a consumer would deliver them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jsclient._runtime.event_hub import EventLog
from jsclient.buckets.log_entries import LogEntries, common_filter
from jsclient.protocol.consumers.ack import read_jsack
from jsclient.protocol.models.consumer import ConsumerConfig
from jsclient.protocol.topics.record import Record
from jsclient.protocol.wire.headers import Headers, parse_headers


@pytest.mark.parametrize(
    ("filters", "common"),
    [
        (["$KV.b.>"], "$KV.b.>"),
        (["$KV.b.a"], "$KV.b.a"),
        (["$KV.b.a", "$KV.b.c"], "$KV.b.>"),
        (["$KV.b.a.x", "$KV.b.a.*"], "$KV.b.a.>"),
        (["$KV.b.a", "$KV.b.a.x"], "$KV.b.a.>"),
        (["$O.b.M.x", "$O.b.M.>"], "$O.b.M.>"),
        (["a", "b"], ">"),
    ],
)
def test_common_filter(filters: list[str], common: str) -> None:
    assert common_filter(filters) == common


def entries(**fields: Any) -> LogEntries:
    context: Any = SimpleNamespace(connection=None, requests=None, timeout=1.0)
    return LogEntries(context, "KV_b", ConsumerConfig(**fields), EventLog(), push=None)


def test_message_of_a_record() -> None:
    record = Record(
        seq=7, time_ns=1_000_000_001, subject="$KV.b.k", data=b"abc", headers=Headers({"KV-Operation": "DEL"})
    )
    subject, reply, block, data = entries(filter_subject="$KV.b.>")._as_delivered(record)
    assert (subject, data) == (b"$KV.b.k", b"abc")
    assert parse_headers(block)[1] == {"KV-Operation": "DEL"}
    metadata = read_jsack(reply)
    assert (metadata.stream, metadata.stream_seq, metadata.timestamp_ns) == ("KV_b", 7, 1_000_000_001)
    _, _, block, data = entries(headers_only=True)._as_delivered(record)
    assert (data, parse_headers(block)[1]["Nats-Msg-Size"]) == (b"", "3")


def test_filters() -> None:
    several = entries(filter_subjects=["$KV.b.a", "$KV.b.c.*"])
    matching = [subject for subject in ("$KV.b.a", "$KV.b.b", "$KV.b.c.x")
                if several._matches(Record(seq=1, subject=subject))]  # fmt: skip
    assert matching == ["$KV.b.a", "$KV.b.c.x"]
