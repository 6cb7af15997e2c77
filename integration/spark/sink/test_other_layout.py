"""A batch is repeated, and Spark gives its rows to other partitions: each is stored once, without an option."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.streams import OwnStream
from integration.kit.spark.sessions import BROADCAST_JOIN, SHUFFLE_JOIN, finish, settings
from jsclient.spark import publish_batch
from jsclient.spark.task_context import activate

LIMIT = 600.0  # seconds of a query, on a busy machine

pytestmark = [pytest.mark.full, pytest.mark.covers("L27"), pytest.mark.limit(900)]

ROWS = 4_000
PART = 1_000  # rows that the target takes before it is full, so that the first run of the batch fails


class Query:
    """A query over files with the numbers below `ROWS`. A number modulo ``different`` is the payload."""

    def __init__(self, spark: Any, url: str, stream: OwnStream, files: Path, different: int) -> None:
        self.spark = spark
        self.url = url
        self.stream = stream
        self.checkpoint = files / "checkpoint"
        self._input = str(files / "input")
        spark.range(0, ROWS, numPartitions=2).write.json(self._input)
        self._payload = f"cast(id % {different} as string) as data"
        self.expected = Counter(str(number % different).encode() for number in range(ROWS))

    @property
    def numbers(self) -> Any:
        return self.spark.readStream.schema("id long").json(self._input)

    def rows(self, frame: Any) -> Any:
        return frame.selectExpr(f"'{self.stream.subject('a')}' as subject", self._payload)

    def joined(self) -> Any:
        return self.rows(self.numbers.join(self.spark.range(ROWS), "id"))

    async def run(
        self, make: Callable[[], Any], conf: Mapping[str, str] | None = None, **options: str
    ) -> None:
        """Write all rows of a frame. Raises the error of the query."""
        arguments = {
            "servers": self.url,
            "checkpointLocation": str(self.checkpoint),
            "retries": "0",
            **options,
        }

        def go() -> None:
            activate(self.spark)
            with settings(self.spark, conf or {}):
                writer = make().writeStream.format("jetstream").options(**arguments)
                finish(writer.trigger(availableNow=True).start(), LIMIT)

        await asyncio.to_thread(go)

    async def run_each(self, write: Callable[[Any, int], None], conf: Mapping[str, str]) -> None:
        """The same with ``foreachBatch``."""

        def go() -> None:
            activate(self.spark)
            with settings(self.spark, conf):
                writer = self.numbers.writeStream.option("checkpointLocation", str(self.checkpoint))
                finish(writer.foreachBatch(write).trigger(availableNow=True).start(), LIMIT)

        await asyncio.to_thread(go)

    async def cut_short(
        self, make: Callable[[], Any], conf: Mapping[str, str] | None = None, **options: str
    ) -> None:
        """Run into a target that becomes full, then there is room again."""
        update = self.stream.oracle.update_stream
        await update(self.stream.name, discard="new", max_msgs=PART)
        with pytest.raises(Exception, match="maximum messages exceeded"):
            await self.run(make, conf, **options)
        await update(self.stream.name, max_msgs=-1)
        assert (await self.stream.state())["messages"] == PART

    def forget_commit(self) -> None:
        """As if the driver had died between the last task and the commit."""
        for path in (self.checkpoint / "commits").iterdir():
            path.unlink()

    async def check(self) -> None:
        assert Counter(message.payload for message in await self.stream.messages()) == self.expected


@pytest.fixture
def query(spark: Any, server: Any, stream: OwnStream, tmp_path: Path) -> Callable[[int], Query]:
    return lambda different: Query(spark, server.url, stream, tmp_path, different)


DIFFERENT = pytest.mark.parametrize("different", [ROWS, 600], ids=["different rows", "equal rows"])


@DIFFERENT
async def test_join_becomes_broadcast_join(query: Callable[[int], Query], different: int) -> None:
    """After a part of the batch is stored, and again when all of it is."""
    one = query(different)
    await one.cut_short(one.joined, SHUFFLE_JOIN)
    await one.run(one.joined, BROADCAST_JOIN)
    await one.check()
    one.forget_commit()
    await one.run(one.joined, SHUFFLE_JOIN)
    await one.check()


@DIFFERENT
async def test_another_number_of_partitions(query: Callable[[int], Query], different: int) -> None:
    one = query(different)
    await one.cut_short(lambda: one.rows(one.numbers.repartition(3)))
    await one.run(lambda: one.rows(one.numbers.repartition(5, "id")))
    await one.check()


async def test_subjects_without_expected_stream_and_with_ledger(
    query: Callable[[int], Query], oracle: Any, stream: OwnStream
) -> None:
    """The ledger finds rows of the same partition. Those that have moved are found as without it."""
    one, ledger = query(600), f"ledger_{stream.prefix}"
    options = {"expectedStream": stream.name, "exactlyOnce": "ledger", "ledger": ledger}
    try:
        await one.cut_short(lambda: one.rows(one.numbers.repartition(4)), **options)
        await one.run(lambda: one.rows(one.numbers.repartition(3)), **options)
        await one.check()
    finally:
        await oracle.delete_stream(f"KV_{ledger}", missing_ok=True)


async def test_partitions_coalesced_otherwise(query: Callable[[int], Query]) -> None:
    """Adaptive execution makes fewer partitions of a shuffle in one run than in the other."""
    one, tasks = query(600), []
    options = {"servers": one.url, "retries": "0"}

    def write(batch: Any, batch_id: int) -> None:
        rows = one.rows(batch.repartition("id"))
        publish_batch(rows, options, batch_id=batch_id)
        tasks.append(rows.rdd.getNumPartitions())

    whole = {"spark.sql.shuffle.partitions": "6", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    coalesced = {**whole, "spark.sql.adaptive.coalescePartitions.enabled": "true"}
    await one.run_each(write, whole)
    one.forget_commit()
    await one.run_each(write, coalesced)
    assert tasks[0] > tasks[1]
    await one.check()


async def test_same_partitions_after_failure(query: Callable[[int], Query]) -> None:
    """The ordinary repetition, with equal rows in all partitions: it continues without an error."""
    one = query(50)
    await one.cut_short(lambda: one.rows(one.numbers.repartition(4)))
    for _ in range(2):
        await one.run(lambda: one.rows(one.numbers.repartition(4)))
        await one.check()
        one.forget_commit()
