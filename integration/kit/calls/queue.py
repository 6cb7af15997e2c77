"""Queue mode without Spark: the calls that Spark makes of a reader, in its order, and the faults it has."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class QueueQuery:
    """A query with a checkpoint: what `start` and `restart` make continues at its last position.

    Attributes:
        committed: The offset of the last batch that the sink took. None before the first batch.
        logged: An offset whose batch was begun and is not committed.
        rows: What the sink took, as dicts.
    """

    server: Any
    stream: Any
    consumer: str
    options: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    committed: dict[str, Any] | None = None
    logged: dict[str, Any] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    available_now: bool = False
    _reader: Any = None

    async def make(self) -> Any:
        """The reader, as Spark gets it: errors of options and checks come from here."""
        from jsclient.spark.queue.stream import QueueStreamReader
        from jsclient.tables.source_options import QUEUE_COLUMNS, SourceOptions

        options = {
            "servers": getattr(self.server, "url", self.server),
            "stream": getattr(self.stream, "name", self.stream),
            "consumer": self.consumer,
            "mode": "queue",
            **{name: str(value) for name, value in self.options.items()},
        }
        parsed = SourceOptions.parse(options, streaming=True)
        return await asyncio.to_thread(QueueStreamReader, parsed, self.columns or tuple(QUEUE_COLUMNS))

    async def start(self) -> None:
        """A new process on the driver. A batch that was begun is planned again, as Spark does."""
        self._reader = await self.make()
        if self.available_now:
            await self.call(self._reader.prepareForTriggerAvailableNow)
        if self.committed is None and self.logged is None:
            self.committed = await self.call(self._reader.initialOffset)
            self.initial = self.committed

    async def stop(self) -> None:
        """The process is gone."""
        if self._reader is not None:
            reader, self._reader = self._reader, None
            await self.call(reader.stop)

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """In a thread, since it blocks. Offsets go through JSON as they do on their way to Spark."""
        result = await asyncio.to_thread(function, *copy.deepcopy(arguments))
        return json.loads(json.dumps(result)) if isinstance(result, dict) else result

    async def plan(self, limit: Any = None) -> list[Any] | None:
        """Ask for the next batch, log it, plan it. None: there is nothing new."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        if self._reader is None:
            await self.start()
        if self.logged is None:
            end = await self.call(self._reader.latestOffset, self.committed, limit or ReadAllAvailable())
            if end == self.committed:
                return None
            self.logged = end
        return await self.call(self._reader.partitions, self.committed, self.logged)

    async def read(self, partitions: list[Any]) -> list[dict[str, Any]]:
        """What the executors do."""
        import pyarrow as pa

        from jsclient.tables.columns import arrow_schema

        def run(reader: Any, partition: Any) -> list[dict[str, Any]]:
            batches = list(reader.read(partition))
            assert all(batch.schema == arrow_schema(reader._spec.columns) for batch in batches)
            return pa.Table.from_batches(batches).to_pylist() if batches else []

        rows: list[dict[str, Any]] = []
        for partition in partitions:
            pickled = pickle.loads(pickle.dumps((self._reader, partition)))
            rows += await asyncio.to_thread(run, *pickled)
        return rows

    def commit(self, rows: list[dict[str, Any]]) -> None:
        """The sink took it, and Spark wrote so."""
        self.rows += rows
        self.committed, self.logged = self.logged, None

    async def batch(self, limit: Any = None) -> list[dict[str, Any]] | None:
        """One whole micro-batch. None: there is nothing new."""
        partitions = await self.plan(limit)
        if partitions is None:
            return None
        rows = await self.read(partitions)
        self.commit(rows)
        return rows

    async def drain(self) -> list[int]:
        """All batches of an AvailableNow run: how many rows each had."""
        self.available_now = True
        await self.stop()
        await self.until_counted()
        await self.start()
        sizes: list[int] = []
        while (rows := await self.batch()) is not None:
            sizes.append(len(rows))
        await self.stop()
        return sizes

    async def until_counted(self, longest: float = 0.5) -> None:
        """Wait until the consumer counts all stored messages as pending, which a busy server does a moment late.

        A filter, or a message deleted from the middle, lets the wait end at `longest` seconds.
        """
        if isinstance(self.stream, str):
            return
        deadline = time.monotonic() + longest
        while time.monotonic() < deadline:
            state, info = await self.stream.state(), await self.stream.consumer_info(self.consumer)
            before = max(info["delivered"]["stream_seq"], state["first_seq"] - 1)
            if info["num_pending"] >= state["last_seq"] - before:
                return
            await asyncio.sleep(0.01)

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]
