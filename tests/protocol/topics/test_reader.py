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
    """Linked to the sequence before it, if nothing else is said."""
    return Record(seq=seq, time_ns=100 * seq, previous=seq - 1 if previous is None else previous, **fields)


def unlinked(seq: int, **fields: Any) -> Record:
    return Record(seq=seq, **fields)


def extent(first: int, last: int, incarnation: str = "1") -> Extent:
    return Extent("S", incarnation, first, last)


def reader(**options: Any) -> Reader:
    """One that has begun at 10 and has its subscription, ``r-1``."""
    made = Reader(START, "r", QuietTimer(options.pop("quiet", 10.0), options.pop("longest", 0.0)), **options)
    made.begin(0.0)
    if made.push:
        made.subscribed("r-1", 0.0)
    return made


def ask(since: int, limit: int = 10_000, max_bytes: int = 64 * 1024 * 1024) -> AskHistory:
    return AskHistory(since, limit, max_bytes)


def seqs(made: Reader, limit: int = 100) -> list[int]:
    return [taken.seq for taken in made.take(limit)[0]]


# --- pushes ---------------------------------------------------------------------------------------------------


@pytest.mark.covers("T14", "T16", "T17")
def test_subscribes_with_where_stands_and_id():
    made = Reader(START, "r")
    assert made.begin(0.0) == [Subscribe("r-1", 10)]
    assert made.subscribed("r-1", 0.0) == [], "what lies between comes by itself"


@pytest.mark.covers("T18", "T19")
def test_late_subscription_asks_once():
    """Not before: what is stored between the answer and the subscription would be missed."""
    made = Reader(START, "r", replays=False)
    assert made.begin(0.0) == [Subscribe("r-1", 10)]
    assert made.offer("r-1", [record(12)], 0.0) == [ask(10)]
    assert made.subscribed("r-1", 0.0) == []
    assert made.page(ask(10), [record(11)], 0.0) == [], "another question"


@pytest.mark.covers("T4", "T18", "T19")
def test_stored_comes_first():
    made = Reader(START, "r", replays=False)
    made.begin(0.0)
    [asked] = made.subscribed("r-1", 0.0)
    made.offer("r-1", [record(13)], 0.0)
    made.page(asked, [record(11), record(12)], 0.0)
    assert seqs(made) == [11, 12, 13]


@pytest.mark.covers("T28", "T29", "T30", "T31")
def test_push_taken_if_next():
    made = reader(catch_up="timer")
    assert made.offer("r-1", [record(11), record(11), record(14), record(12), record(9)], 0.0) == []
    assert seqs(made) == [11, 12]
    assert (made.repeated, made.discarded) == (2, 1)
    assert made.position == START.at(12)
    assert made.position.time_ns == 1200


@pytest.mark.covers("T25", "T27")
def test_comes_under_another_id_refused():
    made = reader()
    made.offer("r-0", [record(11)], 0.0)
    made.offer("x", [record(11), record(12)], 0.0)
    assert made.rejected == 3
    assert made.pending == 0
    assert made.subscribed("r-0", 0.0) == [Cancel("r-0")], "one that nobody wants any more"
    assert made.lost("r-0", 0.0) == []


def test_gap_asks_history_once():
    made = reader()
    assert made.offer("r-1", [record(13)], 1.0) == [ask(10)]
    assert made.offer("r-1", [record(15), record(14)], 1.0) == [], "one question at a time"
    assert made.page(ask(10), [], 1.0) == [], "it looks like ours, and is not"
    asked = made._in_flight
    assert made.page(asked, [record(11), record(12)], 2.0) == []
    assert seqs(made) == [11, 12, 13, 14, 15]
    assert made.id == "r-1", "it pushes, so it has not failed"


def test_still_missing_asks_again():
    made = reader()
    [asked] = made.offer("r-1", [record(15)], 1.0)
    again = made.page(asked, [record(11)], 2.0)
    assert again == [ask(11, 9_999)]
    made.page(again[0], [record(number) for number in range(12, 16)], 12.0)
    assert seqs(made) == [11, 12, 13, 14, 15]


