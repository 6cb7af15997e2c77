"""The process of the Spark driver, seen from the parent process, its requirements, and its access to the server."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec

import jsclient

from .. import ROOT
from ..reports import frame, read_frame
from .words import DriverFailed, DriverJob, FromDriver

__all__ = ["SECRET", "Driver", "PipelineError", "java_release", "spark_access", "why_not", "without_user"]

_SILENCE = 120.0  # seconds without a message from the driver after which it counts as dead
# Settings of the user that are for another Spark than the installed one.
_NOT_OURS = (
    *("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "SPARK_CONNECT_MODE", "SPARK_API_MODE", "SPARK_MASTER"),
    *("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "JAVA_TOOL_OPTIONS"),
)

_decode: Callable[[bytes], FromDriver] = msgspec.msgpack.Decoder[FromDriver](FromDriver).decode


class PipelineError(Exception):
    """Raised when the Spark part cannot continue."""


class Driver:
    """One driver process with its JVM."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, setup: DriverJob) -> Driver:
        """Start a driver in a new process group. If this is cancelled, the process is killed."""
        log = Path(setup.directory) / "driver.log"
        with log.open("ab") as stderr:
            starting = asyncio.create_task(
                asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "examples.flights.pipeline.driver"),
                    cwd=ROOT,
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
        message = _decode(body)
        if isinstance(message, DriverFailed):
            raise PipelineError(f"Spark: {message.reason}")
        return message

    def _tail(self) -> str:
        """Return the last line of its standard error."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        written = [line.strip() for line in lines if line.strip()]
        return f": {written[-1]}" if written else ""

    async def kill(self) -> None:
        """Send SIGKILL to the driver and its JVM, which then commit no batch. Python workers end after the JVM."""
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
    """Return an environment in which executors and driver use this Python and this jsclient, installed or not."""
    package = Path(jsclient.__file__).resolve().parents[1]
    paths = [str(package), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **{name: value for name, value in os.environ.items() if name not in _NOT_OURS},
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


SECRET = "JSCLIENT_DEMO_SECRET"  # an environment variable


def spark_access(urls: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return options for source and sink, and environment variables for driver and executors.

    Spark's plans would show a user in a URL. So the user becomes an option, and the password or token a variable.
    """
    options = {"servers": ",".join(without_user(url) for url in urls)}
    for url in urls:
        parts = urlsplit(_whole(url))
        if parts.username is None:
            continue
        if parts.password is None:
            return {**options, "tokenEnv": SECRET}, {SECRET: parts.username}
        user = {"user": parts.username, "passwordEnv": SECRET}
        return {**options, **user}, {SECRET: parts.password}
    return options, {}


def without_user(url: str) -> str:
    """Return the URL without user and password."""
    parts = urlsplit(_whole(url))
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _whole(url: str) -> str:
    return url if "://" in url else f"nats://{url}"


_SPARK = (4, 2)

_JAVA = 17

_JAVA_TIMEOUT = 20.0  # seconds for `java -version`


def why_not() -> str | None:
    """Return why the Spark part cannot run, in a few words, or None if it can. PySpark is not imported."""
    missing = [name for name in ("pyspark", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        return f'{" and ".join(missing)} not installed: pip install "jsclient[spark]"'
    version = importlib.metadata.version("pyspark")
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _SPARK:
        return f'PySpark {version} is older than {_SPARK[0]}.{_SPARK[1]}: pip install -U "jsclient[spark]"'
    # Spark looks for Java in the same way.
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return f"no Java found: Spark needs Java {_JAVA} or newer on PATH or in JAVA_HOME"
    release = java_release(java)
    if release is None:
        return f"{java} does not run: Spark needs Java {_JAVA} or newer on PATH or in JAVA_HOME"
    if release < _JAVA:
        return f"{java} is Java {release}: Spark needs Java {_JAVA} or newer"
    return None


def java_release(java: str) -> int | None:
    """Return the major version of a Java program, or None if it does not run."""
    try:
        process = subprocess.run(
            [java, "-version"], capture_output=True, check=True, timeout=_JAVA_TIMEOUT, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', process.stderr + process.stdout)
    return int(match[1]) if match else None
