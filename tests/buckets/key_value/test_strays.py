"""Stray messages are counted once, and reported when their number has doubled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jsclient.buckets.key_value.entries import entry_of
from jsclient.buckets.key_value.strays import StrayMessages
from jsclient.protocol.buckets.keys import KeySpace


def counter() -> tuple[StrayMessages, list[Any]]:
    events: list[Any] = []
    context: Any = SimpleNamespace(emit=events.append)
    return StrayMessages(context, "KV_b"), events


def test_reports() -> None:
    stray, events = counter()
    for seq in (3, 3, 2, 5, 6, 7, 8):
        stray.report_message("$KV.b.k", seq)
    assert [(event.stream_seq, event.count) for event in events] == [(3, 1), (5, 2), (7, 4)]
    assert events[0].stream == "KV_b"
    assert "own=True" in str(events[0].error)


def test_delivered_message_that_does_not_count() -> None:
    stray, events = counter()
    keys = KeySpace("b", "$KV.b.", "$KV.b.", own=True)
    decode = stray.skipped(entry_of, keys)
    assert decode((b"$KV.b.k", b"", b"", b"1"), 4, 0, 0, is_initial=True) is None
    assert [event.subject for event in events] == ["$KV.b.k"]
    own = decode((b"$KV.b.k", b"", b"NATS/1.0\r\nJsc-Own: 1\r\n\r\n", b"1"), 5, 0, 0, is_initial=True)
    assert own is not None
    assert (own.revision, own.value) == (5, b"1")
