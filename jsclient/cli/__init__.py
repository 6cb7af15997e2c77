"""The command line: ``jsclient doctor``, ``jsclient spark offsets``, ``jsclient --version``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["main"]

INTERRUPTED = 130


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
        from .doctor import run as run_doctor

        return run_doctor(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output is gone. Python flushes the output again at exit, so redirect it to avoid an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    from .. import __version__

    parser = argparse.ArgumentParser(prog="jsclient", description="An asyncio client for NATS JetStream.")
    parser.add_argument("--version", action="version", version=f"jsclient {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
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
    doctor.add_argument(
        "--context", metavar="NAME", help="a context of the command nats, instead of --server"
    )
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
        raise argparse.ArgumentTypeError("NAME=VALUE is needed")  # don't show the text, which may be a secret
    return name, value
