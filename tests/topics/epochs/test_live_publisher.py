"""The publisher of a live topic: whom it answers, what it sends, and when it drops a subscriber."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

import jsclient
from jsclient.epochs import EpochState, Int
from jsclient.errors import ClosedError, ProducerFencedError, PublisherExistsError
from jsclient.protocol.epochs.live import LiveRequest, read_live
from jsclient.protocol.epochs.presence import write_presence
from jsclient.protocol.epochs.records import DataMessage, InitialFrontierSnapshot, LowerFrontierUpdate
from jsclient.topics.epochs.live_publisher import LivePublisher
from tests.support.fake import FakeConnection, connected
from tests.support.virtual import settle, virtual

SUBJECT = "t.0.live"
ME = "_INBOX.me"


def request(
    connection: FakeConnection, verb: str, *, who: str = ME, order: str = "int", data: bytes = b""
) -> None:
    """A subscriber says something."""
    data = data or LiveRequest(1, verb, order, "json").to_json()
    connection.deliver(SUBJECT, [(SUBJECT.encode(), who.encode(), b"", data)])


def received(connection: FakeConnection, who: str = ME) -> list:
    """The messages that a subscriber has received."""
    return [read_live(sent.header, sent.payload, Int()) for sent in connection.to(who)]


@asynccontextmanager
async def publishing(**options):
    async with connected() as (js, connection):
        publisher = await js.epochs("t", Int()).live_publisher(**options)
        assert isinstance(publisher, LivePublisher)
        yield publisher, connection
        await publisher.release()


@pytest.mark.covers("S23", "S24", "S25")
@virtual
async def test_snapshot_then_all_data_and_updates():
    async with publishing() as (publisher, connection):
        await publisher.send(1, ["nobody hears it"])
        request(connection, "connect")
        await publisher.send(2, ["a"])
        await publisher.advance(2)
        await settle()
        got = received(connection)
        assert [live.number for live in got] == [1, 2, 3]
        assert [live.message for live in got] == [
            InitialFrontierSnapshot((0,), (1,)),
            DataMessage(2, b'["a"]'),
            LowerFrontierUpdate(((0, -1), (2, 1))),
        ]
        assert (publisher.frontier.elements, publisher.upper.elements) == ((2,), (2,))
        assert (publisher.state(1), publisher.state(2)) == (EpochState.COMPLETED, EpochState.ACTIVE)


@virtual
async def test_sign_of_life_is_answered_with_the_last_number():
    async with publishing() as (publisher, connection):
        request(connection, "alive")
        request(connection, "connect")
        await settle()
        request(connection, "alive")
        assert [(live.what, live.number) for live in received(connection)] == [
            ("unknown", 0),
            ("message", 1),
            ("there", 1),
        ]
        request(connection, "leave")
        assert publisher.subscribers == 0


@virtual
async def test_other_types_are_refused_with_ours():
    async with publishing() as (publisher, connection):
        request(connection, "connect", order="text")
        (live,) = received(connection)
        assert (live.what, live.text) == ("mismatch", "order int, codec json")
        assert publisher.subscribers == 0


@virtual
async def test_invalid_requests_are_refused_and_reported_at_doubling():
    async with publishing(max_subscribers=1) as (publisher, connection):
        request(connection, "connect", who="orders.new")
        request(connection, "", data=b"?")
        request(connection, "connect")
        request(connection, "connect", who="_INBOX.other")
        request(connection, "connect")
        assert publisher.refused == 3
        assert publisher.subscribers == 1
        assert connection.to("orders") == []
        await settle()
        assert len(connection.told(jsclient.ErrorRaised)) == 2


@virtual
async def test_silent_subscriber_is_dropped_after_three_beats():
    async with publishing(beat=2.0) as (publisher, connection):
        request(connection, "connect")
        await asyncio.sleep(5.9)
        assert publisher.subscribers == 1
        await asyncio.sleep(2.2)
        assert publisher.subscribers == 0


@virtual
async def test_lost_connection_drops_all_subscribers():
    async with publishing() as (publisher, connection):
        request(connection, "connect")
        await settle()
        connection.disconnect()
        assert publisher.subscribers == 0
        connection.reconnect()


@virtual
async def test_close_waits_for_the_queues():
    async with publishing() as (publisher, connection):
        request(connection, "connect")
        await settle()
        closing = asyncio.ensure_future(publisher.close())
        await settle()
        assert received(connection)[-1].message == LowerFrontierUpdate(((0, -1),))
        assert not closing.done(), "until the subscriber has left"
        request(connection, "leave")
        await closing
        for call in (publisher.send(1, []), publisher.advance(1)):
            with pytest.raises(ClosedError):
                await call
        assert SUBJECT not in connection.listening


@virtual
async def test_close_does_not_wait_for_ever():
    async with publishing(beat=60.0) as (publisher, connection):
        request(connection, "connect")
        start = asyncio.get_running_loop().time()
        await publisher.close()
        assert asyncio.get_running_loop().time() - start == 5.0


@virtual
async def test_second_publisher_is_refused_or_takes_over():
    async with publishing() as (publisher, connection):
        reply = connection.new_inbox()
        answers = []
        await connection.subscribe(reply, answers.extend)
        presence = next(subject for subject in connection.listening if subject not in (SUBJECT, reply))
        connection.deliver(presence, [(presence.encode(), reply.encode(), b"", write_presence("ask"))])
        assert connection.to(reply)[0].payload == write_presence("alive")
        connection.deliver(presence, [(presence.encode(), reply.encode(), b"", write_presence("take"))])
        with pytest.raises(ProducerFencedError):
            await publisher.send(1, ["x"])
        await settle()
        assert connection.listening == [reply]
    async with connected() as (js, connection):
        opening = asyncio.ensure_future(js.epochs("t", Int()).live_publisher())
        await settle()
        (ask,) = connection.to(presence)
        connection.deliver(ask.reply, [(ask.reply.encode(), b"", b"", write_presence("alive"))])
        with pytest.raises(PublisherExistsError):
            await opening


@virtual
async def test_forgotten_subscriber_gets_no_remaining_messages() -> None:
    """A subscriber is silent for too long while a publish waits for a full write buffer."""
    async with publishing(beat=1.0) as (publisher, connection):
        request(connection, "connect")
        await settle()
        before = len(received(connection))
        may_write, publish = asyncio.Event(), connection.publish

        async def publish_later(*arguments: Any, **options: Any) -> None:
            await may_write.wait()
            await publish(*arguments, **options)

        connection.publish = publish_later
        for number in range(5):
            await publisher.send(1, [number])
        await asyncio.sleep(5)
        assert publisher.subscribers == 0
        may_write.set()
        await asyncio.sleep(1)
        assert len(received(connection)) <= before + 1  # the one that was being written
        assert not publisher._sent
