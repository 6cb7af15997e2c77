"""The epoch ledger: what is stored is left out, also when the stream has forgotten its ids. No Spark here."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.sink import numbers, plan_of, rows_of, stored, write
from integration.kit.judge.streams import OwnStream
from jsclient.errors import ConfigError
from jsclient.spark.sink.ledger import Ledger, LedgerLocation, ensure_bucket
from jsclient.spark.sink.ledger_rules import CheckpointBehindError
from jsclient.spark.sink.partition_writer import WritePlan
from jsclient.spark.sink.row_error import RowError
from jsclient.spark.task_context import Task

# --- the ledger ------------------------------------------------------------------------------------------


@pytest.fixture
async def short(oracle: Any, make_stream: Any) -> OwnStream:
    """A stream that forgets message ids at once."""
    stream: OwnStream = await make_stream(duplicate_window=100_000_000)
    return stream


@pytest.fixture
async def bucket(connect: Any, server: Any, short: OwnStream, oracle: Any) -> Any:
    js = await connect(server)
    name = f"ledger_{short.prefix}"
    await ensure_bucket(js, name, 1)
    yield name
    await oracle.delete_stream(f"KV_{name}")


async def forgotten() -> None:
    """The window of `short` is over: ten times over, for the server looks at its ids now and then."""
    await asyncio.sleep(1.0)


@pytest.mark.covers("L25")
async def test_replay_behind_the_window(connect: Any, server: Any, short: OwnStream, bucket: str) -> None:
    """Half an epoch is stored and its ids are forgotten: the replay leaves out stored rows, in any order of rows."""
    js = await connect(server)
    location = LedgerLocation(bucket, "query", short.name, "run-1")
    await write(js, plan_of(ledger=location, epoch=4), rows_of(short, 1, 50))
    plan = plan_of(ledger=location, epoch=5)
    await write(js, plan, rows_of(short, 51, 90), task=Task(0, 0))
    await forgotten()
    replay = LedgerLocation(bucket, "query", short.name, "run-2")
    plan = plan_of(ledger=replay, epoch=5)
    batch = rows_of(short, 51, 100).take(pa.array(random.Random(2).sample(range(50), 50)))
    outcome = await write(js, plan, batch)
    assert (outcome.rows, outcome.skipped, outcome.duplicates, outcome.unmatched) == (50, 40, 0, 0)
    other = await write(js, plan, rows_of(short, 101, 110), task=Task(1, 0))
    assert (other.rows, other.skipped) == (10, 0)
    assert sorted(await stored(short)) == sorted(numbers(1, 110))


async def test_replay_with_a_column_of_ids(connect: Any, server: Any, short: OwnStream, bucket: str) -> None:
    """The user's own ids, in other partitions than before. Other messages of the stream do not belong to this query."""
    js = await connect(server)

    def batch(first: int, last: int) -> pa.RecordBatch:
        ids = pa.array([f"id-{number}" for number in range(first, last + 1)])
        return rows_of(short, first, last, msg_id=ids)

    def plan(run: str) -> WritePlan:
        location = LedgerLocation(bucket, "query", short.name, run)
        return plan_of(ids="column", columns="subject,msg_id", ledger=location)

    await write(js, plan("run-1"), batch(1, 40))
    await write(js, plan_of(epoch=9), rows_of(short, 101, 110))
    await forgotten()
    one = await write(js, plan("run-2"), batch(21, 60))
    two = await write(js, plan("run-2"), batch(1, 20), task=Task(1, 0))
    assert (one.skipped, two.skipped, one.unmatched, two.unmatched) == (20, 20, 0, 0)
    assert sorted(await stored(short)) == sorted([*numbers(1, 60), *numbers(101, 110)])


async def test_without_ledger_rows_stored_twice(connect: Any, server: Any, short: OwnStream) -> None:
    """What the ledger is for."""
    js = await connect(server)
    await write(js, plan_of(), rows_of(short, 1, 40))
    await forgotten()
    await write(js, plan_of(), rows_of(short, 1, 50))
    assert (await short.state())["messages"] == 90


@pytest.mark.covers("L14")
async def test_older_checkpoint_refused(connect: Any, server: Any, short: OwnStream, bucket: str) -> None:
    """A checkpoint was put back, and other limits divide its epoch differently. No row is stored before the error."""
    js = await connect(server)

    def plan(run: str, epoch: int, *, ascending: bool = True) -> WritePlan:
        location = LedgerLocation(bucket, "query", short.name, run, ascending)
        return plan_of(ledger=location, epoch=epoch)

    await write(js, plan("run-1", 4), rows_of(short, 1, 50))
    await write(js, plan("run-2", 5), rows_of(short, 51, 90))
    with pytest.raises(CheckpointBehindError, match="'failOnOlderCheckpoint'"):
        await write(js, plan("run-3", 4), rows_of(short, 1, 90))
    assert sorted(await stored(short)) == sorted(numbers(1, 90))
    again = await write(js, plan("run-4", 5), rows_of(short, 51, 90))  # the newest epoch is a replay
    assert (again.rows, again.skipped) == (40, 40)
    await forgotten()
    allowed = await write(js, plan("run-5", 4, ascending=False), rows_of(short, 1, 60))
    assert (allowed.rows, allowed.skipped) == (60, 50)


