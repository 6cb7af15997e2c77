"""How a topic of epochs lies in a stream, and what is said about it over plain NATS."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from jsclient.errors import ConfigError, ProtocolError
from jsclient.protocol.epochs.frontier import Antichain, Int
from jsclient.protocol.epochs.records import (
    DataMessage,
    EpochReading,
    FrontierEntry,
    FrontierRecord,
    LowerFrontierUpdate,
    data_headers,
)
from jsclient.protocol.topics.record import Kind, Record
from jsclient.protocol.wire.headers import Headers
from tests.protocol.epochs.orders import PAIR

INT = Int()
LINK = "Nats-Expected-Last-Subject-Sequence"


def stored(subject, seq, data=b"", kind=Kind.VALUE, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Record(seq=seq, subject=subject, data=data, headers=Headers(named), kind=kind)


def frontier(seq, producer, lower, *, updates=(), before="", up_to=0):
    entry = FrontierEntry(FrontierRecord(updates, lower, ()), 0, producer, up_to, before)
    data = entry.record.to_json(INT)
    return Record(
        seq=seq,
        subject="t.0.frontier",
        data=data,
        headers=Headers({**entry.headers, "Jsc-Kind": "frontier", LINK: "0"}),
        kind=Kind.FRONTIER,
    )


@pytest.mark.covers("S31", "S33")
def test_time_of_data_header():
    headers = data_headers(PAIR, (3, 1), "me")
    assert headers == {"Jsc-Epoch": "[3,1]", "Jsc-Producer": "me"}
    with pytest.raises(ConfigError):
        data_headers(PAIR, 3, "me")


@pytest.mark.covers("S48")
def test_only_owner_of_partition_sent_counts():
    reading = EpochReading(INT, "t", [0])
    lower = lambda _: Antichain(INT, (1,))  # noqa: E731
    assert reading.message(stored("t.0.data", 1, Jsc_Epoch="1"), lower) is None, "nobody is there"
    first = reading.message(frontier(2, "a", (1,)), lower)
    assert first == (0, LowerFrontierUpdate(())), "of a first record the difference counts"
    mine = stored("t.0.data", 3, b"x", Jsc_Epoch="1", Jsc_Producer="a")
    assert reading.message(mine, lower) == (0, DataMessage(1, b"x"))
    taken = reading.message(frontier(4, "b", (3,), before="a", up_to=2), lower)
    assert taken == (0, LowerFrontierUpdate(((1, -1), (3, 1))))
    assert reading.message(mine, lower) is None
    assert reading.refused == 2
    updates = ((3, -1), (4, 1))
    assert reading.message(frontier(5, "b", (4,), updates=updates), lower) == (
        0,
        LowerFrontierUpdate(updates),
    )
    assert reading.message(stored("t.1.data", 6), lower) is None, "another partition"
    assert reading.owners == {0: "b"}


def test_first_record_is_snapshot():
    entry = FrontierEntry.from_record(frontier(9, "b", (1,), before="a", up_to=4), INT)
    assert (entry.seq, entry.up_to, entry.before) == (9, 4, "a")
    assert [entry.owner_at(seq) for seq in (4, 8, 9, 10)] == ["a", "a", "b", "b"]
    plain = FrontierEntry.from_record(frontier(9, "b", (1,)), INT)
    assert (plain.up_to, plain.owner_at(9)) == (9, "b")


@pytest.mark.parametrize(
    "record",
    [
        stored("t.0.frontier", 1, b"{}", Jsc_Producer="a"),
        stored("t.0.frontier", 1, b"{}", Kind.FRONTIER),
        stored("t.0.frontier", 1, b"{}", Kind.FRONTIER, Jsc_Producer="a"),
        stored("t.0.frontier", 1, b"", Kind.FRONTIER, Jsc_Producer="a", Jsc_After_Producer="b"),
        stored(
            "t.0.frontier", 1, b'{"v":1,"updates":[],"lower":[],"upper":[]}', Kind.FRONTIER, Jsc_Producer="a"
        ),
    ],
)
def test_no_frontier_record_reported(record):
    with pytest.raises(ProtocolError):
        FrontierEntry.from_record(record, INT)


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", '"1"', "[1]", "1 ", "[" * 100_000])
def test_data_without_time_skipped(text):
    skipped = []
    reading = EpochReading(INT, "t", [0], lambda *args: skipped.append(args))
    reading.owners = {0: "a"}
    record = stored("t.0.data", 1, Jsc_Epoch=text, Jsc_Producer="a")
    if text == "1 ":
        assert reading.time_of(record) == 1
        return
    assert reading.time_of(record) is None
    ((actual, error),) = skipped
    assert actual is record
    assert "has no valid time" in str(error)


times = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4).map(tuple)
