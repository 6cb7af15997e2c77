"""When readers look for records of which they only hear, in virtual time."""

from __future__ import annotations

import itertools
import math

import pytest

from jsclient.protocol.models.stream_config import StreamConfig
from jsclient.protocol.topics.hints import CreateAgain, Hints, are_all_heard, heard_subjects


def looks(hints: Hints, until: float) -> list[float]:
    """The times of all looks up to this time."""
    times = []
    while hints.deadline <= until:
        now = hints.deadline
        if hints.due(now):
            times.append(now)
    return times


def test_silence_costs_nothing():
    hints = Hints()
    hints.add_reader("r", 0.0)
    assert hints.deadline == math.inf


def test_one_search_for_one_record():
    hints = Hints()
    hints.add_reader("r", 0.0)
    hints.heard(1, 10.0)
    assert 10.0 < hints.deadline <= 10.1
    assert hints.due(hints.deadline) == ["r"]
    hints.found("r", 1)
    assert looks(hints, 1000.0) == []


def test_late_record_is_searched_for():
    """It may be stored later than it is heard of, or never."""
    hints = Hints()
    hints.add_reader("r", 0.0)
    hints.heard(1, 10.0)
    times = looks(hints, 1000.0)
    assert 4 <= len(times) <= 8
    assert max(b - a for a, b in itertools.pairwise(times)) < 0.81
    assert times[-1] > 12.0
    assert hints.deadline == math.inf


@pytest.mark.parametrize("stored", [True, False])
def test_many_messages_few_looks(stored):
    hints = Hints()
    hints.add_reader("r", 0.0)
    count = 0
    for millisecond in range(10_000):
        now = 10.0 + millisecond / 1000
        hints.heard(1, now)
        if hints.due(now):
            count += 1
            if stored:
                hints.found("r", 1000)
    assert count <= (51 if stored else 16)


def test_slow_reader_does_not_hold_up():
    hints = Hints()
    hints.add_reader("slow", 0.0)
    hints.add_reader("fast", 0.0)
    for number in range(100):
        hints.heard(1, 10.0 + number)
        readers = hints.due(hints.deadline)
        assert "fast" in readers
        hints.found("fast", 1)


def test_unannounced_records_are_searched_for():
    hints = Hints(all_heard=False)
    hints.add_reader("r", 10.0)
    assert len(looks(hints, 20.0)) >= 12
    one = Hints()
    one.add_reader("r", 10.0)
    assert looks(one, 20.0) == []
    one.missed(20.0)
    assert len(looks(one, 30.0)) >= 12
    one.remove("r")
    assert looks(one, 40.0) == []
    assert one.deadline == math.inf


@pytest.mark.parametrize(
    ("stored", "subject", "received"),
    [
        (["a.>"], "a.b", ["a.b"]),
        (["a.b", "a.c", "d"], "a.*", ["a.b", "a.c"]),
        (["a.*"], "*.b", ["a.*"]),
        (["*.b"], "a.*", ["a.*"]),
        (["a.>"], ">", ["a.>"]),
        ([">"], ">", []),
        (["*.b"], "*.*", []),
        ([], "a", []),
        ([f"a.{number}" for number in range(17)], "a.*", []),
    ],
)
def test_subjects_to_listen_on(stored, subject, received):
    assert heard_subjects(stored, subject) == received


def test_copies_are_not_received():
    assert are_all_heard(StreamConfig(name="S"))
    assert not are_all_heard(StreamConfig(name="S", allow_msg_schedules=True))
    assert not are_all_heard(StreamConfig(name="S", subject_delete_marker_ttl=1.0))


def test_attempts_become_rare():
    attempts = CreateAgain()
    assert [attempts.next() for _ in range(6)] == [2, 4, 8, 16, 30, 30]
