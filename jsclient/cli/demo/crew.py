"""The worker processes, as the one that starts them sees them."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from .progress import WorkerView
from .reports import FromWorker, Ready, Report, Setup, Verdict, frame, read_frame

__all__ = ["Crew", "WorkerError", "WorkerProcess"]

_GRACE = 4.0  # seconds that the workers get to end in

_decode = msgspec.msgpack.Decoder[FromWorker](FromWorker).decode


class WorkerError(Exception):
    """A worker ended that should not have."""


class WorkerProcess:
    """One worker process."""

    def __init__(self, number: int, process: Process) -> None:
        self.view = WorkerView(number, process.pid)
        self.ready = asyncio.Event()
        self.wanted = True  # it may not end
        self.log: deque[str] = deque(maxlen=5)
        self._process = process

    def kill(self) -> None:
        """SIGKILL: no farewell, no ack, no unsubscribe."""
        self.wanted = False
        self.view.state = "killed"
        try:
            self._process.send_signal(signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def answer(self, verdict: Verdict) -> None:
        """Tell it what became of its report."""
        await self._write(frame(verdict))

    async def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended: reading from it tells so

    async def begin(self, setup: Setup) -> None:
        """Say what to work on."""
        await self._write(frame(setup))

    async def read(self) -> Ready | Report | None:
        """What it says next; None when it has ended."""
        assert self._process.stdout is not None
        body = await read_frame(self._process.stdout)
        return None if body is None else _decode(body)

    async def read_log(self) -> None:
        """Keep the end of what it writes to standard error."""
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.log.append(line.decode(errors="replace").rstrip())

    async def stop(self) -> None:
        """Have it end, one way or the other."""
        self.wanted = False
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_GRACE):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
        if self.view.state != "killed":
            self.view.state = "ended"

    async def ended(self) -> int:
        """Wait for its end; the exit code."""
        return await self._process.wait()


OnReport: TypeAlias = Callable[[WorkerProcess, Report], Verdict | None]
"""Answers a report; None: not at all."""


class Crew:
    """Starts workers, listens to them, ends them."""

    def __init__(self, setup: Setup, on_report: OnReport, on_killed: Callable[[WorkerProcess], None]) -> None:
        self._setup = setup
        self._on_report = on_report
        self._on_killed = on_killed
        self.workers: list[WorkerProcess] = []

    async def hire(self) -> WorkerProcess:
        """Start one more worker. It is at work when its `ready` is set and `attend` runs."""
        number = len(self.workers) + 1
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "jsclient.cli.demo.worker"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is not for it
        )
        worker = WorkerProcess(number, process)
        self.workers.append(worker)
        return worker

    async def attend(self, worker: WorkerProcess) -> None:
        """Listen to a worker until its end. One that a signal killed while it worked is told to ``on_killed``.

        Raises:
            WorkerError: It ended by itself though it was wanted.
        """
        name = f"{self._setup.name} worker {worker.view.number}"
        logging = asyncio.create_task(worker.read_log())
        try:
            await worker.begin(msgspec.structs.replace(self._setup, name=name))
            while (said := await worker.read()) is not None:
                if isinstance(said, Ready):
                    worker.view.state = "working"
                    worker.ready.set()
                elif worker.wanted and (verdict := self._on_report(worker, said)) is not None:
                    await worker.answer(verdict)
            if worker.wanted:
                await logging
                code = await worker.ended()
                if code < 0 and worker.ready.is_set():
                    worker.view.state = "killed"
                    self._on_killed(worker)
                    return
                told = f": {worker.log[-1]}" if worker.log else ""
                raise WorkerError(f"worker {worker.view.number} ended with code {code}{told}")
        finally:
            logging.cancel()

    async def dismiss(self) -> None:
        """End all workers; returns when the processes are gone."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))
