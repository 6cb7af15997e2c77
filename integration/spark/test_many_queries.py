"""Many queries on one registered source that start at the same moment, and again after a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually
from integration.kit.spark.driver_process import SparkJob

pytestmark = [pytest.mark.full, pytest.mark.limit(900), pytest.mark.server(">=2.11")]

QUERIES = 6
COUNT = 6_000
BATCH = 1_000
# A batch takes about half a second, so that a kill meets queries in the middle.
SLOWLY = (
    "if(sequence % 100 = 0 and length(reflect('java.lang.Thread', 'sleep', 50L)) = -1, null, data) as data"
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., SparkJob]]:
    """Starts a driver with these queries, all at once: `start(queries)`."""
    jobs: list[SparkJob] = []

    def one(queries: list[dict[str, Any]]) -> SparkJob:
        # One attempt for a task: a failure that a second attempt would hide is seen.
        jobs.append(SparkJob(tmp_path, queries, f"local[{QUERIES},1]", together=True))
        return jobs[-1]

    yield one
    for job in jobs:
        job.kill()


@pytest.mark.covers("L25")
@pytest.mark.fault("six queries started at once, killed in mid-batch, and started again")
async def test_queries_survive_kills(
    own_server: Any, oracle_for: Any, start: Callable[..., SparkJob], recount: Any
) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    await oracle.create_stream("IN", ["in.>"], storage="file", allow_direct=True)
    outs = [f"OUT{number}" for number in range(QUERIES)]
    for out in outs:
        await oracle.create_stream(out, [f"{out}.>"], allow_direct=True, duplicate_window=600 * 10**9)
    await oracle.publish_many("in.a", COUNT, size=64)
    source = {
        "servers": server.url,
        "stream": "IN",
        "startingOffsets": "earliest",
        "maxMessagesPerTrigger": str(BATCH),
    }
    queries = [
        {
            "name": out,
            "source": source,
            "columns": [f"'{out}.copy' as subject", SLOWLY],
            "sink": {"servers": server.url, "expectedStream": out},
        }
        for out in outs
    ]
    job = start(queries)

    async def in_the_middle() -> bool:
        assert job.process.poll() is None, job.log[-6000:]
        stored = [int((await oracle.state(out))["messages"]) for out in outs]
        return sum(stored) > QUERIES * COUNT // 4

    await eventually(in_the_middle, 400, what="a quarter of the rows")
    await asyncio.to_thread(job.kill)
    again = start(queries)
    await asyncio.to_thread(again.finish, 400)
    for out in outs:
        await recount(server, out, COUNT)
