"""The measurements in Spark. Each work is a function of a `Stage` that returns its figures."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import nats

import jsclient
from benchmarks.figures import quantile
from benchmarks.spark.workers import python_cpu
from jsclient.tables.session import session

__all__ = ["WORKS", "Stage"]

Figures = Mapping[str, float]

_IDLE = 5.0  # seconds
_LATENCIES = 60


@dataclass(frozen=True)
class Stage:
    """The server and the session that all works share. The stream BENCH has ``count`` messages."""

    spark: Any
    url: str
    connect: Any
    count: int

    def call(self, work: Callable[[jsclient.JetStream], Any]) -> Any:
        """Run a coroutine function with a connection of this process."""
        opened = session(self.connect)
        return opened.run(work(opened.js))

    def source(self, name: str) -> Any:
        """Return the whole stream as a DataFrame, in two partitions."""
        if name == "nats-py":
            options = {"url": self.url, "count": str(self.count), "parts": "2"}
            return self.spark.read.format("natspy").options(**options).load()
        options = {
            "servers": self.url,
            "stream": "BENCH",
            "minPartitions": "2",
            "endingSequence": str(self.count),
        }
        expected = "subject string, data binary, sequence bigint, timestamp timestamp"
        return self.spark.read.format("jetstream").options(**options).schema(expected).load()


@contextlib.contextmanager
def _measured(rows: int, figures: dict[str, float]) -> Iterator[None]:
    cpu, start = python_cpu(), time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    figures["rate"] = rows / seconds
    figures["cpu_us"] = (python_cpu() - cpu) / rows * 1e6


def read(stage: Stage, client: str) -> Figures:
    """Read the stream and discard the rows."""
    figures: dict[str, float] = {}
    frame = stage.source(client)
    with _measured(stage.count, figures):
        frame.write.format("noop").mode("overwrite").save()
    if (result := frame.count()) != stage.count:
        raise RuntimeError(f"{result} rows were read, not {stage.count}")
    return figures


def sink(stage: Stage, client: str, dedup: str = "content") -> Figures:
    """Publish rows that Spark creates, with message ids. Check with the server that all are stored."""

    async def make(js: jsclient.JetStream) -> None:
        await js.create_stream("OUT", subjects=["out.>"], storage="memory", duplicate_window=60)

    async def drop(js: jsclient.JetStream) -> int:
        stored = (await (await js.stream("OUT")).info()).state.messages
        await js.delete_stream("OUT")
        return stored

    rows = stage.count // 2
    payload = "rpad(cast(id as string), 128, 'x')"
    frame = stage.spark.range(0, rows, 1, 2).selectExpr(
        "'out.x' as subject", f"cast({payload} as binary) as data"
    )
    stage.call(make)
    figures: dict[str, float] = {}
    try:
        with _measured(rows, figures):
            if client == "nats-py":
                frame.write.format("natspy").option("url", stage.url).mode("append").save()
            else:
                options = {"servers": stage.url, "dedup": dedup}
                frame.write.format("jetstream").options(**options).mode("append").save()
    finally:
        stored = stage.call(drop)
    if stored != rows:
        raise RuntimeError(f"{stored} messages were stored, not {rows}")
    return figures


def acks(stage: Stage, client: str, on: str = "executors") -> Figures:
    """Ack 100,000 messages by their replies, with confirmation. Check with the server that no ack is missing."""
    count = min(100_000, stage.count)

    async def claim(js: jsclient.JetStream) -> list[str]:
        stream = await js.stream("BENCH")
        consumer = await stream.create_consumer(durable_name="acks", ack_wait=300.0, max_ack_pending=count)
        replies: list[str] = []
        while len(replies) < count:
            replies += [message.reply for message in await consumer.fetch(10_000, expires=5.0)]
        return replies

    async def pending(js: jsclient.JetStream) -> int:
        stream = await js.stream("BENCH")
        info = await (await stream.consumer("acks")).info()
        await stream.delete_consumer("acks")
        return info.num_ack_pending

    replies = stage.call(claim)
    frame = (
        stage.spark.createDataFrame([(reply,) for reply in replies], "reply string").repartition(2).cache()
    )
    frame.count()
    start = time.perf_counter()
    from jsclient.spark import ack_batch

    settled = ack_batch(frame, stage.url, on=on)
    seconds = time.perf_counter() - start
    remaining = stage.call(pending)
    frame.unpersist()
    if settled != count or remaining:
        raise RuntimeError(f"{settled} were settled and {remaining} are pending, of {count}")
    return {"seconds": seconds, "rate": count / seconds}


def idle(stage: Stage, client: str) -> Figures:
    """Return the number of API calls, including direct gets, that an idle query makes per second."""
    with _query(stage, lambda rows, number: None):
        time.sleep(2.0)
        start = time.perf_counter()
        calls = asyncio.run(_api_calls(stage.url))
        return {"rate": calls / (time.perf_counter() - start)}


def latency(stage: Stage, client: str) -> Figures:
    """Return the milliseconds from the publish of one message until its row is in `foreachBatch`."""
    late: list[float] = []

    def batch(rows: Any, number: int) -> None:
        now = time.time_ns()
        late.extend((now - int(row["data"].decode())) / 1e6 for row in rows.select("data").collect())

    async def publish(js: jsclient.JetStream) -> None:
        await js.publish("live.x", b"%d" % time.time_ns())

    with _query(stage, batch):
        for _ in range(_LATENCIES):
            had = len(late)
            stage.call(publish)
            while len(late) == had:
                time.sleep(0.005)
            time.sleep(0.05)
    late = sorted(late[10:])  # the first rows include compilation
    return {"p50_ms": statistics.median(late), "p95_ms": quantile(late, 0.95)}


@contextlib.contextmanager
def _query(stage: Stage, batch: Callable[[Any, int], None]) -> Iterator[None]:
    """Run a query over a new stream until it has completed its first batch, and stop it after the block."""

    async def make(js: jsclient.JetStream) -> None:
        await js.create_stream("LIVE", subjects=["live.>"], storage="memory", allow_direct=True)

    async def publish(js: jsclient.JetStream) -> None:
        await js.publish("live.x", b"%d" % time.time_ns())

    stage.call(make)
    done: list[int] = []

    def counted(rows: Any, number: int) -> None:
        batch(rows, number)
        done.append(number)

    options = {"servers": stage.url, "stream": "LIVE", "startingOffsets": "earliest"}
    try:
        with tempfile.TemporaryDirectory() as checkpoint:
            frame = stage.spark.readStream.format("jetstream").options(**options).load()
            query = frame.writeStream.foreachBatch(counted).option("checkpointLocation", checkpoint).start()
            try:
                stage.call(publish)
                while not done and query.isActive:
                    time.sleep(0.05)
                yield
            finally:
                query.stop()
    finally:
        stage.call(lambda js: js.delete_stream("LIVE"))


async def _api_calls(url: str) -> int:
    """Count the requests of the next seconds with a subscription."""
    nc = await nats.connect(url)
    received = await nc.subscribe("$JS.API.>")
    await asyncio.sleep(_IDLE)
    count = received.pending_msgs
    await nc.close()
    return count


WORKS: Mapping[str, tuple[Callable[..., Figures], tuple[str, ...]]] = {
    "read": (read, ("jsclient", "nats-py")),
    "sink": (sink, ("jsclient", "nats-py")),
    "acks": (acks, ("jsclient",)),
    "idle": (idle, ("jsclient",)),
    "latency": (latency, ("jsclient",)),
}
"""Functions by name, each with its clients."""
