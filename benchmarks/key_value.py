"""What key-value operations cost, beside nats-py in the same run. See benchmarks/README.md, "Key-value buckets".

python -m benchmarks.key_value
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

import nats

import jsclient
from benchmarks.report import between, verdict

HERE = Path(__file__).resolve().parent

_KEYS, _SINGLE, _MANY = 100_000, 5_000, 1_000
_VALUE: Final = bytes(64)
_WATCHES, _WATCHED, _CHANGES = 1_000, 20, 20  # watches, their keys, and the changes that each of them reads
_JOINED = 30.0  # seconds within which the watches share one consumer
_TIMEOUT = 300.0  # seconds for one client in one round
_CLIENTS = ("jsclient", "jsclient-speedups", "nats-py")
_WORKS = {
    "get": "`get`, one by one",
    "put": "`put`, one by one",
    "put_many": f"`put_many` of {_KEYS:,}",
    "get_many": f"`get_many` of {_MANY:,}",
    "watch": f"`watch`, {_KEYS:,} existing keys",
    "keys": f"`keys` of {_KEYS:,}",
    "cache": f"`cache`, {_KEYS:,} existing keys",
}

# µs of CPU that jsclient should not exceed, pure and with speedups.
_GOALS = {"get_many": (4.0, 4.0), "watch": (2.5, 1.5), "keys": (2.5, 1.5)}


class Meter:
    """Measures CPU and time of some operations."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, float]] = {}

    @contextmanager
    def measure(self, work: str, count: int) -> Iterator[None]:
        """Measure a block of ``count`` operations."""
        cpu, began = time.process_time(), time.perf_counter()
        yield
        self.figures[work] = {
            "cpu_us": (time.process_time() - cpu) / count * 1e6,
            "us": (time.perf_counter() - began) / count * 1e6,
        }


async def _repeat(call: Callable[[], Awaitable[object]], count: int) -> None:
    for _ in range(count):
        await call()


async def _jsclient(url: str, meter: Meter) -> None:
    async with jsclient.connect(url) as js:
        kv = await js.key_value("bench")
        await _repeat(lambda: kv.get("k"), 200)
        with meter.measure("get", _SINGLE):
            await _repeat(lambda: kv.get("k"), _SINGLE)
        with meter.measure("put", _SINGLE):
            await _repeat(lambda: kv.put("k", _VALUE), _SINGLE)
        with meter.measure("put_many", _KEYS):
            await kv.put_many((f"w.{number}", _VALUE) for number in range(_KEYS))
        keys = [f"w.{number}" for number in range(_MANY)]
        with meter.measure("get_many", 10 * _MANY):
            for _ in range(10):
                assert len(await kv.get_many(keys)) == _MANY
        count = 0
        with meter.measure("watch", _KEYS):
            async with kv.watch("w.*") as watch:
                async for _ in watch:
                    count += 1
                    if watch.is_current:
                        break
        assert count == _KEYS
        with meter.measure("keys", _KEYS):
            count = len([key async for key in kv.keys("w.*")])
        assert count == _KEYS
        with meter.measure("cache", _KEYS):
            async with kv.cache("w.*") as cache:
                assert len(cache) == _KEYS
        await _shared(js, meter)


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _remaining_consumers(stream: Any) -> int:
    """Wait until the watches share one consumer, and return the number of consumers."""
    deadline = time.perf_counter() + _JOINED
    while True:
        count: int = (await stream.info()).state.consumer_count
        if count <= 1 or time.perf_counter() > deadline:
            return count
        await asyncio.sleep(0.05)


async def _shared(js: Any, meter: Meter) -> None:
    """Open many watches of a small bucket, and let each of them read the same changes."""
    kv = await js.create_key_value("shared", storage="memory")
    await kv.put_many((f"k{number}", _VALUE) for number in range(_WATCHED))
    stream, before = await js.stream(kv.stream), _resident()

    async def read(watch: Any) -> None:
        for _ in range(_CHANGES):
            await watch.next()

    async with AsyncExitStack() as stack:
        with meter.measure("open", _WATCHES):
            watches = [await stack.enter_async_context(kv.watch()) for _ in range(_WATCHES)]
            for watch in watches:
                while not watch.is_current:
                    await watch.next()
        reading = [asyncio.create_task(read(watch)) for watch in watches]
        consumers = await _remaining_consumers(stream)
        meter.figures["shared"] = {"memory": _resident() - before, "consumers": consumers}
        with meter.measure("change", _WATCHES * _CHANGES):
            for number in range(_CHANGES):
                await kv.put(f"k{number % _WATCHED}", _VALUE)
            await asyncio.gather(*reading)


