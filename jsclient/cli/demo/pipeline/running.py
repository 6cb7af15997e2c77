"""The Spark driver, as the one that starts it sees it: it is started, killed once, started again, and listened to."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..reports import frame, read_frame
from .words import Failed, FromDriver, Setup

__all__ = ["Driver", "PipelineError"]

_SILENCE = 120.0  # seconds without a word of the driver after which it is given up
# Settings of the user for another Spark than the one that is installed here.
_NOT_OURS = (
    *("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "SPARK_CONNECT_MODE", "SPARK_API_MODE", "SPARK_MASTER"),
    *("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "JAVA_TOOL_OPTIONS"),
)

_decode: Callable[[bytes], FromDriver] = msgspec.msgpack.Decoder[FromDriver](FromDriver).decode


class PipelineError(Exception):
    """The Spark part could not go on."""


class Driver:
    """One driver process with its JVM."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, setup: Setup) -> Driver:
        """Start it, in a process group of its own. Cancelled: none is left."""
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
            pass  # it has ended: reading from it tells so
        except BaseException:
            await driver.kill()
            raise
        return driver

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read(self) -> FromDriver:
        """What it says next.

        Raises:
            PipelineError: It failed, ended, or has nothing to say any more.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_SILENCE):
                body = await read_frame(self._process.stdout)
        except TimeoutError:
            raise PipelineError(
                f"the Spark driver has said nothing for {_SILENCE:.0f} s{self._tail()}"
            ) from None
        if body is None:
            code = await self._process.wait()
            raise PipelineError(f"the Spark driver ended with code {code}{self._tail()}")
        said = _decode(body)
        if isinstance(said, Failed):
            raise PipelineError(f"Spark: {said.reason}")
        return said

    def _tail(self) -> str:
        """The last thing it wrote to standard error."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        told = [line.strip() for line in lines if line.strip()]
        return f": {told[-1]}" if told else ""

    async def kill(self) -> None:
        """SIGKILL for the driver and its JVM: no farewell, no commit. Python workers end when they lose the JVM."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        await asyncio.shield(self._process.wait())

    async def end(self) -> None:
        """Wait until it has gone by itself, as it does when it has finished; kill what does not go."""
        try:
            async with asyncio.timeout(10.0):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            await self.kill()


def _environment() -> dict[str, str]:
    """Executors and driver are the same Python, with the jsclient of this one, installed or not."""
    package = Path(__file__).resolve().parents[3]
    paths = [str(package), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **{name: value for name, value in os.environ.items() if name not in _NOT_OURS},
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
