"""The network between Spark and the server swallows everything, for a while or for ever."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from integration.kit.network.proxy import Proxy
from integration.kit.spark.copies import IN_SMALL_PARTS, assert_running, filled, query
from integration.kit.spark.driver_process import SparkJob

pytestmark = [pytest.mark.full, pytest.mark.limit(600), pytest.mark.server(">=2.11")]

COUNT, BATCH = 20_000, 10_000


async def in_second_batch(oracle: Oracle, job: SparkJob) -> None:
    async def is_ready() -> bool:
        assert_running(job)
        stored = int((await oracle.state("OUT"))["messages"])
        return BATCH + BATCH // 20 < stored < BATCH + BATCH * 3 // 4

    await eventually(is_ready, 240, what="the second batch")


@pytest.fixture
async def network(own_server: Any, oracle_for: Any, proxy: Any) -> tuple[Any, Oracle, Proxy]:
    """A server with messages to copy, its judge, and the proxy before it."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {"OUT": 600})
    return server, oracle, await proxy(server, frames=False)


@pytest.mark.covers("L25")
@pytest.mark.fault("network swallows everything for 20 s in mid-batch")
async def test_network_gone_for_a_while(network: tuple[Any, Oracle, Proxy], jobs: Any, recount: Any) -> None:
    server, oracle, wire = network
    job = jobs([query(wire.url, "out", batch=BATCH, every=50)], **IN_SMALL_PARTS)
    await in_second_batch(oracle, job)
    wire.blackhole()
    await asyncio.sleep(20)
    wire.heal()
    await asyncio.to_thread(job.finish)
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L25")
@pytest.mark.fault("network gone for ever in mid-batch, then a restart")
@pytest.mark.parametrize("attempts", [1, 4])
async def test_network_gone_for_ever(
    network: tuple[Any, Oracle, Proxy], jobs: Any, recount: Any, attempts: int
) -> None:
    """The query ends with an error that names the server: a task after two attempts of two seconds for each row, each
    further task after five seconds, in which it cannot connect."""
    server, oracle, wire = network
    copy = query(wire.url, "out", batch=BATCH, every=50, ackTimeout="2", retries="1")
    job = jobs([copy], master=f"local[2,{attempts}]", **IN_SMALL_PARTS)
    await in_second_batch(oracle, job)
    wire.blackhole()
    begin = time.monotonic()
    assert await asyncio.to_thread(job.process.wait, 240) == 1, job.log[-4000:]
    assert time.monotonic() - begin < 120
    assert BATCH < int((await oracle.state("OUT"))["messages"]) < COUNT
    reason = job.log[job.log.index("StreamingQueryException: ") :]
    assert wire.url in reason, reason
    wire.heal()
    await asyncio.to_thread(jobs([copy]).finish)
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L25")
@pytest.mark.fault("network gone when the query starts, then a restart")
async def test_network_gone_from_the_start(
    network: tuple[Any, Oracle, Proxy], jobs: Any, recount: Any
) -> None:
    server, _, wire = network
    wire.blackhole()
    copy = query(wire.url, "out", batch=BATCH)
    job = jobs([copy])
    assert await asyncio.to_thread(job.process.wait, 240) == 1, job.log[-4000:]
    assert f"no server could be reached at {wire.url}" in job.log
    wire.heal()
    await asyncio.to_thread(jobs([copy]).finish)
    await recount(server, "OUT", COUNT)
