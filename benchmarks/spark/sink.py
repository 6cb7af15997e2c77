"""Measures the sink without Spark: the client's CPU time per row, for each source of message ids.

    python -m benchmarks.spark.sink --trees . ../main

compares checkouts: their processes take turns, and medians are shown. A process measures beside nats-server. It creates
the rows before the clock starts, so the CPU time belongs to the sink: Arrow columns, ids, header blocks, publishing,
acks.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

import jsclient
from jsclient.spark.options.sink import SinkOptions
from jsclient.spark.sink.partition_writer import Outcome, PartitionWriter, WritePlan
from jsclient.spark.sink.row_columns import RowShape
from jsclient.spark.task_context import Task

IDS = ("content", "source", "none")
BATCH = 10_000  # rows of one Arrow batch, as Spark makes them


def rows(count: int, size: int) -> list[pa.RecordBatch]:
    """Return batches with all columns that `IDS` need."""
    results = []
    for first in range(0, count, BATCH):
        numbers = range(first, min(count, first + BATCH))
        columns = {
            "data": pa.array([str(number).encode().ljust(size, b"x") for number in numbers], pa.binary()),
            "stream": pa.array(["EVENTS"] * len(numbers), pa.string()),
            "stream_created": pa.array([1_700_000_000_000_000] * len(numbers), pa.timestamp("us", tz="UTC")),
            "sequence": pa.array([number + 1 for number in numbers], pa.int64()),
        }
        results.append(pa.RecordBatch.from_pydict(columns))
    return results


async def measure(url: str, ids: str, batches: list[pa.RecordBatch]) -> float:
    """Return the microseconds of CPU per row. Raises `RuntimeError` if the stream does not store all rows."""
    options = SinkOptions.parse({"servers": url, "subject": "out.x", "dedup": ids})
    shape = RowShape("data", False, False, False, "out.x", ids == "source")
    count = sum(batch.num_rows for batch in batches)
    async with jsclient.connect(url) as js:
        stream = await js.create_stream("OUT", subjects=["out.>"], storage="memory", duplicate_window=60)
        try:
            plan = WritePlan(options, shape, ids, "query", 1, None)
            writer = PartitionWriter(js, plan, Task(0, 0))
            start = time.process_time()
            await writer.find_stored_rows()
            for batch in batches:
                await writer.write(batch)
            outcome: Outcome = await writer.finish()
            used = time.process_time() - start
            stored = (await stream.info()).state.messages
        finally:
            await js.delete_stream("OUT")
    if (outcome.rows, outcome.duplicates, stored) != (count, 0, count):
        raise RuntimeError(f"{stored} of {count} rows are stored: {outcome}")
    return used / count * 1e6


async def child(options: argparse.Namespace) -> None:
    batches = rows(options.rows, options.size)
    gc.collect()
    gc.freeze()  # as in Spark's workers
    await measure(options.url, "none", batches[:2])
    result = {ids: await measure(options.url, ids, batches) for ids in options.ids}
    print(json.dumps(result))


def compare(options: argparse.Namespace) -> None:
    trees = [str(Path(tree).resolve()) for tree in options.trees]
    results: dict[tuple[str, str], list[float]] = {}
    shared = ["--rows", str(options.rows), "--size", str(options.size), "--ids", *options.ids]
    # import the server from this checkout, not from a measured checkout
    from benchmarks.spark.running import running_server

    with running_server() as server:
        for number, index in itertools.product(range(options.rounds), range(len(trees))):
            tree = trees[(index + number) % len(trees)]
            command = [sys.executable, __file__, "--url", server.url, *shared]
            environment = os.environ | {"PYTHONPATH": tree}
            answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            for ids, used in json.loads(answer.stdout).items():
                results.setdefault((tree, ids), []).append(used)
    print(
        f"µs of CPU a row, {options.rows} rows of {options.size} bytes: median (least) of {options.rounds} rounds"
    )
    for ids in options.ids:
        shown = [
            f"{statistics.median(results[tree, ids]):.2f} ({min(results[tree, ids]):.2f})" for tree in trees
        ]
        print(f"{ids:8s}", "   ".join(shown), flush=True)


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.spark.sink", description=__doc__)
    add = command_line.add_argument
    add("--rounds", type=int, default=7, metavar="N", help="rounds; medians are shown (7)")
    add("--rows", type=int, default=200_000, metavar="N", help="rows of each write (200000)")
    add("--size", type=int, default=128, metavar="BYTES", help="of the payloads (128)")
    add("--ids", nargs="+", default=IDS, choices=IDS, metavar="IDS", help=", ".join(IDS))
    add("--trees", nargs="+", default=["."], metavar="DIR", help="checkouts whose jsclient is measured (.)")
    add("--url", help=argparse.SUPPRESS)  # the URL of the server, for a process that measures
    return command_line


if __name__ == "__main__":
    chosen = parser().parse_args()
    if chosen.url:
        asyncio.run(child(chosen))
    else:
        compare(chosen)
