"""Micro-batches as epochs: the sink as Spark calls it. Readers see all of a batch or nothing, and nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import jsclient
from integration.kit.calls.epochs import frontier_records, seen
from jsclient.errors import ConfigError, ProducerFencedError
from jsclient.protocol.epochs.frontier import Int
from jsclient.spark.epochs.ownership import SinkTopic, WriteAttempt
from jsclient.spark.epochs.sink import EpochStreamWriter, EpochWritten, epoch_plan, open_writer
from jsclient.spark.options.epochs import EpochSinkOptions
from jsclient.spark.sink.partition_writer import Outcome, WritePlan
from jsclient.spark.sink.row_columns import RowShape
from jsclient.spark.sink.row_error import RowError
from jsclient.spark.sink.shared_rows import refuse_different
from jsclient.spark.task_context import Task

QUERY, OTHER = "query", "another"


class Sink:
    """A query's sink, without Spark."""

    def __init__(self, js: Any, topic: Any, query: str = QUERY, **options: str) -> None:
        self.js, self.topic, self.query = js, topic, query
        arguments = {"servers": "nats://127.0.0.1:1", "epochs": topic.name, **options}
        self.options = EpochSinkOptions.parse(arguments).write
        self.runs = 0
        self.ids = self.options.dedup or "content"

    def plan(self, attempt: WriteAttempt) -> WritePlan:
        shape = RowShape("data", False, False, self.ids == "column", "x.0.data")
        return epoch_plan(self.options, shape, self.ids, attempt)

    async def sink_topic(self) -> SinkTopic:
        stream = await self.js.stream(self.topic.name)
        return SinkTopic(self.js, stream, self.topic.name, Int(), await self.topic.partitions())

    def attempt(self, epoch: int) -> WriteAttempt:
        self.runs += 1
        return WriteAttempt.of_epoch(self.query, f"run{self.query}{self.runs}", epoch)

    async def write(
        self,
        attempt: WriteAttempt,
        rows: list[str],
        *,
        task: int = 0,
        again: int = 0,
        upto: int | None = None,
    ) -> Any:
        """A task. ``upto``: it dies when these rows are stored."""
        topic = await self.sink_topic()
        writer, position = await open_writer(self.js, self.plan(attempt), attempt, Task(task, again), topic)
        if writer is None:
            return None
        try:
            columns = {"data": pa.array([json.dumps([row]) for row in rows[:upto]])}
            if self.ids == "column":
                columns["msg_id"] = pa.array(rows[:upto])
            await writer.write(pa.record_batch(columns))
            outcome = await writer.finish()
            return None if upto is not None else (outcome, position)
        finally:
            await writer.close()

    async def commit(self, attempt: WriteAttempt, *partitions: int) -> None:
        topic = await self.sink_topic()
        for index in range(topic.partitions):
            await topic.complete(index, attempt, written=index in partitions)

    async def batch(self, epoch: int, *parts: list[str]) -> WriteAttempt:
        attempt = self.attempt(epoch)
        done = [await self.write(attempt, rows, task=task) for task, rows in enumerate(parts) if rows]
        await self.commit(attempt, *(partition for _, partition in filter(None, done)))
        return attempt


@pytest.fixture
async def topic(request: Any, js: Any) -> Any:
    name = "ek" + "".join(c for c in request.node.name if c.isalnum())[:60]
    epochs = js.epochs(name, partitions=2)
    await epochs.create(duplicate_window=0.2)
    yield epochs
    with contextlib.suppress(jsclient.StreamNotFoundError):
        await js.delete_stream(name)


async def test_a_batch_is_an_epoch(js: Any, topic: Any) -> None:
    sink = Sink(js, topic)
    await sink.batch(0, ["a", "b"], ["c"], ["d"])
    await sink.batch(1, [], ["e"])
    attempt = sink.attempt(2)
    await sink.write(attempt, ["f"])
    assert {time: sorted(items) for time, items in (await seen(topic)).items()} == {
        0: ["a", "b", "c", "d"],
        1: ["e"],
    }, "nobody sees a batch before it is committed"
    await sink.commit(attempt, 0)
    assert (await seen(topic))[2] == ["f"]
    async with await topic.subscribe() as sub:
        assert list(sub.frontier) == [3]


