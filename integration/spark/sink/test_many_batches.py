"""What the driver and the ledger keep of a query does not grow with its batches."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructType

from integration.kit.calls.sink import numbers, plan_of, stored, write
from integration.kit.calls.sink import rows_of as rows
from integration.kit.clients.foreign import flushed
from jsclient.spark.options.sink import SinkOptions
from jsclient.spark.sink import spark_writer as sink
from jsclient.spark.sink.ledger import LedgerLocation, ensure_bucket
from jsclient.spark.sink.ledger_rules import KEPT

BATCHES = 300


@pytest.mark.covers("L36")
async def test_target_is_looked_up_once(
    server: Any, oracle: Any, stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written like `publish_batch` does: with a new number in the options each time, and one to another subject."""
    monkeypatch.setattr(sink, "_looked", checked := {})
    schema = StructType().add("data", BinaryType())
    arguments = {"servers": server.url, "dedupKey": "query"}

    def batches(subject: str, count: int) -> None:
        for number in range(count):
            options = SinkOptions.parse({**arguments, "subject": subject, "dedupBatch": str(number)})
            pickle.dumps(sink.JetStreamBatchWriter(options, schema))

    async with oracle.listen("$JS.API.STREAM.>") as requests:
        await asyncio.to_thread(batches, stream.subject("a"), BATCHES)
        await flushed(oracle.nc)
    # Which stream takes the subject, that stream, and the bucket of the runs, which may have to be created.
    assert len(requests) in {3, 4}
    for number in range(sink._MOST_LOOKED + 5):
        await asyncio.to_thread(batches, stream.subject(number), 1)
    assert len(checked) == sink._MOST_LOOKED


@pytest.mark.covers("L36")
async def test_ledger_is_trimmed(js: Any, oracle: Any, stream: Any) -> None:
    bucket = f"long_{stream.prefix}"
    await ensure_bucket(js, bucket, 1)
    try:
        for epoch in range(BATCHES):
            location = LedgerLocation(bucket, "query", stream.name, f"{epoch:016x}", ascending=True)
            plan = plan_of(ledger=location, epoch=epoch, expectedStream=stream.name)
            await write(js, plan, rows(stream, epoch, epoch))
        assert await stored(stream) == numbers(0, BATCHES - 1)
        state = await oracle.state(f"KV_{bucket}")
        assert state["messages"] == 2  # of the query, and of its partition
        assert state["bytes"] < 60 * KEPT
    finally:
        await oracle.delete_stream(f"KV_{bucket}", missing_ok=True)
