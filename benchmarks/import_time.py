"""CPU milliseconds of a first import and of a first connection, with jsclient and nats-py.

The two alternate, each in a fresh interpreter. Both are loaded from bytecode, like an installed package. The first
round writes the bytecode to a temporary folder, even if ``PYTHONDONTWRITEBYTECODE`` is set. A connection is opened to a
nats-server on this machine, and closed.

    python -m benchmarks.import_time [--save]

With ``--save`` it fills the table in README.md.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import jsclient
from benchmarks.report import between, markdown

ROUNDS = 15
_IMPORT = "import {0}"
_CONNECT = """
import asyncio, {0}
async def use():
    async with {0}.connect("{1}") as it: pass
async def use_nats():
    await (await {0}.connect("{1}")).close()
asyncio.run(use_nats() if "{0}" == "nats" else use())"""
_MEASURE = "import time; start = time.process_time()\n{}\nprint(time.process_time() - start)"
_MODULES = ("jsclient", "nats")
_WORKS = {"import": _IMPORT, "import, connect and close": _CONNECT}


def cpu_seconds(statements: str, bytecode: str) -> float:
    """Return the CPU seconds of ``statements`` in a fresh interpreter. ``bytecode`` is a folder."""
    command = [sys.executable, "-c", _MEASURE.format(statements)]
    env = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)


def compare(what: str, statements: str, url: str, bytecode: str) -> list[str]:
    """Return a row: the medians of both clients in ms, and their difference."""
    results: dict[str, list[float]] = {module: [] for module in _MODULES}
    for number in range(ROUNDS + 1):
        for module in _MODULES:
            figure = cpu_seconds(statements.format(module, url), bytecode)
            if number:  # the first round writes bytecode
                results[module].append(figure * 1000)
    ours, theirs = (statistics.median(results[module]) for module in _MODULES)
    return [what, f"{ours:.0f}", f"{theirs:.0f}", f"{ours - theirs:+.0f}"]


async def main(*, save: bool) -> None:
    """Run the program."""
    async with jsclient.server.NatsServer() as server:
        with tempfile.TemporaryDirectory() as bytecode:
            rows = [
                await asyncio.to_thread(compare, what, statements, server.url, bytecode)
                for what, statements in _WORKS.items()
            ]
    table = markdown(
        [f"CPU ms, Python {platform.python_version()}", "jsclient", "nats-py", "difference"], rows
    )
    print(table)
    if save:
        page = Path(__file__).with_name("README.md")
        page.write_text(between(page.read_text(encoding="utf-8"), "import", table), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main(save="--save" in sys.argv[1:]))
