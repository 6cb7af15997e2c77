"""Measures a query with growing numbers of streams, subjects, batches, bytes per batch, and partitions.

The CPU time belongs to the driver's Python process and to nats-server, without Spark. `--spark` adds the first batch
and the idle seconds of a real query.

    python -m benchmarks.spark.scale --save
    python -m benchmarks.spark.scale --works streams --spark --sizes 1 100 1000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pickle
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsclient
from benchmarks.spark.running import running_server, spark_session
from benchmarks.spark.workers import cpu
from jsclient.spark.log.several import SeveralStreamsReader
from jsclient.spark.log.stream import LogStreamReader
from jsclient.tables.server_options import ServerOptions
from jsclient.tables.session import session
from jsclient.tables.source_options import LOG_COLUMNS, SourceOptions

RESULTS = Path(__file__).parents[1] / "results"
SIZES = {
    "streams": (1, 100, 1000),
    "subjects": (10, 100_000),
    "batches": (10_000,),
    "batch_kib": (200, 2_000, 20_000),
    "partitions": (2, 1000),
}
IDLE = 5.0  # seconds

Figures = dict[str, float]


def used() -> Figures:
    """Return the seconds of CPU used so far."""
    return {"driver": time.process_time(), "server": cpu()["server"]}


@contextlib.contextmanager
def noted(figures: Figures, name: str, divisor: float = 1.0) -> Iterator[None]:
    """Add the time and the CPU of a block in milliseconds, for each of ``divisor``."""
    before, begin = used(), time.perf_counter()
    yield
    figures[f"{name}: ms"] = (time.perf_counter() - begin) / divisor * 1e3
    for kind, seconds in used().items():
        figures[f"{name}: {kind} ms"] = (seconds - before[kind]) / divisor * 1e3


class Driver:
    """Calls a reader in the way in which Spark calls it on the driver."""

    def __init__(self, url: str, **options: Any) -> None:
        arguments = {"servers": url, "startingOffsets": "earliest", **{k: str(v) for k, v in options.items()}}
        parsed = SourceOptions.parse(arguments, streaming=True)
        kind = SeveralStreamsReader if parsed.has_several else LogStreamReader
        self.reader: Any = kind(parsed, tuple(LOG_COLUMNS))
        self.limit = self.reader.getDefaultReadLimit()

    def ask(self, start: dict[str, Any]) -> dict[str, Any]:
        results: dict[str, Any] = json.loads(
            json.dumps(self.reader.latestOffset(json.loads(json.dumps(start)), self.limit))
        )
        return results

    def first_batch(self, figures: Figures) -> dict[str, Any]:
        with noted(figures, "first offset"):
            start = self.reader.initialOffset()
        with noted(figures, "end of the first batch"):
            end = self.ask(start)
        with noted(figures, "tasks of the first batch"):
            tasks = self.reader.partitions(start, end)
        figures["tasks"] = len(tasks)
        figures["offset: bytes"] = len(json.dumps(end))
        figures["tasks: bytes"] = sum(len(pickle.dumps(one)) for one in tasks)
        return end

    def idle(self, figures: Figures, offset: dict[str, Any]) -> None:
        begin, requests = time.perf_counter(), 0
        with noted(figures, "idle second", IDLE):
            while time.perf_counter() < begin + IDLE:
                if self.ask(offset) != offset:
                    raise RuntimeError("there is a batch of nothing")
                requests += 1
        figures["idle second: looks"] = requests / IDLE


class Works:
    """The measurements, by name. Each takes a size."""

    def __init__(self, url: str, *, spark: bool) -> None:
        self.url = url
        self.opened = session(ServerOptions.of(url))
        self.spark = spark_session(2) if spark else None

    def fill(self, work: Callable[[jsclient.JetStream], Any]) -> None:
        self.opened.run(work(self.opened.js))

    def streams(self, size: int) -> Figures:
        """Read streams with three messages each, which a pattern selects."""
        names = [f"S{size}_{number}" for number in range(size)]

        async def make(js: jsclient.JetStream) -> None:
            room = asyncio.Semaphore(64)

            async def one(name: str) -> None:
                async with room:
                    await js.create_stream(name, subjects=[f"{name}.>"], storage="memory", allow_direct=True)
                    for number in range(3):
                        await js.publish(f"{name}.x", b"%d" % number)

            await asyncio.gather(*map(one, names))

        async def drop(js: jsclient.JetStream) -> None:
            for name in names:
                await js.delete_stream(name)

        self.fill(make)
        figures: Figures = {}
        driver = Driver(self.url, streamPattern=f"S{size}_*")
        driver.idle(figures, driver.first_batch(figures))
        if self.spark is not None:
            self._spark(figures, f"S{size}_*", 3 * size)
        self.fill(drop)
        return figures

    def _spark(self, figures: Figures, pattern: str, rows: int) -> None:
        options = {"servers": self.url, "streamPattern": pattern, "startingOffsets": "earliest"}
        results: list[int] = []
        with tempfile.TemporaryDirectory() as checkpoint:
            frame = self.spark.readStream.format("jetstream").options(**options).load()
            writer = frame.writeStream.foreachBatch(lambda batch, _: results.append(batch.count()))
            before, begin = cpu(), time.perf_counter()
            query = writer.option("checkpointLocation", checkpoint).start()
            try:
                # A query that has failed would never read the remaining rows. The check at the end reports it.
                while sum(results) < rows and query.isActive:
                    time.sleep(0.01)
                figures["Spark, first batch: seconds"] = time.perf_counter() - begin
                for kind, seconds in cpu().items():
                    figures[f"Spark, first batch: {kind} ms"] = (seconds - before[kind]) * 1e3
                # Wait until the work of the first batch is over, so that only polling is measured.
                time.sleep(2.0)
                before, begin = cpu(), time.perf_counter()
                time.sleep(IDLE)
                for kind, seconds in cpu().items():
                    figures[f"Spark, idle second: {kind} ms"] = (seconds - before[kind]) / IDLE * 1e3
            finally:
                query.stop()
        if sum(results) != rows:
            raise RuntimeError(f"{sum(results)} rows were read, not {rows}: {query.exception()}")

    def subjects(self, size: int) -> Figures:
        """Read a stream with a message on each subject, through a filter that matches all of them."""

        async def make(js: jsclient.JetStream) -> None:
            await js.create_stream("SUBJECTS", subjects=["n.>"], storage="file", allow_direct=True)
            async with js.publisher() as publisher:
                for number in range(size):
                    await publisher.publish(f"n.{number}", b"x")

        self.fill(make)
        figures: Figures = {}
        driver = Driver(self.url, stream="SUBJECTS", subjects="n.*")
        driver.idle(figures, driver.first_batch(figures))
        self.fill(lambda js: js.delete_stream("SUBJECTS"))
        return figures

    def batches(self, size: int) -> Figures:
        """Plan batches of one message without running their tasks. Return the first and the last tenth."""

        async def make(js: jsclient.JetStream) -> None:
            await js.create_stream("BATCHES", subjects=["b.>"], storage="memory", allow_direct=True)
            async with js.publisher() as publisher:
                for _ in range(size):
                    await publisher.publish("b.x", b"x")

        self.fill(make)
        figures: Figures = {}
        driver = Driver(self.url, stream="BATCHES", maxMessagesPerTrigger=1, pollIntervalMs=1)
        offset = driver.reader.initialOffset()
        tenth = max(1, size // 10)

        def some(count: int) -> None:
            nonlocal offset
            for _ in range(count):
                end = driver.ask(offset)
                if len(driver.reader.partitions(offset, end)) != 1:
                    raise RuntimeError("a batch has not one task")
                offset = end

        with noted(figures, "batch, first tenth", tenth):
            some(tenth)
        before = resident()
        some(size - 2 * tenth)
        with noted(figures, "batch, last tenth", tenth):
            some(tenth)
        figures["memory grown since the first tenth: KiB"] = (resident() - before) / 1024
        figures["offset: bytes"] = len(json.dumps(offset))
        self.fill(lambda js: js.delete_stream("BATCHES"))
        return figures

    def partitions(self, size: int) -> Figures:
        """Divide a stream of 200,000 messages, of which every tenth matches the filter, into this many tasks."""

        async def make(js: jsclient.JetStream) -> None:
            await js.create_stream("PARTS", subjects=["p.>"], storage="memory", allow_direct=True)
            async with js.publisher() as publisher:
                for number in range(200_000):
                    await publisher.publish("p.a" if number % 20 == 0 else "p.b", b"x")

        self.fill(make)
        figures: Figures = {}
        Driver(self.url, stream="PARTS", subjects="p.a", minPartitions=size).first_batch(figures)
        self.fill(lambda js: js.delete_stream("PARTS"))
        return figures

    def batch_kib(self, size: int) -> Figures:
        """Compute the ends of up to 40 batches with at most ``size`` KiB, from 60,000 messages of 1 KiB."""

        async def make(js: jsclient.JetStream) -> None:
            await js.create_stream("BYTES", subjects=["k.>"], storage="file", allow_direct=True)
            async with js.publisher() as publisher:
                for number in range(60_000):
                    await publisher.publish(f"k.{number % 16}", b"x" * 1024)

        self.fill(make)
        figures: Figures = {}
        driver = Driver(self.url, stream="BYTES", maxBytesPerTrigger=f"{size}k", pollIntervalMs=1)
        offset = driver.reader.initialOffset()
        batches = min(40, 60_000 // size)

        def some() -> None:
            nonlocal offset
            for _ in range(batches):
                offset = driver.ask(offset)

        with noted(figures, "end of a batch", batches):
            some()
        figures["messages of a batch"] = offset["seq"] / batches
        self.fill(lambda js: js.delete_stream("BYTES"))
        return figures


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(
        prog="python -m benchmarks.spark.scale", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = command_line.add_argument
    add("--works", nargs="+", default=list(SIZES), choices=list(SIZES), metavar="WORK", help=", ".join(SIZES))
    add("--sizes", nargs="+", type=int, metavar="N", help="instead of those of each work")
    add("--spark", action="store_true", help="a real query too, of the work streams")
    add("--save", action="store_true", help="keep the figures as JSON in benchmarks/results/")
    return command_line


def save(measured: dict[str, Figures]) -> None:
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load": [round(one, 1) for one in os.getloadavg()],
    }
    path = RESULTS / f"{about['date']}-spark-scale.json"
    path.write_text(json.dumps({"about": about, "figures": measured}, indent=1) + "\n", encoding="utf-8")
    print(f"saved as benchmarks/results/{path.name}")


def main() -> int:
    options = parser().parse_args()
    results: dict[str, Figures] = {}
    with running_server() as server:
        works = Works(server.url, spark=options.spark)
        try:
            for name in options.works:
                for size in options.sizes or SIZES[name]:
                    figures = results[f"{size:,} {name}"] = getattr(works, name)(size)
                    shown = ", ".join(f"{key} {value:,.1f}" for key, value in figures.items())
                    print(f"{size:,} {name}, load {os.getloadavg()[0]:.1f}: {shown}", flush=True)
        finally:
            # Spark starts on first use, so there is no session if none of these works needs it.
            if works.spark is not None:
                works.spark.stop()
            works.opened.run(works.opened.js.close())
    if options.save:
        save(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
