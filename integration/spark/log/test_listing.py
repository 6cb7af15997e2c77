"""Many streams in one source: a list of all streams shows their ends, or one request each without a list."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import pytest

from integration.kit.calls.several import PatternQuery, numbers, query_of, sequences
from integration.kit.clients.foreign import flushed
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient.errors import PositionInvalidError

COUNT = 20


@pytest.fixture
async def many(oracle, make_stream):
    """Twenty streams with two messages each, and the pattern that they match."""
    stream = [await make_stream() for _ in range(COUNT)]
    for one in stream:
        await one.publish(2)
    return stream, f"{stream[0].name.rsplit('_', 1)[0]}_*"


@pytest.mark.core_cases(1)
@pytest.mark.covers("L36")
@pytest.mark.parametrize("kind", ["names", "pattern", "filters"])
async def test_idle_query_asks_seldom(server, oracle, many, kind):
    streams, pattern = many
    filters = {"subjects": ",".join(one.all for one in streams)} if kind == "filters" else {}
    query = (
        PatternQuery(server, pattern, pollIntervalMs=100, startingOffsets="earliest")
        if kind == "pattern"
        else query_of(server, *streams, **filters)
    )
    query.drain()
    reader, end = query.reader(), query.offsets[-1][1]

    def ask():
        begin = time.monotonic()
        while (seconds := time.monotonic() - begin) < 3.0:
            assert query.ask(reader, end) == end
        return seconds

    await asyncio.to_thread(query.ask, reader, end)
    async with oracle.listen("$JS.API.>") as requests:
        seconds = await asyncio.to_thread(ask)
        await flushed(oracle.nc)
    assert sequences(query.rows, streams[-1]) == numbers(1, 2)
    assert 3 <= len(requests) <= 11 * seconds + 4


async def test_streams_change(server, many, make_stream):
    """Messages, a stream that appears, one that is deleted, and one that is created again."""
    streams, pattern = many
    query = PatternQuery(server, pattern, startingOffsets="earliest", failOnDataLoss=False)
    reader = query.reader()
    begin = query.start(reader)
    end = query.ask(reader, begin)
    query.batch(reader, begin, end)
    await streams[7].publish(3, first=3)
    end = await go_on(query, reader, end, streams[7], numbers(1, 5))
    new = await make_stream()
    await new.publish(4)
    end = await go_on(query, reader, end, new, numbers(1, 4))
    await streams[7].delete()
    end = await eventually(
        lambda: (got := query.ask(reader, end)) and streams[7].name not in got["streams"] and got
    )
    await streams[7].oracle.create_stream(streams[7].name, [streams[7].all], storage="memory")
    await streams[7].publish(2)
    await go_on(query, reader, end, streams[7], [*numbers(1, 5), *numbers(1, 2)])
    assert sequences(query.rows, streams[8]) == numbers(1, 2)


async def go_on(query, reader, end, stream, expected):
    """Read until these messages of a stream were read. The last offset."""

    def read():
        nonlocal end
        if (following := query.ask(reader, end)) != end:
            query.batch(reader, end, following)
            end = following
        return sequences(query.rows, stream) == expected

    await eventually(lambda: asyncio.to_thread(read))
    return end


async def test_recreated_stream_is_an_error(server, many):
    streams, _ = many
    query = query_of(server, *streams, pollIntervalMs=1)
    reader = query.reader()
    begin = query.start(reader)
    end = query.ask(reader, begin)
    query.batch(reader, begin, end)
    await streams[3].delete()
    await streams[3].oracle.create_stream(streams[3].name, [streams[3].all], storage="memory")

    def ask():
        while True:
            assert query.ask(reader, end) == end

    with pytest.raises(PositionInvalidError, match=f"stream '{streams[3].name}' was recreated"):
        await asyncio.to_thread(ask)


@pytest.mark.parametrize("why", ["not allowed", "too many others"])
async def test_asked_one_by_one(own_server, oracle_for, monkeypatch, caplog, why):
    if why == "too many others":
        monkeypatch.setattr("jsclient.tables.listing._SHARE", 0)
    caplog.set_level(logging.INFO, "jsclient.spark")
    denied = {"publish": {"deny": ["$JS.API.STREAM.LIST"]}} if why == "not allowed" else {}
    users = [{"user": "judge", "password": "x"}, {"user": "ann", "password": "x", "permissions": denied}]
    own = await own_server(config={"authorization": {"users": users}})
    oracle = await oracle_for(own.url.replace("nats://", "nats://judge:x@"))
    streams = [await OwnStream.create(oracle, f"many_{number}") for number in range(6)]
    for one in streams:
        await one.publish(1)
    query = query_of(own, *streams, user="ann", password="x", pollIntervalMs=1)
    reader = query.reader()
    begin = query.start(reader)
    end = query.ask(reader, begin)
    query.batch(reader, begin, end)
    await streams[2].publish(2, first=2)
    async with oracle.listen("$JS.API.STREAM.LIST") as requests:
        await go_on(query, reader, end, streams[2], numbers(1, 3))
        assert await asyncio.to_thread(query.ask, reader, query.offsets[-1][1]) == query.offsets[-1][1]
        await flushed(oracle.nc)
    assert len(requests) <= 1
    assert ("not listed, but asked for one by one" in caplog.text) == (why == "not allowed")


@pytest.mark.full
async def test_cluster_that_loses_a_node(cluster, oracle_for):
    """A list contains the reports of the leaders. Without a leader of the cluster the list is missing."""
    first, *others = cluster.servers.values()
    oracle = await oracle_for(first)
    streams = [await OwnStream.create(oracle, "lost", num_replicas=3) for _ in range(6)]
    for one in streams:
        await one.publish(2)
    query = query_of(others[0], *streams, servers=",".join(one.url for one in others), pollIntervalMs=20)
    reader = query.reader()
    begin = await asyncio.to_thread(query.start, reader)
    end = await asyncio.to_thread(query.ask, reader, begin)
    await asyncio.to_thread(query.batch, reader, begin, end)
    for _ in range(3):
        for one in streams:
            await cluster.step_down(oracle, one.name)
            assert await asyncio.to_thread(query.ask, reader, end) == end
    await first.kill()
    survivor = OwnStream(await oracle_for(others[1]), streams[0].name, streams[0].prefix)

    async def stored():
        with contextlib.suppress(Exception):  # the cluster may not have a leader yet
            return await survivor.publish(1, first=3)

    last = await eventually(stored, 60, what="a leader")
    await go_on(query, reader, end, survivor, numbers(1, last))
    assert all(sequences(query.rows, one) == numbers(1, 2) for one in streams[1:])
