"""`fetch` of an ordered pull consumer."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import (
    ConfigError,
    DisconnectedError,
    StreamNotFoundError,
)
from jsclient.protocol.consumers.status import Ending
from jsclient.protocol.events import HeartbeatMissed
from tests.consumers.ordered.kit import arrives, batches, creates, sequences, start_next
from tests.support.fake import STREAM, Refusal, connected
from tests.support.strategies import data, status
from tests.support.virtual import settle, virtual


@virtual
async def test_fetch_ends_when_server_says_so():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        for end, ending in (
            (status(408, "Request Timeout", Nats_Pending_Messages=3, Nats_Pending_Bytes=0), Ending.EXPIRED),
            (status(409, "Message Size Exceeds MaxBytes"), Ending.MAX_BYTES),
            (status(404, "No Messages"), Ending.NO_MESSAGES),
        ):
            number = len(creates(connection)) + len(connection.pulls())
            fetching = asyncio.ensure_future(oc.fetch(4, no_wait=ending is Ending.NO_MESSAGES))
            await settle()
            arrives(connection, data(number), end)
            batch = await fetching
            assert (sequences(batch), batch.ending, batch.error) == ([number], ending, None)
        assert len(creates(connection)) == 1
        assert connection.pulls()[-1].json == {"batch": 4, "no_wait": True}


@virtual
async def test_fetch_survives_reset():
    """Rows 94, 101: what is left is carried over."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        fetching = asyncio.ensure_future(oc.fetch(10))
        await settle()
        arrives(connection, *[data(number) for number in (1, 2, 3, 5)])
        await settle(60)
        arrives(connection, *[data(3 + number, number) for number in (1, 2)], status(409, "Consumer Deleted"))
        await settle(60)
        arrives(connection, *[data(5 + number, number) for number in range(1, 6)])
        batch = await fetching
        assert (sequences(batch), batch.ending) == (list(range(1, 11)), Ending.FULL)
        assert batches(connection) == [10, 7, 5]


@virtual
async def test_lost_fetch_end_recreates():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        batch = await oc.fetch(4, expires=1.0)
        assert (list(batch), batch.ending) == ([], Ending.EXPIRED)
        await settle(60)
        assert len(creates(connection)) == 2
        fetching = asyncio.ensure_future(oc.fetch(1, expires=1.0))
        await settle()
        arrives(connection, data(1, 1))
        assert sequences(await fetching) == [1]


@virtual
async def test_fetch_without_connection_fails():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        connection.disconnect()
        with pytest.raises(DisconnectedError):
            await oc.fetch(4, expires=3.0)
        fetching = asyncio.ensure_future(oc.fetch(2, expires=60.0))
        await settle()
        connection.reconnect()
        await settle(60)
        connection.disconnect()
        await asyncio.sleep(50)
        connection.reconnect()
        await settle(60)
        arrives(connection, data(1), data(2))
        assert sequences(await fetching) == [1, 2]
        assert connection.told(HeartbeatMissed) == []


@virtual
async def test_fetch_without_consumer_fails():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        fetching = asyncio.ensure_future(oc.fetch(2, expires=3.0))
        await settle()
        connection.api.on("CONSUMER.CREATE", *[Refusal(10059, 404)] * 20)
        arrives(connection, data(1), status(409, "Consumer Deleted"))
        batch = await fetching
        assert sequences(batch) == [1]
        assert isinstance(batch.error, StreamNotFoundError)
        with pytest.raises(StreamNotFoundError):
            await oc.fetch(2, expires=1.0)


@virtual
@pytest.mark.parametrize(
    "arguments", [{"batch": 0}, {"batch": 1, "expires": 0}, {"batch": 1, "max_bytes": 0}]
)
async def test_fetch_cannot_work_refused(arguments):
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        with pytest.raises(ConfigError):
            await oc.fetch(**arguments)
        with pytest.raises(ConfigError):
            oc.messages(max_messages=4, threshold_messages=5)
        assert connection.pulls() == []


@virtual
async def test_bytes_of_fetch_bounded():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        size = sum(map(len, data(1)))
        waiting = await start_next(oc)
        arrives(connection, *[data(number) for number in range(1, 8)])
        await waiting
        batch = await oc.fetch(100, max_bytes=3 * size + 1)
        assert (sequences(batch), batch.ending) == ([2, 3, 4], Ending.MAX_BYTES)
