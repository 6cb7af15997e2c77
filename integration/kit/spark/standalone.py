"""A standalone cluster of Spark on this machine: a master, workers, and applications handed over with spark-submit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from integration.kit.judge.waiting import eventually_sync
from integration.kit.servers.ports import HOST, free_port
from integration.kit.spark.processes import executors_in_session, kill_session
from integration.kit.spark.sessions import SETTINGS, environment

_START_LIMIT = 120.0
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Variables that Spark reads from the environment, and that sessions of this process have set.
_SPARKS = ("PYTHONPATH", "PYSPARK_", "SPARK_")


class StandaloneCluster:
    """The master and its workers, each in a separate session.

    jsclient is nowhere but in `python`, an executable: their environment has no PYTHONPATH, and their ``python3`` has
    no packages.

    Args:
        files: A directory for what they write.
        workers: How many. Each has one core and a separate host, as speculation requires.
    """

    def __init__(self, files: Path, workers: int = 2) -> None:
        import pyspark

        self._home = Path(pyspark.__file__).parent
        self._files = files
        self._processes: list[subprocess.Popen[bytes]] = []
        self.python = files / "python-with-jsclient"
        _write_script(
            self.python, f'PYTHONPATH="{environment()["PYTHONPATH"]}:$PYTHONPATH" exec {sys.executable}'
        )
        bare = files / "bin"
        bare.mkdir()
        _write_script(bare / "python3", f"exec {sys.executable} -S")
        (files / "conf").mkdir()
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_SPARKS)
        } | {
            "PATH": f"{bare}{os.pathsep}{os.environ['PATH']}",
            "SPARK_HOME": str(self._home),
            "SPARK_CONF_DIR": str(files / "conf"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{_JAVA_OPTIONS} -Dspark.master.rest.enabled=false",
        }
        try:
            self.master = self._start_master()
            logs = [self._start_worker(number) for number in range(workers)]
            for log in logs:
                self._until(log, r"Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """SIGKILL to all of them, executors included."""
        for process in self._processes:
            kill_session(process.pid)
            process.wait(30)

    def executors(self) -> list[int]:
        """The process ids of the executors' JVMs."""
        return [pid for process in self._processes for pid in executors_in_session(process.pid)]

    def submit(
        self,
        files: Path,
        program: Path,
        *arguments: str,
        given: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> Submitted:
        """Start ``spark-submit`` in a directory.

        Args:
            files: The working directory of the driver.
            program: The application, with its ``arguments``.
            given: More options of ``spark-submit``.
            env: More variables of the environment.
        """
        configured = {
            **SETTINGS,
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
            "spark.local.dir": str(files / "local"),
            "spark.sql.warehouse.dir": str(files / "warehouse"),
        }
        command = [str(self._home / "bin" / "spark-submit"), "--master", self.master]
        for name, value in configured.items():
            command += ["--conf", f"{name}={value}"]
        return Submitted(
            [*command, *given, str(program), *arguments], files, {**self.environment, **(env or {})}
        )

    def _start_master(self) -> str:
        address = ("--host", HOST, "--port", str(free_port()), "--webui-port", "0")
        log = self._start("master", "master.Master", *address)
        return self._until(log, r"Starting Spark master at (spark://\S+)")

    def _start_worker(self, number: int) -> Path:
        name = f"worker-{number}"
        own = ("--host", f"127.0.0.{number + 1}", "--webui-port", "0", "--cores", "1", "--memory", "1g")
        return self._start(name, "worker.Worker", *own, "--work-dir", str(self._files / name), self.master)

    def _start(self, name: str, what: str, *arguments: str) -> Path:
        path = self._files / f"{name}.log"
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", *arguments]
        with path.open("wb") as log:
            self._processes.append(_popen(command, self._files, self.environment, log))
        return path

    def _until(self, path: Path, pattern: str) -> str:
        """The first group of the pattern, or all of it, once a log has it."""
        results: list[str] = []

        def look() -> bool:
            text = path.read_text(encoding="utf-8", errors="replace")
            if any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"a process of the cluster has ended:\n{text[-4000:]}")
            if match := re.search(pattern, text):
                results.append(match[match.re.groups])
            return bool(results)

        eventually_sync(look, _START_LIMIT, f"{pattern!r} in {path.name}")
        return results[0]


class Submitted:
    """An application: ``spark-submit`` with its driver, as the test sees it."""

    def __init__(self, command: Sequence[str], files: Path, env: Mapping[str, str]) -> None:
        files.mkdir(parents=True, exist_ok=True)
        self._log = files / "submit.log"
        with self._log.open("wb") as log:
            self.process = _popen(command, files, env, log)

    @property
    def log(self) -> str:
        """The output of the process, without the frames of Java."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(line for line in text.splitlines() if not line.startswith("\tat "))

    def wait(self, limit: float = 240.0) -> int:
        """The exit code. Raises AssertionError if it did not end."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the application is not done after {limit} s:\n{self.log[-4000:]}"
            ) from None

    def finish(self, limit: float = 240.0) -> None:
        """Wait for its end. Raises AssertionError if it failed or did not end."""
        code = self.wait(limit)
        assert code == 0, f"the application failed with {code}:\n{self.log[-6000:]}"

    def close(self) -> None:
        """SIGKILL to the driver, its JVM and all their workers."""
        kill_session(self.process.pid)
        self.process.wait(30)


def _popen(command: Sequence[str], files: Path, env: Mapping[str, str], log: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=files,
        env=dict(env),
        start_new_session=True,
    )


def _write_script(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\n{command} "$@"\n')
    path.chmod(0o755)
