"""Links between records: the next record is taken, an earlier record is known, and a gap is never overlooked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.topics.links import Link, LinkTracker


@pytest.mark.covers("T7", "T30", "T31")
def test_only_direct_follower_taken():
    tracker = LinkTracker(10)
    assert tracker.offer(12, 10) is Link.ACCEPT
    assert tracker.offer(12, 10) is Link.DUPLICATE
    assert tracker.offer(15, 14) is Link.GAP
    assert tracker.floor == 12, "and what shows a gap is not taken"
    assert tracker.offer(14, 12) is Link.ACCEPT
    assert tracker.offer(15, 14) is Link.ACCEPT
    assert tracker.offer(9, 8) is Link.DUPLICATE


def test_first_record_begins():
    assert LinkTracker(0).offer(3, 0) is Link.ACCEPT
    assert LinkTracker(7).offer(9, 4) is Link.ACCEPT, "its predecessor lies before where we begin"


def test_unlinked_needs_next():
    tracker = LinkTracker(4)
    assert tracker.offer(6, None) is Link.GAP
    assert tracker.offer(5, None) is Link.ACCEPT


def test_deleted_predecessor_no_gap():
    """The server then names the sequence before."""
    tracker = LinkTracker(0)
    tracker.offer(3, 0)
    tracker.offer(5, 3)
    assert tracker.offer(8, 3) is Link.ACCEPT


def test_history_raises_floor():
    tracker = LinkTracker(4)
    tracker.caught_up(9)
    tracker.caught_up(6)
    assert tracker.floor == 9
    assert tracker.had(9)
    assert not tracker.had(10)
    assert tracker.offer(12, 7) is Link.ACCEPT


def test_links_per_subject():
    tracker = LinkTracker(0, by_subject=True)
    assert tracker.offer(1, 0, "a") is Link.ACCEPT
    assert tracker.offer(4, 1, "a") is Link.ACCEPT, "2 and 3 may be of others"
    assert tracker.offer(7, 5, "b") is Link.GAP
    assert tracker.offer(4, 1, "a") is Link.DUPLICATE
    assert tracker.offer(3, 0, "b") is Link.ACCEPT
    assert tracker.had(3, "b")
    assert not tracker.had(3, "c")


def test_subject_links_keep_floor():
    """b's only record (2) is lost. No record of a shows that, so a token must not say 3."""
    tracker = LinkTracker(0, by_subject=True)
    tracker.offer(1, 0, "a")
    assert tracker.offer(3, 1, "a") is Link.ACCEPT
    assert tracker.floor == 1
    assert tracker.offer(5, 2, "b") is Link.GAP


def test_passed_records_forgotten():
    tracker = LinkTracker(0, by_subject=True)
    for number in range(2, 50):
        tracker.offer(number, 0, f"s{number}")
    assert tracker.beyond == 48
    tracker.caught_up(40)
    assert tracker.beyond == 9
    assert tracker.had(45, "s45")
    assert tracker.offer(52, 30, "s30") is Link.ACCEPT


arrivals = st.lists(st.integers(0, 19), max_size=120)


@given(st.integers(1, 20), arrivals)
def test_any_order_gives_prefix(size, order):
    """Sequences 3, 6, 9 …: others lie between."""
    records = [(3 * n + 3, 3 * n) for n in range(size)]
    tracker = LinkTracker(0)
    taken = [records[i] for i in order if i < size and tracker.offer(*records[i]) is Link.ACCEPT]
    assert taken == records[: len(taken)]
    assert tracker.floor == (taken[-1][0] if taken else 0)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=20), arrivals)
def test_subjects_and_floor_hold(subjects, order):
    last, records = dict.fromkeys("abc", 0), []
    for seq, subject in enumerate(subjects, 1):
        records.append((seq, last[subject], subject))
        last[subject] = seq
    tracker = LinkTracker(0, by_subject=True)
    taken = [records[i] for i in order if i < len(records) and tracker.offer(*records[i]) is Link.ACCEPT]
    for which in "abc":
        mine = [record for record in taken if record[2] == which]
        assert mine == [record for record in records if record[2] == which][: len(mine)]
    assert {record[0] for record in taken} >= set(range(1, tracker.floor + 1))
    assert len(set(taken)) == len(taken)
