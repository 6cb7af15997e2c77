"""The command line of the demonstration."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .command import INTERRUPTED, run

_MAX_WORKERS = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration and return its exit code.

    Returns:
        0: every comparison succeeded. 1: failure, with a one-line message on standard error. 2: invalid arguments, or
        a requirement is missing. 130: interrupted.
    """
    options = _parser().parse_args(arguments)
    # Until the event loop runs, SIGTERM acts like Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flights",
        description=(
            "Replay the 336,776 flights that left New York in 2013 through a stream, to a queue group of worker "
            "processes. One worker is killed on the way and replaced. At the end the counts show that every flight "
            "was processed, and that the aggregates equal those of the file. If PySpark and Java are installed, Spark "
            "then reads the stream: it writes delays by hour and airport, with the weather, to another stream and to "
            "Parquet, and acks a work list. Its driver is killed on the way and resumes from its checkpoints. The "
            "results are compared, row by row, with a recount of the file."
        ),
        epilog="The exit code is 0 only if every comparison succeeds. Ctrl-C stops the demonstration at any time.",
    )
    parser.add_argument("--limit", type=_positive, metavar="N", help="only the first N flights of the year")
    parser.add_argument(
        "--workers", type=_workers, default=3, metavar="N", help="worker processes (default: 3)"
    )
    parser.add_argument(
        "--servers",
        type=_servers,
        metavar="URL[,URL]",
        help="use this server or cluster; the streams of the demonstration are removed at the end "
        "(default: a nats-server started for the demonstration)",
    )
    parser.add_argument(
        "--no-kill", dest="kill", action="store_false", help="do not kill a worker and the Spark driver"
    )
    parser.add_argument(
        "--no-spark",
        dest="spark",
        action="store_false",
        help="skip the Spark part (default if PySpark or Java is missing)",
    )
    parser.add_argument(
        "--spark-progress",
        type=_new_file,
        metavar="FILE",
        help="write the progress of the Spark queries, batch by batch, to this file as JSON",
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="print lines instead of the live table (default if the output is not a terminal)",
    )
    return parser


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer; use one >= 1") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1; use an integer >= 1")
    return number


def _workers(text: str) -> int:
    number = _positive(text)
    if number > _MAX_WORKERS:
        raise argparse.ArgumentTypeError(f"{number} is more than {_MAX_WORKERS}; use 1 to {_MAX_WORKERS}")
    return number


def _new_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot be written: use the name of a file in an existing directory"
        )
    return path


def _servers(text: str) -> list[str]:
    urls = [url.strip() for url in text.split(",")]
    if not all(urls):
        raise argparse.ArgumentTypeError(f"{text!r} contains an empty URL; separate URLs with one comma")
    return urls


if __name__ == "__main__":
    sys.exit(main())
