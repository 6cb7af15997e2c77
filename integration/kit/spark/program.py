"""A program with a Spark session, as a user runs it, which stops at a call of its driver to be killed there.

    python -m integration.kit.spark.program '["jsclient.spark", "ack_batch", "before", 2]' program.py argument …

It writes a line instead of making the second call, and then waits. With `null` the program runs to its end.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import runpy
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from integration.kit.judge.waiting import eventually_sync
from integration.kit.spark.processes import kill_session
from integration.kit.spark.sessions import SETTINGS, environment

_STOPPED = "the driver has stopped"
_SLOW_STARTS = 5


def main() -> None:
    stop, program, *arguments = sys.argv[1:]
    if (position := json.loads(stop)) is not None:
        _stop_at(*position)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


def _stop_at(module: str, name: str, when: str, number: int) -> None:
    """Replace a function by one that stops the program at the call of this number, counted from 1."""
    actual = importlib.import_module(module)
    original, calls = getattr(actual, name), itertools.count(1)

    def call(*args: Any, **kwargs: Any) -> Any:
        stops = next(calls) == number
        if stops and when == "before":
            _stop()
        result = original(*args, **kwargs)
        if stops:
            _stop()
        return result

    setattr(actual, name, call)


def _stop() -> None:
    print(_STOPPED, flush=True)
    threading.Event().wait()


class Program:
    """The process, as the test sees it.

    Args:
        files: A directory for its files.
        command: The program and its arguments.
        stop: The call to stop at: module, function, "before" or "after", and its number.
    """

    def __init__(
        self, files: Path, command: list[str], stop: tuple[str, str, str, int] | None = None
    ) -> None:
        settings = {**SETTINGS, "spark.local.dir": str(files / "local")}
        arguments = [
            argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")
        ]
        submit = shlex.join(["--master", "local[2,4]", *arguments, "pyspark-shell"])
        self._env = {**os.environ, **environment(PYSPARK_SUBMIT_ARGS=submit)}
        self._command = [sys.executable, "-m", "integration.kit.spark.program", json.dumps(stop), *command]
        self._log = files / f"program-{time.monotonic_ns()}.log"
        self._starts = 0
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        with self._log.open("wb") as log:
            return subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=Path(__file__).resolve().parents[3],
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """The output of the program, without the frames of Java."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(line for line in text.splitlines() if not line.startswith("\tat "))

    def is_running(self) -> bool:
        """Whether it has not ended. One whose Python process took longer than Spark's ten seconds to start is started
        again. Raises RuntimeError if it failed, which no waiting mends."""
        code = self.process.poll()
        if code and "connect back" in self.log and self._starts < _SLOW_STARTS:
            self.process = self._start()
        elif code:
            raise RuntimeError(f"the program failed with {code}:\n{self.log[-6000:]}")
        return code != 0

    def has_stopped(self) -> bool:
        """Whether it is at the call. Raises RuntimeError if it has ended."""
        if not self.is_running():
            raise RuntimeError(f"the program has ended before that call:\n{self.log[-4000:]}")
        return _STOPPED in self.log

    def finish(self, limit: float = 240.0) -> None:
        """Wait for its end. Raises AssertionError if it did not end."""
        try:
            eventually_sync(lambda: not self.is_running(), limit, "the end of the program")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.log[-4000:]}") from None

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and all their workers."""
        kill_session(self.process.pid)
        self.process.wait(30)


if __name__ == "__main__":
    main()
