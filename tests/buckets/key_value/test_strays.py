"""Stray messages are counted once, and reported when their number has doubled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jsclient.buckets.key_value.strays import StrayMessages
from jsclient.protocol.buckets.keys import KeySpace


def counter() -> tuple[StrayMessages, list[Any]]:
    events: list[Any] = []
    context: Any = SimpleNamespace(emit=events.append)
    return StrayMessages(context, "KV_b"), events


def test_reports() -> None:
    stray, events = counter()
    for seq in (3, 3, 2, 5, 6, 7, 8):
        stray.report("$KV.b.k", seq)
    assert [(event.stream_seq, event.count) for event in events] == [(3, 1), (5, 2), (7, 4)]
    assert events[0].stream == "KV_b"
    assert "own=True" in str(events[0].error)


def test_delivered_message_that_does_not_count() -> None:
    stray, events = counter()
    keys = KeySpace("b", "$KV.b.", "$KV.b.", own=True)
    message: Any = SimpleNamespace(headers={}, subject="$KV.b.k", metadata=SimpleNamespace(stream_seq=4))
    assert stray.own_entry(keys, message, True) is None
    assert [event.subject for event in events] == ["$KV.b.k"]
