"""The set of sequences agrees with a set, and stays within its pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsclient.protocol.consumers.worker.seq_set import SeqSet

SEQS = st.integers(1, 100_000) | st.integers(1, 2**64 - 1)


@given(st.sets(SEQS, max_size=50), st.sets(SEQS, max_size=50))
def test_holds_what_was_added(added: set[int], others: set[int]):
    seqs = SeqSet()
    for seq in added:
        seqs.add(seq)
    assert {seq for seq in added | others if seq in seqs} == added


def test_forgets_its_oldest_page():
    seqs = SeqSet(most_pages=2)
    for seq in (1, 40_000, 80_000):
        seqs.add(seq)
    assert [seq in seqs for seq in (1, 40_000, 80_000)] == [False, True, True]


def test_clear_forgets_all():
    seqs = SeqSet()
    seqs.add(7)
    seqs.clear()
    assert 7 not in seqs


@given(st.sets(SEQS, max_size=50), st.sets(SEQS, max_size=50))
def test_discard_forgets_one(added: set[int], removed: set[int]):
    seqs = SeqSet()
    for seq in added:
        seqs.add(seq)
    for seq in removed:
        seqs.discard(seq)
    assert {seq for seq in added | removed if seq in seqs} == added - removed
