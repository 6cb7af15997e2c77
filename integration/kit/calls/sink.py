"""A partition written as a task of the sink does it, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from integration.kit.judge.streams import OwnStream
from jsclient.spark.options.sink import SinkOptions
from jsclient.spark.sink.ledger import LedgerLocation
from jsclient.spark.sink.partition_writer import Outcome, PartitionWriter, WritePlan
from jsclient.spark.sink.row_columns import RowShape
from jsclient.spark.task_context import Task

MAPS = pa.map_(pa.string(), pa.list_(pa.string()))


def rows_of(stream: OwnStream, first: int, last: int, **more: Any) -> pa.RecordBatch:
    """Rows with the numbers as payloads."""
    numbers = range(first, last + 1)
    columns = {
        "subject": pa.array([stream.subject(number % 5) for number in numbers]),
        "data": pa.array([b"%d" % number for number in numbers], pa.binary()),
    }
    return pa.record_batch({**columns, **more})


def plan_of(
    *,
    ids: str = "content",
    subject: str | None = None,
    ledger: LedgerLocation | None = None,
    epoch: int = 1,
    columns: str = "subject",
    data: str = "data",
    **options: str,
) -> WritePlan:
    arguments = {"servers": "nats://127.0.0.1:1", "retries": "2", **options}
    shape = RowShape(
        data, "subject" in columns, "headers" in columns, "msg_id" in columns, subject, ids == "source"
    )
    return WritePlan(SinkOptions.parse(arguments), shape, ids, "query", epoch, ledger)


async def write(js: Any, plan: WritePlan, *batches: pa.RecordBatch, task: Task = Task(0, 0)) -> Outcome:  # noqa: B008
    """A whole partition."""
    writer = PartitionWriter(js, plan, task)
    try:
        await writer.find_stored_rows(plan.shape.subject or _first_subject(batches))
        for batch in batches:
            await writer.write(batch)
        return await writer.finish()
    finally:
        await writer.close()


def _first_subject(batches: tuple[pa.RecordBatch, ...]) -> str | None:
    if not batches or "subject" not in batches[0].schema.names or not batches[0].num_rows:
        return None
    subject: str | None = batches[0].column("subject")[0].as_py()
    return subject


async def stored(stream: OwnStream) -> list[bytes]:
    return [message.payload for message in await stream.messages()]


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]
