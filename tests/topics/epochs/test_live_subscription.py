"""A subscriber of a live topic: how it connects, and what it does about a loss."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

import jsclient
from jsclient.epochs import Data, FrontierUpdate, Int
from jsclient.errors import (
    ClosedError,
    EpochsLostError,
    RequestTimeoutError,
    TopicMismatchError,
    TopicNotFoundError,
)
from jsclient.protocol.epochs.live import LiveMessage, read_live_request, write_live
from jsclient.protocol.epochs.records import DataMessage, InitialFrontierSnapshot, LowerFrontierUpdate
from jsclient.topics.epochs.live_subscription import LiveSubscription
from tests.support.fake import FakeConnection, connected
from tests.support.virtual import settle, virtual

SUBJECT = "t.0.live"
SNAPSHOT = InitialFrontierSnapshot((3,), (5,))


class Publisher:
    """A publisher that sends to the subscriber that connected last, as the test says."""

    def __init__(self, connection: FakeConnection) -> None:
        self.connection = connection

    def requests(self) -> list[str]:
        return [read_live_request(sent.payload).verb for sent in self.connection.to(SUBJECT)]

    @property
    def inbox(self) -> str:
        return self.connection.to(SUBJECT)[-1].reply

    def say(self, *messages: LiveMessage, inbox: str = "") -> None:
        for live in messages:
            block, payload = write_live(live, Int())
            to = inbox or self.inbox
            self.connection.deliver(to, [(to.encode(), b"", block, payload)])

    def send(self, *messages, first: int = 1) -> None:
        self.say(*(LiveMessage("message", number, message) for number, message in enumerate(messages, first)))


@asynccontextmanager
async def subscribed(**options):
    async with connected() as (js, connection):
        publisher = Publisher(connection)
        opening = asyncio.ensure_future(js.epochs("t", Int()).live_subscribe(**options))
        await settle()
        publisher.send(SNAPSHOT)
        subscription = await opening
        assert isinstance(subscription, LiveSubscription)
        yield subscription, publisher
        await subscription.close()


def lives(number: int) -> LiveMessage:
    return LiveMessage("there", number)


@pytest.mark.covers("S40", "S41")
@virtual
async def test_latent_epochs_whole_and_others_not_at_all():
    async with subscribed() as (subscription, publisher):
        assert publisher.requests() == ["connect"]
        assert (subscription.frontier.elements, subscription.filter.elements) == ((3,), (5,))
        publisher.send(
            DataMessage(4, b'["partial"]'),
            DataMessage(6, b'["a"]'),
            LowerFrontierUpdate(((3, -1), (7, 1))),
            first=2,
        )
        got = [await subscription.next(1) for _ in range(3)]
        assert [type(event) for event in got] == [FrontierUpdate, Data, FrontierUpdate]
        assert (got[1].time, got[1].items) == (6, ["a"])
        with pytest.raises(RequestTimeoutError):
            await subscription.next(0.5)


@pytest.mark.covers("S52")
@virtual
async def test_empty_frontier_is_the_end():
    async with subscribed() as (subscription, publisher):
        publisher.send(LowerFrontierUpdate(((3, -1),)), first=2)
        assert [type(event) async for event in subscription] == [FrontierUpdate] * 2
        with pytest.raises(ClosedError):
            await subscription.next(1)
    assert publisher.requests()[-1] == "leave"


@pytest.mark.parametrize("loss", ["gap", "last", "unknown", "disconnect"])
@virtual
async def test_loss_is_raised_once_and_it_connects_again(loss):
    async with subscribed() as (subscription, publisher):
        publisher.send(DataMessage(6, b'["a"]'), first=2)
        assert [type(await subscription.next(1)) for _ in range(2)] == [FrontierUpdate, Data]
        match loss:
            case "gap":
                publisher.send(DataMessage(6, b'["c"]'), first=4)
            case "last":
                publisher.say(lives(3))
            case "unknown":
                publisher.say(LiveMessage("unknown"))
            case "disconnect":
                publisher.connection.disconnect()
                publisher.connection.reconnect()
        with pytest.raises(EpochsLostError) as caught:
            await subscription.next(1)
        assert caught.value.epochs == (6,)
        await asyncio.sleep(0.2)
        assert publisher.requests()[-1] == "connect"
        publisher.send(InitialFrontierSnapshot((7,), (7,)), DataMessage(8, b'["d"]'))
        got = [await subscription.next(1) for _ in range(2)]
        assert got[1].items == ["d"]


@virtual
async def test_signs_of_life_each_beat_and_silence_is_a_loss():
    async with subscribed(beat=2.0) as (subscription, publisher):
        for _ in range(4):
            await asyncio.sleep(2.0)
            publisher.say(lives(1))
        assert set(publisher.requests()[1:]) == {"alive"}
        await asyncio.sleep(8.0)
        assert "connect" in publisher.requests()[1:]
        assert subscription.skipped == 0


@virtual
async def test_late_answers_to_an_earlier_attempt_are_ignored():
    async with subscribed() as (subscription, publisher):
        old = publisher.inbox
        publisher.say(LiveMessage("unknown"))
        with pytest.raises(EpochsLostError):
            await subscription.next(1)
        await asyncio.sleep(0.2)
        publisher.say(LiveMessage("message", 2, DataMessage(9, b'["late"]')), inbox=old)
        publisher.send(SNAPSHOT, DataMessage(8, b'["d"]'))
        assert [event.items for event in [await subscription.next(1) for _ in range(2)][1:]] == [["d"]]


@virtual
async def test_message_that_makes_no_sense_is_skipped_and_reported():
    async with subscribed() as (subscription, publisher):
        inbox = publisher.inbox
        publisher.connection.deliver(
            inbox, [(inbox.encode(), b"", b"NATS/1.0\r\nJsc-Live: odd\r\nJsc-Number: 2\r\n\r\n", b"")]
        )
        publisher.say(lives(1))
        await asyncio.sleep(0.1)
        assert subscription.skipped == 1
        assert publisher.connection.told(jsclient.ErrorRaised)


@virtual
async def test_topic_without_publisher_is_awaited_or_an_error():
    async with connected() as (js, connection):
        topic = js.epochs("t", Int())
        waiting = asyncio.ensure_future(topic.live_subscribe(wait=False))
        await settle()
        (sent,) = connection.to(SUBJECT)
        connection.deliver(sent.reply, [(sent.reply.encode(), b"", b"NATS/1.0 503\r\n\r\n", b"")])
        with pytest.raises(TopicNotFoundError):
            await waiting
        with pytest.raises(RequestTimeoutError):
            await topic.live_subscribe(timeout=3)
        assert len(connection.to(SUBJECT)) > 1


@virtual
async def test_publisher_of_other_types_is_an_error():
    async with connected() as (js, connection):
        opening = asyncio.ensure_future(js.epochs("t", Int()).live_subscribe())
        await settle()
        Publisher(connection).say(LiveMessage("mismatch", 0, None, "order text, codec json"))
        with pytest.raises(TopicMismatchError, match="order text"):
            await opening
