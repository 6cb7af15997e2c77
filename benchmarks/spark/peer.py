"""A typical solution today: a data source and a writer with nats-py, its fetch loop and its `publish_async`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

__all__ = ["NatsPySource"]

_SCHEMA = "subject string, data binary, sequence bigint, timestamp timestamp"
_ROWS = 8192
_FETCH = 1000
_WINDOW = 4000


class NatsPySource(DataSource):
    """Reads ranges of a stream with a pull consumer for each, and publishes rows with a window."""

    @classmethod
    def name(cls) -> str:
        return "natspy"

    def schema(self) -> str:
        return _SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        return _Reader(self.options["url"], int(self.options["count"]), int(self.options["parts"]))

    def writer(self, schema: Any, overwrite: bool) -> _Writer:  # noqa: FBT001  Spark's
        return _Writer(self.options["url"])


class _Reader(DataSourceReader):
    def __init__(self, url: str, count: int, parts: int) -> None:
        self.url, self.count, self.parts = url, count, parts

    def partitions(self) -> list[InputPartition]:
        step = self.count // self.parts
        return [InputPartition((part * step + 1, (part + 1) * step)) for part in range(self.parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        loop = asyncio.new_event_loop()
        batches = _fetch(self.url, *partition.value)
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(batches))
                except StopAsyncIteration:
                    return
        finally:
            loop.close()


async def _fetch(url: str, first: int, last: int) -> Any:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    nc = await nats.connect(url)
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=first,
        ack_policy=AckPolicy.NONE,
        mem_storage=True,
    )
    sub = await nc.jetstream().pull_subscribe("", stream="BENCH", config=config)
    rows: list[Any] = []
    remaining = last - first + 1
    while remaining:
        messages = await sub.fetch(min(_FETCH, remaining))
        remaining -= len(messages)
        rows += messages
        if len(rows) >= _ROWS or not remaining:
            metadata = [message.metadata for message in rows]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([message.subject for message in rows], pa.string()),
                    pa.array([message.data for message in rows], pa.binary()),
                    pa.array([one.sequence.stream for one in metadata], pa.int64()),
                    pa.array([one.timestamp for one in metadata], pa.timestamp("us", tz="UTC")),
                ],
                names=["subject", "data", "sequence", "timestamp"],
            )
            rows = []
    await nc.close()


class _Writer(DataSourceArrowWriter):
    def __init__(self, url: str) -> None:
        self.url = url

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        asyncio.run(_publish(self.url, iterator))
        return WriterCommitMessage()


async def _publish(url: str, batches: Iterator[pa.RecordBatch]) -> None:
    import nats

    nc = await nats.connect(url)
    js = nc.jetstream(publish_async_max_pending=_WINDOW)
    number = 0
    for batch in batches:
        for subject, data in zip(batch["subject"].to_pylist(), batch["data"].to_pylist(), strict=True):
            number += 1
            headers = {"Nats-Msg-Id": f"{id(nc):x}:{number}"}
            await js.publish_async(subject, data, headers=headers, wait_stall=10.0)
    await js.publish_async_completed()
    await nc.close()
