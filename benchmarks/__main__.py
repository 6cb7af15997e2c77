"""Runs the workloads in turn and prints a table of medians; the figures go to ``benchmarks/results/``.

Every run is a process of its own on the same server and stream; the clients alternate within each round, so that a
machine that changes its speed changes it for all. CPU is that of the client process, user and system, with the start
of the interpreter and the connection taken away (a run with one message). It is the steady figure; rates move with the
machine and compare within a row only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsclient
from benchmarks.workloads import PAYLOAD, SUBJECT, WORKS

RESULTS = Path(__file__).parent / "results"
STORED = 200_000  # messages


def measure(client: str, work: str, url: str, count: int) -> dict[str, float]:
    """One run in this process."""
    function = WORKS[work][client][0]
    asyncio.run(function(url, 1))  # imports, connection, first consumer
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    asyncio.run(function(url, count))
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"rate": count / seconds, "cpu_us": cpu / count * 1e6, "rss_mb": after.ru_maxrss / 1024}


def run_apart(client: str, work: str, url: str, count: int) -> dict[str, float]:
    """One run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks", "--one", client, work, url, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{client}, {work}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


async def fill(js: jsclient.JetStream, count: int) -> None:
    """Put the messages into the stream."""
    await js.create_stream("BENCH", subjects=["bench.>"], storage="memory")
    for _ in range(count // 1000):
        await asyncio.gather(*(js.publish(SUBJECT, PAYLOAD) for _ in range(1000)))


def compare(url: str, rounds: int, scale: float) -> dict[str, dict[str, list[dict[str, float]]]]:
    """All works, all clients, alternating."""
    runs: dict[str, dict[str, list[dict[str, float]]]] = {
        work: {c: [] for c in WORKS[work]} for work in WORKS
    }
    for number in range(rounds):
        for work, clients in WORKS.items():
            for client, (_, count) in clients.items():
                if sys.stderr.isatty():
                    print(
                        f"\rround {number + 1} of {rounds}: {work}, {client}".ljust(70),
                        end="",
                        file=sys.stderr,
                        flush=True,
                    )
                runs[work][client].append(run_apart(client, work, url, max(1, int(count * scale))))
    if sys.stderr.isatty():
        print("\r".ljust(72), end="\r", file=sys.stderr)
    return runs


def table(runs: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """The medians as text."""
    lines = [
        f"{'':27}{'jsclient':^24}{'nats-py':^24}{'ratio':^14}",
        f"{'':27}{'msg/s':>10}{'CPU µs':>8}{'MB':>6}{'msg/s':>10}{'CPU µs':>8}{'MB':>6}{'rate':>7}{'CPU':>7}",
    ]
    for work, clients in runs.items():
        median = {
            client: {key: statistics.median(run[key] for run in found) for key in found[0]}
            for client, found in clients.items()
        }
        ours, theirs = median["jsclient"], median["nats-py"]
        cells = "".join(f"{m['rate']:>10,.0f}{m['cpu_us']:>8.1f}{m['rss_mb']:>6.0f}" for m in (ours, theirs))
        rate, cpu = ours["rate"] / theirs["rate"], theirs["cpu_us"] / ours["cpu_us"]
        lines.append(f"{work:27}{cells}{rate:>6.1f}x{cpu:>6.1f}x")
    return "\n".join(lines)


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds, the medians of which are shown (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="how much of each work (1.0)")
    parser.add_argument("--save", action="store_true", help="keep the figures in benchmarks/results/")
    options = parser.parse_args()
    async with jsclient.server.NatsServer() as server:
        async with jsclient.connect(server.url, timeout=30.0) as js:
            await fill(js, max(1000, int(STORED * options.scale)))
        about: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "server": server.version,
            "jsclient": jsclient.__version__,
            "nats-py": version("nats-py"),
            "rounds": options.rounds,
            "payload_bytes": len(PAYLOAD),
        }
        runs = await asyncio.to_thread(compare, server.url, options.rounds, options.scale)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(table(runs))
    if options.save:
        path = RESULTS / f"{about['date']}-python{about['python']}.json"
        path.write_text(json.dumps({"about": about, "runs": runs}, indent=1) + "\n")
        print(f"saved as {path.name}")


if __name__ == "__main__":
    if len(sys.argv) == 6 and sys.argv[1] == "--one":
        print(json.dumps(measure(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))))
    else:
        asyncio.run(main())
