"""How many Python calls rows take, and how large rows are prepared. A connection that stores nothing counts them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from integration.kit.calls.sink import plan_of
from jsclient.spark.sink import row_columns
from jsclient.spark.sink.partition_writer import PartitionWriter, WritePlan
from jsclient.spark.task_context import Task
from tests.publishing.kit import add_outbox, published
from tests.support.calls import Calls
from tests.support.fake import FakeConnection, connected
from tests.support.virtual import settle, virtual

STREAM = b'{"stream":"S", "seq":%d}'
CREATED = 1_790_000_000_000_000


def rows(count: int, size: int = 20) -> pa.RecordBatch:
    numbers = range(count)
    return pa.record_batch(
        {
            "data": pa.array([str(number).encode().ljust(size, b"x") for number in numbers], pa.binary()),
            "stream": pa.array(["EVENTS"] * count),
            "stream_created": pa.array([CREATED] * count, pa.timestamp("us", tz="UTC")),
            "sequence": pa.array([number + 1 for number in numbers], pa.int64()),
        }
    )


def ack_all(connection: FakeConnection) -> int:
    """Ack all publishes together, as a busy server does."""
    replies = [sent.reply.encode() for sent in published(connection)]
    acks = [(reply, b"", b"", STREAM % (at + 1)) for at, reply in enumerate(replies)]
    connection.deliver(published(connection)[-1].reply, acks)
    return len(acks)


async def calls_of(plan: WritePlan, count: int) -> int:
    """The Python calls of a partition with this many rows."""
    async with connected() as (js, connection):
        add_outbox(connection)
        batch = rows(count)
        with Calls() as counted:
            writer = PartitionWriter(js, plan, Task(0, 0))
            await writer.find_stored_rows()
            await writer.write(batch)
            await settle()
            assert ack_all(connection) == count
            outcome = await writer.finish()
        assert (outcome.rows, outcome.duplicates, outcome.first_seq, outcome.last_seq) == (count, 0, 1, count)
        assert outcome.streams == ("S",)
        if plan.ids == "source":
            assert outcome.sequences is not None
            assert [list(one) for one in (outcome.sequences["S"].starts, outcome.sequences["S"].ends)] == [
                [1],
                [count + 1],
            ]
    return counted.by_name.total()


@pytest.mark.parametrize("ids", ["content", "source", "none"])
def test_calls_of_a_partition(ids: str) -> None:
    """A row takes no call: 1,800 more rows are two more bursts."""

    @virtual
    async def both() -> tuple[int, int]:
        plan = plan_of(ids=ids, subject="s.a", columns="")
        return await calls_of(plan, 200), await calls_of(plan, 2000)

    few, many = both()
    assert many - few <= 50
    assert many < 259


@virtual
async def test_large_rows_are_prepared_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most about a megabyte at a time, and one row at least."""
    steps: list[int] = []
    whole_headers = row_columns.whole_headers
    monkeypatch.setattr(
        "jsclient.spark.sink.partition_writer.whole_headers",
        lambda *arguments: steps.append(arguments[-1]) or whole_headers(*arguments),  # type: ignore[func-returns-value]
    )
    async with connected() as (js, connection):
        add_outbox(connection)
        writer = PartitionWriter(js, plan_of(subject="s.a", columns="", ids="none"), Task(0, 0))
        for batch in (rows(600, 4096), rows(600, 4096).slice(100, 300), rows(3, 600_000), rows(5, 0)):
            await writer.write(batch)
        await settle()
        assert steps == [255, 255, 90, 255, 45, 1, 1, 1, 5]  # the offsets of the values count
        assert [len(sent.payload) for sent in published(connection)][-8:-5] == [600_000] * 3
        ack_all(connection)
        await writer.finish()
