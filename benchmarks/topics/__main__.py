"""Measures the cost of topics, compared with nats-py in the same run. See benchmarks/README.md, "Topics"."""

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
from typing import Any

import jsclient
from benchmarks.job import Job
from benchmarks.report import between
from benchmarks.topics.report import report
from benchmarks.topics.works import WORKS, TopicWork, job, select, stored_in
from benchmarks.wire import Wire, publish_many

HERE = Path(__file__).resolve().parent.parent
RESULTS = HERE / "results"
FORMAT = 1  # version of the files' format

_TIMEOUT = 120.0  # seconds for one run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.topics", description=__doc__)
    add = command_line.add_argument
    add("--rounds", type=int, default=3, metavar="N", help="rounds; medians are shown (3)")
    add("--scale", type=float, default=1.0, metavar="X", help="how much of each work (1.0)")
    names = dict.fromkeys(name for work in WORKS for name in (work.name, work.group))
    add(
        "--works",
        nargs="+",
        default=["all"],
        metavar="WORK",
        help=f"by name or group: {', '.join(names)}, all (all)",
    )
    add("--clients", nargs="+", metavar="CLIENT", help="rows of the tables; by default all")
    add(
        "--save",
        action="store_true",
        help="keep the figures in benchmarks/results/, and fill benchmarks/README.md",
    )
    add("--report", type=Path, metavar="FILE", help="no runs: print the tables of stored figures")
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    command = parser()
    options = command.parse_args(arguments)
    if options.report:
        # The tables of an earlier run are written again, without measuring.
        stored = json.loads(options.report.read_text(encoding="utf-8"))
    else:
        try:
            works = select(options.works)
        except ValueError as error:
            command.error(str(error))
        if options.rounds < 1 or options.scale <= 0:
            command.error("--rounds and --scale must be over 0")
        stored = asyncio.run(_measure(works, options))
    tables = report(stored)
    print(tables)
    if options.save:
        _save(stored, tables, is_new=not options.report)
    return 1 if any("error" in run for run in stored["runs"]) else 0


async def _measure(works: Sequence[TopicWork], options: argparse.Namespace) -> dict[str, Any]:
    async with jsclient.server.NatsServer(config={"max_pending": 1 << 30}) as server:
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "server": server.version,
            "jsclient": version("jsclient"),
            "nats-py": version("nats-py"),
            "rounds": options.rounds,
            "scale": options.scale,
        }
        await _fill(server, works, options.scale)
        runs = []
        for number in range(options.rounds):
            for work in works:
                clients = [client for client in work.rows if client in (options.clients or work.rows)]
                at = number % max(len(clients), 1)  # each round starts with another client
                for client in (*clients[at:], *clients[:at]):
                    task = job(work, client, options.scale, port=server.port)
                    result = await asyncio.to_thread(_apart, task)
                    runs.append({"work": work.name, "client": client, "round": number + 1, **result})
                    shown = ", ".join(
                        f"{name} {value:,.3g}" for name, value in result.get("figures", {}).items()
                    )
                    print(
                        f"round {number + 1}: {work.name}, {client}: {shown or result['error']}",
                        file=sys.stderr,
                        flush=True,
                    )
        return {"format": FORMAT, "about": about, "runs": runs}


async def _fill(server: jsclient.server.NatsServer, works: Sequence[TopicWork], scale: float) -> None:
    """Fill the streams that are read."""
    async with jsclient.connect(server.url) as js:
        for work in works:
            if work.stored:
                task = job(work, next(iter(work.rows)), scale, port=server.port)
                await js.create_stream(
                    task.stream, subjects=[task.subject], storage="memory", allow_direct=True
                )
                await asyncio.to_thread(_publish, task, stored_in(work, scale))


def _publish(task: Job, count: int) -> None:
    with Wire(task.host, task.port) as wire:
        wire.send(b"SUB acks 1\r\n")
        publish_many(wire, task, count)


def _apart(task: Job) -> dict[str, Any]:
    """Run once in a separate process. Return its figures or its error."""
    command = [sys.executable, "-m", "benchmarks.topics.child", json.dumps(task.as_dict())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done in {_TIMEOUT:g} s"}
    if done.returncode != 0:
        return {"error": (done.stderr.strip() or f"code {done.returncode}").splitlines()[-1]}
    return {"figures": json.loads(done.stdout.splitlines()[-1])}


def _save(stored: dict[str, Any], tables: str, *, is_new: bool) -> None:
    about = stored["about"]
    if is_new:
        name = f"{about['date']}-topics-python{about['python']}.json"
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / name).write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print(f"saved as benchmarks/results/{name}")
    page = HERE / "README.md"
    page.write_text(between(page.read_text(encoding="utf-8"), "topics", tables), encoding="utf-8")
    print(f"filled benchmarks/{page.name}")


if __name__ == "__main__":
    sys.exit(main())
