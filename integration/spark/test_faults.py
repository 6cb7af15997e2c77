"""From stream to stream while processes die and servers stop: every row once, wherever the sink promises it.

Each row of the table in docs/explanation/spark-semantics.md that a fault can break has its test here or in a neighbour.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.waiting import eventually
from integration.kit.spark.driver_process import SparkJob

# A driver needs up to a minute to start where it has two slow cores, and these tests start several.
pytestmark = [pytest.mark.limit(600), pytest.mark.server(">=2.11")]

COUNT = 60_000
BATCH = 20_000
COLUMNS = ["concat('{prefix}.', substring_index(subject, '.', -1)) as subject", "data"]
# The same, but a batch takes some three seconds, so that it can be met in the middle.
SLOWLY = [
    COLUMNS[0],
    "if(sequence % 50 = 0 and length(reflect('java.lang.Thread', 'sleep', 15L)) = -1, null, data) as data",
]
IN_SMALL_PARTS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Callable[..., SparkJob]]:
    """Starts jobs: `jobs(queries, master=…)`; again with the same queries a job goes on from their checkpoints."""
    started: list[SparkJob] = []

    def start(queries: list[dict[str, Any]], **options: Any) -> SparkJob:
        started.append(SparkJob(tmp_path, queries, **options))
        return started[-1]

    yield start
    for job in started:
        job.kill()  # those that have ended, too: it closes what they left open


def query(url: str, name: str, prefix: str, **sink: str) -> dict[str, Any]:
    """From the stream IN to the subjects of ``prefix``."""
    return {
        "name": name,
        "source": {
            "servers": url,
            "stream": "IN",
            "startingOffsets": "earliest",
            "maxMessagesPerTrigger": str(BATCH),
            "minPartitions": "2",
        },
        "columns": [column.format(prefix=prefix) for column in COLUMNS],
        "sink": {"servers": url, **sink},
    }


async def filled(oracle: Oracle, **outs: float) -> None:
    """The stream IN, and streams to write to with the seconds for which each remembers ids."""
    await oracle.create_stream("IN", ["in.>"], storage="file", allow_direct=True)
    for name, window in outs.items():
        await oracle.create_stream(
            name, [f"{name.lower()}.>"], storage="file", allow_direct=True, duplicate_window=int(window * 1e9)
        )
    for part in range(4):
        await oracle.publish_many(f"in.{part}", COUNT // 4, first=part * COUNT // 4 + 1, size=64)


async def stored(oracle: Oracle, name: str) -> int:
    return int((await oracle.state(name))["messages"])


async def numbers(oracle: Oracle, name: str) -> Counter[int]:
    """How often each number is stored."""
    return Counter(map(number_of, await oracle.payloads(name)))


def assert_each_once(found: Counter[int]) -> None:
    assert sum(found.values()) == COUNT, f"{sum(found.values()) - COUNT} too many"
    assert set(found) == set(range(1, COUNT + 1))


async def until(oracle: Oracle, job: SparkJob, name: str, count: int) -> None:
    """Wait until so many are stored."""

    async def look() -> bool:
        assert_running(job)
        return await stored(oracle, name) >= count

    await eventually(look, 300, what=f"{count} messages in {name}")


def assert_running(job: SparkJob) -> None:
    if job.process.poll() is not None:
        raise RuntimeError(f"the job has ended:\n{job.log[-6000:]}")


@pytest.mark.full
async def test_killed_in_batch(own_server: Any, oracle_for: Any, jobs: Any) -> None:
    """Restarted from the checkpoint later than the streams remember ids. Nothing is missing anywhere; nothing is twice
    where ids are remembered long enough, or a ledger is kept; without either there are duplicates."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, LONG=120, LEDGER=2, SHORT=2)
    queries = [
        query(server.url, "long", "long"),
        query(server.url, "ledger", "ledger", exactlyOnce="ledger", expectedStream="LEDGER"),
        query(server.url, "short", "short", minDuplicateWindow="1"),
    ]
    slow = [{**one, "columns": [column.format(prefix=one["name"]) for column in SLOWLY]} for one in queries]
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
    assert_each_once(await numbers(oracle, "LONG"))
    assert_each_once(await numbers(oracle, "LEDGER"))
    found = await numbers(oracle, "SHORT")
    assert set(found) == set(range(1, COUNT + 1))
    assert COUNT < sum(found.values()) <= COUNT + BATCH, "the part that was written is there twice"
    assert set(found.values()) == {1, 2}