async def test_failed_batch_stored_once(js: Any, topic: Any) -> None:
    """The rows of an earlier try are detected by reading, not by the stream's memory of ids."""
    sink = Sink(js, topic)
    await sink.batch(0, ["a"])
    rows = ["x", "y", "x", "z"]
    dead = sink.attempt(1)
    await sink.write(dead, rows, upto=3)
    await sink.write(dead, ["w", "v"], task=1, upto=1)
    await asyncio.sleep(0.3)  # the stream forgets ids after 0.2 s
    attempt = sink.attempt(1)
    outcome, _ = await sink.write(attempt, rows)
    assert (outcome.rows, outcome.skipped, outcome.duplicates, outcome.unmatched) == (4, 3, 0, 0)
    outcome, _ = await sink.write(attempt, ["w", "v"], task=1)
    assert (outcome.rows, outcome.skipped) == (2, 1)
    await sink.commit(attempt, 0, 1)
    assert sorted((await seen(topic))[1]) == ["v", "w", "x", "x", "y", "z"]


async def test_retried_task_stores_once(js: Any, topic: Any) -> None:
    sink = Sink(js, topic)
    attempt = sink.attempt(0)
    await sink.write(attempt, ["a", "b", "c"], upto=2)
    await asyncio.sleep(0.3)  # the stream forgets ids after 0.2 s
    outcome, _ = await sink.write(attempt, ["a", "b", "c"], again=1)
    assert (outcome.rows, outcome.skipped) == (3, 2)
    await sink.commit(attempt, 0)
    assert await seen(topic) == {0: ["a", "b", "c"]}


async def late(writer: Any, *rows: str) -> None:
    """A task that no one waits for any more sends these."""
    await writer.write(pa.record_batch({"data": pa.array([json.dumps([row]) for row in rows])}))
    await writer._bulk.settle()


async def test_lost_try_sends_late_does_not_count(js: Any, topic: Any) -> None:
    """A task of a driver that was killed continues while its batch is run again, and after that was committed."""
    sink = Sink(js, topic)
    await sink.batch(0, ["a"])
    first = sink.attempt(1)
    lost, _ = await open_writer(js, sink.plan(first), first, Task(0, 0), await sink.sink_topic())
    await late(lost, "one")
    attempt = sink.attempt(1)
    writer, position = await open_writer(js, sink.plan(attempt), attempt, Task(0, 0), await sink.sink_topic())
    await late(lost, "two", "three")
    await late(writer, "one", "two")
    outcome = await writer.finish()
    assert (outcome.skipped, outcome.duplicates) == (1, 0), "a late row is not taken for one of this try"
    await sink.commit(attempt, position)
    await late(lost, "four")
    await lost.close()
    assert await seen(topic) == {0: ["a"], 1: ["one", "two"]}


async def test_late_copy_not_counted(js: Any, topic: Any) -> None:
    """Readers would take it for a broken rule: data of an epoch that is completed."""
    sink = Sink(js, topic)
    attempt = sink.attempt(0)
    copy, _ = await open_writer(js, sink.plan(attempt), attempt, Task(0, 1), await sink.sink_topic())
    await sink.write(attempt, ["a"])
    await sink.commit(attempt, 0)
    await asyncio.sleep(0.3)  # the stream forgets ids after 0.2 s
    await late(copy, "a")
    await copy.close()
    await sink.batch(1, ["b"])
    assert await seen(topic) == {0: ["a"], 1: ["b"]}


async def test_committed_batch_not_written_again(js: Any, topic: Any) -> None:
    """The frontier knows it, however the rows are: Spark may not have noted the commit."""
    sink = Sink(js, topic)
    await sink.batch(0, ["a"], ["b"])
    attempt = sink.attempt(0)
    assert await sink.write(attempt, ["other"]) is None
    assert await sink.write(attempt, ["rows"], task=1) is None
    await sink.commit(attempt)
    assert await seen(topic) == {0: ["a", "b"]}


async def test_commit_interrupted_brought_to_end(js: Any, topic: Any) -> None:
    sink = Sink(js, topic)
    attempt = sink.attempt(0)
    for task in (0, 1):
        await sink.write(attempt, [f"of {task}"], task=task)
    created = await sink.sink_topic()
    await created.complete(0, attempt, written=True)
    assert await seen(topic) == {}, "partition 1 is not completed"
    again = sink.attempt(0)
    assert await sink.write(again, ["of 0"]) is None
    assert await sink.write(again, ["of 1"], task=1) is None, "all were stored before the commit began"
    await sink.commit(again)
    assert sorted((await seen(topic))[0]) == ["of 0", "of 1"]


async def test_another_query_is_refused(js: Any, topic: Any) -> None:
    """Its batches have numbers that mean something else. The topic continues to belong to the first query."""
    sink, other = Sink(js, topic), Sink(js, topic, OTHER)
    await sink.batch(0, ["a"])
    for epoch in (0, 1):
        with pytest.raises(ProducerFencedError, match=topic.name):
            await other.batch(epoch, ["z"])
    with pytest.raises(ProducerFencedError):
        await other.commit(other.attempt(1))
    await sink.batch(1, ["b"])
    assert await seen(topic) == {0: ["a"], 1: ["b"]}


