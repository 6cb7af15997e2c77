"""From stream to stream while processes die and servers stop: every row once, wherever the sink promises it.

Each row of the table in docs/explanation/spark-semantics.md that a fault can break has its test here, in `faults/`, or
in a neighbour.
"""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually
from integration.kit.spark.copies import (
    IN_SMALL_PARTS,
    assert_running,
    by_claims,
    columns,
    filled,
    query,
    until,
    with_consumer,
)

# A driver needs up to a minute to start on two slow cores, and these tests start several.
pytestmark = [pytest.mark.full, pytest.mark.limit(600), pytest.mark.server(">=2.11")]

COUNT = 60_000
BATCH = 20_000


async def stored(oracle: Oracle, name: str) -> int:
    return int((await oracle.state(name))["messages"])


@pytest.mark.covers("L2", "L25")
@pytest.mark.fault("driver, JVM and workers killed in mid-batch, restarted late")
async def test_killed_in_batch(own_server: Any, oracle_for: Any, jobs: Any, recount: Any) -> None:
    """Restarted from the checkpoint later than two of the streams remember ids. No message is missing or twice: ids are
    remembered long enough, a ledger is kept, or the rows are found by the record of runs."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {"LONG": 120, "LEDGER": 2, "SHORT": 2})
    queries = [
        query(server.url, "long", batch=BATCH),
        query(server.url, "ledger", batch=BATCH, exactlyOnce="ledger", expectedStream="LEDGER"),
        query(server.url, "short", batch=BATCH, minDuplicateWindow="1"),
    ]
    slow = [{**one, "columns": columns(one["name"], every=50)} for one in queries]
    job = jobs(slow, master="local[6,4]", **IN_SMALL_PARTS)  # room for all of them at once

    async def in_the_middle() -> bool:
        """Each of them has written a part of a batch."""
        assert_running(job)
        counts = [await stored(oracle, name) for name in ("LONG", "LEDGER", "SHORT")]
        return all(count % BATCH > BATCH // 20 for count in counts)

    await eventually(in_the_middle, 300, what="three queries in the middle of a batch")
    await asyncio.to_thread(job.kill)
    await asyncio.sleep(3.0)  # longer than two of them remember
    await asyncio.to_thread(jobs(queries).finish)
    await recount(server, "LONG", COUNT)
    await recount(server, "LEDGER", COUNT)
    await recount(server, "SHORT", COUNT)


@pytest.mark.covers("L16")
@pytest.mark.fault("queue mode: driver, JVM and workers killed in mid-batch")
async def test_killed_with_claims(own_server: Any, oracle_for: Any, jobs: Any, recount: Any) -> None:
    """Queue mode: back before the claims run out, it reads the same ones again, and acks each message once."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {"OUT": 120})
    await with_consumer(oracle, BATCH)
    one = by_claims(query(server.url, "out", batch=BATCH))
    job = jobs([{**one, "columns": columns("out", every=50)}], **IN_SMALL_PARTS)

    async def in_the_middle() -> bool:
        assert_running(job)
        count = await stored(oracle, "OUT")
        return count > BATCH and count % BATCH > BATCH // 20

    await eventually(in_the_middle, 300, what="the second batch")
    await asyncio.to_thread(job.kill)
    claimed = await oracle.consumer_info("IN", "work")
    assert claimed["num_ack_pending"] == BATCH, "killed in the middle of a batch, and not between two"
    await asyncio.to_thread(jobs([one]).finish)
    work = await oracle.consumer_info("IN", "work")
    assert (work["num_pending"], work["num_ack_pending"], work["num_redelivered"]) == (0, 0, 0)
    assert work["delivered"]["consumer_seq"] == COUNT
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L2", "L25")
@pytest.mark.fault("two executors killed in mid-batch, local-cluster")
async def test_executors_killed_in_middle_of_batch(
    own_server: Any, oracle_for: Any, jobs: Any, recount: Any
) -> None:
    """Spark starts others and tries the tasks again."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {"OUT": 120})
    job = jobs([query(server.url, "out", batch=BATCH)], master="local-cluster[2,1,1024]")
    for part in (1, 2):
        await until(oracle, job, "OUT", part * BATCH + BATCH // 5)
        victims = await eventually(job.executors, 120, what="an executor")
        os.kill(victims[0], signal.SIGKILL)
    await asyncio.to_thread(job.finish)
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L25")
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(5, marks=pytest.mark.fault("server killed five times in mid-batch"), id="kill"),
        pytest.param(0, marks=pytest.mark.fault("server frozen for 6 s in mid-batch"), id="freeze"),
    ],
)
async def test_server_stops_midway(
    own_server: Any, oracle_for: Any, spark: Any, checkpoint: Path, recount: Any, kills: int
) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {"OUT": 120})
    requests = query(server.url, "out", batch=BATCH, every=100)
    source = spark.readStream.format("jetstream").options(**requests["source"]).load()
    writer = (
        source.selectExpr(*requests["columns"]).writeStream.format("jetstream").options(**requests["sink"])
    )
    running = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    stops = kills or 1
    try:
        for stop in range(1, stops + 1):
            at = COUNT * stop // (stops + 1)
            await eventually(partial(_is_at, oracle, running, at), 120, what=f"{at} rows", interval=0.001)
            if kills:
                await server.kill()
                await server.start()
            else:
                server.pause()
                await asyncio.sleep(6.0)
                server.resume()
        assert await asyncio.to_thread(running.awaitTermination, 240), running.status
    finally:
        running.stop()
    await recount(server, "OUT", COUNT)


async def _is_at(oracle: Oracle, running: Any, count: int) -> bool:
    if running.exception() is not None:
        raise RuntimeError(str(running.exception()))
    if (now := await stored(oracle, "OUT")) >= COUNT:
        raise RuntimeError("the query has ended before the server stopped")
    return now >= count
