"""Publishing to replicated streams: what a guard that does not hold may cost, and chains through elections."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import within
from integration.kit.servers.cluster import OwnCluster
from jsclient.protocol.publishing.in_flight import question_about
from jsclient.protocol.wire.codec import decode
from jsclient.protocol.wire.headers import parse_headers

pytestmark = [pytest.mark.limit(240)]


@pytest.fixture
async def cluster(own_server: Any) -> OwnCluster:
    return await OwnCluster.start(own_server)


@pytest.fixture
async def oracle_there(cluster: OwnCluster, oracle_for: Any) -> Oracle:
    """The judge; its stream OUT is replicated."""
    oracle: Oracle = await oracle_for(cluster.servers["n1"])
    await oracle.create_stream("OUT", ["out.>"], num_replicas=3, storage="file", allow_direct=True)
    return oracle


async def everything(js: Any, count: int) -> list[bytes]:
    async with js.ordered_consumer("OUT") as reader:
        got: list[bytes] = []
        while len(got) < count:
            got += [message.data for message in await reader.fetch(5000, expires=2)]
        return got


async def test_asking_whether_a_message_was_stored_does_a_replicated_stream_no_harm(
    cluster: OwnCluster, oracle_there: Oracle, connect: Any
) -> None:
    """From 2.14 on a last id that does not hold breaks such a stream on all its servers, so that is not asked for."""
    js = await connect(cluster.servers["n1"])
    assert (await js.publish("out.x", b"1", msg_id="a")).seq == 1

    async def ask(msg_id: str) -> Any:
        headers = dict(parse_headers(question_about(msg_id, "never an id"))[1])
        return decode((await oracle_there.nc.request("out.x", headers=headers, timeout=5)).data)

    assert (await ask("a"))["seq"] == 1
    for number in range(2):
        assert (await ask(f"not there {number}"))["error"]["err_code"] in (10070, 10111)
        await js.publish("out.x", b"2")
    state = await oracle_there.state("OUT")
    assert state["messages"] == 3


@pytest.mark.full
async def test_a_chain_goes_on_through_elections_and_the_death_of_nodes(
    cluster: OwnCluster, oracle_there: Oracle, connect: Any
) -> None:
    js = await connect(cluster.urls, timeout=20.0, reconnect_time_wait=0.05)
    done, count = asyncio.Event(), 0

    async def disturb() -> None:
        for name in ("n2", "n3"):
            for _ in range(2):
                await asyncio.sleep(0.7)
                with contextlib.suppress(Exception):  # nobody leads just now
                    async with Oracle(cluster.servers["n1"].url, timeout=2.0) as oracle:
                        await cluster.step_down(oracle, "OUT")
            await cluster.servers[name].kill()
            await asyncio.sleep(1.0)
            await cluster.servers[name].start()
            async with Oracle(cluster.servers["n1"].url) as oracle:
                await cluster.places(oracle, "OUT")
        done.set()

    disturbing = asyncio.create_task(disturb())
    topic = js.topic("out.x")
    try:
        async with topic.publisher(chained=True, timeout=90.0) as pub:
            futures = []
            while not done.is_set():
                count += 1
                futures.append(await within(90, pub.publish(b"%d" % count), "a record"))
    finally:
        disturbing.cancel()
        await asyncio.gather(disturbing, return_exceptions=True)
    assert [future.result().seq for future in futures] == [*range(1, count + 1)]
    assert await within(60, everything(js, count), "reading") == [b"%d" % n for n in range(1, count + 1)]


async def test_a_chain_gives_way_to_another_producer(
    cluster: OwnCluster, oracle_there: Oracle, connect: Any
) -> None:
    js = await connect(cluster.servers["n1"])

    async def publish() -> None:
        async with js.topic("out.x").publisher(chained=True) as pub:
            for number in range(1, 100):
                await pub.publish(b"%d" % number)
                if number == 50:
                    await pub.flush()
                    await js.publish("out.x", b"rival")

    with pytest.raises(jsclient.ProducerFencedError):
        await publish()
    assert await everything(js, 51) == [*(b"%d" % n for n in range(1, 51)), b"rival"]
    await js.publish("out.x", b"still alive")