def test_lagging_replica_not_hammered():
    made = reader()
    [asked] = made.offer("r-1", [record(15)], 1.0)
    assert made.page(asked, [record(9), record(10)], 2.0) == [], "nothing new: the timer asks again"
    assert made.deadline == 12.0
    assert made.tick(12.0) == [ask(10)]


# --- the timer ------------------------------------------------------------------------------------------------


@pytest.mark.covers("T32")
def test_timer_counts_from_last_record_added():
    made = reader()
    assert made.deadline == 10.0
    made.offer("r-1", [record(11)], 4.0)
    assert made.deadline == 14.0
    made.offer("r-1", [record(11)], 5.0)
    made.offer("x", [record(12)], 5.0)
    assert made.deadline == 14.0, "what was had before is no sign of life"
    assert made.tick(13.9) == []


@pytest.mark.covers("T33", "T34")
def test_timer_finds_nothing():
    made = reader()
    made.offer("r-1", [record(11)], 0.0)
    [asked] = made.tick(10.0)
    assert asked == ask(11, 9_999)
    assert made.deadline == math.inf, "an answer is awaited"
    assert made.page(asked, [], 10.5, extent=extent(1, 11)) == []
    assert made.deadline == 20.5
    assert made.id == "r-1"


@pytest.mark.covers("T2", "T24", "T25", "T26", "T27", "T35", "T36", "T37")
def test_found_means_push_failed():
    made = reader(catch_up="timer")
    made.offer("r-1", [record(11)], 0.0)
    made.offer("r-1", [record(13)], 0.0)
    [asked] = made.tick(10.0)
    assert made.page(asked, [record(12), record(13)], 10.0) == [Cancel("r-1"), Subscribe("r-2", 13)]
    assert seqs(made) == [11, 12, 13]
    made.offer("r-1", [record(14)], 11.0)
    assert (made.pending, made.rejected) == (0, 1)
    made.offer("r-2", [record(14)], 11.0)
    assert seqs(made) == [14]


def test_resubscribes_after_pages():
    made = reader()
    [asked] = made.tick(10.0)
    [asked] = made.page(asked, [record(11)], 10.0, more=True)
    assert asked == ask(11, 9_999)
    assert made.page(asked, [record(12)], 10.0) == [Cancel("r-1"), Subscribe("r-2", 12)]


@pytest.mark.covers("T32")
def test_adaptive_timer():
    made = reader(quiet=1.0, longest=5.0)
    now, periods = 0.0, []
    for _ in range(4):
        now = made.deadline
        made.page(made.tick(now)[0], [], now)
        periods.append(made.quiet.period)
    assert periods == [2.0, 4.0, 5.0, 5.0]
    now = made.deadline
    made.page(made.tick(now)[0], [record(11)], now)
    assert made.quiet.period == 2.5


# --- away and back --------------------------------------------------------------------------------------------


@pytest.mark.covers("T1", "T2", "T22", "T23", "T24", "T25", "T26")
def test_reconnect_reads_missed():
    made = reader()
    made.offer("r-1", [record(11)], 0.0)
    assert made.lost("r-1", 50.0) == [Cancel("r-1"), ask(11, 9_999)]
    asked = made._in_flight
    made.offer("r-1", [record(12)], 50.0)
    assert made.rejected == 1
    assert made.page(asked, [record(12), record(13)], 51.0) == [Subscribe("r-2", 13)]
    assert seqs(made) == [11, 12, 13]


def test_failed_subscribe_retried():
    made = Reader(START, "r", QuietTimer(10.0))
    made.begin(0.0)
    assert made.lost("r-1", 1.0) == [Cancel("r-1")]
    assert made.deadline == 11.0
    [asked] = made.tick(11.0)
    assert made.page(asked, [], 11.0) == [Subscribe("r-2", 10)]


