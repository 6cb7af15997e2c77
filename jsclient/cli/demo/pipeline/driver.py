"""The program of the Spark part: a driver in a process of its own, so that it can be killed and started again.

`jsclient.cli.demo.pipeline.running` starts it, as the leader of a process group, with pipes. When its standard
input ends it goes, with its JVM, however that one ended.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from ..reports import frame
from .words import BatchDone, Failed, Finished, FromDriver, QueryBegins, QueryEnded, Setup, SparkIsUp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .queries import Queries

__all__ = ["main", "reason"]

_LOOK = 0.1  # seconds between two looks at the queries
_LEFT = 60.0  # seconds that the work list may take to be empty, once its query has ended

Say = Callable[[FromDriver], None]


def main() -> int:
    """Run the queries to their end; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process ends it
    # Whatever is printed by accident must not get between the reports.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    setup = _read_setup(sys.stdin.buffer)
    if setup is None:
        return 1
    unwanted = threading.Event()
    ending = threading.Thread(
        target=_end_with_parent, args=(sys.stdin.buffer, setup.directory, unwanted), daemon=True
    )
    ending.start()

    def say(word: FromDriver) -> None:
        out.write(frame(word))

    try:
        _run(setup, say)
        say(Finished())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
        if unwanted.is_set():
            ending.join()  # which ends this process, when the files are removed
        traceback.print_exc()
        say(Failed(reason(error)))
        return 1
    return 0


def _read_setup(pipe: BinaryIO) -> Setup | None:
    size = int.from_bytes(pipe.read(4), "big")
    body = pipe.read(size)
    return msgspec.msgpack.decode(body, type=Setup) if body else None


def _end_with_parent(pipe: BinaryIO, directory: str, unwanted: threading.Event) -> None:
    """Wait for the end of the input. Nobody else may be left to remove the files, so that is done here."""
    pipe.read()
    unwanted.set()
    jvm = _jvm()
    if jvm is not None:
        jvm.kill()
        jvm.wait()
    shutil.rmtree(directory, ignore_errors=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _jvm() -> Any:
    """The JVM's process, once there is one."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(getattr(context, "_gateway", None), "proc", None)


def _run(setup: Setup, say: Say) -> None:
    os.environ.update(setup.environment)
    spark = _session(Path(setup.directory), setup.partitions)
    from .... import spark as jetstream
    from .queries import Queries

    jetstream.register(spark)
    say(SparkIsUp(spark.version, _java(spark)))
    queries = Queries(spark, setup)
    watch = _Watch(say)
    # What is computed and what is worked off, at the same time; what is kept, when the first is complete.
    watch.until_ended([queries.statistics(), queries.rebooking()])
    _work_off(queries, setup, watch)
    watch.until_ended([queries.archive()])
    spark.stop()


def _work_off(queries: Queries, setup: Setup, watch: _Watch) -> None:
    """Until nothing of the work list is left: what a killed driver had been given comes again after the ack wait."""
    from ....spark.engine import session
    from ....spark.options.connect import ConnectOptions

    connection = session(ConnectOptions.of(setup.options))

    async def left() -> tuple[int, int]:
        consumer = await (await connection.js.stream(setup.stream)).consumer(setup.consumer)
        return consumer.cached_info.num_pending, consumer.cached_info.num_ack_pending

    deadline = time.monotonic() + _LEFT
    while any(counts := connection.run(left())):
        if time.monotonic() > deadline:
            pending, acks = counts
            raise RuntimeError(f"the work list is not empty: {pending} to be delivered, {acks} not acked")
        if counts[0]:
            watch.until_ended([queries.rebooking()])
        else:
            time.sleep(_LOOK)


class _Watch:
    """Tells what the queries say of themselves."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told: set[tuple[str, int]] = set()

    def until_ended(self, queries: Iterable[StreamingQuery]) -> None:
        """Wait for all of them.

        Raises:
            StreamingQueryException: One failed.
        """
        active = list(queries)
        for query in active:
            self._say(QueryBegins(query.name))
        while active:
            time.sleep(_LOOK)
            for query in list(active):
                ended = not query.isActive  # before the last look at what it did
                self._tell(query)
                if ended:
                    if (error := query.exception()) is not None:
                        raise error
                    active.remove(query)
                    self._say(QueryEnded(query.name))

    def _tell(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            key = query.name, progress.batchId
            took = {name: int(ms) for name, ms in progress.durationMs.items()}
            if key in self._told or "addBatch" not in took:  # without, there was no batch: it only looked
                continue
            self._told.add(key)
            states = progress.stateOperators
            self._say(
                BatchDone(
                    query.name,
                    progress.batchId,
                    int(progress.numInputRows),
                    float(progress.processedRowsPerSecond or 0.0),
                    took,
                    sum(int(state.numRowsTotal) for state in states),
                    sum(int(state.numRowsDroppedByWatermark) for state in states),
                )
            )


def _session(directory: Path, partitions: int) -> SparkSession:
    from pyspark.sql import SparkSession

    temporary = directory / "temporary"
    temporary.mkdir(exist_ok=True)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        # The first two halve the CPU time of a start; the others keep files out of shared directories.
        "spark.driver.extraJavaOptions": (
            f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={temporary}"
        ),
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.default.parallelism": str(partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    builder = SparkSession.builder.master(f"local[{partitions}]").appName("jsclient demo")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _java(spark: SparkSession) -> str:
    return str(getattr(spark, "_jvm").java.lang.System.getProperty("java.version"))  # noqa: B009


_ERROR = re.compile(r"^[\s:]*(?:Caused by: )?((?:\w+\.)*\w*(?:Error|Exception)): (\S.*)$", re.MULTILINE)


def reason(error: BaseException) -> str:
    """Why, in a line: our innermost error in the text of Spark's, else the outermost of Java, else how it begins."""
    text = str(error)
    found = [(name, f"{name.rpartition('.')[2]}: {told.strip()}") for name, told in _ERROR.findall(text)]
    ours = [told for name, told in found if name.startswith("jsclient.")]
    theirs = [told for name, told in found if name.startswith(("java.", "org.apache.spark."))]
    if ours or theirs:
        return ours[-1] if ours else theirs[0]
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"


if __name__ == "__main__":
    sys.exit(main())
