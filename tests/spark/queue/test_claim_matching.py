"""Which message is of which claim, which are gone, and what is asked for together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.spark.queue.claim_matching import ClaimMatcher, spans
from jsclient.spark.queue.claim_offset import ClaimCollector, Run, claimed


def runs_of(seqs):
    collector = ClaimCollector()
    for number, seq in enumerate(sorted(seqs), 1):
        collector.add(seq, number, 1, 100 - number)
    return collector.finish()


def seqs_of(runs):
    return [seq for run in runs for seq in range(run.stream_seq, run.last + 1)]


@given(
    st.sets(st.integers(1, 60), min_size=1),
    st.sets(st.integers(1, 60)),
    st.sets(st.integers(1, 60)),
    st.integers(1, 9),
)
def test_every_claim_is_found_once_or_missing(wanted, gone, foreign, page):
    """Whatever else is in the stream, and however the messages come in pages."""
    runs = runs_of(wanted)
    consumer_seq = {seq: number for number, seq in enumerate(sorted(wanted), 1)}
    stream = sorted((wanted | foreign) - gone)
    matcher, found = ClaimMatcher(runs), []
    while matcher.left:
        messages = [seq for seq in stream if seq >= matcher.next_seq][:page]
        here = matcher.take(messages)
        found += [
            (messages[place], number, pending)
            for place, number, pending in zip(here.places, here.consumer_seqs, here.pending, strict=True)
        ]
        assert set(here.delivered) <= {1}
        if len(messages) < page:
            matcher.passed_all()
    assert [seq for seq, _, _ in found] == sorted(wanted - gone)
    assert all(consumer_seq[seq] == number and pending == 100 - number for seq, number, pending in found)
    assert seqs_of(matcher.missing) == sorted(wanted & gone)


@pytest.mark.parametrize("by_filter", [False, True])
@pytest.mark.parametrize("batches", [False, True])
@given(seqs=st.sets(st.integers(1, 2000)))
def test_spans_are_all_claims_in_order(seqs, by_filter, batches):
    runs = runs_of(seqs)
    made = spans(runs, by_filter=by_filter, batches=batches)
    assert sorted(seq for span in made for seq in seqs_of(span.runs)) == sorted(seqs)
    assert all(seqs_of(span.runs) == sorted(seqs_of(span.runs)) for span in made)
    assert batches or all(span.singly for span in made)


def test_claims_that_lie_close_are_read_with_one_request():
    (span,) = spans([Run(1, 1, 10, 1, 0), Run(50, 11, 10, 1, 0)], by_filter=False)
    assert not span.singly
    assert claimed(span.runs) == 20


def test_claims_that_lie_far_apart_are_read_apart_and_few_of_them_singly():
    made = spans([Run(1, 1, 10, 1, 0), Run(5000, 11, 1, 1, 0), Run(9000, 12, 1, 1, 0)], by_filter=False)
    assert [(span.singly, claimed(span.runs)) for span in made] == [(False, 10), (True, 2)]


def test_with_the_filter_in_the_request_distance_does_not_count():
    made = spans([Run(1, 1, 1, 1, 0), Run(50_000, 2, 1, 1, 0)], by_filter=True)
    assert [(span.singly, claimed(span.runs)) for span in made] == [(False, 2)]


def test_a_server_without_batches_is_asked_singly_in_bounded_parts():
    made = spans([Run(1, 1, 1200, 1, 0)], by_filter=True, batches=False)
    assert [(span.singly, claimed(span.runs)) for span in made] == [(True, 512), (True, 512), (True, 176)]
