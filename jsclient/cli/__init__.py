"""The command line: ``jsclient demo``, ``jsclient --version``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

INTERRUPTED = 130
_MAX_WORKERS = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code.

    0: it did what it should. 1: it failed, and said why in a line. 2: wrong arguments, or an optional package is
    missing. 130: it was interrupted.
    """
    options = _parser().parse_args(arguments)
    # Before the event loop runs, a termination is to be what Ctrl-C is.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from .demo.command import run

        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read the output is gone. Python flushes it once more at the end: that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    from .._version import __version__

    parser = argparse.ArgumentParser(prog="jsclient", description="An asyncio client for NATS JetStream.")
    parser.add_argument("--version", action="version", version=f"jsclient {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    demo = commands.add_parser(
        "demo",
        help="replay a year of flights through a stream and Spark, kill workers, and prove that nothing was lost",
        description=(
            "Replay the 336,776 flights that left New York in 2013 through a stream, to a queue group of worker "
            "processes. One of them is killed on the way and another takes its place; at the end it is shown by "
            "count that every flight was processed, and that the aggregates are those of the file. Then, where "
            "PySpark and Java are there, Spark reads the stream: delays by hour and airport, with the weather, into "
            "another stream and into Parquet, and a work list that is acked. Its driver is killed on the way and goes "
            "on from its checkpoints; the results are compared, row by row, with a recount of the file."
        ),
        epilog="The exit code is 0 only if that holds. Ctrl-C stops it at any time.",
    )
    demo.add_argument("--limit", type=_positive, metavar="N", help="only the first N flights of the year")
    demo.add_argument(
        "--workers", type=_workers, default=3, metavar="N", help="worker processes (default: 3)"
    )
    demo.add_argument(
        "--servers",
        type=_servers,
        metavar="URL[,URL]",
        help="use this server or cluster, with a stream of its own that is removed at the end "
        "(default: a nats-server started for the demonstration)",
    )
    demo.add_argument("--no-kill", dest="kill", action="store_false", help="kill no worker and no driver")
    demo.add_argument(
        "--no-spark",
        dest="spark",
        action="store_false",
        help="leave out the Spark part; so it is too where PySpark or Java is not there",
    )
    demo.add_argument(
        "--spark-progress",
        type=_new_file,
        metavar="FILE",
        help="keep the progress of Spark's queries, batch by batch, as JSON",
    )
    demo.add_argument(
        "--plain",
        action="store_true",
        help="lines in place of the live table; so it is too where the output is no terminal",
    )
    return parser


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _workers(text: str) -> int:
    number = _positive(text)
    if number > _MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{number} is more than {_MAX_WORKERS}")
    return number


def _new_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: its directory is not there, or it is one"
        )
    return path


def _servers(text: str) -> list[str]:
    urls = [url.strip() for url in text.split(",")]
    if not all(urls):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty URL")
    return urls
