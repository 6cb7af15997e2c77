"""A driver of Spark in a separate process, to be killed. It runs queries from stream to stream.

They end when all messages are processed, unless a query has another "trigger".

    python -m integration.kit.spark.driver_process '{"files": …, "master": …, "queries": [{"name", …}, …]}'

Writes a line of JSON when all have started, and one at the end. With "together" the queries start at the same moment,
else one after another. With "gate" they start once that file exists.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from integration.kit.spark.processes import executors_in_session, kill_session
from integration.kit.spark.sessions import environment, make_active, running_spark

_SLOW_STARTS = 5  # of one query


def main() -> None:
    job = json.loads(sys.argv[1])
    files = Path(job["files"])
    with running_spark(files / f"spark-{os.getpid()}", job["master"], **job.get("settings", {})) as spark:
        from jsclient.spark import register

        register(spark)
        writers = [writer_of(spark, query, files / query["name"]) for query in job["queries"]]
        if gate := job.get("gate"):
            print(json.dumps({"ready": True}), flush=True)
            while not Path(gate).exists():
                time.sleep(0.05)
        started = _start_together(spark, writers) if job.get("together") else _start_in_turn(writers)
        print(json.dumps({"started": True}), flush=True)
        for writer, query in zip(writers, started, strict=True):
            _finish(writer, query)
    print(json.dumps({"done": True}), flush=True)


def writer_of(spark: Any, query: dict[str, Any], checkpoint: Path) -> Any:
    """The code that starts a query."""
    source = spark.readStream.format("jetstream").options(**query["source"])
    frame = (source.schema(query["schema"]) if "schema" in query else source).load()
    sink = frame.selectExpr(*query["columns"]).writeStream.format("jetstream").options(**query["sink"])
    sink = sink.option("checkpointLocation", str(checkpoint)).queryName(query["name"])
    return sink.trigger(**query.get("trigger", {"availableNow": True}))


def _start_in_turn(writers: Sequence[Any]) -> list[Any]:
    """Start each query after the previous query has its Python process, which Spark lets start for ten seconds only."""
    started = []
    for writer in writers:
        started.append(running := writer.start())
        while running.isActive and running.status["message"].startswith("Initializing"):
            time.sleep(0.1)
    return started


def _start_together(spark: Any, writers: Sequence[Any]) -> list[Any]:
    at_once = threading.Barrier(len(writers))

    def start(writer: Any) -> Any:
        make_active(spark)
        at_once.wait(60)
        return writer.start()

    with ThreadPoolExecutor(len(writers)) as threads:
        return list(threads.map(start, writers))


def _finish(writer: Any, query: Any) -> None:
    """Wait for the end. A query whose Python process took longer than Spark's ten seconds to start is started again."""
    for _ in range(_SLOW_STARTS):
        while query.isActive:
            time.sleep(0.1)
        if "connect back" not in str(query.exception()):
            break
        print(json.dumps({"slow": query.name}), flush=True)
        query = writer.start()
    query.awaitTermination()


class SparkJob:
    """The process, as the test sees it."""

    def __init__(
        self,
        files: Path,
        queries: Sequence[dict[str, Any]],
        master: str = "local[2,4]",
        *,
        together: bool = False,
        gate: Path | None = None,
        **settings: str,
    ) -> None:
        job = {
            "files": str(files),
            "master": master,
            "queries": list(queries),
            "together": together,
            "gate": gate and str(gate),
            "settings": settings,
        }
        self._log = (files / f"job-{time.monotonic_ns()}.log").open("wb+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "integration.kit.spark.driver_process", json.dumps(job)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment()},
            cwd=Path(__file__).resolve().parents[3],
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        """The output of the driver, without the frames of Java."""
        text = Path(self._log.name).read_text(encoding="utf-8", errors="replace")
        return "\n".join(line for line in text.splitlines() if not line.startswith("\tat "))

    def finish(self, limit: float = 300.0) -> None:
        """Wait for its end. Raises AssertionError if it failed or did not end."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the job is not done after {limit} s:\n{self.log[-4000:]}") from None
        assert code == 0, f"the job failed with {code}:\n{self.log[-6000:]}"
        assert '{"done": true}' in self.log

    def kill(self) -> None:
        """SIGKILL to the driver, its JVM and all their workers."""
        kill_session(self.process.pid)
        self.process.wait(30)
        self._log.close()

    def executors(self) -> list[int]:
        """The process ids of the executors' JVMs."""
        return executors_in_session(self.process.pid)


if __name__ == "__main__":
    main()
