"""The push-pull reader when a push, or its silence, says less than it seems. Each was once a hole or a standstill."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient.errors import HistoryTruncatedError, PositionInvalidError
from jsclient.protocol.topics.links import MissingRule
from jsclient.protocol.topics.position import Extent, Position
from jsclient.protocol.topics.quiet_timer import QuietTimer
from jsclient.protocol.topics.reader import AskHistory, Cancel, Reader, Subscribe
from jsclient.protocol.topics.record import Kind, Record

START = Position("S", "1", 10, 1000)


def record(seq: int, previous: int | None, *, time_ns: int | None = None, **fields: Any) -> Record:
    return Record(seq=seq, time_ns=100 * seq if time_ns is None else time_ns, previous=previous, **fields)


def reader(**options: Any) -> tuple[Reader, AskHistory]:
    """One that has begun at 10 and has its subscription, and what it asks."""
    tracker = Reader(START, "r", QuietTimer(10.0), replays=False, **options)
    tracker.begin_reading(0.0)
    (request,) = tracker.subscribed("r-1", 0.0)
    assert isinstance(request, AskHistory)
    return tracker, request


def quiet_reader(**options: Any) -> Reader:
    """One that has read its history, too."""
    tracker, requests = reader(**options)
    assert tracker.page(requests, [], 0.0, extent=Extent("S", "1", 1, 10), up_to=10) == []
    return tracker


def seqs(tracker: Reader) -> list[int]:
    return [taken.seq for taken in tracker.take_records(100)[0]]


def test_push_newer_than_answer():
    tracker, requests = reader()
    assert tracker.offer("r-1", [record(13, None)], 1.0) == [], "there is a question under way"
    (again,) = tracker.page(requests, [], 1.0, extent=Extent("S", "1", 1, 10))
    assert isinstance(again, AskHistory), "its answer is of before: nobody waits for the timer"
    assert tracker.page(again, [record(13, None)], 1.0, extent=Extent("S", "1", 1, 13)) == []
    assert seqs(tracker) == [13]


def test_push_waits_while_missing():
    tracker = quiet_reader(missing=MissingRule())
    (request,) = tracker.offer("r-1", [record(12, 11)], 1.0)
    assert tracker.offer("r-1", [record(13, 9), record(14, 13)], 2.0) == [], "12 has expired since"
    assert seqs(tracker) == []
    tracker.page(request, [record(13, None), record(14, None)], 2.0, extent=Extent("S", "1", 13, 14))
    assert isinstance(tracker.error, HistoryTruncatedError)


def test_found_no_room_missing_too():
    tracker = quiet_reader(max_pending=2)
    tracker.offer("r-1", [record(seq, seq - 1) for seq in (11, 12, 13)], 1.0)
    assert [taken.seq for taken in tracker.take_records(1)[0]] == [11], "there is room for one"
    tracker.offer("r-1", [record(20, 9)], 2.0)
    assert seqs(tracker) == [12]


def test_reused_number_is_new_stream():
    tracker = quiet_reader()
    tracker.offer("r-1", [record(11, 10), record(12, 11)], 1.0)
    assert tracker.offer("r-1", [record(11, 10)], 1.0) == [], "it comes twice"
    cancel, requests = tracker.offer("r-1", [record(1, 0, time_ns=5000)], 2.0)
    assert cancel == Cancel("r-1")
    assert isinstance(requests, AskHistory)
    tracker.offer("r-1", [record(13, 12)], 2.0)
    assert seqs(tracker) == [11, 12], "nothing is taken in the meantime"
    page = [record(13, None)]
    assert tracker.needs_extent(page)
    tracker.page(requests, page, 2.0, extent=Extent("S", "2", 1, 13))
    assert isinstance(tracker.error, PositionInvalidError)


def test_that_suspicion_may_be_wrong():
    tracker = quiet_reader()
    tracker.offer("r-1", [record(11, 10)], 1.0)
    _, requests = tracker.offer("r-1", [record(9, 8, time_ns=5000)], 2.0)
    commands = tracker.page(requests, [record(12, None)], 2.0, extent=Extent("S", "1", 1, 12))
    assert commands == [Subscribe("r-2", 12)]
    assert seqs(tracker) == [11, 12]
    assert not tracker.needs_extent([record(13, None)])


@pytest.mark.parametrize("why", ["timer", "lost"])
def test_silence_may_hide_new_stream(why: str):
    tracker = quiet_reader()
    requests = tracker.tick(20.0)[0] if why == "timer" else tracker.feed_lost("r-1", 20.0)[1]
    assert isinstance(requests, AskHistory)
    page = [record(11, 10)]
    assert tracker.needs_extent(page), "though they follow"
    tracker.page(requests, page, 20.0, extent=Extent("S", "2", 1, 11))
    assert isinstance(tracker.error, PositionInvalidError)
    assert seqs(tracker) == []


def test_one_subject_end_is_a_record():
    tracker = quiet_reader(ends=False)
    tracker.offer("r-1", [record(11, 10, kind=Kind.FINISH)], 1.0)
    tracker.offer("r-1", [record(12, 11, kind=Kind.FAIL), record(13, 12)], 1.0)
    assert not tracker.ended
    assert seqs(tracker) == [11, 12, 13]
