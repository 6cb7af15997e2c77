"""Epochs: a batch is planned by frontier records alone, and is whole all the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsclient.errors import ConfigError, EpochsLostError, PositionInvalidError
from jsclient.protocol.epoch_records import FrontierEntry
from jsclient.protocol.epochs import EpochPublisher
from jsclient.protocol.frontier import Int, Product
from jsclient.spark.epochs.orders import order_of
from jsclient.spark.epochs.places import place_of, place_to_json, wanted_between
from jsclient.spark.epochs.planning import Segment, TopicHistory, Wanted, share


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
        """Another producer takes over. ``late``: what its predecessor sends while it looks."""
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
                history.add(partition, entry)
        return history

    def counted(self):
        """What counts, by the rule of readers: who owns the partition where the data lies."""
        found = []
        for seq, partition, time, producer in self.data:
            owner = ""
            for number, entry in self.entries:
                if number == partition and entry.seq < seq:
                    owner = entry.producer
            if owner == producer:
                found.append((seq, partition, time))
        return found

    def read(self, wanted, segments, first_seq=1):
        """What tasks read of these segments."""
        found = []
        for segment in segments:
            assert segment.owners[0][0] < segment.first
            for seq, partition, time, producer in self.data:
                if partition != segment.partition or not segment.first <= seq <= segment.last:
                    continue
                assert seq >= first_seq, "it was removed"
                owner = [name for after, name in segment.owners if after < seq][-1]
                if owner == producer and time in wanted:
                    found.append((seq, partition, time))
        return found


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
    wanted = Wanted(topic.order, start, end)
    return sorted(one for one in topic.counted() if one[2] in wanted)


def run_through(topic, data, order):
    """A query reads the topic as it was at some moments; the batches together."""
    found, place = [], None
    moments = sorted(data.draw(st.lists(st.integers(1, max(topic.seq, 1)), max_size=3))) + [topic.seq]
    limit = data.draw(st.sampled_from([None, 1, 2]))
    for moment in moments:
        history = TopicHistory(order, len(topic.publishers))
        for partition, entry in topic.entries:
            if entry.seq <= moment:
                history.add(partition, entry)
        if place is None:
            place = history.place(history.earliest(1), "S", "then")
        while True:
            # Through the checkpoint, and knowing no more than is needed.
            place = place_of(place_to_json(place, order), order, len(topic.publishers))
            history.forget(place)
            wanted = wanted_between(place, None, order)
            end = history.frontier
            if not wanted.start or end == wanted.start or not all(map(wanted.start.some_below, end)):
                break
            reached = end.elements if limit is None else history.limited(wanted, end, limit)
            behind = Wanted(order, reached, missed=wanted.missed.elements)
            following = history.place(behind, "S", "then")
            batch = wanted_between(place, following, order)
            assert history.lost(batch, 1) is None
            segments = history.segments(batch)
            assert segments is not None
            rows = topic.read(batch, segments)
            found += rows
            place = following
    return found


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.parametrize(("order", "times"), [(INT, numbers), (PAIRS, pairs)], ids=["int", "product"])
def test_all_batches_together_are_all_completed_epochs_each_row_once(order, times, data):
    topic = data.draw(topics(order, times))
    found = run_through(topic, data, order)
    end = topic.history().frontier.elements
    assert sorted(found) == every(topic, end, (order.bottom,))


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.parametrize(("order", "times"), [(INT, numbers), (PAIRS, pairs)], ids=["int", "product"])
def test_who_comes_late_has_whole_epochs_only_and_misses_none_that_is_whole(order, times, data):
    topic = data.draw(topics(order, times))
    first_seq = data.draw(st.integers(1, topic.seq))
    history = topic.history(first_seq)
    try:
        whole = history.earliest(first_seq)
    except EpochsLostError:
        return
    wanted = Wanted(order, whole.start.elements, history.frontier.elements, whole.missed.elements)
    assert history.lost(wanted, first_seq) is None or not all(
        any(entry.seq >= first_seq for number, entry in topic.entries if number == partition)
        for partition in range(len(topic.publishers))
    )
    segments = history.segments(wanted)
    if segments is None:
        return  # a partition has no record that is there
    found = topic.read(wanted, segments, first_seq)
    assert sorted(found) == sorted(one for one in topic.counted() if one[2] in wanted)
    for seq, _, time in topic.counted():
        assert time not in wanted or seq >= first_seq, "a part was removed"
