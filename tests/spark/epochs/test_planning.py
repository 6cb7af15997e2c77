"""Epochs: a batch is planned by frontier records alone, and is still whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient.errors import ConfigError, EpochsLostError, PositionInvalidError
from jsclient.protocol.epochs.frontier import Int, Product
from jsclient.protocol.epochs.records import FrontierEntry
from jsclient.protocol.epochs.trackers import EpochPublisher
from jsclient.spark.epochs.planning import (
    BatchCut,
    ReadRequest,
    Segment,
    TopicHistory,
    cut_of,
    order_of,
    place_of,
    position_to_json,
    request_between,
    share,
)
from tests.support.examples import examples


class Topic:
    """Publishers of a topic, and what they have stored."""

    def __init__(self, order, partitions):
        self.order = order
        self.publishers = [None] * partitions
        self.producers = [0] * partitions
        self.entries = []  # (partition, entry)
        self.data = []  # (seq, partition, time, producer)
        self.seq = 0

    def store(self, partition, record, *, up_to=None, before=""):
        self.seq += 1
        producer = f"p{self.producers[partition]}"
        entry = FrontierEntry(
            record, self.seq, producer, self.seq if up_to is None else up_to, before, self.seq
        )
        self.entries.append((partition, entry))

    def begin(self, partition):
        self.publishers[partition] = EpochPublisher(self.order)
        self.store(partition, self.publishers[partition].first_record())

    def send(self, partition, time, producer=None):
        publisher = self.publishers[partition]
        if producer is None:
            if not publisher.capabilities.allows(time):
                return
            publisher.send(time)
        self.seq += 1
        self.data.append((self.seq, partition, time, producer or f"p{self.producers[partition]}"))

    def advance(self, partition, to):
        publisher = self.publishers[partition]
        if publisher.capabilities.allows(to) and (record := publisher.advance(to)):
            self.store(partition, record)

    def take(self, partition, late=()):
        """Another producer takes over. ``late``: the records that its predecessor sends during the takeover."""
        old = self.publishers[partition]
        last = [entry for number, entry in self.entries if number == partition][-1]
        sent = [time for seq, number, time, _ in self.data if number == partition and seq > last.up_to]
        new = EpochPublisher.restored(self.order, last.record, sent)
        up_to = self.seq
        for time in late:
            self.send(partition, time)
        before = f"p{self.producers[partition]}"
        self.producers[partition] += 1
        lower, upper = new.lower.elements, new.upper.elements
        self.store(partition, type(last.record)((), lower, upper), up_to=up_to, before=before)
        more = [time for time in late if old.capabilities.allows(time)]
        self.publishers[partition] = EpochPublisher.restored(self.order, last.record, [*sent, *more])

    def history(self, first_seq=1):
        history = TopicHistory(self.order, len(self.publishers))
        for partition, entry in self.entries:
            if entry.seq >= first_seq:
                history.add_entry(partition, entry)
        return history

    def counted(self):
        """The records that count, by the rule of readers: the producer must own the partition at that record."""
        results = []
        for seq, partition, time, producer in self.data:
            owner = ""
            for number, entry in self.entries:
                if number == partition and entry.seq < seq:
                    owner = entry.producer
            if owner == producer:
                results.append((seq, partition, time))
        return results

    def read(self, expected, segments, first_seq=1):
        """The records that tasks read of these segments."""
        results = []
        for segment in segments:
            assert segment.owners[0][0] < segment.first
            for seq, partition, time, producer in self.data:
                if partition != segment.partition or not segment.first <= seq <= segment.last:
                    continue
                assert seq >= first_seq, "it was removed"
                owner = [name for after, name in segment.owners if after < seq][-1]
                if owner == producer and time in expected:
                    results.append((seq, partition, time))
        return results


INT = Int()
PAIRS = Product(Int(), Int())
numbers = st.integers(0, 8)
pairs = st.tuples(st.integers(0, 3), st.integers(0, 3))


@st.composite
def topics(draw, order, times):
    topic = Topic(order, draw(st.integers(1, 3)))
    for partition in range(len(topic.publishers)):
        topic.begin(partition)
    for _ in range(draw(st.integers(0, 40))):
        partition = draw(st.integers(0, len(topic.publishers) - 1))
        match draw(st.sampled_from("sssaatf")):
            case "s":
                topic.send(partition, draw(times))
            case "a":
                topic.advance(partition, draw(times))
            case "t":
                topic.take(partition, draw(st.lists(times, max_size=2)))
            case "f":
                topic.send(partition, draw(times), "fenced")
    return topic


def every(topic, end, start):
    """All that counts of the epochs between two frontiers."""
    expected = ReadRequest(topic.order, start, end)
    return sorted(one for one in topic.counted() if one[2] in expected)


def run_through(topic, data, order):
    """A query reads the topic as it was at some moments. The batches together."""
    results, epoch_position = [], None
    moments = [*sorted(data.draw(st.lists(st.integers(1, topic.seq), max_size=3))), topic.seq]
    limit = data.draw(st.sampled_from([None, 1, 2]))
    for moment in moments:
        history = TopicHistory(order, len(topic.publishers))
        for partition, entry in topic.entries:
            if entry.seq <= moment:
                history.add_entry(partition, entry)
        if epoch_position is None:
            epoch_position = history.epoch_position(history.earliest(1), "S", "then")
        while True:
            # Through the checkpoint, and knowing only the necessary minimum.
            epoch_position = place_of(position_to_json(epoch_position), order, len(topic.publishers))
            history.forget_records(epoch_position)
            expected = request_between(epoch_position, None, order)
            end = history.lower_frontier
            if not expected.start or end == expected.start or not all(map(expected.start.some_below, end)):
                break
            reached = end.elements if limit is None else history.limited(expected, end, limit)
            behind = ReadRequest(order, reached, missed=expected.missed.elements)
            following = history.epoch_position(behind, "S", "then")
            batch = request_between(epoch_position, following, order)
            assert history.lost_epochs(batch, 1) is None
            segments = history.segments(batch)
            assert segments is not None
            rows = topic.read(batch, segments)
            results += rows
            epoch_position = following
    return results


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
@pytest.mark.parametrize(("order", "times"), [(INT, numbers), (PAIRS, pairs)], ids=["int", "product"])
def test_batches_are_all_epochs(order, times, data):
    topic = data.draw(topics(order, times))
    actual = run_through(topic, data, order)
    end = topic.history().lower_frontier.elements
    assert sorted(actual) == every(topic, end, (order.bottom,))


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
@pytest.mark.parametrize(("order", "times"), [(INT, numbers), (PAIRS, pairs)], ids=["int", "product"])
def test_latecomer_whole_only(order, times, data):
    topic = data.draw(topics(order, times))
    first_seq = data.draw(st.integers(1, topic.seq))
    history = topic.history(first_seq)
    try:
        whole = history.earliest(first_seq)
    except EpochsLostError:
        return
    expected = ReadRequest(
        order, whole.start.elements, history.lower_frontier.elements, whole.missed.elements
    )
    assert history.lost_epochs(expected, first_seq) is None or not all(
        any(entry.seq >= first_seq for number, entry in topic.entries if number == partition)
        for partition in range(len(topic.publishers))
    )
    segments = history.segments(expected)
    if segments is None:
        return  # a partition has no existing record
    actual = topic.read(expected, segments, first_seq)
    assert sorted(actual) == sorted(one for one in topic.counted() if one[2] in expected)
    for seq, _, time in topic.counted():
        assert time not in expected or seq >= first_seq, "a part was removed"


def test_lost_epoch_then_whole():
    topic = Topic(INT, 2)
    for partition in (0, 1):
        topic.begin(partition)
    for time in range(4):
        for partition in (0, 1):
            topic.send(partition, time)
            topic.advance(partition, time + 1)
    epoch_position = topic.history().epoch_position(ReadRequest(INT, (1,)), "S", "then")
    first_seq = min(entry.seq for _, entry in topic.entries if 1 in entry.record.upper)
    history = topic.history(first_seq)
    expected = request_between(epoch_position, None, INT)
    error = history.lost_epochs(expected, first_seq)
    assert isinstance(error, EpochsLostError)
    whole = history.whole(expected, first_seq)
    assert [time for time in range(5) if time in whole] == [2, 3, 4]
    assert history.earliest(first_seq).start.elements == (2,)
    assert history.latest().start.elements == (4,)
    assert history.lost_epochs(ReadRequest(INT, (2,)), first_seq) is None
    assert history.lost_epochs(ReadRequest(INT, (2,)), first_seq + 4) is not None


def test_batch_epoch_limit():
    """Also when one partition was late, and has completed many epochs at once."""
    topic = Topic(INT, 2)
    for partition in (0, 1):
        topic.begin(partition)
    for time in (10, 20, 30):
        topic.send(0, time)
        topic.advance(0, time + 5)
    topic.advance(1, 100)
    topic.advance(0, 50)
    history = topic.history()
    assert history.limited(ReadRequest(INT, (0,)), history.lower_frontier, 1) == (11,)
    assert history.limited(ReadRequest(INT, (11,)), history.lower_frontier, 2) == (21,)
    assert history.limited(ReadRequest(INT, (11,)), history.lower_frontier, 9) == (50,)


def test_partition_without_part_not_read():
    topic = Topic(INT, 3)
    for partition in range(3):
        topic.begin(partition)
    topic.send(1, 0)
    for partition in range(3):
        topic.advance(partition, 1)
    (segment,) = topic.history().segments(ReadRequest(INT, (0,), (1,)))
    assert (segment.partition, segment.first, segment.last) == (1, 3, 5)
    assert topic.history().segments(ReadRequest(INT, (0,), (2,))) is None, "that is not completed"


widths = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@given(widths, st.integers(1, 9), st.lists(st.integers(0, 40), max_size=3))
def test_tasks_share_segments(widths, tasks, changes):
    segments = [
        Segment(
            number,
            5,
            4 + width,
            ((2, "a"), *((after, f"p{after}") for after in sorted({*changes}) if 2 < after < 4 + width)),
        )
        for number, width in enumerate(widths)
    ]

    def owners(some):
        return [
            (one.partition, seq, [name for after, name in one.owners if after < seq][-1])
            for one in some
            for seq in range(one.first, one.last + 1)
        ]

    shared = share(segments, tasks)
    assert [one for some in shared for one in owners(some)] == owners(segments)
    assert len(shared) == min(tasks, sum(widths))
    sizes = [sum(one.width for one in some) for some in shared]
    assert max(sizes) - min(sizes) <= 1
    assert BatchCut.of_segments(segments, tasks).share(segments) == shared


def test_replay_shares_remainder_as_before():
    cut = BatchCut.of_segments([Segment(0, 1, 10, ()), Segment(1, 11, 30, ())], 3)
    owners = ((0, "a"),)
    remaining = [Segment(1, 15, 30, owners)]
    assert cut.share(remaining) == [[], [Segment(1, 15, 20, owners)], [Segment(1, 21, 30, owners)]]


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("int", [0, 5]),
        ("int(-3)", [-3]),
        ("product(int, int(2))", [(0, 2)]),
        ("product(product(int), int)", [((1,), 2)]),
    ],
)
def test_orders_known_by_names(name, times):
    order = order_of(name, "t")
    assert all(order.decode(order.encode(time)) == time for time in times)


@pytest.mark.parametrize(
    "name", ["", "ints", "int(", "int)", "product(", "product(int", "int(1", "Days", "int, int"]
)
def test_other_orders_are_refused(name):
    with pytest.raises(ConfigError, match="'t' have the order"):
        order_of(name, "t")


def test_offset_of_something_else_refused():
    epoch_position = Topic(INT, 1)
    epoch_position.begin(0)
    offset = position_to_json(epoch_position.history().epoch_position(ReadRequest(INT, (0,)), "S", "then"))
    assert place_of(offset, INT, 1).frontiers == ((0,),)
    for other in ({"seq": 5, "created": "then"}, {**offset, "frontiers": [[0], [1]]}, {**offset, "v": 2}):
        with pytest.raises(PositionInvalidError):
            place_of(other, INT, 1)
    with pytest.raises(PositionInvalidError, match="not valid for this topic"):
        place_of(offset, INT, 2)


def test_offset_with_cut():
    epoch_position = Topic(INT, 1)
    epoch_position.begin(0)
    at = epoch_position.history().epoch_position(ReadRequest(INT, (0,)), "S", "then")
    cut = BatchCut(2, ((0, 5, 9), (1, 6, 8)))
    offset = json.loads(json.dumps(position_to_json(at, cut)))
    assert (place_of(offset, INT, 1), cut_of(offset)) == (at, cut)
    assert cut_of(position_to_json(at)) is None
    for other in (7, [], ["2"], [2, [0, 5]], [2, [0, 5, "9"]]):
        with pytest.raises(PositionInvalidError, match="not valid for a topic"):
            cut_of({**offset, "cut": other})