@pytest.mark.covers("T40")
def test_position_of_taken():
    made = reader()
    made.offer("r-1", [record(11), record(12), record(13)], 0.0)
    assert made.position.seq == 10
    made.take(2)
    again = Reader(Position.from_json(made.position.to_json()), "q")
    assert again.begin(0.0) == [Subscribe("q-1", 12)]


# --- push and poll --------------------------------------------------------------------------------------------


@pytest.mark.covers("T39", "T42")
def test_poll_asks_by_timer():
    made = Reader(START, "r", QuietTimer(10.0), push=False)
    [asked] = made.begin(0.0)
    assert made.page(asked, [record(11)], 1.0) == []
    [asked] = made.tick(11.0)
    assert made.page(asked, [record(12)], 11.0) == []
    assert seqs(made) == [11, 12]
    assert made.id is None


@pytest.mark.covers("T41")
def test_push_and_poll_switch():
    made = reader()
    made.offer("r-1", [record(11)], 0.0)
    assert made.set_push(1.0, push=True) == []
    assert made.set_push(1.0, push=False) == [Cancel("r-1")]
    made.offer("r-1", [record(12)], 1.0)
    [asked] = made.tick(11.0)
    assert made.page(asked, [record(12), record(13)], 11.0) == []
    assert made.set_push(12.0, push=True) == [Subscribe("r-2", 13)]
    made.offer("r-2", [record(14)], 12.0)
    assert seqs(made) == [11, 12, 13, 14]


# --- a slow reader --------------------------------------------------------------------------------------------


def test_full_queue_refills_at_half():
    made = reader(max_pending=4)
    assert made.offer("r-1", [record(number) for number in range(11, 21)], 0.0) == []
    assert (made.pending, made.discarded) == (4, 6)
    assert made.deadline == math.inf, "it is we who are late"
    assert made.take(1)[1] == []
    taken, commands = made.take(1)
    assert (taken[0].seq, commands) == (12, [ask(14, 2)])
    assert made.page(commands[0], [record(15), record(16)], 1.0, more=True) == []
    taken, commands = made.take(4)
    assert [it.seq for it in taken] == [13, 14, 15, 16]
    assert commands == [ask(16, 4)]
    assert made.id == "r-1"


def test_bytes_bounded_but_one_passes():
    made = reader(max_pending_bytes=100)
    made.offer("r-1", [record(11, data=b"x" * 90), record(12, data=b"x" * 20)], 0.0)
    assert made.pending == 1
    _, [asked] = made.take(1)
    assert asked == ask(11, max_bytes=100)
    big = record(13, data=b"x" * 1000)
    assert made.page(asked, [record(12), big], 0.0) == [], "no room: not again before something is taken"
    taken, [asked] = made.take(1)
    assert taken[0].seq == 12
    made.page(asked, [big], 0.0)
    assert seqs(made) == [13]


def test_large_answer_loses_nothing():
    made = reader(max_pending=4)
    [asked] = made.offer("r-1", [record(20)], 0.0)
    made.page(asked, [record(number) for number in range(11, 21)], 0.0)
    assert made.pending == 4
    taken, commands = made.take(4)
    assert commands == [ask(14, 4)]
    assert taken[-1].seq == 14


# --- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.FINISH, Kind.FAIL])
def test_ends_with_last_record_of_topic(kind):
    made = reader()
    assert made.offer("r-1", [record(11), record(12, kind=kind), record(13)], 0.0) == [Cancel("r-1")]
    assert made.ended
    assert made.deadline == math.inf
    assert seqs(made) == [11, 12]
    made = reader()
    [asked] = made.tick(10.0)
    assert made.page(asked, [record(11, kind=kind)], 10.0) == [Cancel("r-1")]
    assert made.ended


