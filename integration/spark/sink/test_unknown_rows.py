"""A batch is written again, and what its earlier runs have stored is not known: all rows are published in their order,
under the ids that they had. No Spark here."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.batch_runs import Runs
from integration.kit.calls.sink import plan_of, stored, write
from jsclient.errors import ConfigError
from jsclient.spark.sink.earlier_runs import RunLocation
from jsclient.spark.sink.ledger import ensure_bucket
from jsclient.spark.sink.rest_of_batch import publish_remainder
from jsclient.spark.sink.run_record import KEPT
from jsclient.spark.task_context import Task

pytestmark = pytest.mark.covers("L27")

SHORT = 100_000_000  # nanoseconds


@pytest.mark.parametrize("config", [{"max_msgs_per_subject": 1}, {"max_msgs": 2}], ids=["subject", "stream"])
async def test_no_old_row_becomes_the_newest(runs: Runs, make_stream: Any, config: dict[str, int]) -> None:
    """The stream has removed the first rows and forgotten all ids: the last row is published again."""
    target = await make_stream(duplicate_window=SHORT, **config)
    again = Runs(runs.js, target, runs.bucket)
    await again.task("run-1", 0, [1, 2, 3])
    await asyncio.sleep(0.5)
    outcome = await again.task("run-2", 0, [1, 2, 3])
    assert (await stored(target))[-1] == b"3"
    assert outcome.unchecked
    assert outcome.checked is None


async def test_no_old_row_becomes_the_newest_by_rollup(runs: Runs, make_stream: Any) -> None:
    """Each row removes all earlier rows."""
    target = await make_stream(duplicate_window=SHORT, allow_rollup_hdrs=True)
    again = Runs(runs.js, target, runs.bucket)
    again.plan = plan_of(subject=target.subject("a"), columns="headers", headers="keep")
    headers = pa.array([[("Nats-Rollup", "sub")]] * 2, pa.map_(pa.string(), pa.string()))
    rows = pa.record_batch({"data": pa.array([b"1", b"2"], pa.binary()), "headers": headers})
    await write(again.js, again.run_plan("run-1"), rows, task=Task(0, 0))
    await asyncio.sleep(0.5)
    outcome = await write(again.js, again.run_plan("run-2"), rows, task=Task(0, 0))
    assert await stored(target) == [b"2"]
    assert "headers=keep" in outcome.unchecked


async def test_user_may_not_read_target(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    """Window mode needs no consumer, so a repetition must not need one."""
    rights = {"publish": {"deny": ["$JS.API.CONSUMER.>"]}}
    users = [{"user": "ann", "password": "x", "permissions": rights}, {"user": "judge", "password": "x"}]
    own = await own_server(config={"authorization": {"users": users}})
    oracle = await oracle_for(own.url.replace("nats://", "nats://judge:x@"))
    runs = Runs(
        await connect(own, user="ann", password="x"), await make_stream(oracle=oracle), "jsclient_spark"
    )
    await ensure_bucket(runs.js, runs.bucket, 1)
    await runs.whole("run-1", {0: [1, 2], 1: [3]})
    outcome = await runs.task("run-2", 0, [1, 2])
    assert (outcome.rows, outcome.duplicates) == (2, 2)
    assert "CONSUMER.CREATE" in outcome.unchecked


async def test_target_has_no_room_for_a_consumer(runs: Runs, make_stream: Any) -> None:
    target = await make_stream(max_consumers=1)
    again = Runs(runs.js, target, runs.bucket)
    await again.whole("run-1", {0: [1, 2], 1: [3]})
    await (await runs.js.stream(target.name)).create_consumer(durable_name="only")
    outcome = await again.task("run-2", 0, [1, 2])
    assert (outcome.rows, outcome.duplicates) == (2, 2)
    assert "max_consumers" in outcome.unchecked


async def test_record_has_no_room(runs: Runs, oracle: Any) -> None:
    """The rows are written anyway. A run that is recorded already needs no room."""
    await runs.task("run-1", 0, [1])
    size = (await (await runs.js.stream(f"KV_{runs.bucket}")).info()).state.bytes
    await oracle.delete_stream(f"KV_{runs.bucket}")
    full = {"max_msgs_per_subject": 1, "max_bytes": size + 10, "discard": "new"}
    await oracle.create_stream(f"KV_{runs.bucket}", [f"$KV.{runs.bucket}.>"], **full)
    assert (await runs.task("run-1", 0, [1])).unchecked == ""
    assert (await runs.task("run-1", 1, [2])).unchecked == ""
    outcome = await runs.task("run-2", 0, [1])
    assert "record of runs cannot be used" in outcome.unchecked
    assert "maximum bytes exceeded" in outcome.unchecked
    assert await runs.counts() == {1: 1, 2: 1}


async def test_bucket_is_missing_for_a_moment(runs: Runs) -> None:
    """As while a cluster elects a leader. No row is published before the run is recorded."""
    await runs.js.delete_stream(f"KV_{runs.bucket}")
    writing = asyncio.ensure_future(runs.task("run-1", 0, [1]))
    await asyncio.sleep(0.5)
    assert not await runs.counts()
    await ensure_bucket(runs.js, runs.bucket, 1)
    assert (await writing).unchecked == ""
    assert (await runs.task("run-2", 0, [1])).checked is not None


async def test_target_is_missing_for_a_moment(runs: Runs, oracle: Any) -> None:
    target = runs.stream
    await oracle.delete_stream(target.name)
    writing = asyncio.ensure_future(runs.task("run-1", 0, [1]))
    await asyncio.sleep(0.5)
    await oracle.create_stream(target.name, [f"{target.prefix}.>"], storage="memory")
    assert (await writing).unchecked == ""
    assert (await runs.task("run-2", 0, [1])).checked is not None


async def test_bucket_is_gone(runs: Runs, oracle: Any) -> None:
    await oracle.delete_stream(f"KV_{runs.bucket}")
    with pytest.raises(ConfigError, match="no longer exists: start the program again"):
        await runs.task("run-1", 0, [1])
    assert not await runs.counts()
    await ensure_bucket(runs.js, runs.bucket, 1)  # the fixture deletes it


async def test_record_does_not_reach_back(runs: Runs) -> None:
    """A batch that is repeated after many others is not taken for a new one, in this run and in the next ones."""
    for epoch in range(KEPT + 1):
        runs.plan = replace(runs.plan, epoch=epoch)
        await runs.task("run-1", 0, [epoch])
    runs.plan = replace(runs.plan, epoch=0)
    for run in ("run-2", "run-3"):
        outcome = await runs.task(run, 0, [0])
        assert outcome.duplicates == 1
        assert "does not reach back" in outcome.unchecked
    runs.plan = replace(runs.plan, epoch=KEPT)
    assert (await runs.task("run-2", 0, [KEPT])).checked is not None


async def test_target_transforms_subjects(runs: Runs, make_stream: Any) -> None:
    """Its messages cannot be copied. A run that was killed between two equal rows is completed anyway."""
    target = await make_stream(subject_transform={"src": ">", "dest": "x.>"})
    again = Runs(runs.js, target, runs.bucket)
    await again.task("run-1", 0, [7])
    assert await again.whole("run-2", {0: [7], 1: [7]}) is None
    assert await stored(target) == [b"7", b"7"]


async def test_task_could_not_compare(runs: Runs) -> None:
    """The rows that the others left open are published: twice if they have moved, but none is lost."""
    await runs.whole("run-1", {0: [1, 2], 1: [3]})
    done = {one: await runs.task("run-2", one, rows) for one, rows in {0: [1, 2, 3], 1: [2]}.items()}
    done[1] = replace(done[1], checked=None, unchecked="a reason")
    remainder = await runs.end("run-2", done)
    assert remainder is not None
    assert remainder.row_count == 1
    assert await runs.counts() == {1: 1, 2: 1, 3: 2}


async def test_tasks_look_into_several_streams(runs: Runs, make_stream: Any) -> None:
    """The first rows of two tasks belong to different streams. Their equal rows are stored, as often as there are."""
    other = await make_stream()
    plan = plan_of()
    first, second = runs.stream.subject("a"), other.subject("a")

    async def task(run: str, partition: int, *rows: tuple[str, bytes]) -> Any:
        location = RunLocation(runs.bucket, "query", run, "")
        batch = pa.record_batch(
            {"subject": [subject for subject, _ in rows], "data": [data for _, data in rows]}
        )
        return await write(runs.js, replace(plan, runs=location), batch, task=Task(partition, 0))

    parts = {
        0: [(first, b"7"), (second, b"8")],
        1: [(second, b"8"), (first, b"7")],
        2: [(first, b"7"), (second, b"9")],
    }
    await task("run-1", 0, *parts[0])
    done = {one: await task("run-2", one, *rows) for one, rows in parts.items()}
    location = RunLocation(runs.bucket, "query", "run-2", "")
    remainder = await publish_remainder(
        runs.js, replace(plan, runs=location), {one: outcome.checked for one, outcome in done.items()}
    )
    assert remainder.row_count
    assert await stored(runs.stream) == [b"7"] * 3
    assert sorted(await stored(other)) == [b"8", b"8", b"9"]


async def test_driver_waits_for_room_for_its_consumer(runs: Runs, make_stream: Any, oracle: Any) -> None:
    """Those of the tasks may still be there."""
    target = await make_stream(max_consumers=1)
    again = Runs(runs.js, target, runs.bucket)
    await again.task("run-1", 0, [7])
    done = {one: await again.task("run-2", one, [7]) for one in (0, 1)}
    assert done[1].checked is not None
    await oracle.create_consumer(target.name, "only")
    ending = asyncio.ensure_future(again.end("run-2", done))
    await asyncio.sleep(0.5)
    await oracle.delete_consumer(target.name, "only")
    await ending
    assert await again.counts() == {7: 2}
