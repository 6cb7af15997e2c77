"""Measures the cost of objects, compared with nats-py in the same run. See benchmarks/README.md, "Objects"."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import jsclient
from benchmarks.report import between

HERE = Path(__file__).resolve().parent.parent

_TIMEOUT = 300.0  # seconds for one run
_LARGE, _SMALL = 64 * 1024 * 1024, 4096  # bytes

# Work, bytes of an object, and the transfers of each client. nats-py reads a large object for seconds.
RUNS: list[tuple[str, int, dict[str, int]]] = [
    ("put", _LARGE, {"jsclient": 5, "nats-py": 5}),
    ("get", _LARGE, {"jsclient": 5, "nats-py": 1}),
    ("stream", _LARGE, {"jsclient": 5}),
    ("put", _SMALL, {"jsclient": 500, "nats-py": 500}),
    ("get", _SMALL, {"jsclient": 500, "nats-py": 200}),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.objects", description=__doc__)
    add = command_line.add_argument
    add("--rounds", type=int, default=3, metavar="N", help="rounds; medians are shown (3)")
    add("--scale", type=float, default=1.0, metavar="X", help="size of the large objects (1.0 is 64 MiB)")
    add("--save", action="store_true", help="fill the table of benchmarks/README.md")
    options = command_line.parse_args(arguments)
    runs = asyncio.run(_measure(options.rounds, options.scale))
    table = report(runs, options.rounds)
    print(table)
    if options.save:
        page = HERE / "README.md"
        page.write_text(between(page.read_text(encoding="utf-8"), "objects", table), encoding="utf-8")
    return 1 if any("error" in run for run in runs) else 0


async def _measure(rounds: int, scale: float) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for number in range(rounds):
        for work, full_size, counts in RUNS:
            size = max(1, int(full_size * scale)) if full_size == _LARGE else full_size
            clients = list(counts)
            for client in clients if number % 2 else reversed(clients):  # the clients take turns
                async with (
                    jsclient.server.NatsServer() as server
                ):  # Start with an empty object store, because memory that must grow is slow.
                    result = await asyncio.to_thread(_apart, work, client, server.url, size, counts[client])
                runs.append({"work": work, "size": size, "client": client, **result})
                print(f"round {number + 1}: {runs[-1]}", file=sys.stderr, flush=True)
    return runs


def _apart(work: str, client: str, url: str, size: int, count: int) -> dict[str, Any]:
    """Run once in a separate process. Return its figures or its error."""
    command = [sys.executable, "-m", "benchmarks.objects.child", work, client, url, str(size), str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {_TIMEOUT:g} s"}
    if done.returncode != 0:
        return {"error": (done.stderr.strip() or f"code {done.returncode}").splitlines()[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def report(runs: Sequence[dict[str, Any]], rounds: int) -> str:
    """Return the table of the medians."""
    lines = [
        f"{time.strftime('%Y-%m-%d')}: Python {platform.python_version()}, nats-py {version('nats-py')}; "
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, load {os.getloadavg()[0]:.0f}; memory "
        f"storage; medians of {rounds} rounds.",
        "",
        "| work | client | MB/s | CPU ms/MB | µs/object | CPU µs/object | peak MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for work, size, client in dict.fromkeys((run["work"], run["size"], run["client"]) for run in runs):
        own = [run for run in runs if (run["work"], run["size"], run["client"]) == (work, size, client)]
        good = [run for run in own if "error" not in run]
        title = f"{work}, {size / 2**20:g} MiB" if size >= 2**20 else f"{work}, {size / 1024:g} KiB"
        if not good:
            lines.append(f"| {title} | {client} | {own[0]['error']} | | | | |")
            continue
        middle = {
            name: median(run[name] for run in good)
            for name in ("mb_s", "cpu_ms_mb", "us", "cpu_us", "rss_mb")
        }
        whole = size >= 2**20
        cells = (
            [f"{middle['mb_s']:,.1f}", f"{middle['cpu_ms_mb']:.2f}", "", "", f"{middle['rss_mb']:.0f}"]
            if whole
            else ["", "", f"{middle['us']:,.0f}", f"{middle['cpu_us']:,.0f}", f"{middle['rss_mb']:.0f}"]
        )
        lines.append(f"| {title} | {client} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
