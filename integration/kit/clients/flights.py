"""The demonstration as a user runs it, with all processes that come of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from integration.kit.judge.waiting import eventually, within

ROOT = Path(__file__).resolve().parents[3]
MARK = "JSCLIENT_DEMO_TEST"


@dataclass
class Run:
    """A running demonstration, what it has said, and all processes that came of it."""

    process: asyncio.subprocess.Process
    mark: str
    limit: float  # seconds that it may take
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.out)

    def processes(self) -> dict[int, str]:
        """The processes that carry its mark, with their command lines. The dead are not among them."""
        expected = f"{MARK}={self.mark}".encode()
        results = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if expected in (path / "environ").read_bytes().split(b"\0"):
                    command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    results[int(path.name)] = command
        return results

    def workers(self) -> list[int]:
        return [pid for pid, command in self.processes().items() if "examples.flights.worker" in command]

    async def says(self, words: str) -> None:
        """Wait until it has said this. One that ends before has failed."""
        ended = asyncio.create_task(self.process.wait())
        try:
            await eventually(lambda: words in self.text or ended.done(), self.limit, words)
        finally:
            ended.cancel()
        assert words in self.text, f"it ended and never said {words!r}: {self.text}{self.err}"

    async def ended(self) -> int:
        return await within(
            self.limit, self.process.wait(), f"the demonstration; it said: {self.text}{self.err}"
        )

    async def nothing_left(self) -> None:
        await eventually(lambda: not self.processes(), 30, f"no process left; there is {self.processes()}")


@contextlib.asynccontextmanager
async def running_demos(
    binary: Path, files: Path, *arguments: str, limit: float
) -> AsyncIterator[Callable[..., Awaitable[Run]]]:
    """A function that starts one: `await start("--limit", "100")`. At the end all are killed.

    Args:
        binary: The nats-server that they start.
        files: A directory for their temporary files.
        arguments: Further arguments of each.
        limit: Seconds that each may take.
    """
    runs: list[Run] = []
    readers: list[asyncio.Task[None]] = []

    async def start(*more: str) -> Run:
        mark = uuid.uuid4().hex
        ours = {"JSCLIENT_NATS_SERVER": str(binary), "PYTHONPATH": str(ROOT), "TMPDIR": str(files)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.flights", *more, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **ours, MARK: mark},
            start_new_session=True,
        )
        run = Run(process, mark, limit)
        runs.append(run)
        assert process.stdout is not None
        assert process.stderr is not None
        readers.append(asyncio.create_task(_keep(process.stdout, run.out)))
        readers.append(asyncio.create_task(_keep(process.stderr, run.err)))
        return run

    try:
        yield start
    finally:
        for run in runs:
            for pid in run.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await run.process.wait()
        await asyncio.gather(*readers)


async def _keep(pipe: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await pipe.readline():
        lines.append(line.decode())


async def finished(run: Run) -> int:
    """Its exit code, once all it said was read."""
    code = await run.ended()
    await asyncio.sleep(0)
    await eventually(
        lambda: run.process.stdout is not None and run.process.stdout.at_eof(), 10, "end of output"
    )
    return code


def proof(run: Run) -> list[str]:
    return [line for line in run.text.splitlines() if line.startswith("[")]