async def test_query_begins_at_same_moment_refused(js: Any, topic: Any) -> None:
    """It has looked before the other one took the topic."""
    sink, other = Sink(js, topic), Sink(js, topic, OTHER)
    attempt = other.attempt(0)
    created = await other.sink_topic()
    looks = [None, None]

    async def read_owner(partition: int) -> Any:
        return looks.pop() if looks else await SinkTopic.read_owner(created, partition)

    created.read_owner = read_owner  # type: ignore[method-assign]
    await sink.batch(0, ["a"])
    with pytest.raises(ProducerFencedError):
        await open_writer(js, other.plan(attempt), attempt, Task(0, 0), created)
    await sink.batch(1, ["b"])


async def test_rival_fences_query(js: Any, topic: Any) -> None:
    sink = Sink(js, topic)
    await sink.batch(0, ["a"], ["b"])
    attempt = sink.attempt(1)
    _, position = await sink.write(attempt, ["c"], task=1)
    async with await topic.publisher(position) as pub:
        with pytest.raises(ProducerFencedError):
            await sink.commit(attempt, position)
        await pub.send(1, ["d"])
        await pub.flush()
    with pytest.raises(ProducerFencedError):
        await sink.batch(1, ["c"], ["c"])


async def test_tasks_of_one_try_share_partition(js: Any, topic: Any) -> None:
    sink = Sink(js, topic)
    attempt = sink.attempt(0)
    await asyncio.gather(*(sink.write(attempt, [f"{task}"], task=task) for task in range(8)))
    await sink.commit(attempt, 0, 1)
    assert sorted((await seen(topic))[0]) == [f"{task}" for task in range(8)]
    for partition in (0, 1):
        assert len(await frontier_records(topic, partition)) == 2, "taken once, committed once"


@pytest.mark.parametrize("options", [{"dedupScope": "epoch"}, {"dedup": "column"}], ids=["scope", "column"])
async def test_rows_change_partitions_known(js: Any, topic: Any, options: dict[str, str]) -> None:
    sink = Sink(js, topic, **options)
    await sink.write(sink.attempt(0), ["a", "b"], upto=1)
    await asyncio.sleep(0.3)  # the stream forgets ids after 0.2 s
    await sink.batch(0, ["b"], ["a"])
    assert sorted((await seen(topic))[0]) == ["a", "b"]


@pytest.mark.covers("L26")
async def test_one_id_for_two_rows(js: Any, topic: Any) -> None:
    """One of them would not be in the epoch: refused by the task that has both, otherwise by the commit."""
    sink, written = Sink(js, topic, dedup="column"), []
    attempt, created = sink.attempt(0), await sink.sink_topic()
    for task, rows in enumerate([[("1", "[1]"), ("2", "[2]")], [("1", "[3]")], [("4", "[4]"), ("4", "[5]")]]):
        ids, data = zip(*rows, strict=True)
        writer, partition = await open_writer(js, sink.plan(attempt), attempt, Task(task, 0), created)
        batch = pa.record_batch({"data": pa.array(data), "msg_id": pa.array(ids)})
        try:
            if task == 2:
                with pytest.raises(RowError, match=r"row 1 .*row 0 has the same id '4', but another payload"):
                    await writer.write(batch)
                continue
            await writer.write(batch)
            written.append(EpochWritten(task, 0, await writer.finish(), topic_partition=partition))
        finally:
            await writer.close()
    with pytest.raises(ConfigError, match="row 0 of partition 0 and row 0 of partition 1 have the same"):
        refuse_different(written)
    refuse_different(written[:1])


async def test_missing_rows_counted(js: Any, topic: Any) -> None:
    sink = Sink(js, topic)
    await sink.write(sink.attempt(0), ["a", "b"], upto=2)
    outcome, _ = await sink.write(sink.attempt(0), ["a", "c"])
    assert (outcome.rows, outcome.skipped, outcome.unmatched) == (2, 1, 1)


def test_abort_says_epoch_stays_open(caplog: pytest.LogCaptureFixture) -> None:
    """One task ended well, Spark gives None for the other."""
    options = EpochSinkOptions.parse({"servers": "nats://127.0.0.1:1", "epochs": "trades"})
    writer = EpochStreamWriter(options, StructType([StructField("data", BinaryType())]))
    with caplog.at_level("WARNING", "jsclient.spark"):
        writer.abort([EpochWritten(0, 3, Outcome(rows=7), QUERY, "run", 0), None], 3)
    [record] = caplog.records
    assert "batch 3 failed, so epoch 3 of topic 'trades' stays open" in record.getMessage()
    assert "7" in record.getMessage()
