"""Measures the cost of a query with little work: its start, its idle seconds, and small tasks.

    python -m benchmarks.spark.startup --trees . ../main

compares checkouts: their processes take turns, and medians are shown. It measures the CPU time of Spark's Python
processes, of the JVM, and of the driver's Python process separately.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.spark.running import running_server, spark_session
from benchmarks.spark.workers import cpu

ROOT = Path(__file__).resolve().parents[2]
ROWS = 300  # rows of a task
POLLS = (1, 100, 1000)  # values of pollIntervalMs. With 1, an idle query answers Spark immediately

Figures = dict[str, float]


async def prepare(url: str, tasks: int) -> None:
    import jsclient

    async with jsclient.connect(url) as js:
        for name, count in (("ONE", 1), ("SMALL", tasks * ROWS)):
            with contextlib.suppress(jsclient.StreamNotFoundError):
                await js.delete_stream(name)
            await js.create_stream(name, subjects=[f"{name}.>"], storage="memory", allow_direct=True)
            for number in range(count):
                await js.publish(f"{name}.x", b"%d" % number)


def used() -> Figures:
    """Return the seconds of CPU used so far."""
    result = cpu()
    return {"python": result["python"], "jvm": result["jvm"], "driver": time.process_time()}


class Costs:
    """The measurements of one process."""

    def __init__(self, spark: Any, url: str, options: argparse.Namespace) -> None:
        self.spark = spark
        self.url = url
        self.options = options
        self.figures: Figures = {}

    def note(self, name: str, before: Figures, divisor: float) -> None:
        """Record the CPU used since ``before``, in milliseconds divided by ``divisor``."""
        for kind, seconds in used().items():
            self.figures[f"{name}: {kind} ms"] = (seconds - before[kind]) / divisor * 1e3

    @contextlib.contextmanager
    def query(self, work: Callable[[Any, int], None], **options: Any) -> Iterator[Any]:
        arguments = {"servers": self.url, "stream": "ONE", "startingOffsets": "earliest", **options}
        with tempfile.TemporaryDirectory() as checkpoint:
            frame = self.spark.readStream.format("jetstream").options(**arguments).load()
            query = frame.writeStream.foreachBatch(work).option("checkpointLocation", checkpoint).start()
            try:
                yield query
            finally:
                query.stop()

    def start(self, name: str) -> None:
        """Measure until the first row of a query is in `foreachBatch`."""
        rows: list[Any] = []
        before, begin = used(), time.perf_counter()
        with self.query(lambda batch, _: rows.extend(batch.collect())) as query:
            while not rows and query.isActive:
                time.sleep(0.002)
            self.figures[f"{name}: seconds"] = time.perf_counter() - begin
            self.note(name, before, 1)
        if len(rows) != 1:
            raise RuntimeError(f"{len(rows)} rows were read, not 1: {query.exception()}")

    def starts(self) -> None:
        """Measure the first start of a session, and the medians of later starts."""
        self.start("first start")
        first, result = self.figures, []
        for _ in range(self.options.starts):
            self.figures = {}
            self.start("later start")
            result.append(self.figures)
        later = {name: statistics.median(one[name] for one in result) for name in result[0]}
        self.figures = first | later

    def idle(self, poll: int) -> None:
        """Measure the CPU per second after the first batch."""
        done: list[int] = []
        with self.query(lambda _, number: done.append(number), pollIntervalMs=poll) as query:
            while not done and query.isActive:
                time.sleep(0.01)
            time.sleep(2.0)  # wait until the JVM has compiled its code
            before, begin = used(), time.perf_counter()
            time.sleep(self.options.idle)
            self.note(f"idle second, pollIntervalMs={poll}", before, time.perf_counter() - begin)
            if not query.isActive:
                raise RuntimeError(f"the query has failed: {query.exception()}")

    def tasks(self) -> None:
        """Read a batch with small tasks, and read it again after the workers have started."""
        count = self.options.tasks
        options = {"servers": self.url, "stream": "SMALL", "maxMessagesPerPartition": ROWS}
        frame = self.spark.read.format("jetstream").options(**options).load()
        for _ in range(2):
            before = used()
            frame.write.format("noop").mode("overwrite").save()
            self.note(f"task of {ROWS} rows", before, count)
        result = frame.count(), frame.rdd.getNumPartitions()
        if result != (count * ROWS, count):
            raise RuntimeError(f"rows and tasks are {result}, not {(count * ROWS, count)}")


def child(options: argparse.Namespace) -> None:
    import jsclient

    if Path(jsclient.__file__).parent != Path.cwd() / "jsclient":
        raise RuntimeError(f"{jsclient.__file__} is not what is to be measured")
    asyncio.run(prepare(options.url, options.tasks))
    spark = spark_session(2, os.environ["PYTHONPATH"])
    try:
        costs = Costs(spark, options.url, options)
        costs.starts()
        for poll in POLLS:
            costs.idle(poll)
        costs.tasks()
    finally:
        spark.stop()
    print(json.dumps(costs.figures))


def run(options: argparse.Namespace, url: str, tree: Path) -> Figures:
    """Measure the jsclient of a checkout with the benchmark of this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "jsclient").symlink_to(tree / "jsclient")
        Path(folder, "pyspark_jetstream").symlink_to(tree / "jsclient/spark/_auto/pyspark_jetstream")
        shared = [f"--{name}={getattr(options, name)}" for name in ("starts", "idle", "tasks")]
        command = [sys.executable, "-m", "benchmarks.spark.startup", "--url", url, *shared]
        environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
        answer = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
    figures: Figures = json.loads(answer.stdout.splitlines()[-1])
    return figures


def compare(options: argparse.Namespace) -> None:
    trees = [Path(tree).resolve() for tree in options.trees]
    results: dict[str, dict[Path, list[float]]] = {}
    with running_server() as server:
        for number, index in itertools.product(range(options.rounds), range(len(trees))):
            tree = trees[(index + number) % len(trees)]
            for name, value in run(options, server.url, tree).items():
                results.setdefault(name, {}).setdefault(tree, []).append(value)
            print(f"round {number + 1}: {tree}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    print(f"median (least) of {options.rounds} rounds: {', '.join(map(str, options.trees))}")
    for name, values in results.items():
        shown = [f"{statistics.median(values[tree]):8.2f} ({min(values[tree]):.2f})" for tree in trees]
        print(f"{name:44s}", "   ".join(shown))


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.spark.startup", description=__doc__)
    add = command_line.add_argument
    add("--rounds", type=int, default=5, metavar="N", help="rounds; medians are shown (5)")
    add("--starts", type=int, default=5, metavar="N", help="starts of a query after the first (5)")
    add("--idle", type=float, default=10.0, metavar="SECONDS", help="how long an idle query is measured (10)")
    add("--tasks", type=int, default=40, metavar="N", help="tasks of a batch read (40)")
    add("--trees", nargs="+", default=["."], metavar="DIR", help="checkouts whose jsclient is measured (.)")
    add("--url", help=argparse.SUPPRESS)  # the URL of the server, for a process that measures
    return command_line


if __name__ == "__main__":
    chosen = parser().parse_args()
    if chosen.url:
        child(chosen)
    else:
        compare(chosen)
