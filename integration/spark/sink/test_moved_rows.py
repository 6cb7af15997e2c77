"""A batch is written again with its rows in other partitions: each is stored once, also equal ones. No Spark here."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from integration.kit.calls.batch_runs import Parts, Runs, rows_in
from integration.kit.calls.sink import plan_of, write
from jsclient.errors import ConfigError
from jsclient.spark.sink.ledger import LedgerLocation
from jsclient.spark.sink.message_ids import epoch_prefix
from jsclient.spark.sink.partition_writer import PartitionWriter
from jsclient.spark.sink.stored_ids import each_stored
from jsclient.spark.task_context import Task

pytestmark = pytest.mark.covers("L27")


def dealt(seed: int, rows: list[int], partitions: int) -> dict[int, list[int]]:
    """The rows in random partitions, in random order."""
    chance = random.Random(seed)
    parts: dict[int, list[int]] = {}
    for row in chance.sample(rows, len(rows)):
        parts.setdefault(chance.randrange(partitions), []).append(row)
    return parts


async def test_rows_moved(runs: Runs) -> None:
    """All rows are in other partitions than before."""
    await runs.whole("run-1", {0: [1, 2, 3], 1: [4, 5, 6], 2: [7]})
    remainder = await runs.whole("run-2", {0: [4, 5, 6, 7], 1: [1, 2, 3]})
    assert remainder is not None
    assert (remainder.row_count, remainder.missing) == (0, 0)
    assert await runs.counts() == Counter(range(1, 8))


async def test_equal_rows_of_two_partitions(runs: Runs) -> None:
    """Both are stored in the first run. The second run stores nothing, wherever they are."""
    await runs.whole("run-1", {0: [1, 1, 2], 1: [1, 3]})
    assert await runs.counts() == {1: 3, 2: 1, 3: 1}
    for number, parts in enumerate(
        ({0: [1, 1, 2], 1: [1, 3]}, {0: [1], 1: [1], 2: [1, 2, 3]}, {5: [1, 1, 1, 2, 3]})
    ):
        await runs.whole(f"again-{number}", parts)
        assert await runs.counts() == {1: 3, 2: 1, 3: 1}


async def test_killed_run_repeated_with_equal_rows(runs: Runs) -> None:
    """The same partitions as before: equal rows that no one has stored yet are not taken for moved ones."""
    await runs.task("run-1", 0, [7] * 5 + [1])
    parts = {0: [7] * 20 + [1, 2], 1: [7] * 10, 2: [3]}
    remainder = await runs.whole("run-2", parts)
    assert remainder is not None
    assert remainder.row_count == 10
    assert await runs.counts() == rows_in(parts)
    await runs.whole("run-3", parts)
    assert await runs.counts() == rows_in(parts)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(12))
async def test_any_kill_and_any_move(runs: Runs, seed: int) -> None:
    """Runs end anywhere, in any task and on the driver. The last attempt is complete."""
    chance = random.Random(seed)
    rows = [chance.randrange(40) for _ in range(60)]
    for number in range(3):
        parts = dealt(seed * 10 + number, rows, chance.randint(1, 5))
        done = {}
        for partition, of_task in parts.items():
            # a killed attempt, and perhaps a later one that is whole
            if chance.random() < 0.5:
                await runs.task(f"run-{number}", partition, of_task[: chance.randint(0, len(of_task))])
            if chance.random() < 0.7:
                done[partition] = await runs.task(f"run-{number}", partition, of_task, 1)
        if len(done) == len(parts):
            await runs.end(f"run-{number}", done)
    parts = dealt(seed, rows, 4)
    await runs.whole("last", parts)
    assert await runs.counts() == Counter(rows)


async def test_first_run_costs_no_reading(runs: Runs) -> None:
    """Tasks of one run, copies of them and their next attempts do not count as a repetition of the batch."""
    first = await runs.task("run-1", 0, [1, 2])
    again = await runs.task("run-1", 0, [1, 2], 1)
    other = await runs.task("run-1", 1, [1, 2])
    assert [one.checked for one in (first, again, other)] == [None] * 3
    assert again.duplicates == 2
    assert await runs.counts() == {1: 2, 2: 2}


async def test_rows_that_are_gone_are_counted(runs: Runs) -> None:
    await runs.whole("run-1", {0: [1, 2], 1: [3, 4]})
    remainder = await runs.whole("run-2", {0: [1, 3], 1: [5]})
    assert remainder is not None
    assert (remainder.row_count, remainder.missing) == (0, 2)


async def test_headers_of_a_copy(runs: Runs, server: Any) -> None:
    """A row that the driver publishes has its headers, and a unique id."""
    headers = pa.array([[("a", "x")]], pa.map_(pa.string(), pa.string()))
    rows = pa.record_batch({"data": pa.array([b"1"], pa.binary()), "headers": headers})
    runs.plan = plan_of(subject=runs.stream.subject("a"), columns="headers", expectedStream=runs.stream.name)
    await write(runs.js, runs.run_plan("run-1"), rows, task=Task(0, 0))
    done = {one: await write(runs.js, runs.run_plan("run-2"), rows, task=Task(one, 0)) for one in (0, 1)}
    await runs.end("run-2", done)
    messages = await runs.stream.messages()
    assert [message.headers.count(b"\r\na: x\r\n") for message in messages] == [1, 1]
    ids = [message.headers.partition(b"Nats-Msg-Id: ")[2].partition(b"\r\n")[0] for message in messages]
    assert [one.split(b".")[2] for one in ids] == [b"0", b"1"]


async def test_payloads_are_not_read(runs: Runs) -> None:
    """A repetition compares ids. Only the messages that are copied are read as a whole."""
    await runs.whole("run-1", {0: [1, 2], 1: [3]})
    target = await runs.js.stream(runs.stream.name)
    prefix = epoch_prefix("query", 1)
    for payloads in (False, True):
        actual = each_stored(target, range(1, 4), prefix, runs.plan.shape.subject, payloads=payloads)
        assert [len(frame[3]) async for _, _, frame in actual] == [int(payloads)] * 3


async def test_with_ledger_behind_window(
    connect: Any, server: Any, make_stream: Any, oracle: Any, runs: Runs
) -> None:
    """The stream has forgotten the ids."""
    short = await make_stream(duplicate_window=100_000_000)
    behind = Runs(runs.js, short, runs.bucket)

    async def whole(run: str, parts: Parts) -> None:
        behind.plan = replace(behind.plan, ledger=LedgerLocation(runs.bucket, "query", short.name, run))
        await behind.whole(run, parts)
        await asyncio.sleep(1.0)

    await whole("run-1", {0: [1, 2, 2], 1: [2, 3]})
    await whole("run-2", {0: [2, 3, 4], 1: [1, 2, 2]})
    assert await behind.counts() == {1: 1, 2: 3, 3: 1, 4: 1}


async def test_earlier_run_goes_on(runs: Runs) -> None:
    """Two drivers on one checkpoint: a task of the first run publishes while the second one repeats the batch."""
    batch = pa.record_batch({"data": pa.array([b"7"] * 3, pa.binary())})
    parts = {0: [1, 2, 7, 7], 1: [7, 7, 7]}
    writer = PartitionWriter(runs.js, runs.run_plan("run-1"), Task(1, 0))
    try:
        await writer.find_stored_rows()
        await runs.task("run-1", 0, parts[0])
        done = {one: await runs.task("run-2", one, parts[one]) for one in parts}
        await writer.write(batch)
        await writer.finish()
    finally:
        await writer.close()
    await runs.end("run-2", done)
    assert await runs.counts() == rows_in(parts)


async def test_earlier_run_begins_a_task(runs: Runs) -> None:
    """The second run does not see its rows, which may have moved, so they are refused before one is published."""
    await runs.task("run-1", 0, [1])
    await runs.task("run-2", 0, [1, 2])
    with pytest.raises(ConfigError, match="does another driver use the checkpoint"):
        await runs.task("run-1", 1, [2])
    assert await runs.counts() == {1: 1, 2: 1}