def test_early_last_record_ends():
    made = reader()
    [asked] = made.offer("r-1", [record(12, kind=Kind.FINISH)], 0.0)
    assert not made.ended
    assert made.page(asked, [record(11)], 0.0) == [Cancel("r-1")]
    assert seqs(made) == [11, 12]


def test_closed_does_nothing_any_more():
    made = reader()
    [asked] = made.offer("r-1", [record(12)], 0.0)
    assert made.close() == [Cancel("r-1")]
    assert made.page(asked, [record(11)], 0.0) == []
    assert made.offer("r-1", [record(11)], 0.0) == []
    assert made.set_push(0.0, push=False) == []
    assert made.pending == 0


# --- a history that is gone -----------------------------------------------------------------------------------


@pytest.mark.covers("T2", "T10")
def test_removed_is_error_in_place():
    made = reader()
    made.offer("r-1", [record(11)], 0.0)
    [asked] = made.offer("r-1", [record(20)], 0.0)
    assert made.needs_extent([record(15)])
    assert made.page(asked, [record(15), record(16)], 0.0, extent=extent(15, 20)) == [Cancel("r-1")]
    assert isinstance(made.error, HistoryTruncatedError)
    assert (made.error.first_available, made.error.wanted) == (15, 12)
    assert seqs(made) == [11]


def test_unlinked_head_gap_is_loss():
    made = reader()
    [asked] = made.tick(10.0)
    made.page(asked, [unlinked(15)], 10.0, extent=extent(13, 20))
    assert isinstance(made.error, HistoryTruncatedError)


def test_unlinked_later_gap_is_not():
    made = reader()
    [asked] = made.tick(10.0)
    made.page(asked, [unlinked(15), unlinked(19)], 10.0, extent=extent(11, 20))
    assert made.error is None
    assert seqs(made) == [15, 19]


def test_unknown_head_gap_is_loss():
    made = reader()
    [asked] = made.tick(10.0)
    made.page(asked, [unlinked(15)], 10.0)
    assert isinstance(made.error, HistoryTruncatedError)


def test_read_over_if_allowed_and_told():
    made = reader(missing=MissingRule(allow_truncated=True))
    [asked] = made.tick(10.0)
    commands = made.page(asked, [record(15)], 10.0, extent=extent(15, 20))
    assert commands[0] == Skipped(10, 15)
    assert seqs(made) == [15]


def test_deleted_predecessor_event():
    """What the stream lost at its head is no delete."""
    rule = MissingRule(holes_are_deletions=True)
    made = reader(missing=rule)
    [asked] = made.offer("r-1", [record(15, 13)], 0.0)
    assert made.page(asked, [record(15, 13)], 0.0, extent=extent(1, 15)) == [Skipped(10, 15)]
    assert seqs(made) == [15]
    made = reader(missing=rule)
    [asked] = made.offer("r-1", [record(15, 13)], 0.0)
    made.page(asked, [record(15, 13)], 0.0, extent=extent(14, 15))
    assert isinstance(made.error, HistoryTruncatedError)


def test_limits_make_missing_a_loss():
    made = reader()
    [asked] = made.offer("r-1", [record(15, 13)], 0.0)
    made.page(asked, [record(15, 13)], 0.0, extent=extent(1, 15))
    assert isinstance(made.error, HistoryTruncatedError)


@pytest.mark.parametrize("now_there", [extent(1, 30, "2"), extent(1, 5), extent(0, 0)])
def test_replaced_stream_noticed(now_there):
    made = reader()
    [asked] = made.tick(10.0)
    assert made.needs_extent([]), "when nothing comes, that may be why"
    assert made.page(asked, [], 10.0, extent=now_there) == [Cancel("r-1")]
    assert isinstance(made.error, PositionInvalidError)


def test_old_leader_fails_after_10_s():
    made, now = Reader(START, "r", QuietTimer(10.0), push=False), 10.0
    [asked] = made.begin(now)
    while True:
        assert made.page(asked, [], now, extent=Extent("S", "1", 1, 5, replicas=3)) == []
        if made.error is not None:
            break
        assert made.deadline - now <= 1.0, "it asks again soon"
        now = made.deadline
        [asked] = made.tick(now)
    assert isinstance(made.error, PositionInvalidError)
    assert 20.0 <= now <= 21.0


