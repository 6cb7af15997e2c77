"""Spark for tests: whether it can run here, a session, one of Spark Connect, and a streaming query run to its end."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_LEAST_JAVA = 17

_SLOW_STARTS = 6  # of one query
_SLOW = ("Python worker failed to connect back", "Current State: INITIALIZING")

# A secret that the session of Connect has in its environment.
PASSWORD_VARIABLE, PASSWORD = "JSCLIENT_TEST_PASSWORD", "pw-4f1e-variable"

SETTINGS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Half the CPU of a start: the code lives too short to be worth optimizing.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "20s",
}

SHUFFLE_JOIN = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",  # otherwise these few rows go to one partition
}
BROADCAST_JOIN = {"spark.sql.autoBroadcastJoinThreshold": "10MB", "spark.sql.shuffle.partitions": "4"}


@functools.cache
def missing() -> str | None:
    """The reason why Spark cannot run here, with a remedy. None if it can."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install 'jsclient[spark]'"
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        where = f"in JAVA_HOME, which is {home}" if home else "in PATH"
        return f"there is no java {where}: install Java {_LEAST_JAVA} or newer"
    reports = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', reports)
    if match is None or int(match[1]) < _LEAST_JAVA:
        return f"Spark needs Java {_LEAST_JAVA} or newer, {java} is {reports.splitlines()[:1]}"
    return None


def environment(**more: str) -> dict[str, str]:
    """The environment in which a process runs Spark with the jsclient of this process, installed or not."""
    import jsclient

    package = Path(jsclient.__file__).resolve().parent
    paths = [str(package.parent), str(_ROOT), os.environ.get("PYTHONPATH", "")]
    if importlib.util.find_spec("pyspark_jetstream") is None:  # jsclient is not installed
        paths.append(str(package / "spark" / "_auto"))
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in paths if path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


