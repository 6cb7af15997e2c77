"""Runs of a batch, without Spark: each is a set of tasks, then the driver."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from integration.kit.calls.sink import plan_of, stored, write
from integration.kit.judge.streams import OwnStream
from jsclient.spark.sink.earlier_runs import RunLocation
from jsclient.spark.sink.moved_rows import Remainder
from jsclient.spark.sink.partition_writer import Outcome, WritePlan
from jsclient.spark.sink.rest_of_batch import publish_remainder
from jsclient.spark.task_context import Task

Parts = Mapping[int, list[int]]


class Runs:
    """Runs of one batch."""

    def __init__(self, js: Any, stream: OwnStream, bucket: str) -> None:
        self.js = js
        self.stream = stream
        self.bucket = bucket
        self.plan = plan_of(subject=stream.subject("a"), columns="")

    def run_plan(self, run: str) -> WritePlan:
        location = RunLocation(self.bucket, "query", run, self.stream.subject("a"))
        return replace(self.plan, runs=location, target=self.stream.name)

    async def task(self, run: str, partition: int, rows: list[int], attempt: int = 0) -> Outcome:
        batch = pa.record_batch({"data": pa.array([b"%d" % row for row in rows], pa.binary())})
        return await write(self.js, self.run_plan(run), batch, task=Task(partition, attempt))

    async def whole(self, run: str, parts: Parts) -> Remainder | None:
        """All tasks, in any order, and then the driver, if a task has left it something."""
        numbers = [*parts]
        random.Random(run).shuffle(numbers)
        done = {one: await self.task(run, one, parts[one]) for one in numbers}
        return await self.end(run, done)

    async def end(self, run: str, done: Mapping[int, Outcome]) -> Remainder | None:
        checked = {one: outcome.checked for one, outcome in done.items()}
        if not any(one is not None and one.open for one in checked.values()):
            return None
        return await publish_remainder(self.js, self.run_plan(run), checked)

    async def counts(self) -> Counter[int]:
        return Counter(int(payload) for payload in await stored(self.stream))


def rows_in(parts: Parts) -> Counter[int]:
    return Counter(row for rows in parts.values() for row in rows)
