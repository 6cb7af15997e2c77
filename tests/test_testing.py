"""Messages made for unit tests of handlers, and messages that cannot be made otherwise."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime

import pytest

import jsclient
from jsclient.errors import ConfigError, InvalidNameError
from jsclient.testing import RecordedMessage, SentAck, make_message
from tests.support.virtual import virtual


def test_created_as_delivered():
    at = datetime(2026, 11, 23, 12, 0, 0, 250_000, tzinfo=UTC)
    message = make_message(
        "orders.new",
        b"42",
        headers={"A": "1", "B": ["2", "3"]},
        stream="ORDERS",
        consumer="workers",
        stream_seq=7,
        consumer_seq=5,
        num_delivered=3,
        num_pending=9,
        timestamp=at,
    )
    assert isinstance(message, jsclient.Message)
    assert (message.subject, message.data, message.attempt, message.acked) == ("orders.new", b"42", 3, False)
    assert (message.headers["A"], message.headers.get_all("B"), message.header("a")) == (
        "1",
        ["2", "3"],
        None,
    )
    assert message.metadata == jsclient.Metadata(
        "ORDERS", "workers", 3, 7, 5, int(at.timestamp() * 4) * 250_000_000, 9
    )
    assert message.metadata.timestamp == at
    assert repr(message) == "<Message 'orders.new' 2 bytes, ORDERS 7, delivery 3>"


def test_stored_now_by_default():
    before = datetime.now(UTC)
    assert before <= make_message("a").metadata.timestamp <= datetime.now(UTC)
    assert make_message("a").headers == {}


@virtual
async def test_acks_are_recorded():
    message = make_message("a")
    assert message.acks == []
    await message.in_progress()
    await message.nak(1.5)
    await message.ack()  # too late, as for every message
    assert message.acks == [SentAck("in_progress"), SentAck("nak", delay=1.5)]
    assert message.acked


@virtual
@pytest.mark.parametrize(
    ("settle", "sent"),
    [
        (lambda msg: msg.ack(), SentAck("ack")),
        (lambda msg: msg.ack_sync(), SentAck("ack", sync=True)),
        (lambda msg: msg.nak(), SentAck("nak")),
        (lambda msg: msg.nak(delay=0.25), SentAck("nak", delay=0.25)),
        (lambda msg: msg.term(), SentAck("term")),
        (lambda msg: msg.term("not a number"), SentAck("term", reason="not a number")),
    ],
    ids=["ack", "ack_sync", "nak", "nak later", "term", "term with reason"],
)
async def test_each_ack(settle, sent):
    message, other = make_message("a"), make_message("a")
    await settle(message)
    assert (message.acks, message.acked) == ([sent], True)
    assert (other.acks, other.acked) == ([], False)


@virtual
async def test_ack_all():
    messages = [make_message("a", stream_seq=seq) for seq in (1, 2)]
    await jsclient.ack_all(messages)
    assert [message.acks for message in messages] == [[SentAck("ack")]] * 2


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"subject": "a.*"}, InvalidNameError, "wildcard"),
        ({"subject": "a", "stream": "a.b"}, InvalidNameError, "stream"),
        ({"subject": "a", "consumer": "a b"}, InvalidNameError, "consumer"),
        ({"subject": "a", "data": "text"}, ConfigError, "encode"),
        ({"subject": "a", "num_delivered": 0}, ConfigError, "num_delivered is 0"),
        ({"subject": "a", "stream_seq": 0}, ConfigError, "stream_seq is 0"),
        ({"subject": "a", "timestamp": datetime(2026, 1, 1)}, ConfigError, "no time zone"),  # noqa: DTZ001
        ({"subject": "a", "headers": {"A": "1\n"}}, InvalidNameError, "header"),
    ],
)
def test_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        make_message(**arguments)


@pytest.mark.parametrize("arguments", [("a", b"x"), (), ("a",)])
@pytest.mark.parametrize("fields", [{}, {"data": b"x"}])
def test_message_by_hand(arguments, fields):
    with pytest.raises(TypeError, match=r"use jsclient\.testing\.make_message\(subject, data\)"):
        jsclient.Message(*arguments, **fields)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_pickled(copied):
    with pytest.raises(TypeError, match=r"<Message 'a' 0 bytes, STREAM 1, delivery 1> cannot be pickled"):
        copied(make_message("a"))


def test_class_is_exported():
    assert jsclient.testing.RecordedMessage is RecordedMessage
