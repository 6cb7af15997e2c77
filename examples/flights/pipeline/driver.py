"""The Spark driver of the demonstration, a separate process that can be killed and started again.

`examples.flights.pipeline.running` starts it as the leader of a process group, with pipes. When its standard input is
closed, the process and its JVM end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from jsclient import connect

from ..reports import frame
from .watching import Watch, reason
from .words import DriverFailed, DriverJob, Finished, FromDriver, SparkIsUp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .queries import Queries

__all__ = ["main"]

_INTERVAL = 0.1  # seconds between two checks of the work list
_ATTEMPTS = 4  # attempts of a task
_EMPTYING = 60.0  # seconds in which the work list must be empty after its query has ended

Report = Callable[[FromDriver], None]


def main() -> int:
    """Run the queries to their end, and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends this process
    # Other output must not be mixed with the reports.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    setup = _read_setup(sys.stdin.buffer)
    if setup is None:
        return 1
    unwanted = threading.Event()
    inputs = (sys.stdin.buffer, setup.directory, unwanted)
    ending = threading.Thread(target=_end_with_parent, args=inputs, daemon=True)
    ending.start()

    def report(message: FromDriver) -> None:
        out.write(frame(message))

    try:
        _run(setup, report)
        report(Finished())
    except Exception as error:  # noqa: BLE001 - every error is reported to the parent
        if unwanted.is_set():
            ending.join()  # it removes the files, and ends this process
        traceback.print_exc()
        report(DriverFailed(reason(error)))
        return 1
    return 0


def _read_setup(pipe: BinaryIO) -> DriverJob | None:
    size = int.from_bytes(pipe.read(4), "big")
    body = pipe.read(size)
    return msgspec.msgpack.decode(body, type=DriverJob) if body else None


def _end_with_parent(pipe: BinaryIO, directory: str, unwanted: threading.Event) -> None:
    """Wait for the end of the input, then end the JVM, the files and this process. The parent may be dead already."""
    pipe.read()
    unwanted.set()
    jvm = _jvm()
    if jvm is not None:
        jvm.kill()
        jvm.wait()
    shutil.rmtree(directory, ignore_errors=True)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def _jvm() -> Any:  # None before the JVM has started
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    return getattr(getattr(context, "_gateway", None), "proc", None)


def _run(setup: DriverJob, report: Report) -> None:
    os.environ.update(setup.environment)
    spark = _session(Path(setup.directory), setup.partitions)
    from jsclient import spark as jetstream

    from .queries import Queries

    jetstream.register(spark)
    java = getattr(spark, "_jvm").java.lang.System.getProperty("java.version")  # noqa: B009
    report(SparkIsUp(spark.version, str(java)))
    queries = Queries(spark, setup)
    # A new registration shares no state with queries that failed.
    watch = Watch(report, renew=lambda: jetstream.register(spark))
    # These two queries run at the same time. The third query reads the complete results of the first.
    watch.until_ended([queries.statistics, queries.rebooking])
    _work_off(queries, setup, watch)
    watch.until_ended([queries.archive])
    spark.stop()


def _work_off(queries: Queries, setup: DriverJob, watch: Watch) -> None:
    """Wait until the work list is empty. The claims of a killed driver are redelivered after the ack wait."""
    access = _access(setup.options)

    async def outstanding() -> tuple[int, int]:
        async with connect(**access) as js:
            consumer = await (await js.stream(setup.stream)).consumer(setup.consumer)
            return consumer.cached_info.num_pending, consumer.cached_info.num_ack_pending

    deadline = time.monotonic() + _EMPTYING
    while any(counts := asyncio.run(outstanding())):
        if time.monotonic() > deadline:
            pending, acks = counts
            raise RuntimeError(
                f"the work list is not empty after {_EMPTYING:.0f} s: {pending} pending, {acks} not acked"
            )
        if counts[0]:
            watch.until_ended([queries.rebooking])
        else:
            time.sleep(_INTERVAL)


def _access(options: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of `connect` for the options of `spark_access`."""
    access: dict[str, Any] = {"servers": options["servers"].split(",")}
    if "tokenEnv" in options:
        access["token"] = os.environ[options["tokenEnv"]]
    if "user" in options:
        access |= {"user": options["user"], "password": os.environ[options["passwordEnv"]]}
    return access


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
        # The first two halve the CPU time of a start. The others keep files out of shared directories.
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
    builder = SparkSession.builder.master(f"local[{partitions},{_ATTEMPTS}]").appName("flights")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    sys.exit(main())
