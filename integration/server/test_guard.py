"""The guard of a server: whatever ends the program, the server ends with it, and no process remains."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.server.test_nats_server import DEADLINE, alive, eventually
from jsclient.server import NatsServer
from jsclient.server.guard import ask_to_end, launch

PARENT = """\
import asyncio, json, os, signal, time
from integration.server.test_nats_server import DEADLINE, alive, eventually
from jsclient.server import NatsServer
from jsclient.server.guard import ask_to_end, launch

# What a shell starts in the background ignores it, and so would this.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def main():
    async with NatsServer() as server:
        print(json.dumps([server.pid, server._process.pid, str(server._run_directory())]), flush=True)
{body}

asyncio.run(main())
"""


@asynccontextmanager
async def parent_process(body: str) -> AsyncIterator[tuple[subprocess.Popen[str], list[Any]]]:
    """A program that runs a server. Its group is its own, as in a terminal."""
    script = PARENT.format(body=textwrap.indent(textwrap.dedent(body), 8 * " "))
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(await asyncio.to_thread(process.stdout.readline))
        finally:
            process.kill()


@pytest.mark.core_cases(2)
@pytest.mark.parametrize(
    ("body", "signum"),
    [
        ("await asyncio.sleep(60)", signal.SIGKILL),
        ("await asyncio.sleep(60)", signal.SIGTERM),
        ("os._exit(3)", None),
        ("server.pause(); await asyncio.sleep(60)", signal.SIGKILL),
    ],
    ids=["killed", "terminated", "exited", "killed-while-paused"],
)
async def test_server_ends_with_parent(body: str, signum: signal.Signals | None) -> None:
    async with parent_process(body) as (parent, (server, guard, directory)):
        if signum is not None:
            parent.send_signal(signum)
        await asyncio.to_thread(parent.wait)
        await eventually(lambda: not alive(server) and not alive(guard))
        await eventually(lambda: not Path(directory).exists())


async def test_ends_with_parent() -> None:
    body = "fork = os.fork(); print(fork, flush=True) if fork else None; time.sleep(60)"
    async with parent_process(body) as (parent, (server, _guard, directory)):
        assert parent.stdout is not None
        fork = int(await asyncio.to_thread(parent.stdout.readline))
        try:
            parent.kill()
            await asyncio.to_thread(parent.wait)
            await eventually(lambda: not alive(server) and not Path(directory).exists())
            assert alive(fork)
        finally:
            os.kill(fork, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
async def test_server_ends_with_guard() -> None:
    async with NatsServer() as server:
        assert server._process is not None
        assert server.pid is not None
        server._process.kill()
        pid = server.pid
        await eventually(lambda: not alive(pid) and not server.running)


async def test_control_c_leaves_stop_to_program() -> None:
    body = """
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            print(server.running, "Server Exiting" in server.log, flush=True)
    """
    async with parent_process(body) as (parent, (server, guard, directory)):
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout is not None
        assert await asyncio.to_thread(parent.stdout.readline) == "True False\n"
        await asyncio.to_thread(parent.wait)
        assert not alive(server)
        assert not alive(guard)
        assert not Path(directory).exists()


def started(command: list[str], directory: Path) -> subprocess.Popen[bytes]:
    with (directory / "log").open("wb") as log:
        return launch(command, directory, log)


def test_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    process = started(["sh", "-c", "echo hello; exit 3"], tmp_path)
    assert process.wait(DEADLINE) == 3
    ask_to_end(process)
    assert (tmp_path / "log").read_bytes() == b"hello\n"


def test_asked_to_end_it_ends_its_command_and_keeps_the_directory(tmp_path: Path) -> None:
    process = started(["sleep", "60"], tmp_path)
    for _ in range(2):
        ask_to_end(process)
    assert process.wait(DEADLINE) == 128 + signal.SIGTERM
    assert tmp_path.exists()
