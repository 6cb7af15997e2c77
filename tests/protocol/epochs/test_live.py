"""Epochs without a stream: the queues of subscribers, and the messages on the wire."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import (
    ProtocolError,
)
from jsclient.protocol.epochs.live import (
    EpochBroadcast,
    LiveMessage,
    LiveRequest,
    read_live,
    read_live_request,
    write_live,
)
from jsclient.protocol.epochs.records import (
    DataMessage,
    InitialFrontierSnapshot,
    LowerFrontierUpdate,
)
from jsclient.protocol.epochs.trackers import (
    Data,
    EpochPublisher,
)
from jsclient.protocol.topics.links import Link, LinkTracker
from tests.protocol.epochs.orders import INT, PAIR, snapshot, subscriber, update


def messages(broadcast: EpochBroadcast[Any], who: Any) -> list[Any]:
    return [message for _, message in broadcast.take_messages(who, 100)]


@pytest.mark.covers("S1", "S23", "S24", "S25", "S29", "S31", "S32", "S34", "S37", "S38")
def test_queue_starts_at_snapshot():
    publisher = EpochBroadcast(EpochPublisher(INT))
    publisher.send(1, "nobody hears it")
    assert publisher.take_messages("a") == []
    publisher.connect("a")
    publisher.send(2, "two")
    publisher.advance(2)
    publisher.connect("b")
    publisher.update([(7, 1)])
    publisher.send(2, "again")
    assert messages(publisher, "a") == [
        snapshot([0], [1]),
        DataMessage(2, "two"),
        update((0, -1), (2, 1)),
        DataMessage(2, "again"),
    ]
    assert messages(publisher, "b") == [snapshot([2], [2]), DataMessage(2, "again")]
    assert messages(publisher, "a") == []


@pytest.mark.covers("S39")
def test_disconnected_subscriber_may_return():
    publisher = EpochBroadcast(EpochPublisher(INT))
    publisher.connect("a")
    publisher.disconnect("a")
    publisher.disconnect("a")
    publisher.send(3, "x")
    assert publisher.subscribers == []
    assert publisher.take_messages("a") == []
    publisher.connect("a")
    publisher.send(4, "y")
    publisher.connect("a")
    assert messages(publisher, "a") == [snapshot([0], [4])]


@pytest.mark.covers("S52")
def test_over_when_all_completed_and_taken():
    publisher = EpochBroadcast(EpochPublisher(INT))
    publisher.connect("a")
    publisher.send(3, "x")
    publisher.close()
    assert not publisher.is_over
    assert len(messages(publisher, "a")) == 3
    assert publisher.is_over


@pytest.mark.covers("S53")
def test_slow_subscriber_removed():
    publisher = EpochBroadcast(EpochPublisher(INT), max_pending=3)
    for who in "abc":
        publisher.connect(who)
    for number in range(10):
        publisher.send(number, number)
        assert messages(publisher, "b")[-1] == DataMessage(number, number)
    assert publisher.subscribers == ["b"]
    assert publisher.put_out == 2


@pytest.mark.covers("S34")
def test_subscriber_queue_bound():
    """`max_pending` messages wait, and the next message is too many."""
    publisher = EpochBroadcast(EpochPublisher(INT), max_pending=3)
    publisher.connect("a")
    for number in range(2):
        publisher.send(number, number)
    assert (publisher.longest, publisher.subscribers, publisher.put_out) == (3, ["a"], 0), (
        "the snapshot and two"
    )
    publisher.send(2, 2)
    assert (publisher.longest, publisher.subscribers, publisher.put_out) == (0, [], 1)


def test_lost_message_noticed_by_number():
    publisher, links = EpochBroadcast(EpochPublisher(INT)), LinkTracker()
    publisher.connect("a")
    for number in range(5):
        publisher.send(number, number)
    numbers = [number for number, _ in publisher.take_messages("a", 10)]
    offers = [links.offer(number, number - 1) for number in numbers if number != 4]
    assert offers.count(Link.GAP) == 2
    assert links.floor == 3


@pytest.mark.covers("S2", "S4")
def test_publisher_and_subscriber_speak_same():
    publishers = {name: EpochBroadcast(EpochPublisher(INT)) for name in "ab"}
    publishers["a"].send(1, "missed")
    tracker = subscriber("a", "b")
    for publisher in publishers.values():
        publisher.connect("me")
    got: list[Any] = []
    for number in range(1, 4):
        for name, publisher in publishers.items():
            publisher.send(number, f"{name}{number}")
            publisher.advance(number + 1)
    # The first epoch is missed by both, because the data of one publisher came before the connection.
    for name, publisher in publishers.items():
        publisher.close()
        for message in messages(publisher, "me"):
            got += tracker.receive_message(name, message)
    assert sorted(event.items for event in got if isinstance(event, Data)) == ["a2", "a3", "b2", "b3"]
    assert tracker.is_over


TIMES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4).map(tuple)
MESSAGES = st.one_of(
    st.builds(InitialFrontierSnapshot, TIMES, TIMES),
    st.builds(LowerFrontierUpdate, TIMES.map(lambda some: tuple((time, 1) for time in some))),
    st.builds(DataMessage, st.tuples(st.integers(0, 9), st.integers(0, 9)), st.binary(max_size=20)),
)


@pytest.mark.covers("S29", "S30", "S31")
@given(st.integers(0, 2**40), MESSAGES)
def test_three_messages_on_way_and_back(number, message):
    live = LiveMessage("message", number, message)
    assert read_live(*write_live(live, PAIR), PAIR) == live


@pytest.mark.parametrize("what", ["there", "unknown"])
def test_answers_on_way_and_back(what):
    assert read_live(*write_live(LiveMessage(what, 7), INT), INT) == LiveMessage(what, 7)
    reports = LiveMessage("mismatch", 0, None, "order int")
    assert read_live(*write_live(reports, INT), INT) == reports


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        ("", b""),
        ("Jsc-Live: data", b""),
        ("Jsc-Live: data\r\nJsc-Number: x", b""),
        ("Jsc-Live: data\r\nJsc-Number: 1", b""),
        ("Jsc-Live: snapshot\r\nJsc-Number: 1", b""),
        ("Jsc-Live: update\r\nJsc-Number: 1", b"[]"),
        ("Jsc-Live: other\r\nJsc-Number: 1", b""),
    ],
)
def test_no_publisher_would_say_reported(headers, payload):
    block = f"NATS/1.0\r\n{headers}\r\n\r\n".encode() if headers else b""
    with pytest.raises(ProtocolError):
        read_live(block, payload, INT)


def test_what_a_subscriber_wants():
    requests = LiveRequest(1, "connect", "int", "json")
    assert read_live_request(requests.to_json()) == requests
    for data in (
        b"",
        b"{}",
        b'{"v":2,"verb":"connect","order":"","codec":""}',
        b'{"v":1,"verb":"stay"}',
        b'{"v":1,"verb":"connect","order":"","codec":"\xff"}',
    ):
        with pytest.raises(ProtocolError):
            read_live_request(data)
