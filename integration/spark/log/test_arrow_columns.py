"""Messages as Arrow columns: the numbers of replies, and how many Python calls a batch takes."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime

import pytest

from jsclient._runtime.connection.speedups import Choice
from jsclient.protocol.consumers.ack import read_jsack
from jsclient.tables import columns
from jsclient.tables.columns import arrow_schema, direct_columns, frame_batch, record_batch
from tests.support.calls import Calls

NUMBERS = ("sequence", "timestamp_ns", "consumer_sequence", "num_delivered", "num_pending")
REPLIES = {
    "first": b"$JS.ACK.S.C.%d.%d.%d.%d.%d",
    "domain": b"$JS.ACK.hub.hash.S.C.%d.%d.%d.%d.%d",
    "token": b"$JS.ACK._.hash.S.C.%d.%d.%d.%d.%d.token",
    "longer": b"$JS.ACK.hub.hash.S.C.%d.%d.%d.%d.%d.token.more",
}
MOMENT = 1_790_000_000_123_456_789


def frames(count: int, reply: bytes = REPLIES["first"], block: bytes = b""):
    return [
        (b"s.%d" % (at % 16), reply % (at % 3 + 1, at + 7, at + 1, MOMENT + at, count - at), block, b"x" * 20)
        for at in range(count)
    ]


def compiled(some) -> bytes:
    """What the compiled `jsack_numbers` returns for replies of nine tokens."""
    rows = [[int(text) for text in reply.split(b".")[4:]] for _, reply, _, _ in some]
    return b"".join(
        number.to_bytes(8, sys.byteorder) for column in zip(*rows, strict=True) for number in column
    )


@pytest.fixture(params=[None, compiled], ids=["Arrow", "compiled"])
def reading(request, monkeypatch):
    monkeypatch.setattr(columns, "chosen", lambda: Choice(None, "", jsack_numbers=request.param))


def expected(some):
    acks = [read_jsack(reply) for _, reply, _, _ in some]
    return {
        "sequence": [ack.stream_seq for ack in acks],
        "timestamp_ns": [ack.timestamp_ns for ack in acks],
        "consumer_sequence": [ack.consumer_seq for ack in acks],
        "num_delivered": [ack.num_delivered for ack in acks],
        "num_pending": [ack.num_pending for ack in acks],
    }


def test_numbers(reading):
    some = frames(50)
    batch = frame_batch(some, arrow_schema((*NUMBERS, "timestamp", "reply")), "S")
    batch.validate(full=True)
    assert batch.select(NUMBERS).to_pydict() == expected(some)
    assert batch["timestamp"][0].as_py() == datetime.fromtimestamp(MOMENT // 10**9, UTC).replace(
        microsecond=123_456
    )
    assert batch["reply"].to_pylist() == [reply.decode() for _, reply, _, _ in some]


@pytest.mark.parametrize("form", REPLIES)
def test_forms_of_replies(monkeypatch, form):
    monkeypatch.setattr(columns, "chosen", lambda: Choice(None, "", jsack_numbers=lambda frames: b""))
    some = frames(5, REPLIES[form])
    assert frame_batch(some, arrow_schema(NUMBERS), "S").to_pydict() == expected(some)
    mixed = [*some, *frames(5)]
    assert frame_batch(mixed, arrow_schema(NUMBERS), "S").to_pydict() == expected(mixed)


TWO_HEADERS = b"NATS/1.0\r\nA: 1\r\nB: two words\r\n\r\n"


def calls(some) -> int:
    """The Python calls of the batch of the default columns."""
    schema = arrow_schema(("subject", "data", "headers", "stream", "sequence", "timestamp"))
    with Calls() as counted:
        frame_batch(some, schema, "S")
    return counted.by_name.total()


def test_calls_of_a_batch(reading):
    """They do not depend on the number of rows, except for calls for headers."""
    assert calls(frames(2000)) == calls(frames(20)) < 40
    few, many = (calls(frames(rows, block=TWO_HEADERS)) for rows in (20, 2000))
    assert many - few == 2 * 1980  # the end of the block, and its lines


STORED = ("subject", "data", "headers", "sequence", "timestamp_ns", "timestamp")
ADDED = (
    b"NATS/1.0\r\n%bNats-Stream: S\r\nNats-Subject: s.%d\r\nNats-Sequence: %d\r\n"
    b"Nats-Time-Stamp: 2026-11-27T07:29:10.%09dZ\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n\r\n"
)
LINE = re.compile(rb"Nats-(Subject|Sequence|Time-Stamp|Last-Sequence): ([^\r]+)")
FIRST_NS = int(datetime(2026, 11, 27, 7, 29, 10, tzinfo=UTC).timestamp()) * 10**9


def stored_frames(count: int, own: bytes = b""):
    """Messages 8, 10, 12 and so on, as the server answers a direct get that follows message 6."""
    return [
        (b"_INBOX.x", b"", ADDED % (own, at % 16, 2 * at + 8, at, count - at, 2 * at + 6), b"x" * 20)
        for at in range(count)
    ]


def split(frames, last_seq):
    """What the compiled `split_stored` returns: the rows that follow each other after ``last_seq``."""
    rows = []
    for _, _, block, _ in frames:
        lines = dict(LINE.findall(block))
        if int(lines[b"Last-Sequence"]) != last_seq:
            break
        last_seq = int(lines[b"Sequence"])
        rows.append((b"", lines[b"Subject"], last_seq, FIRST_NS + int(lines[b"Time-Stamp"][-10:-1])))
    return rows, b""


def stored_batch(some):
    schema = arrow_schema(STORED)
    return record_batch(schema, direct_columns(some, STORED, "S"))


@pytest.mark.parametrize(
    "kept", [slice(None), slice(3, None), slice(None, None, 2)], ids=["all", "rest", "gap"]
)
@pytest.mark.parametrize("read", [None, split], ids=["Arrow", "compiled"])
def test_stored_messages(monkeypatch, read, kept):
    """The compiled function reads messages that follow each other, and Arrow reads others."""
    monkeypatch.setattr(columns, "chosen", lambda: Choice(None, "", split_stored=read))
    some = stored_frames(50, b"A: 1\r\n")[kept]
    batch = stored_batch(some)
    batch.validate(full=True)
    rows = list(range(50))[kept]
    assert batch["sequence"].to_pylist() == [2 * at + 8 for at in rows]
    assert batch["subject"].to_pylist() == [f"s.{at % 16}" for at in rows]
    assert batch["timestamp_ns"].to_pylist() == [FIRST_NS + at for at in rows]
    assert batch["headers"].to_pylist() == [[("A", ["1"])]] * len(rows)
    assert batch["data"].to_pylist() == [b"x" * 20] * len(rows)


def test_calls_of_stored_messages(monkeypatch):
    monkeypatch.setattr(columns, "chosen", lambda: Choice(None, ""))
    names = ("subject", "data", "sequence", "timestamp")

    def calls_of(count: int) -> int:
        some = stored_frames(count)
        with Calls() as counted:
            record_batch(arrow_schema(names), direct_columns(some, names, "S"))
        return counted.by_name.total()

    assert calls_of(2000) == calls_of(20) < 40