async def _nats_py(url: str, meter: Meter) -> None:
    nc = await nats.connect(url)
    kv = await nc.jetstream().key_value("bench")
    await _repeat(lambda: kv.get("k"), 200)
    with meter.measure("get", _SINGLE):
        await _repeat(lambda: kv.get("k"), _SINGLE)
    with meter.measure("put", _SINGLE):
        await _repeat(lambda: kv.put("k", _VALUE), _SINGLE)
    async with jsclient.connect(url) as js:  # nats-py puts one by one only
        await (await js.key_value("bench")).put_many((f"w.{number}", _VALUE) for number in range(_KEYS))
    count = 0
    with meter.measure("watch", _KEYS):
        watcher = await kv.watch("w.*")
        while await watcher.updates(timeout=10) is not None:
            count += 1
        await watcher.stop()
    assert count == _KEYS
    with meter.measure("keys", _KEYS):
        count = len(await kv.keys())
    assert count == _KEYS + 1
    await nc.close()


async def _child(client: str, url: str) -> dict[str, Any]:
    """Do all works with one client, and return the figures of each."""
    meter = Meter()
    await (_nats_py if client == "nats-py" else _jsclient)(url, meter)
    return meter.figures


async def _measure(rounds: int, clients: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    results: dict[str, list[dict[str, Any]]] = {client: [] for client in clients}
    for number in range(rounds):
        for client in clients if number % 2 else reversed(clients):  # the clients take turns
            async with jsclient.server.NatsServer() as server, jsclient.connect(server.url) as js:
                kv = await js.create_key_value("bench", storage="memory")
                await kv.put("k", _VALUE)
                results[client].append(await asyncio.to_thread(_apart, client, server.url))
            print(f"round {number + 1}, {client}: {results[client][-1]}", file=sys.stderr, flush=True)
    return results


def _apart(client: str, url: str) -> dict[str, Any]:
    """Run one client in a separate process, and return its figures."""
    environment = {**os.environ, "JSCLIENT_PURE": "" if client == "jsclient-speedups" else "1"}
    command = [sys.executable, "-m", "benchmarks.key_value", "--child", client, url]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT, check=True
    )
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def report(results: dict[str, list[dict[str, Any]]], rounds: int) -> str:
    """Return the table of the medians."""
    clients = list(results)
    lines = [
        f"{time.strftime('%Y-%m-%d')}: Python {platform.python_version()}, nats-py {version('nats-py')}; "
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}; values of {len(_VALUE)} bytes, memory "
        f"storage; medians of {rounds} rounds.",
        "",
        f"| µs of CPU · µs, each | {' | '.join(clients)} |",
        f"|---|{'---:|' * len(clients)}",
    ]
    for work, title in _WORKS.items():
        cells = []
        for client in clients:
            runs = [run[work] for run in results[client] if work in run]
            cells.append(_cell(work, client, runs) if runs else "–")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_shared_lines(results)])


def _cell(work: str, client: str, runs: list[dict[str, float]]) -> str:
    """Return the medians of CPU and time. If jsclient misses its goal, the CPU is in bold, with the goal."""
    cpu, seconds = (median(run[name] for run in runs) for name in ("cpu_us", "us"))
    used = f"{cpu:.3g}"
    if work in _GOALS and client in _CLIENTS[:2]:
        goal = _GOALS[work][_CLIENTS.index(client)]
        used = f"{verdict(used, met=cpu <= goal)} (goal {goal:g})"
    return f"{used} · {seconds:.3g}"


def _shared_lines(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the table of the watches that share a consumer."""
    lines = [
        f"| {_WATCHES:,} watches of {_WATCHED} keys, one connection | memory, MB | consumers | "
        "µs of CPU to open one | µs of CPU for a change, each watch |",
        "|---|---:|---:|---:|---:|",
    ]
    for client, runs in results.items():
        if not all("shared" in run for run in runs):
            continue
        memory = median(run["shared"]["memory"] for run in runs) / 1e6
        consumers = max(run["shared"]["consumers"] for run in runs)
        opened, change = (median(run[work]["cpu_us"] for run in runs) for work in ("open", "change"))
        lines.append(f"| {client} | {memory:.3g} | {consumers} | {opened:.3g} | {change:.3g} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.key_value", description=__doc__)
    add = command_line.add_argument
    add("--rounds", type=int, default=3, metavar="N", help="rounds; medians are shown (3)")
    add("--save", action="store_true", help="fill the table of benchmarks/README.md")
    add("--child", nargs=2, help=argparse.SUPPRESS)
    options = command_line.parse_args(arguments)
    if options.child:
        print(json.dumps(asyncio.run(_child(*options.child))))
        return 0
    try:
        import jsclient_speedups  # noqa: F401
    except ImportError:
        clients = [client for client in _CLIENTS if client != "jsclient-speedups"]
    else:
        clients = list(_CLIENTS)
    table = report(asyncio.run(_measure(options.rounds, clients)), options.rounds)
    print(table)
    if options.save:
        page = HERE / "README.md"
        page.write_text(between(page.read_text(encoding="utf-8"), "key-value", table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
