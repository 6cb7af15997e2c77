"""Topics of epochs, and peers, that are opened while no server leads their stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import within
from integration.kit.servers.cluster import OwnCluster
from jsclient.peers import Engine

FAST = {"reconnect_time_wait": 0.05, "connect_timeout": 1.0, "ping_interval": 0.5, "timeout": 2.0}

pytestmark = [pytest.mark.limit(240)]


@pytest.fixture
async def near(cluster: OwnCluster, connect: Any) -> Any:
    return await connect(cluster.urls, **FAST)


async def kill_leader(cluster: OwnCluster, stream: str) -> None:
    async with Oracle(cluster.urls[0]) as oracle:
        leader, _ = await cluster.places(oracle, stream)
    await cluster.servers[leader].kill()


@pytest.mark.full
async def test_publisher_opened_in_an_election(cluster: OwnCluster, near: Any) -> None:
    topic = near.epochs("elected", partitions=3)
    await topic.create(num_replicas=3)
    async with topic.publisher(0) as pub:
        await pub.send(1, ["a"])
        await pub.advance(2)
    await kill_leader(cluster, "elected")
    opened = await within(60, asyncio.gather(*(topic.publisher(number) for number in range(3))), "publishers")
    assert [pub.frontier.elements for pub in opened] == [(2,), (0,), (0,)]
    for pub in opened:
        await pub.close()


@pytest.mark.full
@pytest.mark.server(">=2.12")  # older ones may place a consumer on the dead node, and then do not answer
async def test_subscribers_opened_in_an_election(cluster: OwnCluster, near: Any) -> None:
    topic = near.epochs("elected")
    await topic.create(num_replicas=3)
    async with topic.publisher() as pub:
        await pub.send(1, ["a"])
        await pub.close()
    await kill_leader(cluster, "elected")
    for start in ("first", "now"):
        for wait in (True, False):
            sub = await within(60, topic.subscribe(start=start, wait=wait), "a subscription")
            await sub.close()


async def test_peer_opened_in_an_election(cluster: OwnCluster, near: Any) -> None:
    async with Engine(near, replicas=3) as engine:
        await engine.peer("one")
        await kill_leader(cluster, "PICO_STATE")
        two = await within(60, engine.peer("two"), "a peer")
        assert await two.wellKnown_Rx()
