"""Messages as Arrow columns: every value as the slow way reads it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="the extra spark is not installed")

from jsclient.protocol.consumers.ack import read_jsack  # noqa: E402
from jsclient.tables.columns import arrow_schema, direct_columns, frame_batch, record_batch  # noqa: E402
from jsclient.tables.source_options import LOG_COLUMNS, QUEUE_COLUMNS  # noqa: E402

NS = 1_700_000_000_123_456_789
CREATED = datetime(2023, 11, 1, 12, tzinfo=UTC)
V1 = b"$JS.ACK.S.c.%d.%d.%d.%d.%d"
V2 = b"$JS.ACK.hub.acc.S.c.%d.%d.%d.%d.%d"
V2_TOKEN = b"$JS.ACK._.acc.S.c.%d.%d.%d.%d.%d.rnd"


def rows(batch: Any) -> list[dict[str, Any]]:
    return batch.to_pylist()


@settings(max_examples=60, deadline=None)
@given(
    acks=st.lists(
        st.tuples(
            st.sampled_from([V1, V2, V2_TOKEN]),
            st.integers(1, 5),
            st.integers(1, 2**62),
            st.integers(1, 2**62),
            st.integers(0, 2**62),
            st.integers(0, 2**62),
        ),
        min_size=1,
        max_size=20,
    ),
    alike=st.booleans(),
)
def test_numbers_of_every_form_of_jsack(acks: list[tuple[Any, ...]], *, alike: bool) -> None:
    replies = [(acks[0][0] if alike else form) % tuple(numbers) for form, *numbers in acks]
    batch = frame_batch(
        [(b"a.b", reply, b"", b"x") for reply in replies], arrow_schema([*QUEUE_COLUMNS]), "S", "c"
    )
    for row, reply in zip(rows(batch), replies, strict=True):
        ack = read_jsack(reply)
        assert (row["num_delivered"], row["num_pending"]) == (ack.num_delivered, ack.num_pending)
        assert (row["sequence"], row["consumer_sequence"]) == (ack.stream_seq, ack.consumer_seq)
        assert row["timestamp_ns"] == ack.timestamp_ns
        assert row["reply"] == reply.decode()


@pytest.mark.covers("L8")
def test_columns_as_stored() -> None:
    frames = [
        (b"a", V1 % (1, 1, 1, NS, 1), b"", b""),
        ("ä.ö".encode(), V1 % (1, 2, 2, NS, 0), b"NATS/1.0\r\nA: 1\r\nB: x y\r\nA: 2\r\n\r\n", b"\xff\x00"),
        (b"\xff", V1 % (1, 3, 3, NS, 0), b"", b"z" * 1000),
    ]
    first, second, third = rows(
        frame_batch(frames, arrow_schema([*LOG_COLUMNS]), "S", created=CREATED.isoformat())
    )
    assert first == {
        "subject": "a",
        "data": b"",
        "headers": None,
        "stream": "S",
        "sequence": 1,
        "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123456, UTC),
        "timestamp_ns": NS,
        "stream_created": CREATED,
    }
    assert (second["subject"], second["data"]) == ("ä.ö", b"\xff\x00")
    assert second["headers"] == [("A", ["1", "2"]), ("B", ["x y"])]
    assert (third["subject"], len(third["data"])) == ("�", 1000)


@pytest.mark.covers("L8")
@pytest.mark.parametrize(
    ("time", "ns"),
    [
        ("2023-11-14T22:13:20.123456789Z", NS),
        ("2023-11-14T22:13:20.1Z", 1_700_000_000_100_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
    ],
)
@pytest.mark.parametrize("own", [b"", b"Nats-Sequence: 99\r\nX: y\r\n", b"X: \xff\r\n"])
def test_what_direct_gets_bring(time: str, ns: int, own: bytes) -> None:
    block = (
        b"NATS/1.0\r\n" + own + b"Nats-Stream: S\r\nNats-Subject: a.b\r\nNats-Sequence: 7\r\n"
        b"Nats-Time-Stamp: " + time.encode() + b"\r\nNats-Num-Pending: 3\r\nNats-Last-Sequence: 0\r\n\r\n"
    )
    schema = arrow_schema([*LOG_COLUMNS])
    (row,) = rows(
        record_batch(schema, direct_columns([(b"_INBOX.x", b"", block, b"data")], schema.names, "S"))
    )
    assert (row["subject"], row["sequence"], row["timestamp_ns"], row["data"]) == ("a.b", 7, ns, b"data")
    assert row["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, ns // 1000 % 1_000_000, UTC)
    expected = {b"": None, b"X: \xff\r\n": [("X", ["�"])]}.get(own, [("Nats-Sequence", ["99"]), ("X", ["y"])])
    assert row["headers"] == expected


def test_only_wanted_columns_in_wanted_order() -> None:
    frames = [(b"a", V1 % (1, 1, 1, NS, 1), b"", b"x")]
    batch = frame_batch(frames, arrow_schema(["sequence", "subject"]), "S")
    assert (batch.schema.names, rows(batch)) == (["sequence", "subject"], [{"sequence": 1, "subject": "a"}])
