"""Measures jsclient in Spark, compared with nats-py in the same session. See benchmarks/README.md, "In Spark"."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsclient
from benchmarks.figures import summarize
from benchmarks.spark.running import running_server, spark_session
from benchmarks.spark.works import WORKS, Stage
from jsclient.tables.server_options import ServerOptions
from jsclient.tables.session import session

RESULTS = Path(__file__).parents[1] / "results"


def parser() -> argparse.ArgumentParser:
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    add = command_line.add_argument
    add("--rounds", type=int, default=3, metavar="N", help="rounds; medians are shown (3)")
    add(
        "--count",
        type=int,
        default=500_000,
        metavar="N",
        help="messages that are read; half as many are written (500000)",
    )
    add("--size", type=int, default=128, metavar="BYTES", help="of the payloads that are read (128)")
    add("--works", nargs="+", default=list(WORKS), choices=list(WORKS), metavar="WORK", help=", ".join(WORKS))
    add(
        "--clients",
        nargs="+",
        default=["jsclient", "nats-py"],
        choices=["jsclient", "nats-py"],
        metavar="CLIENT",
    )
    add("--save", action="store_true", help="keep the figures as JSON in benchmarks/results/")
    return command_line


@contextlib.contextmanager
def running(options: argparse.Namespace) -> Iterator[Stage]:
    """Run a server with a full stream in a separate process, and a session on two cores."""
    from benchmarks.spark.peer import NatsPySource

    with running_server() as server:
        connect = ServerOptions.of(server.url)
        opened = session(connect)
        opened.run(_fill(opened.js, options.count, options.size))
        spark = spark_session(2)
        try:
            spark.dataSource.register(NatsPySource)
            yield Stage(spark, server.url, connect, options.count)
        finally:
            spark.stop()


async def _fill(js: jsclient.JetStream, count: int, size: int) -> None:
    await js.create_stream("BENCH", subjects=["bench.>"], storage="file", allow_direct=True)
    payload = b"x" * size
    async with js.publisher() as publisher:
        for number in range(count):
            await publisher.publish(f"bench.{number % 16}", payload)


def main() -> int:
    options = parser().parse_args()
    runs: list[dict[str, Any]] = []
    with running(options) as stage:
        for number in range(-1, options.rounds):  # the first round warms up
            for name in options.works:
                work, able = WORKS[name]
                clients = [client for client in able if client in options.clients]
                turn = number % len(clients)
                for client in (*clients[turn:], *clients[:turn]):
                    figures = dict(work(stage, client))
                    shown = ", ".join(f"{key} {value:,.2f}" for key, value in figures.items())
                    print(
                        f"{'warm-up' if number < 0 else f'round {number + 1}'}: {name}, {client}: {shown}",
                        flush=True,
                    )
                    if number >= 0:
                        runs.append({"work": name, "client": client, "round": number, "figures": figures})
    print(table(runs))
    if options.save:
        save(options, runs)
    return 0


def table(runs: list[dict[str, Any]]) -> str:
    """Return the medians."""
    lines = ["", "| work | client | figures |", "|---|---|---|"]
    for work, clients in summarize(runs).items():
        for client, figures in clients.items():
            shown = ", ".join(
                f"{name} {figure.median:,.2f} ±{figure.spread:.0%}" for name, figure in figures.items()
            )
            lines.append(f"| {work} | {client} | {shown} |")
    return "\n".join(lines)


def save(options: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    import pyspark

    about = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "spark": pyspark.__version__,
        "cores": os.cpu_count(),
        "size": options.size,
        "count": options.count,
        "rounds": options.rounds,
    }
    name = f"{about['date']}-spark{about['spark']}-python{about['python']}-{options.size}B.json"
    text = json.dumps({"about": about, "runs": runs}, indent=1)
    (RESULTS / name).write_text(text + "\n", encoding="utf-8")
    print(f"saved as benchmarks/results/{name}")


if __name__ == "__main__":
    sys.exit(main())
