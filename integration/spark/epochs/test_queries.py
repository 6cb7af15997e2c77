"""Topics of epochs in Spark itself: written by one query, read by others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jsclient
from integration.kit.calls.epochs import seen
from integration.kit.judge.oracle import number_of
from integration.kit.judge.waiting import eventually
from integration.kit.spark.driver_process import SparkJob
from integration.kit.spark.sessions import drain as run_to_end
from integration.kit.spark.sessions import finish

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
async def topic(request: Any, js: Any) -> Any:
    name = "ej" + "".join(c for c in request.node.name if c.isalnum())[:60]
    yield js.epochs(name)
    with contextlib.suppress(jsclient.StreamNotFoundError):
        await js.delete_stream(name)


def write(frame: Any, checkpoint: Path, **options: Any) -> None:
    """Run a query with the sink to its end."""
    writer = frame.writeStream.format("jetstream").options(**options)
    finish(writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(), 120)


@pytest.mark.covers("L37")
async def test_batches_become_epochs(
    server: Any, js: Any, stream: Any, topic: Any, spark: Any, in_thread: Any, tmp_path: Path
) -> None:
    await stream.publish(30)
    common = {"servers": server.url, "epochs": topic.name}
    source = {"servers": server.url, "stream": stream.name, "startingOffsets": "earliest"}
    numbers = spark.readStream.format("jetstream").options(**source, maxMessagesPerTrigger="10").load()
    items = numbers.selectExpr("concat('[', sequence, ']') as value")
    await in_thread(write, items, tmp_path / "one", **common, partitions=3)
    expected = {epoch: [*range(10 * epoch + 1, 10 * epoch + 11)] for epoch in range(3)}
    assert {time: sorted(some) for time, some in (await seen(topic)).items()} == expected

    table = spark.read.format("jetstream").options(**common).load()
    assert table.columns == [
        "epoch",
        "partition",
        "subject",
        "data",
        "headers",
        "stream",
        "sequence",
        "timestamp",
    ]
    counts = await in_thread(lambda: table.groupBy("epoch").count().orderBy("epoch").collect())
    assert [(row.epoch, row["count"]) for row in counts] == [(0, 10), (1, 10), (2, 10)]
    row = await in_thread(table.first)
    assert row.subject == f"{topic.name}.{row.partition}.data"
    assert row.headers["Jsc-Epoch"] == [str(row.epoch)]

    frame = spark.readStream.schema("data binary, epoch string").format("jetstream")
    frame = frame.options(**common, startingEpoch="1", maxEpochsPerTrigger="1").load()
    drained = await in_thread(run_to_end, frame, tmp_path / "two")
    assert [{row.epoch for row in rows} for rows in drained.batches.values() if rows] == [{"1"}, {"2"}]
    assert [row.asDict().keys() for row in drained.rows[:1]] == [{"data": 0, "epoch": 0}.keys()]


@pytest.mark.full
async def test_query_with_new_checkpoint_refused(
    server: Any, stream: Any, topic: Any, spark: Any, in_thread: Any, tmp_path: Path
) -> None:
    await stream.publish(3)
    source = {"servers": server.url, "stream": stream.name, "startingOffsets": "earliest"}
    numbers = spark.readStream.format("jetstream").options(**source).load()
    items = numbers.selectExpr("concat('[', sequence, ']') as value")
    common = {"servers": server.url, "epochs": topic.name}
    await in_thread(write, items, tmp_path / "one", **common, partitions=3)
    with pytest.raises(Exception, match=f"another producer writes to '{topic.name}.0.frontier'"):
        await in_thread(write, items, tmp_path / "another", **common)
    assert len(await seen(topic)) == 1


BATCH = 8_000
COUNT = 3 * BATCH
# A batch takes some seconds, so that it can be met in the middle.
SLOWLY = (
    "if(sequence % 50 = 0 and length(reflect('java.lang.Thread', 'sleep', 30L)) = -1, null, data) as data"
)


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Callable[..., SparkJob]]:
    started: list[SparkJob] = []

    def start(queries: list[dict[str, Any]], **options: Any) -> SparkJob:
        started.append(SparkJob(tmp_path, queries, **options))
        return started[-1]

    yield start
    for job in started:
        job.kill()


@pytest.mark.covers("L37")
@pytest.mark.full
async def test_exact_table_over_kills(
    own_server: Any, oracle_for: Any, jobs: Any, spark: Any, in_thread: Any, tmp_path: Path
) -> None:
    """The table has a directory for each epoch, which is overwritten, so a batch that is written again is the same."""
    server = await own_server()
    oracle = await oracle_for(server)
    await oracle.create_stream("IN", ["in.>"], storage="file", allow_direct=True)
    await oracle.publish_many("in.x", COUNT, size=64)
    source = {"servers": server.url, "stream": "IN", "startingOffsets": "earliest"}
    source["maxMessagesPerTrigger"] = str(BATCH)
    sink = {"servers": server.url, "epochs": "trades", "partitions": "2"}
    table, checkpoint = tmp_path / "table", tmp_path / "b"
    options = {"servers": server.url, "epochs": "trades", "startingOffsets": "earliest"}

    def read(also: Any = None) -> None:
        def overwrite(rows: Any, number: int) -> None:
            writer = rows.select("epoch", "data").write.mode("overwrite").partitionBy("epoch")
            writer.option("partitionOverwriteMode", "dynamic").parquet(str(table))
            if also is not None:
                also()

        frame = spark.readStream.format("jetstream").options(**options).load()
        query = frame.writeStream.foreachBatch(overwrite).option("checkpointLocation", str(checkpoint))
        finish(query.trigger(availableNow=True).start(), 120)

    def stored() -> dict[int, Counter[int]]:
        results: dict[int, Counter[int]] = {}
        for row in spark.read.parquet(str(table)).collect():
            results.setdefault(row.epoch, Counter())[number_of(row.data)] += 1
        return results

    def whole(epochs: int) -> dict[int, Counter[int]]:
        return {epoch: Counter(range(BATCH * epoch + 1, BATCH * (epoch + 1) + 1)) for epoch in range(epochs)}

    query = {"name": "a", "source": source, "columns": [SLOWLY], "sink": sink}
    job = jobs([query], **{"spark.sql.execution.arrow.maxRecordsPerBatch": "500"})

    async def in_the_middle() -> bool:
        if job.process.poll() is not None:
            raise RuntimeError(f"the job has ended:\n{job.log[-6000:]}")
        with contextlib.suppress(Exception):
            count = (await oracle.state("trades"))["messages"]
            return bool(count > BATCH and BATCH // 10 < count % BATCH < BATCH * 8 // 10)
        return False

    await eventually(in_the_middle, 180, what="the middle of a batch", interval=0.02)
    await asyncio.to_thread(job.kill)
    async with jsclient.connect(server.url) as js:
        completed = len(await seen(js.epochs("trades"), lambda data: [data]))
    assert 0 < completed < 3

    def fail() -> None:
        raise RuntimeError("the reader fails")

    with pytest.raises(Exception, match="the reader fails"):
        await in_thread(read, fail)
    assert await in_thread(stored) == whole(completed), "a part of an epoch is never seen"
    frame = spark.readStream.format("jetstream").options(**source).load().select("data")
    await in_thread(write, frame, tmp_path / "a", **sink)
    await in_thread(read)
    assert await in_thread(stored) == whole(3)


@pytest.mark.covers("L5", "L37")
@pytest.mark.parametrize("written", [pytest.param(False, marks=pytest.mark.full), True])
async def test_no_completed_epoch_is_no_row(
    spark: Any, server: Any, topic: Any, in_thread: Any, written: bool
) -> None:
    """A batch read of a topic that has no epoch yet, or only one that is not completed."""
    async with await topic.publisher(0) as publisher:
        if written:
            await publisher.send(1, ["a"])
        options = {"servers": server.url, "epochs": topic.name}
        load = spark.read.format("jetstream").options(**options).load
        assert await in_thread(lambda: load().collect()) == []
