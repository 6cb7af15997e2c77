"""The push-pull reader, step by step: what is taken, what is asked for, which subscription counts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jsclient.errors import HistoryTruncatedError, PositionInvalidError
from jsclient.protocol.topics.links import MissingRule, Skipped
from jsclient.protocol.topics.position import Extent, Position
from jsclient.protocol.topics.quiet_timer import QuietTimer
from jsclient.protocol.topics.reader import AskHistory, Cancel, Reader, Subscribe
from jsclient.protocol.topics.record import Kind, Record

START = Position("S", "1", 10, 1000)


def record(seq: int, previous: int | None = None, **fields: Any) -> Record:
    """Linked to the sequence before it, by default."""
    return Record(seq=seq, time_ns=100 * seq, previous=seq - 1 if previous is None else previous, **fields)


def unlinked(seq: int, **fields: Any) -> Record:
    return Record(seq=seq, **fields)


def extent(first: int, last: int, incarnation: str = "1") -> Extent:
    return Extent("S", incarnation, first, last)


def reader(**options: Any) -> Reader:
    """One that has begun at 10 and has its subscription, ``r-1``."""
    tracker = Reader(
        START, "r", QuietTimer(options.pop("quiet", 10.0), options.pop("longest", 0.0)), **options
    )
    tracker.begin_reading(0.0)
    if tracker.push:
        tracker.subscribed("r-1", 0.0)
    return tracker


def ask(since: int, limit: int = 10_000, max_bytes: int = 64 * 1024 * 1024) -> AskHistory:
    return AskHistory(since, limit, max_bytes)


def seqs(tracker: Reader, limit: int = 100) -> list[int]:
    return [taken.seq for taken in tracker.take_records(limit)[0]]


# --- pushes ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("T14", "T16", "T17")
def test_subscribes_with_where_stands_and_id():
    tracker = Reader(START, "r")
    assert tracker.begin_reading(0.0) == [Subscribe("r-1", 10)]
    assert tracker.subscribed("r-1", 0.0) == [], "what lies between comes by itself"


@pytest.mark.covers("T18", "T19")
def test_late_subscription_asks_once():
    """Not before: what is stored between the answer and the subscription would be missed."""
    tracker = Reader(START, "r", replays=False)
    assert tracker.begin_reading(0.0) == [Subscribe("r-1", 10)]
    assert tracker.offer("r-1", [record(12)], 0.0) == [ask(10)]
    assert tracker.subscribed("r-1", 0.0) == []
    assert tracker.page(ask(10), [record(11)], 0.0) == [], "another question"


@pytest.mark.covers("T4", "T18", "T19")
def test_stored_comes_first():
    tracker = Reader(START, "r", replays=False)
    tracker.begin_reading(0.0)
    [request] = tracker.subscribed("r-1", 0.0)
    tracker.offer("r-1", [record(13)], 0.0)
    tracker.page(request, [record(11), record(12)], 0.0)
    assert seqs(tracker) == [11, 12, 13]


@pytest.mark.covers("T28", "T29", "T30", "T31")
def test_push_taken_if_next():
    tracker = reader(catch_up="timer")
    assert tracker.offer("r-1", [record(11), record(11), record(14), record(12), record(9)], 0.0) == []
    assert seqs(tracker) == [11, 12]
    assert (tracker.repeated, tracker.discarded) == (2, 1)
    assert tracker.position == START.at(12)
    assert tracker.position.time_ns == 1200


@pytest.mark.covers("T25", "T27")
def test_comes_under_another_id_refused():
    tracker = reader()
    tracker.offer("r-0", [record(11)], 0.0)
    tracker.offer("x", [record(11), record(12)], 0.0)
    assert tracker.rejected == 3
    assert tracker.pending == 0
    assert tracker.subscribed("r-0", 0.0) == [Cancel("r-0")], "one that nobody wants any more"
    assert tracker.feed_lost("r-0", 0.0) == []


def test_gap_asks_history_once():
    tracker = reader()
    assert tracker.offer("r-1", [record(13)], 1.0) == [ask(10)]
    assert tracker.offer("r-1", [record(15), record(14)], 1.0) == [], "one question at a time"
    assert tracker.page(ask(10), [], 1.0) == [], "it looks like ours, and is not"
    requests = tracker._in_flight
    assert tracker.page(requests, [record(11), record(12)], 2.0) == []
    assert seqs(tracker) == [11, 12, 13, 14, 15]
    assert tracker.id == "r-1", "it pushes, so it has not failed"


def test_still_missing_asks_again():
    tracker = reader()
    [request] = tracker.offer("r-1", [record(15)], 1.0)
    again = tracker.page(request, [record(11)], 2.0)
    assert again == [ask(11, 9_999)]
    tracker.page(again[0], [record(number) for number in range(12, 16)], 12.0)
    assert seqs(tracker) == [11, 12, 13, 14, 15]


def test_lagging_replica_not_hammered():
    tracker = reader()
    [request] = tracker.offer("r-1", [record(15)], 1.0)
    assert tracker.page(request, [record(9), record(10)], 2.0) == [], "nothing new: the timer asks again"
    assert tracker.deadline == 12.0
    assert tracker.tick(12.0) == [ask(10)]


# --- the timer ------------------------------------------------------------------------------------------------


@pytest.mark.covers("T32")
def test_timer_counts_from_last_record_added():
    tracker = reader()
    assert tracker.deadline == 10.0
    tracker.offer("r-1", [record(11)], 4.0)
    assert tracker.deadline == 14.0
    tracker.offer("r-1", [record(11)], 5.0)
    tracker.offer("x", [record(12)], 5.0)
    assert tracker.deadline == 14.0, "what was had before is no sign of life"
    assert tracker.tick(13.9) == []


@pytest.mark.covers("T33", "T34")
def test_timer_finds_nothing():
    tracker = reader()
    tracker.offer("r-1", [record(11)], 0.0)
    [request] = tracker.tick(10.0)
    assert request == ask(11, 9_999)
    assert tracker.deadline == math.inf, "an answer is awaited"
    assert tracker.page(request, [], 10.5, extent=extent(1, 11)) == []
    assert tracker.deadline == 20.5
    assert tracker.id == "r-1"


@pytest.mark.covers("T2", "T24", "T25", "T26", "T27", "T35", "T36", "T37")
def test_missed_record_means_push_failed():
    tracker = reader(catch_up="timer")
    tracker.offer("r-1", [record(11)], 0.0)
    tracker.offer("r-1", [record(13)], 0.0)
    [request] = tracker.tick(10.0)
    assert tracker.page(request, [record(12), record(13)], 10.0) == [Cancel("r-1"), Subscribe("r-2", 13)]
    assert seqs(tracker) == [11, 12, 13]
    tracker.offer("r-1", [record(14)], 11.0)
    assert (tracker.pending, tracker.rejected) == (0, 1)
    tracker.offer("r-2", [record(14)], 11.0)
    assert seqs(tracker) == [14]


def test_resubscribes_after_pages():
    tracker = reader()
    [request] = tracker.tick(10.0)
    [request] = tracker.page(request, [record(11)], 10.0, more=True)
    assert request == ask(11, 9_999)
    assert tracker.page(request, [record(12)], 10.0) == [Cancel("r-1"), Subscribe("r-2", 12)]


@pytest.mark.covers("T32")
def test_adaptive_timer():
    tracker = reader(quiet=1.0, longest=5.0)
    now, periods = 0.0, []
    for _ in range(4):
        now = tracker.deadline
        tracker.page(tracker.tick(now)[0], [], now)
        periods.append(tracker.quiet.period)
    assert periods == [2.0, 4.0, 5.0, 5.0]
    now = tracker.deadline
    tracker.page(tracker.tick(now)[0], [record(11)], now)
    assert tracker.quiet.period == 2.5


# --- away and back --------------------------------------------------------------------------------------------


@pytest.mark.covers("T1", "T2", "T22", "T23", "T24", "T25", "T26")
def test_reconnect_reads_missed():
    tracker = reader()
    tracker.offer("r-1", [record(11)], 0.0)
    assert tracker.feed_lost("r-1", 50.0) == [Cancel("r-1"), ask(11, 9_999)]
    requests = tracker._in_flight
    tracker.offer("r-1", [record(12)], 50.0)
    assert tracker.rejected == 1
    assert tracker.page(requests, [record(12), record(13)], 51.0) == [Subscribe("r-2", 13)]
    assert seqs(tracker) == [11, 12, 13]


def test_failed_subscribe_retried():
    tracker = Reader(START, "r", QuietTimer(10.0))
    tracker.begin_reading(0.0)
    assert tracker.feed_lost("r-1", 1.0) == [Cancel("r-1")]
    assert tracker.deadline == 11.0
    [request] = tracker.tick(11.0)
    assert tracker.page(request, [], 11.0) == [Subscribe("r-2", 10)]


@pytest.mark.covers("T40")
def test_position_of_taken():
    tracker = reader()
    tracker.offer("r-1", [record(11), record(12), record(13)], 0.0)
    assert tracker.position.seq == 10
    tracker.take_records(2)
    again = Reader(Position.from_json(tracker.position.to_json()), "q")
    assert again.begin_reading(0.0) == [Subscribe("q-1", 12)]


# --- push and poll --------------------------------------------------------------------------------------------


@pytest.mark.covers("T39", "T42")
def test_poll_asks_by_timer():
    tracker = Reader(START, "r", QuietTimer(10.0), push=False)
    [request] = tracker.begin_reading(0.0)
    assert tracker.page(request, [record(11)], 1.0) == []
    [request] = tracker.tick(11.0)
    assert tracker.page(request, [record(12)], 11.0) == []
    assert seqs(tracker) == [11, 12]
    assert tracker.id is None


@pytest.mark.covers("T41")
def test_push_and_poll_switch():
    tracker = reader()
    tracker.offer("r-1", [record(11)], 0.0)
    assert tracker.set_push(1.0, push=True) == []
    assert tracker.set_push(1.0, push=False) == [Cancel("r-1")]
    tracker.offer("r-1", [record(12)], 1.0)
    [request] = tracker.tick(11.0)
    assert tracker.page(request, [record(12), record(13)], 11.0) == []
    assert tracker.set_push(12.0, push=True) == [Subscribe("r-2", 13)]
    tracker.offer("r-2", [record(14)], 12.0)
    assert seqs(tracker) == [11, 12, 13, 14]


# --- a slow reader --------------------------------------------------------------------------------------------


def test_full_queue_refills_at_half():
    tracker = reader(max_pending=4)
    assert tracker.offer("r-1", [record(number) for number in range(11, 21)], 0.0) == []
    assert (tracker.pending, tracker.discarded) == (4, 6)
    assert tracker.deadline == math.inf, "it is we who are late"
    assert tracker.take_records(1)[1] == []
    taken, commands = tracker.take_records(1)
    assert (taken[0].seq, commands) == (12, [ask(14, 2)])
    assert tracker.page(commands[0], [record(15), record(16)], 1.0, more=True) == []
    taken, commands = tracker.take_records(4)
    assert [it.seq for it in taken] == [13, 14, 15, 16]
    assert commands == [ask(16, 4)]
    assert tracker.id == "r-1"


def test_bytes_bounded_but_one_passes():
    tracker = reader(max_pending_bytes=100)
    tracker.offer("r-1", [record(11, data=b"x" * 90), record(12, data=b"x" * 20)], 0.0)
    assert tracker.pending == 1
    _, [requests] = tracker.take_records(1)
    assert requests == ask(11, max_bytes=100)
    big = record(13, data=b"x" * 1000)
    assert tracker.page(requests, [record(12), big], 0.0) == [], (
        "no room: not again before something is taken"
    )
    taken, [requests] = tracker.take_records(1)
    assert taken[0].seq == 12
    tracker.page(requests, [big], 0.0)
    assert seqs(tracker) == [13]


def test_large_answer_loses_nothing():
    tracker = reader(max_pending=4)
    [request] = tracker.offer("r-1", [record(20)], 0.0)
    tracker.page(request, [record(number) for number in range(11, 21)], 0.0)
    assert tracker.pending == 4
    taken, commands = tracker.take_records(4)
    assert commands == [ask(14, 4)]
    assert taken[-1].seq == 14


# --- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.FINISH, Kind.FAIL])
def test_ends_with_last_record_of_topic(kind):
    tracker = reader()
    assert tracker.offer("r-1", [record(11), record(12, kind=kind), record(13)], 0.0) == [Cancel("r-1")]
    assert tracker.ended
    assert tracker.deadline == math.inf
    assert seqs(tracker) == [11, 12]
    tracker = reader()
    [request] = tracker.tick(10.0)
    assert tracker.page(request, [record(11, kind=kind)], 10.0) == [Cancel("r-1")]
    assert tracker.ended


def test_early_last_record_ends():
    tracker = reader()
    [request] = tracker.offer("r-1", [record(12, kind=Kind.FINISH)], 0.0)
    assert not tracker.ended
    assert tracker.page(request, [record(11)], 0.0) == [Cancel("r-1")]
    assert seqs(tracker) == [11, 12]


def test_closed_does_nothing_any_more():
    tracker = reader()
    [request] = tracker.offer("r-1", [record(12)], 0.0)
    assert tracker.close() == [Cancel("r-1")]
    assert tracker.page(request, [record(11)], 0.0) == []
    assert tracker.offer("r-1", [record(11)], 0.0) == []
    assert tracker.set_push(0.0, push=False) == []
    assert tracker.pending == 0


# --- a history that is gone -----------------------------------------------------------------------------------


@pytest.mark.covers("T2", "T10")
def test_removed_records_raise_in_order():
    tracker = reader()
    tracker.offer("r-1", [record(11)], 0.0)
    [request] = tracker.offer("r-1", [record(20)], 0.0)
    assert tracker.needs_extent([record(15)])
    assert tracker.page(request, [record(15), record(16)], 0.0, extent=extent(15, 20)) == [Cancel("r-1")]
    assert isinstance(tracker.error, HistoryTruncatedError)
    assert (tracker.error.first_available, tracker.error.wanted) == (15, 12)
    assert seqs(tracker) == [11]


def test_unlinked_head_gap_is_loss():
    tracker = reader()
    [request] = tracker.tick(10.0)
    tracker.page(request, [unlinked(15)], 10.0, extent=extent(13, 20))
    assert isinstance(tracker.error, HistoryTruncatedError)


def test_unlinked_later_gap_is_not():
    tracker = reader()
    [request] = tracker.tick(10.0)
    tracker.page(request, [unlinked(15), unlinked(19)], 10.0, extent=extent(11, 20))
    assert tracker.error is None
    assert seqs(tracker) == [15, 19]


def test_unknown_head_gap_is_loss():
    tracker = reader()
    [request] = tracker.tick(10.0)
    tracker.page(request, [unlinked(15)], 10.0)
    assert isinstance(tracker.error, HistoryTruncatedError)


def test_read_over_if_allowed_and_reported():
    tracker = reader(missing=MissingRule(allow_truncated=True))
    [request] = tracker.tick(10.0)
    commands = tracker.page(request, [record(15)], 10.0, extent=extent(15, 20))
    assert commands[0] == Skipped(10, 15)
    assert seqs(tracker) == [15]


def test_deleted_predecessor_event():
    """A record that the stream lost at its head is not a delete."""
    rule = MissingRule(holes_are_deletions=True)
    tracker = reader(missing=rule)
    [request] = tracker.offer("r-1", [record(15, 13)], 0.0)
    assert tracker.page(request, [record(15, 13)], 0.0, extent=extent(1, 15)) == [Skipped(10, 15)]
    assert seqs(tracker) == [15]
    tracker = reader(missing=rule)
    [request] = tracker.offer("r-1", [record(15, 13)], 0.0)
    tracker.page(request, [record(15, 13)], 0.0, extent=extent(14, 15))
    assert isinstance(tracker.error, HistoryTruncatedError)


def test_limits_make_missing_a_loss():
    tracker = reader()
    [request] = tracker.offer("r-1", [record(15, 13)], 0.0)
    tracker.page(request, [record(15, 13)], 0.0, extent=extent(1, 15))
    assert isinstance(tracker.error, HistoryTruncatedError)


@pytest.mark.parametrize("now_there", [extent(1, 30, "2"), extent(1, 5), extent(0, 0)])
def test_replaced_stream_noticed(now_there):
    tracker = reader()
    [request] = tracker.tick(10.0)
    assert tracker.needs_extent([]), "when nothing comes, that may be why"
    assert tracker.page(request, [], 10.0, extent=now_there) == [Cancel("r-1")]
    assert isinstance(tracker.error, PositionInvalidError)


def test_old_leader_fails_after_10_s():
    tracker, now = Reader(START, "r", QuietTimer(10.0), push=False), 10.0
    [request] = tracker.begin_reading(now)
    while True:
        assert tracker.page(request, [], now, extent=Extent("S", "1", 1, 5, replicas=3)) == []
        if tracker.error is not None:
            break
        assert tracker.deadline - now <= 1.0, "it asks again soon"
        now = tracker.deadline
        [request] = tracker.tick(now)
    assert isinstance(tracker.error, PositionInvalidError)
    assert 20.0 <= now <= 21.0


def test_new_leader_forgives_old():
    created, now, old = (
        Reader(START, "r", QuietTimer(10.0), push=False),
        10.0,
        Extent("S", "1", 1, 5, replicas=3),
    )
    [request] = created.begin_reading(now)
    for extent in [old] * 8 + [Extent("S", "1", 1, 10, replicas=3)] + [old] * 8:
        created.page(request, [], now, extent=extent)
        now = created.deadline
        [request] = created.tick(now)
    created.interrupted()
    for _ in range(8):
        created.page(request, [], now, extent=old)
        now = created.deadline
        [request] = created.tick(now)
    created.page(request, [record(11, 10)], now, extent=Extent("S", "1", 1, 11, replicas=3))
    assert created.error is None
    assert seqs(created) == [11]


def test_rootless_record_no_proof():
    """All records had gone when it was stored. 11 to 19 existed, perhaps, and the reader has not seen them."""
    tracker = reader()
    [request] = tracker.offer("r-1", [record(20, 0)], 0.0)
    assert request == ask(10)
    assert tracker.needs_extent([record(20, 0)])
    tracker.page(request, [record(20, 0)], 0.0, extent=extent(20, 20))
    assert isinstance(tracker.error, HistoryTruncatedError)

    tracker = reader()
    [request] = tracker.offer("r-1", [record(20, 0)], 0.0)
    tracker.page(request, [record(20, 0)], 0.0, extent=extent(5, 20))
    assert (tracker.error, seqs(tracker)) == (None, [20]), "the head says that nothing went"

    tracker = Reader(Position("S", "1", 0), "r")
    tracker.begin_reading(0.0)
    assert tracker.offer("r-1", [record(3, 0)], 0.0) == []
    assert seqs(tracker) == [3], "from the very beginning it is the first"


def test_pushes_ahead_of_info():
    """It said so before they were stored. They were taken in before the answer was looked at."""
    tracker = reader()
    [request] = tracker.tick(10.0)
    tracker.offer("r-1", [record(11), record(12)], 10.0)
    assert tracker.page(request, [], 10.0, extent=extent(1, 10)) == []
    assert tracker.error is None
    assert seqs(tracker) == [11, 12]


def test_empty_read_moves_position():
    """So a quiet subject in a busy stream does not look truncated later."""
    tracker = reader()
    [request] = tracker.tick(10.0)
    tracker.page(request, [], 10.0, extent=extent(1, 50), up_to=40)
    assert tracker.position.seq == 40
    [request] = tracker.tick(20.0)
    assert request == ask(40)
    tracker.page(request, [], 20.0, extent=extent(60, 70), up_to=70)
    assert isinstance(tracker.error, HistoryTruncatedError)


# --- links by subject -----------------------------------------------------------------------------------------


def test_subject_links_move_position():
    tracker = reader(missing=MissingRule(by_subject=True))
    tracker.offer("r-1", [record(13, 0, subject="a"), record(15, 0, subject="b")], 3.0)
    assert seqs(tracker) == [13, 15]
    assert tracker.position.seq == 10, "something of c may be missing"
    assert tracker.deadline == 10.0, "the timer counts from what is sure"
    [request] = tracker.tick(10.0)
    records = [record(13, 0, subject="a"), record(14, 0, subject="c"), record(15, 0, subject="b")]
    assert tracker.page(request, records, 10.0, extent=extent(1, 15)) == [Cancel("r-1"), Subscribe("r-2", 15)]
    assert seqs(tracker) == [14]
    assert tracker.position.seq == 15


def test_subject_end_is_not_the_end():
    tracker = reader(missing=MissingRule(by_subject=True))
    tracker.offer("r-1", [record(13, 0, subject="a", kind=Kind.FINISH), record(15, 0, subject="b")], 3.0)
    assert seqs(tracker) == [13, 15]
