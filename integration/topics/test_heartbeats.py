"""A reader of a topic reports a server that is silent, in the time of its heartbeat."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from integration.kit.clients.topics import has_push
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually, within
from integration.kit.servers.cluster import OwnCluster
from jsclient import ConfigError
from jsclient.events import HeartbeatMissed

BEAT = 0.5
SOON = 8.0  # seconds that a busy machine may be late. With the default heartbeat, the alarm comes later than that


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("push", ["republish", "consumer"])
async def test_frozen_server_is_reported(own_server: Any, connect: Any, events: list[Any], push: Any) -> None:
    own = await own_server()
    js = await connect(own)
    topic = js.topic("t", stream="T")
    await topic.create(storage="memory")
    async with topic.each(push=push, heartbeat=BEAT, quiet=600) as reader:
        await js.publish("t", b"1")
        assert (await reader.next(5)).data == b"1"
        await has_push(reader)
        await asyncio.sleep(6 * BEAT)
        assert of(HeartbeatMissed, events) == [], "an idle server is alive"
        own.pause()
        try:
            began = time.monotonic()
            (missed, *_) = await eventually(lambda: of(HeartbeatMissed, events), what="the alarm")
            assert 2 * BEAT < time.monotonic() - began < 3 * BEAT + SOON
        finally:
            own.resume()
        assert missed.stream == "T"
        assert bool(missed.consumer) is (push == "consumer")
        await within(20, js.publish("t", b"2"), "a publish")
        assert (await reader.next(20)).data == b"2"


@pytest.mark.limit(120)
async def test_lost_node_of_consumer_is_reported(own_server: Any, connect: Any, events: list[Any]) -> None:
    """The stream is on one node, which the others no longer reach. The reader's connection is healthy."""
    cluster = await OwnCluster.start(own_server)
    async with Oracle(cluster.urls[0]) as oracle:
        await oracle.create_stream("T", ["t"], storage="memory")
        leader = (await oracle.stream_info("T"))["cluster"]["leader"]
    near = next(server for name, server in cluster.servers.items() if name != leader)
    js = await connect(near.url, ping_interval=600)
    topic = js.topic("t")
    async with topic.each(push="consumer", heartbeat=BEAT, quiet=600) as reader:
        await js.publish("t", b"1")
        assert (await reader.next(30)).data == b"1"  # a cluster that has just started may elect again
        await has_push(reader)
        cluster.servers[leader].pause()
        try:
            began = time.monotonic()
            await eventually(lambda: of(HeartbeatMissed, events), what="the alarm")
            assert time.monotonic() - began < 3 * BEAT + SOON
            assert js.is_connected
        finally:
            cluster.servers[leader].resume()
        await within(30, js.publish("t", b"2"), "a publish")
        assert (await reader.next(30)).data == b"2"


async def test_heartbeat_is_checked(js: Any) -> None:
    for wrong in (0, -1, "5", True, float("inf")):
        with pytest.raises(ConfigError, match="heartbeat"):
            js.topic("t").each(heartbeat=wrong)


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("push", ["republish", "consumer"])
async def test_blocked_loop_is_no_silence(
    own_server: Any, connect: Any, events: list[Any], push: Any
) -> None:
    """A program that blocks its event loop reads nothing meanwhile: the server was not silent."""
    js = await connect(await own_server())
    topic = js.topic("t", stream="T")
    await topic.create(storage="memory")
    async with topic.each(push=push, heartbeat=BEAT, quiet=600) as reader:
        await js.publish("t", b"1")
        assert (await reader.next(5)).data == b"1"
        await has_push(reader)
        for _ in range(3):
            time.sleep(4 * BEAT)  # the mistake
            await asyncio.sleep(0)
        await asyncio.sleep(BEAT)
        assert of(HeartbeatMissed, events) == []
