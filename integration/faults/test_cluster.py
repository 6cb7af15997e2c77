"""Reading a replicated stream whose leader changes, whose nodes die, and whose followers lag."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.waiting import within
from integration.kit.servers.cluster import OwnCluster
from jsclient.tables.range_reader import ConsumerRange, DirectRange

COUNT = 30_000
WAYS = pytest.mark.parametrize("way", [ConsumerRange, pytest.param(DirectRange, marks=pytest.mark.full)])

pytestmark = [pytest.mark.server(">=2.11"), pytest.mark.limit(120)]


@pytest.fixture
async def oracle_there(cluster: OwnCluster, oracle_for: Any) -> Any:
    """The judge. Its stream R3 has `COUNT` messages."""
    oracle = await oracle_for(cluster.servers["n1"])
    await oracle.create_stream("R3", ["r3.>"], num_replicas=3, storage="file", allow_direct=True)
    await oracle.publish_many("r3.x", COUNT, size=200)
    return oracle


async def read_all(reader: Any, *, after_first: Any = None) -> list[int]:
    """The numbers in all messages. `after_first` is called when the first ones have come."""
    got: list[int] = []
    try:
        while frames := await reader.read_messages(500):
            got += [number_of(frame[3]) for frame in frames]
            if after_first is not None:
                await after_first()
                after_first = None
    finally:
        await reader.close()
    return got


@WAYS
async def test_range_whole_over_election(
    cluster: OwnCluster, oracle_there: Any, connect: Any, way: Any
) -> None:
    js = await connect(cluster.servers["n1"])
    stream = await js.stream("R3")  # before, because without a leader this request has no answer
    done = asyncio.Event()
    changes = 0

    async def disturb() -> None:
        nonlocal changes
        while not done.is_set():
            with contextlib.suppress(Exception):  # no one leads just now
                await cluster.step_down(oracle_there, "R3")
                changes += 1
            await asyncio.sleep(0.2)

    disturbing = asyncio.create_task(disturb())
    try:
        for _ in range(3):
            reader = way(stream, 1, COUNT, max_bytes=64 * 1024)
            assert await within(60, read_all(reader), "reading") == [*range(1, COUNT + 1)]
    finally:
        done.set()
        await disturbing
    assert changes


@pytest.mark.full
@WAYS
async def test_range_read_whole_though_node_dies(
    cluster: OwnCluster, oracle_there: Any, connect: Any, way: Any
) -> None:
    """Every node once, including the node of the connection."""
    for name, server in cluster.servers.items():
        leader, _ = await cluster.places(oracle_there, "R3")
        js = await connect(server)
        reader = way(await js.stream("R3"), 1, COUNT, max_bytes=64 * 1024)
        try:
            got = await within(60, read_all(reader, after_first=server.kill), f"reading without {name}")
        finally:
            await server.start()
        assert got == [*range(1, COUNT + 1)], f"{name} died, {leader} was the leader"
        await js.close()


@WAYS
async def test_follower_lags_does_not_end_range(
    cluster: OwnCluster, oracle_there: Any, connect: Any, way: Any
) -> None:
    """It was frozen while messages were stored. Its reader has to hear from the leader that more messages exist."""
    stored, short = COUNT, 0
    for _ in range(4):
        _, (follower, _) = await cluster.places(oracle_there, "R3")
        server = cluster.servers[follower]
        js = await connect(server, timeout=10.0)
        stream = await js.stream("R3")
        reader = way(stream, stored - 999, stored + 2000)
        server.pause()
        try:
            async with Oracle(_another(cluster, follower).url) as judge:
                await judge.publish_many("r3.x", 2000, first=stored + 1, size=200)
            # Asked while it sleeps: it answers in the moment in which it begins to catch up.
            page = asyncio.create_task(_last(stream, stored + 2000))
            reading = asyncio.create_task(read_all(reader))
            await asyncio.sleep(0.1)
        finally:
            server.resume()
        stored += 2000
        short += not await within(30, page, "a direct get")
        assert await within(60, reading, "reading") == [*range(stored - 2999, stored + 1)]
        await js.close()
    print(f"{short} of 4 times the follower had not the last message yet")


def _another(cluster: OwnCluster, name: str) -> Any:
    return next(server for other, server in cluster.servers.items() if other != name)


async def _last(stream: Any, seq: int) -> list[Any]:
    return [message async for message in stream.get_batch(10, seq=seq, timeout=20.0)]


@pytest.mark.full
@pytest.mark.limit(240)
async def test_publishes_over_elections(cluster: OwnCluster, oracle_there: Any, connect: Any) -> None:
    """With message ids and `resend`, as the Spark sink publishes."""
    js = await connect(cluster.servers["n1"], timeout=20.0)
    await oracle_there.create_stream("OUT", ["out.>"], num_replicas=3, storage="file")
    async with js.publisher(max_in_flight=1000, timeout=100.0) as publisher:
        for number in range(1, 20_001):
            await publisher.publish("out.x", b"%d" % number, msg_id=f"m{number}")
            if number in {5000, 10_000}:
                with contextlib.suppress(jsclient.JetStreamError, Exception):
                    await cluster.step_down(oracle_there, "OUT")
            if number == 15_000:
                leader, _ = await cluster.places(oracle_there, "OUT")
                victim = next(name for name in cluster.servers if name not in {"n1", leader})
                await cluster.servers[victim].kill()
    state = await oracle_there.state("OUT")
    assert state["messages"] == 20_000
    assert sorted(number_of(one.payload) for one in await oracle_there.messages("OUT")) == [*range(1, 20_001)]