@contextlib.contextmanager
def running_spark(files: Path, master: str = "local[2,4]", **settings: str) -> Iterator[Any]:
    """A classic session, in this process. There can be one at a time."""
    os.environ.update(environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("jsclient-tests")
    options = {
        **SETTINGS,
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.local.dir": str(files / "local"),
        "spark.sql.warehouse.dir": str(files / "warehouse"),
        **settings,
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        for query in spark.streams.active:
            query.stop()
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        # The JVM ends when its standard input does.
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=30)


@contextlib.contextmanager
def settings(spark: Any, changes: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session in the block. All have values before. A query keeps the settings of its start."""
    before = {name: spark.conf.get(name) for name in changes}
    for name, value in changes.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def make_active(spark: Any) -> None:
    """Make a classic session the active session of this thread. Each thread of Python has its own in the JVM."""
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


@dataclass
class Drained:
    """The output of a query until its end.

    Attributes:
        batches: The rows of each micro-batch, by its number. A batch that was replayed is here as it came last.
        runs: The numbers in the order in which they ran, replays included.
        progress: ``StreamingQueryProgress`` of each, as a dict.
    """

    batches: dict[int, list[Any]] = field(default_factory=dict)
    runs: list[int] = field(default_factory=list)
    progress: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows]


def drain(
    frame: Any,
    checkpoint: Path | str,
    *,
    also: Callable[[Any, int], None] | None = None,
    limit: float = 240.0,
    **options: str,
) -> Drained:
    """Run a streaming DataFrame until all messages are read (trigger AvailableNow), and collect its rows.

    Args:
        frame: The result of ``spark.readStream…load()``.
        checkpoint: A directory. Given again, the query continues at its last offset.
        also: Called in ``foreachBatch`` after a batch was collected, with the batch and its number.
        limit: Seconds, then the query is stopped, and the test fails.
        options: More options of the ``writeStream``.

    Raises:
        StreamingQueryException: The query failed.
    """
    drained = Drained()

    def batch(rows: Any, number: int) -> None:
        drained.runs.append(number)
        drained.batches[number] = rows.collect()
        if also is not None:
            also(rows, number)

    writer = frame.writeStream.foreachBatch(batch).options(**options)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = run_writer(writer, limit)
    drained.progress = [json.loads(progress.json) for progress in query.recentProgress]
    return drained


def run_writer(writer: Any, limit: float = 240.0) -> Any:
    """Start a query with an end, and wait for it. The query.

    On a busy machine its Python process may take longer than the ten seconds that Spark gives it to start. Nothing has
    happened then, and it is started again.
    """
    for _ in range(_SLOW_STARTS):
        query = writer.start()
        try:
            finish(query, limit)
        except Exception as error:
            if not all(part in str(error) for part in _SLOW):
                raise
        else:
            return query
    raise AssertionError(
        f"the Python process of a query did not start in time, {_SLOW_STARTS} times in a row"
    )


def finish(query: Any, limit: float = 240.0) -> None:
    """Wait until a query with an end is at it.

    Raises:
        StreamingQueryException: It failed.
        AssertionError: It did not end.
    """
    try:
        ended = query.awaitTermination(limit)
    finally:
        query.stop()
    assert ended, f"the query is not done after {limit} s: {query.status}"


class ConnectSession:
    """A Spark Connect session in a separate process, because one process cannot have a classic session as well.

    Args:
        files: A directory for what it writes.
        level: The log level of driver and JVM. The output is in `log`.
        env: More variables of its environment.
    """

    def __init__(self, files: Path, level: str = "error", **env: str) -> None:
        logging = files / "log4j2.properties"
        logging.write_text(_LOG4J)
        settings = {
            **SETTINGS,
            "spark.log.level": level.upper(),
            "spark.executorEnv.PYTHONPATH": environment()["PYTHONPATH"],
            "spark.local.dir": str(files / "local"),
            "spark.sql.warehouse.dir": str(files / "warehouse"),
            "spark.connect.grpc.binding.address": "127.0.0.1",
        }
        settings["spark.driver.extraJavaOptions"] += f" -Dlog4j2.configurationFile={logging}"
        submitted = [
            argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")
        ]
        own = {
            "PYSPARK_SUBMIT_ARGS": shlex.join([*submitted, "pyspark-shell"]),
            "SPARK_TESTING": "1",  # at a free port, because all other processes use the default port, too
            **env,
        }
        self._log = (files / "connect.log").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CONNECT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **environment(), **own},
            cwd=files,
        )
        self._lock = threading.Lock()

    def __call__(self, code: str, *, limit: float = 240.0, **values: Any) -> Any:
        """Run Python there and return what it assigns to ``result``. Its input and output are JSON.

        ``spark`` is the session, with the data source registered. ``values`` are variables.

        Raises:
            AssertionError: The code raised, with its traceback, or it is not done after ``limit`` seconds.
        """
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            timer = threading.Timer(limit, self._process.kill)
            timer.start()
            try:
                request = {"code": textwrap.dedent(code), "values": values}
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except BrokenPipeError:
                line = ""
            finally:
                timer.cancel()
        if not line:
            raise AssertionError(
                f"the Connect session ended, or took longer than {limit} s:\n{self.log[-4000:]}"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise AssertionError(f"in the Connect session:\n{answer['error']}")
        return answer["result"]

    @property
    def log(self) -> str:
        """What the process wrote to its standard error."""
        self._log.flush()
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=60)
        self._log.close()


# Spark's logger has the level INFO and a filter for it, which is removed only when the level is set to another value.
_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c: %m%n%ex
"""

# Python's own standard output is kept for the answers: whatever else is printed goes to standard error.
_CONNECT = """
import json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
from jsclient.spark import register
register(spark)
for line in sys.stdin:
    request = json.loads(line)
    names = {"__name__": "__main__", "spark": spark, "result": None, **request["values"]}
    try:
        exec(compile(request["code"], "<code>", "exec"), names)
        answer = json.dumps({"result": names["result"]})
    except BaseException:
        answer = json.dumps({"error": traceback.format_exc()})
    print(answer, file=answers, flush=True)
spark.stop()
"""
