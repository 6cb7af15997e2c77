"""Claims: as an offset, as acks, divided, matched with messages, and what queue mode needs of stream and consumer."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError, PermissionDeniedError, PositionInvalidError
from jsclient.protocol.consumers.ack import read_jsack
from jsclient.protocol.models.consumer import ConsumerConfig, ConsumerInfo
from jsclient.protocol.models.stream_config import StreamConfig
from jsclient.spark.queue.claims import (
    ClaimCollector,
    ClaimMatcher,
    QueueOffset,
    Run,
    ack_form,
    ack_subjects,
    check_queue,
    claimed,
    covers,
    effective_ack_wait,
    share_out,
    spans,
)
from jsclient.tables.server_options import not_permitted

V1 = "$JS.ACK.ORDERS.spark"
V2 = "$JS.ACK.hub.ACCHASH.ORDERS.spark"

deliveries = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)), max_size=60
)  # steps of the stream and the consumer sequence, times delivered


def collected(steps):
    """The rows that a collector received, and the collector."""
    collector, taken, stream_seq, consumer_seq = ClaimCollector(), [], 0, 0
    for stream_step, consumer_step, delivered in steps:
        stream_seq, consumer_seq = stream_seq + stream_step, consumer_seq + consumer_step
        taken.append((stream_seq, consumer_seq, delivered))
        collector.add_delivery(stream_seq, consumer_seq, delivered, 1000 - consumer_seq)
    return taken, collector


def each(runs):
    return [
        (run.stream_seq + number, run.consumer_seq + number, run.delivered)
        for run in runs
        for number in range(run.count)
    ]


def test_claims_compress():
    collector = ClaimCollector()
    for number in range(50_000):
        collector.add_delivery(7001 + number, 1 + number, 1, 50_000 - number)
    runs = collector.finish()
    assert runs == (Run(7001, 1, 50_000, 1, 50_000),)
    offset = QueueOffset(3, runs, V1, "", "2026-01-31T12:00:00+00:00", 1769860800000)
    assert len(json.dumps(offset.to_json())) < 160


@given(deliveries)
def test_runs_are_the_deliveries(steps):
    taken, collector = collected(steps)
    assert each(collector.finish()) == taken
    assert collector.count == claimed(collector.finish()) == len(taken)


def test_run_ends_at_jump():
    collector = ClaimCollector()
    for delivery in [(1, 1, 1, 9), (2, 2, 1, 8), (4, 3, 1, 7), (5, 5, 1, 6), (6, 6, 2, 5)]:
        collector.add_delivery(*delivery)
    assert [run.count for run in collector.finish()] == [2, 1, 1, 1]
    assert collector.last_pending == 5


def test_last_delivery_claims():
    collector = ClaimCollector()
    for delivery in [(1, 1, 1, 9), (2, 2, 1, 8), (3, 3, 1, 7), (2, 4, 2, 7), (4, 5, 1, 6)]:
        collector.add_delivery(*delivery)
    assert sorted(each(collector.finish())) == [(1, 1, 1), (2, 4, 2), (3, 3, 1), (4, 5, 1)]


def test_forgotten_delivery_claimed_once():
    """A killed server forgot deliveries that it had not written: the same messages come again as first deliveries."""
    collector = ClaimCollector()
    for delivery in [(1, 1, 1, 9), (2, 2, 1, 8), (3, 3, 1, 7), (2, 2, 1, 8), (3, 3, 1, 7), (4, 4, 1, 6)]:
        collector.add_delivery(*delivery)
    assert sorted(each(collector.finish())) == [(1, 1, 1), (2, 2, 1), (3, 3, 1), (4, 4, 1)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 2)), max_size=30))
def test_no_message_is_claimed_twice(taken):
    """Whatever comes, each message is claimed once, by its last delivery."""
    collector = ClaimCollector()
    for stream_seq, consumer_seq, delivered in taken:
        collector.add_delivery(stream_seq, consumer_seq, delivered, 0)
    newest = {stream_seq: (stream_seq, *fields) for stream_seq, *fields in taken}
    assert sorted(each(collector.finish())) == sorted(newest.values())


@pytest.mark.parametrize(("before", "behind"), [(V1, ""), (V2, ""), (V2, ".random")])
def test_acks_are_rebuilt_in_original_form(before, behind):
    reply = f"{before}.2.41.17.1769860800000000000.5{behind}"
    assert ack_form(reply) == (before, behind)
    (first, second) = ack_subjects([Run(41, 17, 2, 2, 5)], ack_form(reply))
    for number, created in enumerate((first, second)):
        rebuilt, arrived = read_jsack(created), read_jsack(reply.encode())
        assert (rebuilt.stream, rebuilt.consumer, rebuilt.domain) == (
            arrived.stream,
            arrived.consumer,
            arrived.domain,
        )
        assert (rebuilt.stream_seq, rebuilt.consumer_seq, rebuilt.num_delivered) == (
            41 + number,
            17 + number,
            2,
        )


def test_percent_sign_in_name_no_format():
    assert list(ack_subjects([Run(1, 1, 1, 1, 0)], ("$JS.ACK.100%d.c%%", ""))) == [
        b"$JS.ACK.100%d.c%%.1.1.1.0.0"
    ]


@given(deliveries, st.integers(1, 9))
def test_shares_equal_in_order(steps, parts):
    taken, collector = collected(steps)
    shares = share_out(random.Random(1).sample(collector.finish(), len(collector.finish())), parts)
    assert [claim for share in shares for claim in each(share)] == taken
    sizes = [claimed(share) for share in shares]
    assert len(sizes) == min(parts, len(taken))
    assert not sizes or max(sizes) - min(sizes) <= 1
    pending = [run.part(n, 1).pending for share in shares for run in share for n in range(run.count)]
    assert pending == [run.part(n, 1).pending for run in collector.finish() for n in range(run.count)]


def test_purge_takes_only_claimed():
    runs = [Run(11, 5, 5, 1, 0), Run(8, 1, 3, 1, 0)]
    assert covers(runs, 8)
    assert covers(runs, 9)  # the first is gone already
    assert not covers(runs, 7)  # another consumer's
    assert not covers([Run(8, 1, 3, 1, 0), Run(12, 4, 5, 1, 0)], 8)  # 11 is not ours
    assert not covers([], 1)


@given(deliveries, st.sampled_from([(V1, ""), (V2, ""), (V2, ".x")]))
def test_offset_comes_back_from_json_as(steps, form):
    runs = collected(steps)[1].finish()
    remainder = (*form, "made", 5, 2) if runs else ()
    offset = QueueOffset(4, runs, *remainder)
    assert QueueOffset.of_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_first_offset_no_claims():
    assert QueueOffset(0, ()).to_json() == {"b": 0, "runs": []}
    assert QueueOffset.of_json({"b": 0, "runs": []}).last_consumer_seq == 0


RUN = [1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"seq": 5, "created": "2026-01-31T12:00:00+00:00"},
        {"b": 1},
        {"b": -1, "runs": []},
        {"b": True, "runs": []},
        {"b": 1, "runs": [[1, 1, 1]], "ack": V1},
        {"b": 1, "runs": [[0, 1, 1, 1, 0]], "ack": V1},
        {"b": 1, "runs": [[1, 1, "1", 1, 0]], "ack": V1},
        {"b": 1, "runs": [RUN]},
        {"b": 1, "runs": [RUN], "ack": "orders.new"},
        {"b": 1, "runs": [RUN], "ack": "$JS.ACK.S.c 4\r\nPUB x"},
        {"b": 1, "runs": [RUN], "ack": V1, "at": "now"},
        {"b": 1, "runs": [RUN], "ack": V1, "newer": 1},
        {"b": 1, "runs": [RUN], "ack": V1, "parts": -1},
        {"b": 1, "runs": 7},
        {"b": "\ud800", "runs": []},
    ],
)
def test_no_offset_of_this_mode_refused(offset):
    with pytest.raises(PositionInvalidError, match="not valid in mode 'queue'"):
        QueueOffset.of_json(offset)


def runs_of(seqs):
    collector = ClaimCollector()
    for number, seq in enumerate(sorted(seqs), 1):
        collector.add_delivery(seq, number, 1, 100 - number)
    return collector.finish()


def seqs_of(runs):
    return [seq for run in runs for seq in range(run.stream_seq, run.last + 1)]


@given(
    st.sets(st.integers(1, 60), min_size=1),
    st.sets(st.integers(1, 60)),
    st.sets(st.integers(1, 60)),
    st.integers(1, 9),
)
def test_every_claim_is_matched_once_or_missing(claimed, deleted, unclaimed, page):
    """Whatever else is in the stream, and however the messages come in pages."""
    runs = runs_of(claimed)
    consumer_seq = {seq: number for number, seq in enumerate(sorted(claimed), 1)}
    stream = sorted((claimed | unclaimed) - deleted)
    matcher, actual = ClaimMatcher(runs), []
    while matcher.remaining:
        messages = [seq for seq in stream if seq >= matcher.next_seq][:page]
        here = matcher.match_messages(messages)
        actual += [
            (messages[index], number, pending)
            for index, number, pending in zip(here.indexes, here.consumer_seqs, here.pending, strict=True)
        ]
        assert set(here.delivered) <= {1}
        if len(messages) < page:
            matcher.passed(runs[-1].last)
    assert [seq for seq, _, _ in actual] == sorted(claimed - deleted)
    assert all(consumer_seq[seq] == number and pending == 100 - number for seq, number, pending in actual)
    assert seqs_of(matcher.missing) == sorted(claimed & deleted)


@pytest.mark.parametrize("by_filter", [False, True])
@pytest.mark.parametrize("batches", [False, True])
@given(seqs=st.sets(st.integers(1, 2000)))
def test_spans_all_claims_in_order(seqs, by_filter, batches):
    runs = runs_of(seqs)
    created = spans(runs, by_filter=by_filter, batches=batches)
    assert sorted(seq for span in created for seq in seqs_of(span.runs)) == sorted(seqs)
    assert all(seqs_of(span.runs) == sorted(seqs_of(span.runs)) for span in created)
    assert batches or all(span.singly for span in created)


def test_close_claims_one_request():
    (span,) = spans([Run(1, 1, 10, 1, 0), Run(50, 11, 10, 1, 0)], by_filter=False)
    assert not span.singly
    assert claimed(span.runs) == 20


def test_far_claims_read_apart():
    created = spans([Run(1, 1, 10, 1, 0), Run(5000, 11, 1, 1, 0), Run(9000, 12, 1, 1, 0)], by_filter=False)
    assert [(span.singly, claimed(span.runs)) for span in created] == [(False, 10), (True, 2)]


def test_filtered_distance_ignored():
    created = spans([Run(1, 1, 1, 1, 0), Run(50_000, 2, 1, 1, 0)], by_filter=True)
    assert [(span.singly, claimed(span.runs)) for span in created] == [(False, 2)]


def test_single_gets_bounded():
    created = spans([Run(1, 1, 1200, 1, 0)], by_filter=True, batches=False)
    assert [(span.singly, claimed(span.runs)) for span in created] == [(True, 512), (True, 512), (True, 176)]


STREAM = StreamConfig(name="ORDERS", allow_direct=True, retention="workqueue")


def consumer(**fields):
    config = ConsumerConfig(**{"durable_name": "spark", "ack_policy": "explicit", **fields})
    return ConsumerInfo(stream_name="ORDERS", name="spark", config=config)


def test_durable_pull_fits():
    for ack_on in ("batch", "manual", "purge"):
        check_queue(STREAM, consumer(), ack_on)


@pytest.mark.parametrize(
    ("stream", "fields", "ack_on", "says"),
    [
        (STREAM, {"deliver_subject": "x"}, "batch", "'consumer'.*push consumer.*without deliver_subject"),
        (STREAM, {"ack_policy": "none"}, "batch", "'consumer'.*'none'.*explicit"),
        (STREAM, {"ack_policy": "all"}, "batch", "'consumer'.*'all'.*explicit"),
        (STREAM, {"durable_name": None, "name": "spark"}, "batch", "'consumer'.*not durable.*durable_name"),
        (STREAM, {"priority_groups": ["a"]}, "batch", "'consumer'.*priority groups"),
        (STREAM.replace(allow_direct=False), {}, "batch", "'stream'.*direct.*allow_direct=True"),
        (STREAM.replace(retention="limits"), {}, "purge", "'ackOn' is 'purge'.*not a work queue.*'batch'"),
        (STREAM, {"filter_subject": "orders.a"}, "purge", "'ackOn' is 'purge'.*filter.*'batch'"),
    ],
)
def test_misfit_names_option(stream, fields, ack_on, says):
    with pytest.raises(ConfigError, match=says):
        check_queue(stream, consumer(**fields), ack_on)


def test_signs_of_life_go_by_shortest_time():
    assert effective_ack_wait(consumer(ack_wait=9.0)) == 9.0
    assert effective_ack_wait(consumer(ack_wait=9.0, backoff=[4.0, 20.0])) == 4.0
    assert effective_ack_wait(consumer()) == 30.0


def test_right_missing_named():
    error = not_permitted("consumer", PermissionDeniedError("publish", "$JS.ACK.S.c.1"), "it is acked")
    assert "'consumer'" in str(error)
    assert "publish to '$JS.ACK.S.c.1'" in str(error)
