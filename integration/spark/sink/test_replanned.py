"""A batch that is replayed stores every row once, however its source would cut it into tasks today."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.queue import QueueQuery
from integration.kit.calls.sink import numbers, plan_of, stored, write
from integration.kit.calls.source import Query
from integration.kit.judge.streams import OwnStream
from jsclient.errors import ConfigError
from jsclient.spark.options.sink import SinkOptions
from jsclient.spark.sink.row_columns import rows_shape
from jsclient.spark.sink.row_error import RowError
from jsclient.spark.task_context import Task

ROWS = 2000

pytest.importorskip("pyspark.sql.streaming.datasource")

from pyspark.sql.types import (  # noqa: E402
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)


async def save(js: Any, target: OwnStream, parts: list[list[dict[str, Any]]]) -> None:
    """Write each part as the task of its number."""
    for number, rows in enumerate(parts):
        data = pa.array([row["data"] for row in rows], pa.binary())
        subjects = pa.array([target.subject("a")] * len(rows))
        await write(js, plan_of(), pa.record_batch({"subject": subjects, "data": data}), task=Task(number, 0))


async def check(target: OwnStream) -> None:
    rows = await stored(target)
    assert (len(rows), sorted(set(rows)) == sorted(numbers(1, ROWS))) == (ROWS, True)


async def first_batch(query: Query) -> Any:
    """The offsets of a batch with all messages, as in the checkpoint."""
    reader = query.reader()
    start = await asyncio.to_thread(query.start, reader)
    return start, await asyncio.to_thread(query.ask, reader, start)


async def parts_of(query: Query, offsets: Any) -> list[list[dict[str, Any]]]:
    return await asyncio.to_thread(lambda: query.replay(query.reader(), *offsets))


@pytest.mark.core_cases(2)
@pytest.mark.covers("L2", "L25")
@pytest.mark.parametrize(
    "changed",
    [{"minPartitions": 3}, {"minPartitions": 2, "maxMessagesPerPartition": 300}],
    ids=["minPartitions", "maxMessagesPerPartition"],
)
@pytest.mark.parametrize("done", [1, 2], ids=["one task", "all tasks"])
async def test_replay_with_other_partitions(
    connect: Any, server: Any, make_stream: Any, changed: dict[str, int], done: int
) -> None:
    """The driver died before the commit, and was restarted with more tasks for a batch, since it was too slow."""
    js, source, target = await connect(server), await make_stream(), await make_stream()
    await source.publish(ROWS)
    query = Query(server, source, startingOffsets="earliest", minPartitions=2)
    offsets = await first_batch(query)
    await save(js, target, (await parts_of(query, offsets))[:done])
    restarted = Query(server, source, startingOffsets="earliest", **changed)
    await save(js, target, await parts_of(restarted, offsets))
    await check(target)


async def test_replay_after_the_head_expired(connect: Any, server: Any, make_stream: Any) -> None:
    """The remainder of the range is cut at the same sequences as the whole range."""
    js, source, target = await connect(server), await make_stream(), await make_stream()
    await source.publish(ROWS)
    query = Query(server, source, startingOffsets="earliest", minPartitions=2, failOnDataLoss=False)
    offsets = await first_batch(query)
    await save(js, target, await parts_of(query, offsets))
    await source.oracle.purge(source.name, seq=501)
    await save(js, target, await parts_of(query, offsets))
    await check(target)


async def test_replay_after_messages_were_deleted(connect: Any, server: Any, make_stream: Any) -> None:
    """The same options: parts of equal numbers of messages are cut elsewhere once some are deleted."""
    js, target = await connect(server), await make_stream()
    source = await make_stream(allow_direct=True)
    await source.publish(ROWS)
    query = Query(server, source, startingOffsets="earliest", maxMessagesPerPartition=1000)
    offsets = await first_batch(query)
    await save(js, target, await parts_of(query, offsets))
    for seq in range(101, 501):
        await source.oracle.delete_message(source.name, seq)
    await save(js, target, await parts_of(query, offsets))
    await check(target)


@pytest.mark.covers("L2")
async def test_replay_of_claims_with_other_partitions(connect: Any, server: Any, make_stream: Any) -> None:
    """The same for queue mode, whose offset keeps the claims but not how they were shared."""
    js, target = await connect(server), await make_stream()
    source = await make_stream(retention="workqueue", allow_direct=True)
    await source.publish(ROWS)
    await source.create_consumer("q", ack_wait=30_000_000_000, max_ack_pending=100_000)
    query = QueueQuery(server, source, "q", {"minPartitions": 2})
    for pieces in (2, 3):
        query.options["minPartitions"] = pieces
        await query.start()
        parts = [await query.read([one]) for one in await query.plan() or []]
        assert len(parts) == 2
        await save(js, target, parts)
        await query.stop()
    await check(target)


async def test_checkpoint_without_cuts(connect: Any, server: Any, make_stream: Any) -> None:
    """An offset of a release that did not record them: the batch is cut by the options of today."""
    source = await make_stream()
    await source.publish(ROWS)
    start, end = await first_batch(Query(server, source, startingOffsets="earliest", minPartitions=2))
    assert len(end.pop("cuts")) == 2
    parts = await parts_of(Query(server, source, startingOffsets="earliest", minPartitions=3), (start, end))
    assert [row["sequence"] for part in parts for row in part] == [*range(1, ROWS + 1)]
    assert len(parts) == 3


async def test_removed_parts_remain_as_empty_tasks(connect: Any, server: Any, make_stream: Any) -> None:
    """Otherwise the tasks of another source of the same query would get other numbers."""
    source = await make_stream()
    await source.publish(ROWS)
    query = Query(server, source, startingOffsets="earliest", minPartitions=4, failOnDataLoss=False)
    offsets = await first_batch(query)
    await source.oracle.purge(source.name, seq=1201)
    assert [len(part) for part in await parts_of(query, offsets)] == [0, 0, 300, 500]
    await source.oracle.purge(source.name)
    assert [len(part) for part in await parts_of(query, offsets)] == [0, 0, 0, 0]


# --- dedup=source ----------------------------------------------------------------------------------------

SOURCE = {
    "data": pa.binary(),
    "stream": pa.string(),
    "stream_created": pa.timestamp("us", tz="UTC"),
    "sequence": pa.int64(),
}


def rows_from(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.record_batch(
        {name: pa.array([row[name] for row in rows], kind) for name, kind in SOURCE.items()}
    )


@pytest.mark.parametrize("mode", ["consumer", pytest.param("direct", marks=pytest.mark.server(">=2.11"))])
async def test_new_checkpoint_stores_nothing_twice(
    connect: Any, server: Any, make_stream: Any, mode: str
) -> None:
    """Ids of the source depend on neither query nor batch: another query, with other limits, reads all again."""
    js, target = await connect(server), await make_stream()
    source = await make_stream(allow_direct=True)
    await source.publish(ROWS)
    for epoch, limit in enumerate((ROWS // 2, ROWS // 3)):
        query = Query(
            server,
            source,
            columns=[*SOURCE],
            startingOffsets="earliest",
            maxMessagesPerTrigger=limit,
            readMode="consumer" if epoch else mode,
        )
        await asyncio.to_thread(query.drain)
        for rows in query.batches:
            plan = plan_of(ids="source", dedup="source", columns="", subject=target.subject("a"), epoch=epoch)
            await write(js, plan, rows_from(rows))
    await check(target)


@pytest.mark.covers("L26")
async def test_two_rows_of_one_message_refused(connect: Any, server: Any, stream: OwnStream) -> None:
    """The second would be taken for a repetition and be lost."""
    js = await connect(server)
    row = {"data": b"1", "stream": "S", "stream_created": datetime(2026, 1, 31, tzinfo=UTC), "sequence": 7}
    plan = plan_of(ids="source", dedup="source", columns="", subject=stream.subject("a"))
    with pytest.raises(
        RowError,
        match=r"two rows with this subject are made from message S\.1769817600000000\.7, so one would be lost",
    ):
        await write(js, plan, rows_from([row, row]))
    with pytest.raises(RowError, match="column 'sequence': it is null"):
        await write(js, plan, rows_from([{**row, "sequence": None}]))
    assert await stored(stream) == []


def schema_of(types: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


def test_columns_of_the_source_needed() -> None:
    types = {"data": BinaryType(), "stream": StringType(), "sequence": LongType()}
    options = SinkOptions.parse({"servers": "nats://x", "subject": "s", "dedup": "source"})
    with pytest.raises(ConfigError, match="no column 'stream_created' of type timestamp"):
        rows_shape(schema_of(types), options)
    assert rows_shape(schema_of({**types, "stream_created": TimestampType()}), options).by_source
