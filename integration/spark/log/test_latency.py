"""How long a message takes from its publish to `foreachBatch`, with a query that has nothing else to do."""

from __future__ import annotations

import asyncio
import statistics
import time

import pytest

from integration.kit.calls.source import options_of
from integration.kit.judge.waiting import eventually

MESSAGES = 60
FIRST = 20  # of them, while the JVM compiles


def slowness() -> float:
    """How many times longer work takes here than on a machine with nothing else to do: time by the CPU's own time."""
    begin, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < 0.05:
        sum(range(1000))
    return max(1.0, (time.perf_counter() - begin) / (time.thread_time() - used))


@pytest.mark.full
@pytest.mark.covers("L40")
async def test_row_comes_soon(spark, server, stream, in_thread, checkpoint):
    """Half of the rows within 0.2 s. On a busy machine each has as much more as the machine is slower."""
    late = []

    def batch(rows, number):
        late.extend(time.time_ns() - int(row["data"]) for row in rows.select("data").collect())

    # The status leaves "Initializing" before the source has asked where the stream ends.
    options = options_of(server, stream, startingOffsets="earliest")
    frame = spark.readStream.format("jetstream").options(**options).load()
    writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    query = await in_thread(writer.start)
    slow = []
    try:
        await eventually(lambda: not query.status["message"].startswith("Init"), 120, "the start")
        for count in range(1, MESSAGES + 1):
            await stream.oracle.publish(stream.subject("x"), b"%d" % time.time_ns())
            await eventually(lambda: len(late) == count, 120, "the row", interval=0.005)  # noqa: B023
            slow.append(await asyncio.to_thread(slowness))
    finally:
        await asyncio.to_thread(query.stop)
    seconds = [one / 1e9 / factor for one, factor in zip(late, slow, strict=True)][FIRST:]
    assert statistics.median(seconds) < 0.2, sorted(seconds)
