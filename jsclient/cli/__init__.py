"""The command line: ``jsclient demo``, ``jsclient doctor``, ``jsclient spark offsets``, ``jsclient --version``."""

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
    """Run a command and return its exit code.

    Returns:
        0: success. 1: failure, with a one-line message on standard error. 2: invalid arguments, or an optional package
        is missing. 130: interrupted.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    # Until the event loop runs, SIGTERM acts like Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.command == "spark":
            from .spark.offsets import run as run_offsets

            return run_offsets(options)
        if options.command == "doctor":
            from .doctor import run as run_doctor

            return run_doctor(options)
        from .demo.command import run

        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone. Python flushes the output again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = argparse.ArgumentParser(prog="jsclient", description="An asyncio client for NATS JetStream.")
    parser.add_argument("--version", action="version", version=f"jsclient {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    _add_demo(commands)
    _add_spark(commands)
    _add_doctor(commands)
    return parser


def _add_doctor(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="print the versions in use; with --server, what is wrong with a server, a stream or a consumer",
        description=(
            "Print the versions in use, and whether the compiled reader is. With --server, look at the server and the "
            "account, at a stream and its limits, and at a consumer that stands still. Nothing is changed."
        ),
        epilog="The exit code is 1 if there is a warning or an error, or if no server can be reached.",
    )
    doctor.add_argument("stream", nargs="?", metavar="STREAM", help="look at this stream")
    doctor.add_argument("consumer", nargs="?", metavar="CONSUMER", help="look at this consumer of it")
    doctor.add_argument("--server", metavar="URL", help="the server, or several separated by commas")
    doctor.add_argument("--credentials", metavar="FILE", help="credentials file")
    doctor.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_option,
        help="a connection option, named as for Spark, such as tlsCa=ca.pem; may be repeated",
    )
    doctor.add_argument("--json", action="store_true", help="print a JSON object for each finding")
    doctor.set_defaults(parser=doctor)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="replay a year of flights through a stream and Spark, kill workers, and prove that nothing was lost",
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
    demo.add_argument("--limit", type=_positive, metavar="N", help="only the first N flights of the year")
    demo.add_argument(
        "--workers", type=_workers, default=3, metavar="N", help="worker processes (default: 3)"
    )
    demo.add_argument(
        "--servers",
        type=_servers,
        metavar="URL[,URL]",
        help="use this server or cluster; the streams of the demonstration are removed at the end "
        "(default: a nats-server started for the demonstration)",
    )
    demo.add_argument(
        "--no-kill", dest="kill", action="store_false", help="do not kill a worker and the Spark driver"
    )
    demo.add_argument(
        "--no-spark",
        dest="spark",
        action="store_false",
        help="skip the Spark part (default if PySpark or Java is missing)",
    )
    demo.add_argument(
        "--spark-progress",
        type=_new_file,
        metavar="FILE",
        help="write the progress of the Spark queries, batch by batch, to this file as JSON",
    )
    demo.add_argument(
        "--plain",
        action="store_true",
        help="print lines instead of the live table (default if the output is not a terminal)",
    )


def _add_spark(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    spark = commands.add_parser("spark", help="look at the checkpoint of a Spark query, and rewind it")
    actions = spark.add_subparsers(dest="action", required=True, metavar="action")
    offsets = actions.add_parser(
        "offsets",
        help="show what a query has planned and committed, compare it with its stream, rewind it",
        description=(
            "Show the last planned and the last committed batch of a streaming query, from its checkpoint in a local "
            "directory. PySpark is not needed. With --server, compare them with the stream. With --rewind-to, let the "
            "next start of a stopped query in mode 'log' read from another place; no file is changed, two are added."
        ),
    )
    offsets.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="the directory of option checkpointLocation"
    )
    offsets.add_argument("--server", metavar="URL", help="the server of the stream, to compare with it")
    offsets.add_argument("--credentials", metavar="FILE", help="credentials file for --server")
    offsets.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_option,
        help="a connection option of the source for --server, such as tlsCa=ca.pem; may be repeated",
    )
    offsets.add_argument(
        "--stream",
        metavar="NAME",
        help="the name of the stream (default: the stream that was created when the checkpoint says)",
    )
    offsets.add_argument(
        "--rewind-to",
        metavar="SEQ|TIME",
        help="read next from this sequence, or from this time, such as 2026-01-31T12:00:00Z; needs --server",
    )
    offsets.add_argument(
        "--force", action="store_true", help="rewind although the checkpoint was written in the last minute"
    )
    offsets.add_argument("--json", action="store_true", help="print JSON")
    offsets.set_defaults(parser=offsets)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError("NAME=VALUE is needed")  # the text may be a secret
    return name, value


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
