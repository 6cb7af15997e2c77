"""Records, their headers, and the bounded queue of a reader."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError
from jsclient.protocol.topics.record import (
    NO_HEADERS,
    Aside,
    Kind,
    Record,
    RecordHeaders,
    RecordQueue,
    sizes,
)
from jsclient.protocol.wire.headers import Headers


def record(seq: int, size: int = 10) -> Record:
    """A record of this size."""
    return Record(seq=seq, time_ns=seq * 1000, data=b"x" * size)


def test_record_without_origin_has_no_position():
    with pytest.raises(ConfigError, match="record 7 was not read from a log"):
        _ = record(7).position


@pytest.mark.parametrize(("kind", "last"), [*zip(Kind, [False, True, True, False], strict=True)])
def test_finish_and_fail_end_the_topic(kind, last):
    assert Record(seq=1, kind=kind).is_last is last


@pytest.mark.parametrize(
    ("headers", "size"),
    [
        (NO_HEADERS, 0),
        (Headers({"ab": "cde"}), 5),
        (RecordHeaders({"ab": "cde"}), 5),
        (RecordHeaders([("a", "1"), ("a", "23")]), 5),
    ],
)
def test_size_counts_subject_payload_and_headers(headers, size):
    assert Record(seq=1, subject="abc", data=b"1234", headers=headers).size == 7 + size
    assert sizes([Record(seq=1, subject="abc", headers=headers), record(2)]) == [3 + size, 10]


@pytest.mark.parametrize("name", ["clear", "popitem"])
def test_headers_of_a_record_are_immutable(name):
    headers = RecordHeaders({"a": "1"})
    with pytest.raises(TypeError, match="copy"):
        getattr(headers, name)()
    with pytest.raises(TypeError, match="copy"):
        headers["b"] = "2"
    changed = headers.copy()
    changed["b"] = "2"
    assert (headers, changed) == ({"a": "1"}, {"a": "1", "b": "2"})


def test_queue_is_full_by_records_or_bytes():
    queue = RecordQueue(2, 25)
    queue.add_record(record(1), 1)
    assert queue.has_room(record(2))
    assert not queue.has_room(record(2, 16)), "26 bytes"
    queue.add_record(record(2), 2)
    assert not queue.has_room(record(3, 0)), "three records"
    assert (len(queue), queue.pending_bytes, queue.room) == (2, 20, (1, 5))


def test_empty_queue_takes_any_size():
    queue = RecordQueue(2, 25)
    assert queue.has_room(record(1, 1000))
    queue.add_record(record(1, 1000), 1)
    assert queue.room == (1, 1)
    assert not queue.extend([record(2)])
    assert [one.seq for one in queue.take_records(5)] == [1]
    assert queue.pending_bytes == 0


def test_all_or_none_of_several_fit():
    queue = RecordQueue(3, 100)
    queue.add_record(record(1), 1)
    assert not queue.extend([record(2), record(3), record(4)])
    assert not queue.extend([record(2, 91)])
    assert len(queue) == 1
    assert queue.extend([record(2), record(3)])
    assert queue.pending_bytes == 30


def test_half_empty_by_records_and_bytes():
    queue = RecordQueue(4, 100)
    queue.extend([record(1, 20), record(2, 20)])
    assert queue.is_half_empty
    queue.add_record(record(3, 5), 3)
    assert not queue.is_half_empty
    queue.take_records(2)
    assert queue.is_half_empty
    queue.add_record(record(4, 50), 4)
    assert not queue.is_half_empty


@pytest.mark.parametrize("single", [True, False])
def test_position_follows_the_records_taken(single):
    """After a record that others precede in the queue, the position may be beyond its sequence."""
    queue = RecordQueue(10, 1000)
    for seq, after in ((1, 1), (2, 5), (7, 9)):
        queue.add_record(record(seq), after)
    positions = []
    while queue:
        taken = queue.take_one() if single else queue.take_records(1)[0]
        assert queue.kept_time_ns == taken.time_ns
        positions.append(queue.kept)
    assert positions == [1, 5, 9]
    assert queue.take_one() is None
    assert queue.take_records(3) == []
    assert queue.kept == 9


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=30))
def test_bytes_equal_those_in_the_queue(steps):
    """Whatever is added and taken, one or several at a time."""
    queue, model, seq = RecordQueue(10, 100), [], 0
    for adds, amount in steps:
        if adds:
            seq += 1
            new = record(seq, amount)
            if queue.has_room(new):
                queue.add_record(new, seq)
                model.append(new)
        else:
            limit = amount % 4
            taken = [queue.take_one()] if limit == 1 else queue.take_records(limit)
            assert [one for one in taken if one is not None] == model[:limit]
            del model[:limit]
        assert (len(queue), queue.pending_bytes) == (len(model), sum(sizes(model)))


def test_early_records_return_in_order():
    early = Aside(3, 25)
    assert all(early.add_record(record(seq)) for seq in (9, 7))
    assert not early.add_record(record(8)), "30 bytes"
    assert early.add_record(record(8, 0))
    assert not early.add_record(record(6, 0)), "four records"
    assert [one.seq for one in early.take_all()] == [7, 8, 9]
    assert early.take_all() == []
    assert early.add_record(record(1, 25)), "its bytes are free again"
