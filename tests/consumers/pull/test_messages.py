"""The continuous pull reader on a fake connection."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient.errors import (
    BadRequestError,
    ClosedError,
    ConfigError,
    ConsumerDeletedError,
    NoRespondersError,
    PullLimitError,
    RequestTimeoutError,
)
from jsclient.protocol.events import ConsumerDeleted, ErrorRaised, HeartbeatMissed
from tests.support.fake import PullServer, Refusal, connected
from tests.support.strategies import data, heartbeat, status
from tests.support.virtual import settle, virtual


class reading:  # noqa: N801  reads as: async with reading(js, max_messages=4) as read
    """A pull subscription and its reader, opened."""

    def __init__(self, connection, js, **options) -> None:
        self.connection, self.js, self.options = connection, js, options

    async def __aenter__(self):
        self.connection.api.has("d")
        self.sub = await self.js.pull_subscribe("orders.new", durable="d")
        self.reader = self.sub.messages(**self.options)
        with pytest.raises(RequestTimeoutError):
            await self.reader.next(timeout=0)
        return self

    async def __aexit__(self, *_):
        await self.reader.stop()
        await self.sub.unsubscribe()

    def arrives(self, *frames) -> None:
        self.connection.deliver(self.connection.pulls()[-1].reply, list(frames))

    async def numbers(self, count: int) -> list[int]:
        return [(await self.reader.next(timeout=60)).metadata.stream_seq for _ in range(count)]


def batches(connection) -> list[int]:
    return [pull.json["batch"] for pull in connection.pulls()]


@virtual
@pytest.mark.covers("J1")
async def test_refills_at_half():
    async with connected() as (js, connection), reading(connection, js, max_messages=4) as read:
        assert batches(connection) == [4]
        read.arrives(*[data(number) for number in range(1, 5)])
        assert await read.numbers(1) == [1]
        assert batches(connection) == [4]
        assert await read.numbers(1) == [2]
        assert batches(connection) == [4, 2]
        assert connection.pulls()[-1].json["expires"] == 30_000_000_000


@virtual
async def test_a_buffer_of_one_message():
    async with connected() as (js, connection), reading(connection, js, max_messages=1) as read:
        for number in range(1, 5):
            assert batches(connection) == [1] * number
            read.arrives(data(number))
            assert await read.numbers(1) == [number]


@virtual
@pytest.mark.covers("J81", "J103", "J104")
async def test_continues_after_ordinary_ends():
    async with connected() as (js, connection), reading(connection, js, max_messages=4) as read:
        read.arrives(data(1), status(408, "Request Timeout", Nats_Pending_Messages=3, Nats_Pending_Bytes=0))
        assert batches(connection) == [4, 3]
        read.arrives(heartbeat(), data(2))
        assert await read.numbers(2) == [1, 2]


@virtual
@pytest.mark.covers("J105")
@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (status(409, "Consumer Deleted"), ConsumerDeletedError),
        (status(409, "Exceeded MaxRequestBatch of 1"), PullLimitError),
        (status(400, "Bad Request"), BadRequestError),
    ],
)
async def test_final_error_after_messages(frame, error):
    async with connected() as (js, connection), reading(connection, js, max_messages=4) as read:
        read.arrives(data(1), data(2), frame)
        assert await read.numbers(2) == [1, 2]
        for _ in range(2):
            with pytest.raises(error):
                await read.reader.next()
        assert connection.listening == []


@virtual
async def test_refusal_retried_after_pause():
    async with connected() as (js, connection), reading(connection, js, max_messages=4) as read:
        read.arrives(status(409, "Leadership Change"))
        await settle()
        assert batches(connection) == [4]
        await asyncio.sleep(0.06)
        assert batches(connection) == [4, 4]
        assert len(connection.told(ErrorRaised)) == 1
        read.arrives(data(1))
        assert await read.numbers(1) == [1]


@virtual
@pytest.mark.covers("J106")
async def test_no_responders_checked_once():
    async with connected() as (js, connection), reading(connection, js, max_messages=4) as read:
        waiting = asyncio.ensure_future(read.reader.next())
        connection.api.consumers.clear()
        for _ in range(20):
            count = len(connection.pulls())
            read.arrives(status(503))
            await asyncio.sleep(5)
            if waiting.done():
                break
            assert len(connection.pulls()) == count + 1
        with pytest.raises(ConsumerDeletedError):
            await waiting
        assert len(connection.told(ConsumerDeleted)) == 1
        raised = connection.told(ErrorRaised)
        assert [type(event.error) for event in raised] == [NoRespondersError]


@virtual
async def test_oversized_message_reported():
    async with connected() as (js, connection), reading(connection, js, max_bytes=100) as read:
        for _ in range(5):
            unserved = {"Nats_Pending_Messages": 1_000_000, "Nats_Pending_Bytes": 100}
            read.arrives(status(409, "Message Size Exceeds MaxBytes", **unserved))
            await settle()
            count = len(connection.pulls())
            await asyncio.sleep(3)
            assert len(connection.pulls()) == count + 1
        (event,) = connection.told(ErrorRaised)
        assert isinstance(event.error, PullLimitError)


@virtual
async def test_silence_renews_request():
    async with (
        connected() as (js, connection),
        reading(connection, js, max_messages=4, idle_heartbeat=5.0) as read,
    ):
        await asyncio.sleep(9)
        assert batches(connection) == [4]
        await asyncio.sleep(1.5)
        assert batches(connection) == [4, 4]
        assert len(connection.told(HeartbeatMissed)) == 1
        for _ in range(5):
            read.arrives(heartbeat())
            await asyncio.sleep(5)
        assert len(connection.told(HeartbeatMissed)) == 1


@virtual
async def test_reconnect_requests_missing():
    async with connected() as (js, connection), reading(connection, js, max_messages=4) as read:
        read.arrives(data(1), data(2), data(3))
        connection.disconnect()
        await asyncio.sleep(100)
        assert await read.numbers(1) == [1]
        assert batches(connection) == [4]
        connection.reconnect()
        assert batches(connection) == [4, 2]
        assert await read.numbers(2) == [2, 3]


@virtual
@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": 0},
        {"max_bytes": 0},
        {"expires": 0},
        {"max_messages": 4, "threshold_messages": 5},
        {"threshold_messages": -1},
        {"threshold_messages": True},
        {"idle_heartbeat": 16.0},
    ],
)
async def test_what_cannot_work_is_refused(options):
    async with connected() as (js, connection):
        connection.api.has("d")
        sub = await js.pull_subscribe("orders.new", durable="d")
        with pytest.raises(ConfigError):
            sub.messages(**options)


# --- the end -------------------------------------------------------------------------------------------------


@virtual
async def test_stopping_gives_back_nobody_took():
    async with connected() as (js, connection), reading(connection, js, max_messages=4) as read:
        read.arrives(data(1), data(2), data(3))
        await read.numbers(1)
        await read.reader.stop()
        await read.reader.stop()
        assert connection.acks() == [b"-NAK", b"-NAK"]
        assert connection.listening == []
        with pytest.raises(ClosedError):
            await read.reader.next()


@virtual
@pytest.mark.covers("J110")
async def test_drain_serves_waiting_reader():
    async with connected() as (js, connection), reading(connection, js, max_messages=10) as read:

        async def read_all():
            return [message.metadata.stream_seq async for message in read.reader]

        reader = asyncio.ensure_future(read_all())
        await settle()
        inbox = connection.pulls()[-1].reply
        connection.under_way = [(inbox, [data(number)]) for number in range(1, 6)]
        await read.reader.drain()
        assert await reader == [1, 2, 3, 4, 5]
        assert batches(connection) == [10]
        assert connection.acks() == []


@virtual
async def test_cancelled_next_loses_nothing():
    for seed in range(60):
        chance = random.Random(seed)
        async with connected() as (js, connection):
            connection.api.has("d")
            sub = await js.pull_subscribe("orders.new", durable="d")
            server = PullServer(connection, 80, chance)
            reader = sub.messages(max_messages=chance.choice([1, 2, 7, 50]), expires=2.0)
            got: list[int] = []

            async def read(*, reader=reader, got=got, chance=chance):
                while True:
                    try:
                        message = await reader.next(timeout=chance.choice([None, 0.01, 1.0]))
                    except RequestTimeoutError:
                        continue
                    got.append(message.metadata.stream_seq)

            while len(got) < 80:
                task = asyncio.ensure_future(read())
                await asyncio.sleep(chance.choice([0, 0.01, 0.1, 1.0, 3.0]))
                task.cancel()
                await asyncio.wait({task})
                assert task.cancelled(), task
            await server.stop()
            await reader.stop()
            assert got == list(range(1, 81)), seed


@virtual
async def test_consumer_exists_after_all():
    async with connected() as (js, connection), reading(connection, js, max_messages=4) as read:
        connection.api.on("CONSUMER.INFO", *[Refusal(10008, 503)] * 3)
        for _ in range(4):
            read.arrives(status(503))
            await asyncio.sleep(6)
        read.arrives(data(1))
        assert await read.numbers(1) == [1]
