"""A message and its acks, on a connection that can fail."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient import ack_all
from jsclient._runtime.context import Requests
from jsclient.consumers.message import AckChannel, DeliveredMessage, Message
from jsclient.errors import (
    ClosedError,
    ConfigError,
    ConnectError,
    DisconnectedError,
    NotJetStreamMessageError,
    RequestTimeoutError,
)
from tests.support.fake import FakeConnection
from tests.support.strategies import data, jsack
from tests.support.virtual import settle, virtual


def message(connection: FakeConnection, frame=None, *, silent: bool = False) -> Message:
    return DeliveredMessage(frame or data(1), AckChannel(connection, Requests(connection), 5.0, silent))


def verbs(msg: Message):
    return [msg.ack, msg.nak, msg.term, msg.in_progress, msg.ack_sync]


# --- what it is ----------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J63", "J64", "J67", "J70")
async def test_it_says_where_it_stands():
    connection = FakeConnection()
    msg = message(connection, data(22, 20, b"hello", domain="hub"))
    assert (msg.subject, msg.data, msg.reply) == (
        "orders.new",
        b"hello",
        jsack(22, 20, domain="hub").decode(),
    )
    assert (msg.metadata.stream_seq, msg.metadata.consumer_seq, msg.metadata.domain) == (22, 20, "hub")
    assert msg.metadata is msg.metadata
    assert msg.size == len(b"orders.new") + len(msg.reply) + 5
    assert repr(msg) == "<Message 'orders.new' 5 bytes, ORDERS 22, delivery 1>"


@virtual
async def test_headers_and_odd_subject():
    header = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
    msg = message(FakeConnection(), (b"a.\xff", jsack(1), header, b""))
    assert msg.headers.get_all("A") == ["1", "2"]
    assert msg.subject.encode("utf-8", "surrogateescape") == b"a.\xff"
    assert message(FakeConnection()).headers == {}


@virtual
async def test_one_header():
    msg = message(FakeConnection(), (b"a", jsack(1), b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b""))
    assert (msg.header("A"), msg.header("a"), msg.header("B", "none")) == ("1", None, "none")
    msg.headers["A"] = "3"  # a caller reads its own changes
    assert (msg.header("A"), msg.header("B", "none")) == ("3", "none")
    assert message(FakeConnection()).header("A") is None


# --- acks ----------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J62", "J71", "J72", "J73", "J74", "J75")
@pytest.mark.parametrize(
    ("call", "payload"),
    [
        (lambda msg: msg.ack(), b"+ACK"),
        (lambda msg: msg.nak(), b"-NAK"),
        (lambda msg: msg.nak(delay=2), b'-NAK {"delay": 2000000000}'),
        (lambda msg: msg.term(), b"+TERM"),
        (lambda msg: msg.term(reason="bad"), b"+TERM bad"),
        (lambda msg: msg.in_progress(), b"+WPI"),
    ],
)
@pytest.mark.parametrize("domain", [None, "hub", "_"])
async def test_ack_goes_to_reply_subject(call, payload, domain):
    connection = FakeConnection()
    msg = message(connection, data(7, domain=domain))
    await call(msg)
    (sent,) = connection.sent
    assert (sent.subject.encode(), sent.payload) == (jsack(7, domain=domain), payload)
    assert msg.acked == (payload != b"+WPI")


@virtual
@pytest.mark.covers("J73", "J74", "J75")
async def test_nak_is_not_sent_again():
    """Sent again after a lost connection, an ack changes nothing. A NAK may cost the message another delivery."""
    connection = FakeConnection()
    for call in (Message.ack, Message.nak, Message.term, Message.in_progress):
        await call(message(connection))
    assert connection.settled == [(b"+ACK", True), (b"-NAK", False), (b"+TERM", True), (b"+WPI", False)]


@virtual
@pytest.mark.covers("J76")
@pytest.mark.parametrize("first", range(3))
async def test_terminal_ack_is_final(first):
    connection = FakeConnection()
    msg = message(connection)
    await verbs(msg)[first]()
    for verb in verbs(msg):
        await verb()
    assert len(connection.sent) == 1
    assert msg.acked


@virtual
@pytest.mark.covers("J77")
async def test_progress_repeats_then_ack():
    connection = FakeConnection()
    msg = message(connection)
    for _ in range(3):
        await msg.in_progress()
        assert not msg.acked
    await msg.ack()
    await msg.in_progress()
    assert connection.acks() == [b"+WPI", b"+WPI", b"+WPI", b"+ACK"]


@virtual
@pytest.mark.covers("J78", "J80")
@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("error", [ConnectError("x"), DisconnectedError("x"), ClosedError("x")])
async def test_failed_ack_can_be_repeated(which, error):
    connection = FakeConnection()
    msg = message(connection)
    with connection.broken(error), pytest.raises(type(error)):
        await verbs(msg)[which]()
    assert not msg.acked
    await msg.term()
    assert connection.acks() == [b"+TERM"]


@virtual
@pytest.mark.covers("J79", "J80")
async def test_ack_policy_none_ignores_acks():
    connection = FakeConnection()
    msg = message(connection, silent=True)
    connection.disconnect()
    for verb in verbs(msg):
        await verb()
    assert connection.sent == []
    assert not msg.acked


@virtual
@pytest.mark.covers("J61", "J66")
@pytest.mark.parametrize(
    "reply", [b"", b"_INBOX.x", b"$JS.ACK.broken", jsack(1) + b".x", b"$JS.ACK.S.C.1.1.1.1.x", jsack(1)[:-1]]
)
async def test_plain_message_has_no_acks(reply):
    connection = FakeConnection()
    msg = message(connection, (b"a", reply, b"", b""))
    with pytest.raises(NotJetStreamMessageError):
        _ = msg.metadata
    for verb in verbs(msg):
        with pytest.raises(NotJetStreamMessageError):
            await verb()
    assert connection.sent == []


@virtual
async def test_bad_ack_argument_refused():
    connection = FakeConnection()
    msg = message(connection)
    with pytest.raises(ConfigError):
        await msg.nak(delay=-1)
    with pytest.raises(ConfigError):
        await msg.term(reason="a\r\nb")
    await msg.ack()
    assert connection.acks() == [b"+ACK"]


@virtual
@pytest.mark.covers("J76", "J78")
async def test_one_terminal_ack_goes_out():
    for seed in range(150):
        chance, connection = random.Random(seed), FakeConnection()
        connection.publishing = chance.randrange(4)
        msg = message(connection)
        tasks = []
        for _ in range(8):
            tasks.append(asyncio.ensure_future(chance.choice(verbs(msg)[:4])()))
            await settle(chance.randrange(3))
            connection.failing = DisconnectedError("x") if chance.random() < 0.3 else None
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        terminal = [payload for payload in connection.acks() if payload != b"+WPI"]
        assert len(terminal) <= 1, (seed, terminal)
        assert msg.acked == bool(terminal), seed
        connection.failing = None
        await msg.ack()
        assert msg.acked


# --- ack_sync, ack_all ---------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J71")
async def test_ack_sync_waits_for_server():
    connection = FakeConnection()
    msg = message(connection)
    task = asyncio.ensure_future(msg.ack_sync())
    await settle()
    (sent,) = connection.to("$JS.ACK.")
    assert sent.payload == b"+ACK"
    assert not msg.acked
    connection.deliver(sent.reply, [(sent.reply.encode(), b"", b"", b"")])
    await task
    assert msg.acked


@virtual
async def test_unanswered_ack_sync_unknown():
    connection = FakeConnection()
    msg = message(connection)
    with pytest.raises(RequestTimeoutError, match="ack of message 1"):
        await msg.ack_sync(timeout=3600)
    assert not msg.acked
    await msg.ack()
    assert connection.acks() == [b"+ACK", b"+ACK"]


@virtual
async def test_ack_all_reports_failures():
    connection = FakeConnection()
    messages = [message(connection, data(number)) for number in range(1, 2500)]
    await ack_all(messages)
    assert len(connection.acks()) == 2499
    odd = [
        message(connection, data(1)),
        message(connection, (b"a", b"", b"", b"")),
        message(connection, data(2)),
    ]
    with pytest.raises(ExceptionGroup) as caught:
        await ack_all(odd)
    assert [type(error) for error in caught.value.exceptions] == [NotJetStreamMessageError]
    assert odd[0].acked
    assert odd[2].acked
