"""A process with a session of Spark that runs programs one after another, so that a session starts once for many.

    python -m integration.campaign.programs.host /path/for/files

It reads lines of JSON, each a program and how it is run, and answers each with a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from integration.campaign.programs.frames import Run, run_program
from integration.campaign.programs.program import Program
from integration.kit.spark.processes import kill_session
from integration.kit.spark.sessions import environment, running_spark

START = 180.0  # seconds for which a start may take on a busy machine


def main() -> None:
    # Answers go to the standard output that the process was given. Whatever else is printed goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    files = Path(sys.argv[1], f"spark-{os.getpid()}")
    with running_spark(files, "local[2,1]") as spark:
        from jsclient.spark import register

        register(spark)
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            request = json.loads(line)
            try:
                run_program(spark, Program.read(request["program"]), Run(**request["run"]))
                answer: dict[str, Any] = {"error": None}
            except Exception as error:  # noqa: BLE001  the answer
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


class Host:
    """The process, as the campaign sees it. A killed one is started again by the next call."""

    def __init__(self, files: Path) -> None:
        self._files = files
        self._process: asyncio.subprocess.Process | None = None
        self.starts = 0

    async def run(self, program: Program, run: Run, limit: float) -> str | None:
        """Run a program. Its error, or None if it came to its end.

        Raises:
            EOFError: The process was killed meanwhile.
            TimeoutError: The program did not end. The process is killed.
        """
        process = await self._started()
        assert process.stdin is not None
        request = {"program": program.json(), "run": asdict(run)}
        process.stdin.write(json.dumps(request).encode() + b"\n")
        answer = await self._answer(process, limit)
        error: str | None = answer["error"]
        return error

    async def kill(self) -> None:
        """SIGKILL to the driver, its JVM and all their workers."""
        process, self._process = self._process, None
        if process is not None:
            kill_session(process.pid)
            await process.wait()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self.starts += 1
            with (self._files / f"host-{self.starts}.log").open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "integration.campaign.programs.host", str(self._files),
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                    env={**os.environ, **environment()}, cwd=Path(__file__).resolve().parents[3],
                    start_new_session=True, limit=1 << 24,
                )  # fmt: skip
            await self._answer(self._process, START)
        return self._process

    async def _answer(self, process: asyncio.subprocess.Process, limit: float) -> dict[str, Any]:
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), limit)
        except TimeoutError:
            await self.kill()
            raise
        if not line:
            self._process = None
            raise EOFError("the process with the session has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


if __name__ == "__main__":
    main()
