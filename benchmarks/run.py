"""Runs the works: a process for each run, with clients that take turns in each round on the same server and stream."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jsclient
from benchmarks.clients import ENVIRONMENT, WITHOUT_TLS, works_of
from benchmarks.job import Job, WorkSkippedError
from benchmarks.servers import Target
from benchmarks.stage import Stage, steps
from benchmarks.works import Work

__all__ = ["Settings", "compare", "has_tls"]

_TIMEOUT = 120.0  # seconds for one run
_IMPORTS = 5  # processes for one run of an import
_STATEMENTS = {
    "raw": "pass",
    "jsclient": "import jsclient",
    "nats-py": "import nats",
    "natsrpy": "import natsrpy",
    "nats-jetstream": "import nats.client, nats.jetstream",
}


@dataclass(frozen=True)
class Settings:
    """The settings that are the same for all runs."""

    rounds: int
    scale: float
    size: int
    headers: bool
    storage: str
    loop: str
    tls: bool = False


class _RunFailedError(Exception):
    """A run ended with this error."""


async def compare(
    targets: Mapping[bool, Target], works: Sequence[Work], clients: Sequence[str], settings: Settings
) -> list[dict[str, Any]]:
    """Run all works with all clients. ``targets`` are the server without TLS and the server with TLS.

    The failure of a client is reported on stderr, and the client skips the later rounds of that work.
    """
    runs: list[dict[str, Any]] = []
    for (size, headers, _, tls), some in _stages(works, settings).items():
        target = targets[tls]
        async with jsclient.connect(target.server.url, timeout=30.0, tls=target.ca or None) as js:
            stage = Stage(js, target, settings.storage)
            await _fill(stage, some, clients, settings, size=size, headers=headers)
            runs += await _rounds(stage, some, clients, settings)
            await stage.clear()
    _progress("")
    return runs


async def _fill(
    stage: Stage,
    works: Sequence[Work],
    clients: Sequence[str],
    settings: Settings,
    *,
    size: int,
    headers: bool,
) -> None:
    """Store as many messages as the longest run reads."""
    stored = [
        sum(steps(work, count, settings.scale))
        for work in works
        if work.reads and work.kind != "import"
        for client, count in work.counts.items()
        if client in clients
    ]
    if stored:
        _progress(f"filling the stream: {max(stored):,} messages of {size} bytes")
        await stage.fill(size, headers=headers, count=max(stored))


async def _rounds(
    stage: Stage, works: Sequence[Work], clients: Sequence[str], settings: Settings
) -> list[dict[str, Any]]:
    """Run all rounds of the works that share a stream."""
    runs: list[dict[str, Any]] = []
    able = {work.name: [client for client in clients if _can(work, client, settings)] for work in works}
    failed: set[tuple[str, str]] = set()
    for number, work in itertools.product(range(settings.rounds), works):
        for client in _turn(able[work.name], number):
            if (work.name, client) in failed:
                continue
            _progress(f"round {number + 1} of {settings.rounds}: {work.name}, {client}")
            run: dict[str, Any] = {"work": work.name, "client": client, "round": number + 1}
            try:
                run["figures"] = await _one(stage, work, client, settings)
            except (_RunFailedError, WorkSkippedError) as error:
                # A client that cannot do its work would fail in every round, most of them after a time-out.
                failed.add((work.name, client))
                run["error"] = str(error)
                _progress("")
                print(f"{work.name}: {client} is left out: {error}", file=sys.stderr)
            runs.append(run)
    return runs


def _can(work: Work, client: str, settings: Settings) -> bool:
    """Return whether the client takes part. If it should but lacks a package, report this on stderr."""
    if client not in work.counts:
        return False
    knows = work.kind == "import" or work.kind in works_of(client)
    if knows and not (client in WITHOUT_TLS and has_tls(work, settings)):
        return True
    print(f"{work.name}: {client} is left out: it cannot do that", file=sys.stderr)
    return False


def has_tls(work: Work, settings: Settings) -> bool:
    """Return whether a work uses TLS."""
    return settings.tls if work.tls is None else work.tls


def _stages(works: Sequence[Work], settings: Settings) -> dict[tuple[int, bool, bool, bool], list[Work]]:
    """Group the works that can share a stream. The large stream is separate, because it would slow down the server."""
    results: dict[tuple[int, bool, bool, bool], list[Work]] = {}
    for work in works:
        size = settings.size if work.size is None else work.size
        headers = settings.headers if work.headers is None else work.headers
        key = (size, headers, work.group == "linear", has_tls(work, settings))
        results.setdefault(key, []).append(work)
    return results


def _turn(clients: list[str], number: int) -> list[str]:
    """Rotate the clients in each round, so that no client always follows the same client."""
    at = number % len(clients) if clients else 0
    return clients[at:] + clients[:at]


async def _one(stage: Stage, work: Work, client: str, settings: Settings) -> dict[str, float]:
    if work.kind == "import":
        return await asyncio.to_thread(_import, _STATEMENTS[client])
    size = settings.size if work.size is None else work.size
    headers = settings.headers if work.headers is None else work.headers
    async with stage.job(work, client, settings.scale, size=size, headers=headers, loop=settings.loop) as job:
        return await asyncio.to_thread(_apart, job)


def _apart(job: Job) -> dict[str, float]:
    """Do one run in a separate process."""
    command = [sys.executable, "-m", "benchmarks.child", json.dumps(job.as_dict())]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env=os.environ | ENVIRONMENT.get(job.client, {}),
        )
    except subprocess.TimeoutExpired:
        raise _RunFailedError(f"not done in {_TIMEOUT:g} s") from None
    if done.returncode != 0:
        raise _RunFailedError((done.stderr.strip() or f"code {done.returncode}").splitlines()[-1])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _import(statement: str) -> dict[str, float]:
    """Return the CPU ms of a process that only imports, with compiled modules: the lowest of a few runs."""
    with _compiled() as environment:
        command = [sys.executable, "-c", statement]
        subprocess.run(command, env=environment, check=True)
        used = []
        for _ in range(_IMPORTS):
            process = subprocess.Popen(command, env=environment)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise _RunFailedError(f"{statement} ended with code {process.returncode}")
            used.append((usage.ru_utime + usage.ru_stime) * 1000)
    return {"cpu_ms": min(used)}


@contextlib.contextmanager
def _compiled() -> Iterator[dict[str, str]]:
    """Yield an environment in which Python keeps compiled modules, whatever the current environment says."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": directory}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        yield environment


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}".ljust(100), end="" if text else "\r", file=sys.stderr, flush=True)
