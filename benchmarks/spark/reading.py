"""Measures the source without Spark: the CPU time per row of a task, for several lists of columns.

    python -m benchmarks.spark.reading --trees . ../main

compares checkouts: their processes take turns, and medians are shown. A process reads the whole stream like a task of a
query, and discards the Arrow batches. "count" reads only the sequence. It reads a stream without gaps, and a stream
with a gap, whose messages must be transferred.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import jsclient
from jsclient.tables.ranges import SequenceRange
from jsclient.tables.reading import read_range
from jsclient.tables.server_options import ServerOptions
from jsclient.tables.session import session
from jsclient.tables.tasks import ReadSpec

WORKS: Mapping[str, tuple[str, tuple[str, ...], str]] = {
    "4 columns": ("WHOLE", ("subject", "data", "sequence", "timestamp"), "consumer"),
    "default": ("WHOLE", ("subject", "data", "headers", "stream", "sequence", "timestamp"), "consumer"),
    "data": ("WHOLE", ("data",), "consumer"),
    "headers": ("HEADERS", ("data", "headers"), "consumer"),
    "direct": ("WHOLE", ("subject", "data", "sequence", "timestamp"), "direct"),
    "count": ("WHOLE", ("sequence",), "auto"),
    "count-gap": ("GAP", ("sequence",), "auto"),
}
"""By name: the stream, the columns and the read mode."""


def spec_of(url: str, work: str) -> ReadSpec:
    """Return the specification of the messages that a task reads."""
    stream, columns, mode = WORKS[work]
    return ReadSpec(
        connect=ServerOptions.of(url),
        stream=stream,
        subjects=(),
        columns=columns,
        created=None,
        read_mode=mode,
        batch_rows=8192,
        fetch_max_bytes=8 * 1024 * 1024,
        check_loss=True,
    )


def measure(url: str, work: str, rows: int) -> float:
    """Return the microseconds of CPU per row. Raises `RuntimeError` if a row is missing."""
    start = time.process_time()
    read = sum(batch.num_rows for batch in read_range(spec_of(url, work), SequenceRange(1, rows)))
    used = time.process_time() - start
    if read != rows - (WORKS[work][0] == "GAP"):
        raise RuntimeError(f"{work}: {read} of {rows} rows were read")
    return used / rows * 1e6


def child(options: argparse.Namespace) -> None:
    """Measures in this process, and prints the figures."""
    session(ServerOptions.of(options.url))
    gc.collect()
    gc.freeze()  # as in Spark's workers
    measure(options.url, "data", options.rows)
    print(json.dumps({work: measure(options.url, work, options.rows) for work in options.works}))


async def fill(js: jsclient.JetStream, rows: int, size: int) -> None:
    """Fill the streams. They are stored in files, because the stream with large payloads is larger than memory."""
    payload = b"x" * size
    for name in ("WHOLE", "HEADERS", "GAP"):
        stream = await js.create_stream(name, subjects=[f"{name}.>"], storage="file", allow_direct=True)
        headers = {"Tenant": "a", "Trace": "0123456789abcdef"} if name == "HEADERS" else None
        async with js.publisher() as publisher:
            for number in range(rows):
                await publisher.publish(f"{name}.{number % 16}", payload, headers=headers)
        if name == "GAP":
            await stream.delete_message(rows // 2)


def compare(options: argparse.Namespace) -> None:
    trees = [str(Path(tree).resolve()) for tree in options.trees]
    results: dict[tuple[str, str], list[float]] = {}
    shared = ["--rows", str(options.rows), "--works", *options.works]
    # import the server from this checkout, not from a measured checkout
    from benchmarks.spark.running import running_server

    with running_server() as server:
        opened = session(ServerOptions.of(server.url))
        opened.run(fill(opened.js, options.rows, options.size))
        for number, index in itertools.product(range(options.rounds), range(len(trees))):
            tree = trees[(index + number) % len(trees)]
            command = [sys.executable, __file__, "--url", server.url, *shared]
            environment = os.environ | {"PYTHONPATH": tree}
            answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
            for work, used in json.loads(answer.stdout).items():
                results.setdefault((tree, work), []).append(used)
    print(
        f"µs of CPU a row, {options.rows} rows of {options.size} bytes: median (least) of {options.rounds} rounds"
    )
    for work in options.works:
        shown = [
            f"{statistics.median(results[tree, work]):.2f} ({min(results[tree, work]):.2f})" for tree in trees
        ]
        print(f"{work:10s}", "   ".join(shown), flush=True)


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.spark.reading", description=__doc__)
    add = command_line.add_argument
    add("--rounds", type=int, default=7, metavar="N", help="rounds; medians are shown (7)")
    add("--rows", type=int, default=200_000, metavar="N", help="messages of each stream (200000)")
    add("--size", type=int, default=128, metavar="BYTES", help="of the payloads (128)")
    add("--works", nargs="+", default=list(WORKS), choices=list(WORKS), metavar="WORK", help=", ".join(WORKS))
    add("--trees", nargs="+", default=["."], metavar="DIR", help="checkouts whose jsclient is measured (.)")
    add("--url", help=argparse.SUPPRESS)  # the URL of the server, for a process that measures
    return command_line


if __name__ == "__main__":
    chosen = parser().parse_args()
    if chosen.url:
        child(chosen)
    else:
        compare(chosen)
