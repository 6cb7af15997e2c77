"""A cancelled, closed or drained reader leaves no tasks and no consumers."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient.errors import (
    ClosedError,
    RequestTimeoutError,
)
from jsclient.protocol.consumers.status import Ending
from jsclient.protocol.events import DeleteFailed
from tests.consumers.ordered.kit import arrives, batches, creates, read_inboxes, sequences, start_next, taken
from tests.support.fake import SILENCE, STREAM, PullServer, connected
from tests.support.strategies import data
from tests.support.virtual import settle, virtual

# --- cancellation --------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("way", ["next", "messages", "fetch", "all"])
async def test_cancelled_calls_lose_nothing(way):
    for seed in range(40):
        chance = random.Random(seed)
        async with connected() as (js, connection):
            oc = await js.ordered_consumer(STREAM)
            server = PullServer(connection, 80, chance, beats=True)
            got: list[int] = []

            async def read(*, oc=oc, got=got, chance=chance):
                while True:
                    how = chance.choice(["next", "messages", "fetch"]) if way == "all" else way
                    try:
                        if how == "next":
                            got.append(
                                (await oc.next(timeout=chance.choice([None, 0.01, 1.0]))).metadata.stream_seq
                            )
                        elif how == "fetch":
                            batch = await oc.fetch(
                                chance.choice([1, 3, 20]), expires=chance.choice([0.3, 2.0])
                            )
                            got += sequences(batch)
                        else:
                            async with oc.messages(
                                max_messages=chance.choice([1, 2, 7]), expires=chance.choice([0.5, 2.0])
                            ) as reader:
                                for _ in range(chance.choice([1, 5])):
                                    got += await taken(reader, 1)
                    except RequestTimeoutError:
                        continue

            # Each reader is cancelled at a random instant, and the next reader continues.
            for _ in range(5000):
                if len(got) >= 80:
                    break
                task = asyncio.ensure_future(read())
                await asyncio.sleep(chance.choice([0, 0.01, 0.1, 1.0, 3.0]))
                task.cancel()
                await asyncio.wait({task})
                assert task.cancelled(), task
            await server.stop()
            assert got == list(range(1, 81)), seed
            assert len(creates(connection)) == 1, seed


# --- the end -------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("end", ["stop", "drain", "close"])
async def test_close_in_reset_leaves_nothing(end):
    """Row 102."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM, name_prefix="p")
        waiting = await start_next(oc)
        held: list = []
        connection.api.on("CONSUMER.CREATE", lambda request: held.append(request) or SILENCE)
        arrives(connection, data(2, 2))
        await settle(60)
        (create,) = held
        ending = asyncio.ensure_future(getattr(oc, end)())
        await settle()
        connection.deliver(create.reply, [(create.reply.encode(), b"", b"", answer(connection, create))])
        await ending
        assert set(connection.deleted()) == {"p_1", "p_2"}
        assert read_inboxes(connection) == []
        with pytest.raises(ClosedError):
            await waiting
        remaining = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert remaining == []


def answer(connection, create) -> bytes:
    import json

    return json.dumps(connection.api._consumer_create(create)).encode()


@virtual
@pytest.mark.parametrize("end", ["stop", "drain"])
async def test_close_in_wait_leaves_no_task(end):
    """Row 102."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        connection.disconnect()
        arrives(connection, data(2, 2))
        await settle()
        await getattr(oc, end)()
        with pytest.raises(ClosedError):
            await waiting
        await settle()
        remaining = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert remaining == []
        connection.reconnect()
        await settle(60)
        assert len(creates(connection)) == 1
        assert len(connection.told(DeleteFailed)) == 1


@virtual
async def test_draining_takes_in_under_way():
    """Row 102."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        got: list[int] = []

        async def read():
            got.extend([message.metadata.stream_seq async for message in oc])

        reader = asyncio.ensure_future(read())
        await settle()
        inbox = connection.pulls()[-1].reply
        connection.under_way = [(inbox, [data(number)]) for number in range(1, 6)]
        await oc.drain()
        await reader
        assert got == [1, 2, 3, 4, 5]
        assert connection.deleted() == [oc.consumer]
        assert batches(connection) == [500]


@virtual
async def test_waits_after_draining_can_be_fetched():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        arrives(connection, data(1), data(2), data(3))
        await waiting
        await oc.drain()
        batch = await oc.fetch(5)
        assert (sequences(batch), batch.ending) == ([2, 3], Ending.CLOSED)
        with pytest.raises(ClosedError):
            await oc.fetch(5)


@virtual
async def test_fetch_under_way_ends_when_stopped():
    """Row 102."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        fetching = asyncio.ensure_future(oc.fetch(5))
        await settle()
        arrives(connection, data(1))
        await settle()
        await oc.stop()
        batch = await fetching
        assert (sequences(batch), batch.ending) == ([1], Ending.CLOSED)
        assert isinstance(batch.error, ClosedError)


@virtual
async def test_it_ends_with_the_connection():
    async with connected() as (js, connection):
        oc, other = await js.ordered_consumer(STREAM), await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        arrives(connection, data(1), data(2))
        await waiting
        waiting = await start_next(other)
        await connection.close()
        assert await taken(oc, 1) == [2]
        for read in (waiting, oc.next(), oc.fetch(1)):
            with pytest.raises(ClosedError):
                await read
        assert [event async for event in oc.events()] == []
        await oc.stop()


@virtual
async def test_closing_client_deletes_consumers():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        name = oc.consumer
        await js.close()
        assert connection.deleted() == [name]
        with pytest.raises(ClosedError):
            await waiting
