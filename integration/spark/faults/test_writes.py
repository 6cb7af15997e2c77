"""Rows that look alike to the server: each is stored, or the write ends with an error that says which are not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.recount import Recount, payloads
from integration.kit.spark.copies import filled, put_back, query
from integration.kit.spark.sessions import BROADCAST_JOIN, SHUFFLE_JOIN, finish, settings
from jsclient.spark import publish_batch

pytestmark = [pytest.mark.full, pytest.mark.limit(900), pytest.mark.server(">=2.11")]

COUNT, BATCH = 4_000, 2_000


async def of(server: Any, subject: str, expected: Any) -> Recount:
    """The numbers in OUT on a subject, over a plain socket."""
    actual = await asyncio.to_thread(payloads, server.url, "OUT", subject)
    return Recount.of(f"OUT, {subject}", expected, map(number_of, actual))


def two_subjects(url: str) -> Callable[[Any, int], None]:
    def write(rows: Any, number: int) -> None:
        for subject in ("out.first", "out.second"):
            publish_batch(rows.select("data"), {"servers": url, "subject": subject}, batch_id=number)

    return write


def two_filters(url: str) -> Callable[[Any, int], None]:
    def write(rows: Any, number: int) -> None:
        for remainder, subject in enumerate(("out.first", "out.second")):
            some = rows.where(f"sequence % 2 = {remainder}").select("data")
            publish_batch(some, {"servers": url, "subject": subject}, batch_id=number)

    return write


@pytest.mark.covers("L26")
@pytest.mark.fault("foreachBatch with two writes to one stream, and its last batch again")
@pytest.mark.parametrize("kind", ["two subjects", "two filters"])
async def test_two_writes(
    copies: Any, spark: Any, in_thread: Any, drain: Any, checkpoint: Path, recount: Any, kind: str
) -> None:
    server, oracle, _ = copies
    await filled(oracle, COUNT, {"OUT": 600})
    write = (two_subjects if kind == "two subjects" else two_filters)(server.url)
    source = query(server.url, "out", batch=BATCH)["source"]

    def load() -> Any:
        return spark.readStream.format("jetstream").options(**source).load()

    await in_thread(lambda: drain(load(), also=write))
    put_back(checkpoint, 1, planned=True)
    await in_thread(lambda: drain(load(), also=write))
    if kind == "two subjects":
        first = second = range(1, COUNT + 1)
    else:
        first, second = range(2, COUNT + 1, 2), range(1, COUNT + 1, 2)
    recount.exact(await of(server, "out.first", first))
    recount.exact(await of(server, "out.second", second))


@pytest.mark.covers("L26")
@pytest.mark.fault("dedup=source: a second row of a message, made in another task")
async def test_second_row_of_a_message(copies: Any, spark: Any, in_thread: Any, recount: Any) -> None:
    """Refused if both go to one subject. Both are stored if they go to two."""
    server, oracle, _ = copies
    await filled(oracle, COUNT, {"OUT": 600})

    def write(subject: str) -> None:
        schema = "subject string, data binary, stream string, stream_created timestamp, sequence bigint"
        source = spark.read.schema(schema).format("jetstream")
        read = source.options(servers=server.url, stream="IN").load()
        columns = ("data", "stream", "stream_created", "sequence")
        first = read.selectExpr("'out.first' as subject", *columns)
        again = (
            read.where("sequence % 100 = 0").repartition(3).selectExpr(f"'{subject}' as subject", *columns)
        )
        writer = first.union(again).write.format("jetstream").mode("append")
        writer.options(servers=server.url, dedup="source").save()

    with recount.refused("OUT", "ConfigError", r"rows of partitions \d+ and \d+"):
        await in_thread(write, "out.first")
    await oracle.purge("OUT")
    await oracle.update_stream("OUT", duplicate_window=100_000_000)
    await asyncio.sleep(1.0)
    await in_thread(write, "out.second")
    recount.exact(await of(server, "out.first", range(1, COUNT + 1)))
    recount.exact(await of(server, "out.second", range(100, COUNT + 1, 100)))


@pytest.mark.covers("L27")
@pytest.mark.fault("a batch fails in the middle, and when it is repeated a join has become a broadcast join")
async def test_join_becomes_broadcast_join(
    copies: Any, spark: Any, in_thread: Any, checkpoint: Path, recount: Any
) -> None:
    """Its rows are in other partitions then. With ids made of the partition, 25,000 rows were stored of 20,000."""
    server, oracle, _ = copies
    await filled(oracle, COUNT, {"OUT": 600})
    await oracle.update_stream("OUT", discard="new", max_msgs=COUNT // 4)

    def join(joins: dict[str, str]) -> None:
        source = query(server.url, "out", batch=COUNT)["source"]
        rows = spark.readStream.format("jetstream").options(**source).load()
        joined = rows.join(spark.range(1, COUNT + 1).withColumnRenamed("id", "sequence"), "sequence")
        with settings(spark, joins):
            writer = joined.selectExpr("'out.x' as subject", "data").writeStream.format("jetstream")
            options = {"servers": server.url, "checkpointLocation": str(checkpoint), "retries": "0"}
            finish(writer.options(**options).trigger(availableNow=True).start(), 600.0)

    with pytest.raises(Exception, match="maximum messages exceeded"):
        await in_thread(join, {**SHUFFLE_JOIN, "spark.sql.adaptive.coalescePartitions.enabled": "false"})
    assert (await oracle.state("OUT"))["messages"] == COUNT // 4
    await oracle.update_stream("OUT", max_msgs=-1)
    await in_thread(join, BROADCAST_JOIN)
    await recount(server, "OUT", COUNT)


async def with_commands(oracle: Oracle) -> int:
    """Messages that were published with commands for the server. How many there are."""
    await oracle.create_stream(
        "IN", ["in.>"], allow_direct=True, allow_msg_ttl=True, allow_rollup_hdrs=True, storage="file"
    )
    number = 0
    for _ in range(25):
        commands = (
            {"Nats-TTL": "1h"},
            {"Nats-Expected-Stream": "IN"},
            {"Nats-Expected-Last-Sequence": str(number + 2)},
            {"Nats-Rollup": "sub"},
            {"Nats-Msg-Id": f"id-{number}"},
        )
        for headers in commands:
            number += 1
            await oracle.publish(f"in.{number}", b"%d" % number, headers)
    return number


@pytest.mark.covers("L28")
@pytest.mark.fault("copy of messages with commands for the server, headers included")
async def test_copied_commands(copies: Any, recount: Any) -> None:
    server, oracle, copy_all = copies
    count = await with_commands(oracle)
    await oracle.create_stream("OUT", ["out.>"], duplicate_window=600 * 10**9)
    copy = query(server.url, "out", batch=40)
    copy["columns"] = ["'out.x' as subject", "data", "headers"]
    await copy_all(copy)
    await recount(server, "OUT", count)