async def test_task_again_behind_window(connect: Any, server: Any, short: OwnStream, bucket: str) -> None:
    """A slow task fails, and its next attempt comes when its ids are forgotten: same run, same epoch."""
    js = await connect(server)
    plan = plan_of(ledger=LedgerLocation(bucket, "query", short.name, "run-1"), epoch=0)
    await write(js, plan, rows_of(short, 1, 40), task=Task(0, 0))
    await forgotten()
    again = await write(js, plan, rows_of(short, 1, 50), task=Task(0, 1))
    assert (again.skipped, again.rows) == (40, 50)
    # Also when Spark counts the attempts from 0 again.
    third = await write(js, plan, rows_of(short, 1, 60), task=Task(0, 0))
    assert (third.skipped, third.rows) == (50, 60)
    assert sorted(await stored(short)) == sorted(numbers(1, 60))


@pytest.mark.covers("L27")
async def test_rows_have_moved(connect: Any, server: Any, short: OwnStream, bucket: str) -> None:
    """A replay in another shape: with the epoch as scope it is exact, also for a partition that had not begun. With the
    partition as scope rows are stored twice, and that is reported."""
    js = await connect(server)

    def plan(run: str, epoch: int, scope: str) -> WritePlan:
        location = LedgerLocation(bucket, "query", short.name, run)
        return plan_of(ledger=location, epoch=epoch, dedupScope=scope)

    await write(js, plan("run-1", 1, "epoch"), rows_of(short, 1, 40), task=Task(0, 0))
    await forgotten()
    one = await write(js, plan("run-2", 1, "epoch"), rows_of(short, 31, 50), task=Task(1, 0))
    two = await write(js, plan("run-2", 1, "epoch"), rows_of(short, 1, 30), task=Task(0, 0))
    assert (one.skipped, two.skipped) == (10, 30)
    assert sorted(await stored(short)) == sorted(numbers(1, 50))

    await write(js, plan("run-3", 2, "partition"), rows_of(short, 51, 90), task=Task(0, 0))
    await forgotten()
    one = await write(js, plan("run-4", 2, "partition"), rows_of(short, 81, 100), task=Task(1, 0))
    two = await write(js, plan("run-4", 2, "partition"), rows_of(short, 51, 80), task=Task(0, 0))
    assert (one.skipped, two.skipped, two.unmatched) == (0, 30, 10)
    assert (await short.state())["messages"] == 110


async def test_many_tasks_begin_at_once(connect: Any, server: Any, short: OwnStream, bucket: str) -> None:
    """One of them begins the epoch. None is refused, and all look from the same place later."""
    js = await connect(server)
    plan = plan_of(ledger=LedgerLocation(bucket, "query", short.name, "run-1"), epoch=3)
    parts = [rows_of(short, 1 + 10 * part, 10 + 10 * part) for part in range(20)]
    await asyncio.gather(*(write(js, plan, part, task=Task(at, 0)) for at, part in enumerate(parts)))
    await forgotten()
    plan = plan_of(ledger=LedgerLocation(bucket, "query", short.name, "run-2"), epoch=3)
    actual = await asyncio.gather(*(write(js, plan, part, task=Task(at, 0)) for at, part in enumerate(parts)))
    assert [one.skipped for one in actual] == [10] * 20
    assert sorted(await stored(short)) == sorted(numbers(1, 200))


async def test_slow_task_begins_behind_quick_one(
    connect: Any, server: Any, short: OwnStream, bucket: str
) -> None:
    """It has seen no beginning, and looks at the stream when the quick one has stored rows already: the beginning that
    is written down first counts."""
    js = await connect(server)
    location = LedgerLocation(bucket, "query", short.name, "run-1")

    class Slow:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        async def info(self) -> Any:
            await write(js, plan_of(ledger=location), rows_of(short, 1, 10))
            return await self._stream.info()

    slow: Any = Slow(await js.stream(short.name))
    assert await Ledger(js, location, 1, Task(1, 0)).begin_epoch(slow) == 0
    await forgotten()
    replay = LedgerLocation(bucket, "query", short.name, "run-2")
    outcome = await write(js, plan_of(ledger=replay), rows_of(short, 1, 20))
    assert outcome.skipped == 10
    assert sorted(await stored(short)) == sorted(numbers(1, 20))


async def test_bad_row_of_a_replay(connect: Any, server: Any, short: OwnStream, bucket: str) -> None:
    """What the ledger found counts as stored."""
    js = await connect(server)
    await write(
        js,
        plan_of(ledger=LedgerLocation(bucket, "query", short.name, "run-1")),
        rows_of(short, 1, 40),
    )
    bad = pa.record_batch({"subject": pa.array(["a b"]), "data": pa.array([b"x"])})
    plan = plan_of(ledger=LedgerLocation(bucket, "query", short.name, "run-2"))
    with pytest.raises(RowError, match=r"row 50 .* 50 rows are stored"):
        await write(js, plan, rows_of(short, 1, 50), bad)


async def test_ledger_is_gone(connect: Any, server: Any, short: OwnStream) -> None:
    js = await connect(server)
    plan = plan_of(ledger=LedgerLocation("none_such", "query", short.name, "run-1"))
    with pytest.raises(ConfigError, match="bucket 'none_such' no longer exists"):
        await write(js, plan, rows_of(short, 1, 10))
    assert (await short.state())["messages"] == 0


async def test_bucket_holds_something_else(connect: Any, server: Any, short: OwnStream, oracle: Any) -> None:
    """A stream of that name which would lose values, or has other subjects, is refused."""
    js = await connect(server)
    name = f"other_{short.prefix}"
    await oracle.create_stream(f"KV_{name}", [f"{name}.x"], storage="memory")
    try:
        with pytest.raises(ConfigError, match="'ledger'"):
            await ensure_bucket(js, name, 1)
    finally:
        await oracle.delete_stream(f"KV_{name}")
