"""One message and its ack: what is sent, what is sent again, and when its outcome is unknown."""

from __future__ import annotations

import asyncio

import pytest

from jsclient._runtime import publish as module
from jsclient._runtime.publish import check_payload, check_subject, header_of_ids, headers_and_ids, publish
from jsclient.errors import (
    ConfigError,
    InvalidNameError,
    MaxPayloadError,
    NoRespondersError,
    RequestTimeoutError,
    WrongLastSequenceError,
)
from jsclient.protocol.wire.headers import parse_headers
from tests.support.fake import FakeConnection, Sent, connected
from tests.support.virtual import settle, virtual

NOBODY = (b"NATS/1.0 503\r\n\r\n", b"")


def ack(seq: int = 1) -> tuple[bytes, bytes]:
    return b"", b'{"stream":"S","seq":%d}' % seq


def answer(connection: FakeConnection, sent: Sent, block: bytes, payload: bytes) -> None:
    connection.deliver(sent.reply, [(sent.reply.encode(), b"", block, payload)])


async def answered(connection: FakeConnection, publishing: asyncio.Task, *answers) -> list[Sent]:
    """Answer each attempt in turn. None: it is not answered."""
    for number, reply in enumerate(answers):
        while len(connection.to("a")) <= number:
            assert not publishing.done(), f"over after {number} attempts"
            await asyncio.sleep(0.01)
        if reply is not None:
            answer(connection, connection.to("a")[number], *reply)
    await asyncio.wait([publishing])
    return connection.to("a")


def start(js, **options) -> asyncio.Task:
    return asyncio.ensure_future(publish(js._context, "a", b"x", **options))


@virtual
async def test_stored_message():
    async with connected() as (js, connection):
        publishing = start(js, headers={"A": "b"})
        (sent,) = await answered(connection, publishing, ack(7))
        assert (sent.payload, parse_headers(sent.header)[1]) == (b"x", {"A": "b"})
        assert publishing.result().seq == 7


@virtual
async def test_without_an_id_nothing_is_sent_twice():
    async with connected(timeout=3.0) as (js, connection):
        publishing = start(js)
        assert len(await answered(connection, publishing, None)) == 1
        with pytest.raises(RequestTimeoutError):
            publishing.result()


@virtual
async def test_with_an_id_a_lost_ack_is_repeated():
    async with connected(timeout=10.0) as (js, connection):
        publishing = start(js, msg_id="one")
        sent = await answered(connection, publishing, None, ack(7))
        assert [parse_headers(one.header)[1]["Nats-Msg-Id"] for one in sent] == ["one", "one"]
        assert publishing.result().seq == 7


@virtual
async def test_no_stream_is_an_error_after_three_attempts():
    async with connected() as (js, connection):
        publishing = start(js)
        assert len(await answered(connection, publishing, NOBODY, NOBODY, NOBODY)) == 3
        with pytest.raises(NoRespondersError):
            publishing.result()


@virtual
async def test_stream_that_has_answered_is_waited_for():
    """It has no leader for a moment."""
    async with connected() as (js, connection):
        await answered(connection, start(js), ack(1))
        connection.sent.clear()
        publishing = start(js)
        await answered(connection, publishing, *[NOBODY] * 5, ack(2))
        assert publishing.result().seq == 2


@virtual
async def test_refusal_is_raised_at_once():
    async with connected() as (js, connection):
        publishing = start(js, expected_last_seq=5)
        refusal = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"}}'
        (sent,) = await answered(connection, publishing, (b"", refusal))
        assert parse_headers(sent.header)[1]["Nats-Expected-Last-Sequence"] == "5"
        with pytest.raises(WrongLastSequenceError):
            publishing.result()


@virtual
async def test_while_disconnected_only_an_unsent_message_waits():
    async with connected() as (js, connection):
        connection.disconnect()
        publishing = start(js)
        await settle()
        assert not publishing.done()
        connection.reconnect()
        await answered(connection, publishing, ack(3))
        assert publishing.result().seq == 3
        connection.disconnect()
        with pytest.raises(RequestTimeoutError, match="nothing was sent"):
            await publish(js._context, "a", b"x", timeout=2.0)


@virtual
async def test_what_cannot_be_sent_is_refused_first():
    async with connected() as (js, connection):
        connection.limit = 10
        for arguments, error in (
            (("a.*", b""), InvalidNameError),
            (("a", "text"), ConfigError),
            (("a", b"x" * 11), MaxPayloadError),
        ):
            with pytest.raises(error):
                await publish(js._context, *arguments)
        with pytest.raises(ConfigError, match="timeout"):
            await publish(js._context, "a", timeout=0)
        assert connection.sent == []


def test_payloads():
    assert check_payload(bytearray(b"x")) == check_payload(memoryview(b"x")) == b"x"
    with pytest.raises(ConfigError, match=r"text\.encode"):
        check_payload("x")
    with pytest.raises(ConfigError, match=r"json\.dumps"):
        check_payload({})


def test_subjects_are_remembered_within_bounds():
    before = dict(module.known_subjects)
    try:
        for number in range(5000):
            assert check_subject(f"many.{number}") == b"many.%d" % number
        assert len(module.known_subjects) <= 4096
        check_subject("x" * 300)
        assert "x" * 300 not in module.known_subjects
    finally:
        module.known_subjects.clear()
        module.known_subjects.update(before)


@pytest.mark.parametrize(
    ("headers", "msg_id", "after", "expected", "has_id"),
    [
        (None, None, None, {}, False),
        (None, "1", None, {"Nats-Msg-Id": "1"}, True),
        (None, "1", "0", {"Nats-Msg-Id": "1", "Nats-Expected-Last-Msg-Id": "0"}, True),
        (None, "é", None, {"Nats-Msg-Id": "é"}, True),
        ({"A": "b"}, None, None, {"A": "b"}, False),
        ({"A": "b"}, "1", None, {"A": "b", "Nats-Msg-Id": "1"}, True),
        ({"A": "b"}, "1", "0", {"A": "b", "Nats-Msg-Id": "1", "Nats-Expected-Last-Msg-Id": "0"}, True),
        ({"Nats-Msg-Id": "1"}, None, None, {"Nats-Msg-Id": "1"}, True),
        ({"Nats-Msg-Id": "1"}, "1", None, {"Nats-Msg-Id": "1"}, True),
    ],
)
def test_header_block_and_whether_it_has_an_id(headers, msg_id, after, expected, has_id):
    block, actual = headers_and_ids(headers, msg_id, after)
    assert (parse_headers(block)[1] if block else {}, actual) == (expected, has_id)


@pytest.mark.parametrize("msg_id", ["", "a\r\nb", 7])
def test_invalid_id_is_refused(msg_id):
    with pytest.raises(ConfigError):
        header_of_ids(msg_id)