@pytest.mark.full
async def test_killed_with_claims(own_server: Any, oracle_for: Any, jobs: Any) -> None:
    """Queue mode: back before the claims run out, it reads the same ones again, and acks each message once."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, OUT=120)
    await oracle.create_consumer(
        "IN",
        "work",
        durable_name="work",
        ack_policy="explicit",
        ack_wait=120_000_000_000,
        max_ack_pending=2 * BATCH,
    )
    one = query(server.url, "out", "out")
    one["source"] = {
        "servers": server.url,
        "stream": "IN",
        "mode": "queue",
        "consumer": "work",
        "maxMessagesPerTrigger": str(BATCH),
        "minPartitions": "2",
    }
    job = jobs([{**one, "columns": [column.format(prefix="out") for column in SLOWLY]}], **IN_SMALL_PARTS)

    async def in_the_middle() -> bool:
        assert_running(job)
        count = await stored(oracle, "OUT")
        return count > BATCH and count % BATCH > BATCH // 20

    await eventually(in_the_middle, 300, what="the second batch")
    await asyncio.to_thread(job.kill)
    await asyncio.to_thread(jobs([one]).finish)
    assert_each_once(await numbers(oracle, "OUT"))
    work = await oracle.consumer_info("IN", "work")
    assert (work["num_pending"], work["num_ack_pending"], work["num_redelivered"]) == (0, 0, 0)
    assert work["delivered"]["consumer_seq"] == COUNT


@pytest.mark.full
async def test_executors_killed_in_middle_of_batch(own_server: Any, oracle_for: Any, jobs: Any) -> None:
    """Spark starts others and tries the tasks again."""
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, OUT=120)
    job = jobs([query(server.url, "q", "out")], master="local-cluster[2,1,1024]")
    for part in (1, 2):
        await until(oracle, job, "OUT", part * BATCH + BATCH // 5)
        victims = await eventually(job.executors, 120, what="an executor")
        os.kill(victims[0], signal.SIGKILL)
    await asyncio.to_thread(job.finish)
    assert_each_once(await numbers(oracle, "OUT"))


@pytest.mark.full
@pytest.mark.parametrize("fault", ["restart", "freeze"])
async def test_server_stops_midway(
    own_server: Any, oracle_for: Any, spark: Any, checkpoint: Path, fault: str
) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    await filled(oracle, OUT=120)
    asked = query(server.url, "q", "out")
    frame = (
        spark.readStream.format("jetstream").options(**asked["source"]).load().selectExpr(*asked["columns"])
    )
    writer = frame.writeStream.format("jetstream").options(**asked["sink"])
    running = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        await eventually(
            lambda: _is_at(oracle, running, BATCH + BATCH // 5), 120, what="the second batch", interval=0.001
        )
        if fault == "restart":
            await server.kill()
            await server.start()
        else:
            server.pause()
            await asyncio.sleep(6.0)
            server.resume()
        assert await asyncio.to_thread(running.awaitTermination, 240), running.status
    finally:
        running.stop()
    assert_each_once(await numbers(oracle, "OUT"))


async def _is_at(oracle: Oracle, running: Any, count: int) -> bool:
    if running.exception() is not None:
        raise RuntimeError(str(running.exception()))
    return await stored(oracle, "OUT") >= count
