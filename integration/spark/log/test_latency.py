"""How long a message takes from its publish to `foreachBatch`, with a query without other work.

Spark itself takes most of that time: a batch writes two files and runs a job. A source that only reads a file shows how
much this is on the machine of the run.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from integration.kit.calls.source import options_of
from integration.kit.judge.waiting import eventually

ROWS = 60
FIRST = 20  # of them, while the JVM compiles
BOUND = 0.2  # seconds
OWN = 0.1  # seconds of the bound that are for our source: half a poll interval, two requests, and a reserve


def slowness() -> float:
    """How many times longer work takes here than on an idle machine: elapsed time divided by CPU time."""
    begin, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < 0.05:
        sum(range(1000))
    return max(1.0, (time.perf_counter() - begin) / (time.thread_time() - used))


class SmallestSource(DataSource):
    """A source whose rows are the lines of a file. It has no other work, so the time of its rows is Spark's part."""

    @classmethod
    def name(cls):
        return "smallest"

    def schema(self):
        return "data string"

    def streamReader(self, schema):  # noqa: N802  Spark's name
        path = Path(self.options["path"])

        class Lines(DataSourceStreamReader):
            def initialOffset(self):  # noqa: N802  Spark's name
                return {"line": 0}

            def latestOffset(self):  # noqa: N802  Spark's name
                return {"line": len(path.read_text().splitlines())}

            def partitions(self, start, end):
                return [InputPartition((start["line"], end["line"]))]

            def read(self, partition):
                first, end = partition.value
                yield from ((line,) for line in path.read_text().splitlines()[first:end])

        return Lines()


async def delays(frame: Any, checkpoint: Path, write: Any) -> list[float]:
    """Seconds from the write of each row to `foreachBatch`. Rows are written one by one, while the query is idle."""
    late: list[float] = []

    def batch(rows, number):
        late.extend((time.time_ns() - int(row["data"])) / 1e9 for row in rows.select("data").collect())

    writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    query = await asyncio.to_thread(writer.start)
    slow = []
    try:
        await eventually(lambda: not query.status["message"].startswith("Init"), 120, "the start")
        for count in range(1, ROWS + 1):
            # Without this, each row is written at the same moment between two polls of the source.
            await asyncio.sleep(random.uniform(0.1, 0.3))
            await write(b"%d" % time.time_ns())
            await eventually(lambda: len(late) == count, 120, "the row", interval=0.005)  # noqa: B023
            slow.append(await asyncio.to_thread(slowness))
    finally:
        await asyncio.to_thread(query.stop)
    return [one / factor for one, factor in zip(late, slow, strict=True)][FIRST:]


@pytest.mark.full
@pytest.mark.covers("L40")
async def test_row_comes_soon(spark, server, stream, tmp_path):
    """Half of the rows within 0.2 s. If Spark alone takes more than half of that here, within 0.1 s more than Spark."""
    lines = tmp_path / "lines"
    lines.touch()

    async def write_line(data):
        with lines.open("ab") as file:
            file.write(data + b"\n")

    async def publish(data):
        await stream.oracle.publish(stream.subject("x"), data)

    # The status leaves "Initializing" before the source has asked for the end of the stream.
    options = options_of(server, stream, startingOffsets="earliest")
    spark.dataSource.register(SmallestSource)
    smallest = spark.readStream.format("smallest").option("path", str(lines)).load()
    ours = spark.readStream.format("jetstream").options(**options).load()
    reference = await delays(smallest, tmp_path / "smallest", write_line)
    seconds = await delays(ours, tmp_path / "ours", publish)
    lines.write_bytes(b"")
    reference += await delays(smallest, tmp_path / "smallest-again", write_line)
    bound = max(BOUND, statistics.median(reference) + OWN)
    assert statistics.median(seconds) < bound, (sorted(seconds), sorted(reference))