def test_new_leader_forgives_old():
    made, now, old = (
        Reader(START, "r", QuietTimer(10.0), push=False),
        10.0,
        Extent("S", "1", 1, 5, replicas=3),
    )
    [asked] = made.begin(now)
    for extent in [old] * 8 + [Extent("S", "1", 1, 10, replicas=3)] + [old] * 8:
        made.page(asked, [], now, extent=extent)
        now = made.deadline
        [asked] = made.tick(now)
    made.interrupted()
    for _ in range(8):
        made.page(asked, [], now, extent=old)
        now = made.deadline
        [asked] = made.tick(now)
    made.page(asked, [record(11, 10)], now, extent=Extent("S", "1", 1, 11, replicas=3))
    assert made.error is None
    assert seqs(made) == [11]


def test_rootless_record_no_proof():
    """All that was there had gone when it was stored: 11 to 19 were, perhaps, and nobody has seen them."""
    made = reader()
    [asked] = made.offer("r-1", [record(20, 0)], 0.0)
    assert asked == ask(10)
    assert made.needs_extent([record(20, 0)])
    made.page(asked, [record(20, 0)], 0.0, extent=extent(20, 20))
    assert isinstance(made.error, HistoryTruncatedError)

    made = reader()
    [asked] = made.offer("r-1", [record(20, 0)], 0.0)
    made.page(asked, [record(20, 0)], 0.0, extent=extent(5, 20))
    assert (made.error, seqs(made)) == (None, [20]), "the head says that nothing went"

    made = Reader(Position("S", "1", 0), "r")
    made.begin(0.0)
    assert made.offer("r-1", [record(3, 0)], 0.0) == []
    assert seqs(made) == [3], "from the very beginning it is the first"


def test_pushes_ahead_of_info():
    """It said so before they were stored; they were taken in before the answer was looked at."""
    made = reader()
    [asked] = made.tick(10.0)
    made.offer("r-1", [record(11), record(12)], 10.0)
    assert made.page(asked, [], 10.0, extent=extent(1, 10)) == []
    assert made.error is None
    assert seqs(made) == [11, 12]


def test_empty_read_moves_position():
    """So a quiet subject in a busy stream does not look truncated later."""
    made = reader()
    [asked] = made.tick(10.0)
    made.page(asked, [], 10.0, extent=extent(1, 50), up_to=40)
    assert made.position.seq == 40
    [asked] = made.tick(20.0)
    assert asked == ask(40)
    made.page(asked, [], 20.0, extent=extent(60, 70), up_to=70)
    assert isinstance(made.error, HistoryTruncatedError)


# --- links by subject -----------------------------------------------------------------------------------------


def test_subject_links_move_position():
    made = reader(missing=MissingRule(by_subject=True))
    made.offer("r-1", [record(13, 0, subject="a"), record(15, 0, subject="b")], 3.0)
    assert seqs(made) == [13, 15]
    assert made.position.seq == 10, "something of c may be missing"
    assert made.deadline == 10.0, "the timer counts from what is sure"
    [asked] = made.tick(10.0)
    records = [record(13, 0, subject="a"), record(14, 0, subject="c"), record(15, 0, subject="b")]
    assert made.page(asked, records, 10.0, extent=extent(1, 15)) == [Cancel("r-1"), Subscribe("r-2", 15)]
    assert seqs(made) == [14]
    assert made.position.seq == 15


def test_subject_end_is_not_the_end():
    made = reader(missing=MissingRule(by_subject=True))
    made.offer("r-1", [record(13, 0, subject="a", kind=Kind.FINISH), record(15, 0, subject="b")], 3.0)
    assert seqs(made) == [13, 15]
