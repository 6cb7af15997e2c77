"""Stray messages are counted once, and reported when their number has doubled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jsclient.buckets.key_value.entries import entries_of
from jsclient.buckets.key_value.strays import StrayMessages
from jsclient.protocol.buckets.keys import KeySpace
from jsclient.protocol.consumers.ack_numbers import AckNumbers


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


OWN = b"NATS/1.0\r\nJsc-Own: 1\r\n\r\n"


def test_delivered_message_that_does_not_count() -> None:
    stray, events = counter()
    keys = KeySpace("b", "$KV.b.", "$KV.b.", own=True)
    decode = stray.skipped(entries_of, keys)

    def read(*blocks: bytes) -> list[tuple[int, int, bytes]]:
        frames = [(b"$KV.b.k", b"", block, b"%d" % number) for number, block in enumerate(blocks)]
        count = len(frames)
        numbers = AckNumbers(range(4, 4 + count), [0] * count, range(count, 0, -1))
        return [(one.revision, one.delta, one.value) for one in decode(frames, numbers, is_initial=True)]

    assert read(b"") == []
    assert [event.subject for event in events] == ["$KV.b.k"]
    assert read(OWN) == [(4, 1, b"0")]
    assert read(b"", OWN, b"", b"", OWN) == [(5, 4, b"1"), (8, 1, b"4")]
    assert [event.stream_seq for event in events] == [4, 6]
