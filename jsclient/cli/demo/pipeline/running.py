"""The process of the Spark driver, seen from the parent process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path

import msgspec

import jsclient

from ..reports import frame, read_frame
from .words import Failed, FromDriver, Setup

__all__ = ["Driver", "PipelineError"]

_SILENCE = 120.0  # seconds without a message from the driver after which it counts as dead
# Settings of the user that are for another Spark than the installed one.
_NOT_OURS = (
    *("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "SPARK_CONNECT_MODE", "SPARK_API_MODE", "SPARK_MASTER"),
    *("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "JAVA_TOOL_OPTIONS"),
)

_decode: Callable[[bytes], FromDriver] = msgspec.msgpack.Decoder[FromDriver](FromDriver).decode


class PipelineError(Exception):
    """The Spark part cannot continue."""


class Driver:
    """One driver process with its JVM."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, setup: Setup) -> Driver:
        """Start a driver in a new process group. If this is cancelled, the process is killed."""
        log = Path(setup.directory) / "driver.log"
        with log.open("ab") as stderr:
            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "jsclient.cli.demo.pipeline.driver"),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=stderr,
                    env=_environment(),
                    start_new_session=True,
                )
            )
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                await cls(await starting, log).kill()
                raise
        driver = cls(process, log)
        try:
            assert process.stdin is not None
            process.stdin.write(frame(setup))
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            pass  # the process has ended, which the next read reports
        except BaseException:
            await driver.kill()
            raise
        return driver

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self) -> FromDriver:
        """Read the next message.

        Raises:
            PipelineError: The driver failed, ended, or was silent for two minutes.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_SILENCE):
                body = await read_frame(self._process.stdout)
        except TimeoutError:
            raise PipelineError(
                f"no message from the Spark driver for {_SILENCE:.0f} s{self._tail()}"
            ) from None
        if body is None:
            code = await self._process.wait()
            raise PipelineError(f"the Spark driver ended with code {code}{self._tail()}")
        said = _decode(body)
        if isinstance(said, Failed):
            raise PipelineError(f"Spark: {said.reason}")
        return said

    def _tail(self) -> str:
        """The last line of its standard error."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        written = [line.strip() for line in lines if line.strip()]
        return f": {written[-1]}" if written else ""

    async def kill(self) -> None:
        """Send SIGKILL to the driver and its JVM: nothing is committed. Python workers end when the JVM is gone."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        await asyncio.shield(self._process.wait())

    async def end(self) -> None:
        """Wait for the end of a driver that has finished, and kill it after ten seconds."""
        try:
            async with asyncio.timeout(10.0):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            await self.kill()


def _environment() -> dict[str, str]:
    """Executors and driver use this Python and this jsclient, installed or not."""
    package = Path(jsclient.__file__).resolve().parents[1]
    paths = [str(package), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **{name: value for name, value in os.environ.items() if name not in _NOT_OURS},
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
