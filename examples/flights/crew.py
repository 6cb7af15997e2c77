"""The worker processes, seen from the parent process."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from . import ROOT
from .reports import FromWorker, Ready, Report, ReportAnswer, WorkerSetup, frame, read_frame
from .screen import WorkerView

__all__ = ["Crew", "WorkerError", "WorkerProcess"]

_GRACE = 4.0  # seconds in which a worker must end before it is killed

_decode = msgspec.msgpack.Decoder[FromWorker](FromWorker).decode


class WorkerError(Exception):
    """A worker ended unexpectedly."""


class WorkerProcess:
    """One worker process."""

    def __init__(self, number: int, process: Process) -> None:
        self.view: WorkerView = WorkerView(number, process.pid)
        self.ready: asyncio.Event = asyncio.Event()
        self.should_run: bool = True  # whether its end would be an error
        self.log: deque[str] = deque(maxlen=5)
        self._process = process

    def kill(self) -> None:
        """Send SIGKILL. The worker cannot ack or unsubscribe."""
        self.should_run = False
        self.view.state = "killed"
        try:
            self._process.send_signal(signal.SIGKILL)
        except ProcessLookupError:
            pass

    async def send(self, message: WorkerSetup | ReportAnswer) -> None:
        """Send the setup, or the answer to a report."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(frame(message))
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the process has ended, which the next read reports

    async def read(self) -> Ready | Report | None:
        """Read the next message. Returns None after the process has ended."""
        assert self._process.stdout is not None
        body = await read_frame(self._process.stdout)
        return None if body is None else _decode(body)

    async def read_log(self) -> None:
        """Keep the last lines of its standard error."""
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.log.append(line.decode(errors="replace").rstrip())

    async def stop(self) -> None:
        """Close its standard input, and kill it if it does not end in time."""
        self.should_run = False
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
        """Wait for the end of the process, and return its exit code."""
        return await self._process.wait()


OnReport: TypeAlias = Callable[[WorkerProcess, Report], ReportAnswer | None]
"""Returns the answer to a report, or None to send no answer."""


class Crew:
    """The workers of a run. Starts them, handles their reports and ends them."""

    def __init__(
        self, setup: WorkerSetup, on_report: OnReport, on_killed: Callable[[WorkerProcess], None]
    ) -> None:
        self._setup = setup
        self._on_report = on_report
        self._on_killed = on_killed
        self.workers: list[WorkerProcess] = []

    async def hire(self) -> WorkerProcess:
        """Start another worker. It works once `attend` runs for it and its `ready` is set."""
        number = len(self.workers) + 1
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "examples.flights.worker"),
            cwd=ROOT,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,  # Ctrl-C in the terminal must not reach the worker
        )
        worker = WorkerProcess(number, process)
        self.workers.append(worker)
        return worker

    async def attend(self, worker: WorkerProcess) -> None:
        """Handle the reports of a worker until it ends. If a signal killed it during work, ``on_killed`` is called.

        Raises:
            WorkerError: The worker ended unexpectedly.
        """
        name = f"{self._setup.name} worker {worker.view.number}"
        logging = asyncio.create_task(worker.read_log())
        try:
            await worker.send(msgspec.structs.replace(self._setup, name=name))
            while (message := await worker.read()) is not None:
                if isinstance(message, Ready):
                    worker.view.state = "working"
                    worker.ready.set()
                elif worker.should_run and (verdict := self._on_report(worker, message)) is not None:
                    await worker.send(verdict)
            if worker.should_run:
                # A kill by a signal is part of the demonstration, and any other end is an error.
                await logging
                code = await worker.ended()
                if code < 0 and worker.ready.is_set():
                    worker.view.state = "killed"
                    self._on_killed(worker)
                    return
                last = f": {worker.log[-1]}" if worker.log else ""
                raise WorkerError(f"worker {worker.view.number} ended with code {code}{last}")
        finally:
            logging.cancel()

    async def dismiss(self) -> None:
        """End all workers and wait until their processes have ended."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))
