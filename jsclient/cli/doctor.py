"""The command ``jsclient doctor``: the versions in use, and what is wrong with a server, a stream or a consumer."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys

import msgspec

from ..client import connect
from ..doctor import Finding, examine
from ..errors import ConfigError, JetStreamError
from ..events import Event
from ..tables.server_options import ServerOptions

__all__ = ["run"]

_MARKS = {"ok": "[ok]", "note": "[note]", "warning": "[warning]", "error": "[error]", "unknown": "[unknown]"}


def run(options: argparse.Namespace) -> int:
    """Run the command. Return 1 if it finds a warning or an error, or cannot reach a server, and 0 otherwise."""
    # Without a server, only the versions can be printed, so options that need a server are refused.
    nowhere = options.server is None and options.context is None
    if nowhere and (options.stream or options.credentials or options.option or options.json):
        options.parser.error("STREAM, --credentials, --option and --json need --server or --context")
    if options.context is not None and (options.server or options.credentials or options.option):
        options.parser.error("--context cannot be used with --server, --credentials or --option")
    if not options.json:
        _print_versions()
    if nowhere:
        return 0
    try:
        findings = asyncio.run(_examine(_arguments(options), options))
    except (ConfigError, ValueError) as error:
        print(f"jsclient doctor: {error}", file=sys.stderr)
        return 2
    except JetStreamError as error:
        text = str(error).replace("connect(..., wait=30)", "--option nats.wait=30")
        print(f"jsclient doctor: {text}", file=sys.stderr)
        return 1
    _print(findings, as_json=options.json)
    return int(any(finding.level in ("warning", "error") for finding in findings))


def _arguments(options: argparse.Namespace) -> dict[str, object]:
    if options.context is not None:
        return {"context": options.context}
    values = {"servers": options.server, **dict(options.option)}
    if options.credentials is not None:
        values["credentialsFile"] = options.credentials
    return ServerOptions.of(values).arguments()


async def _examine(arguments: dict[str, object], options: argparse.Namespace) -> list[Finding]:
    async with connect(**{**arguments, "name": "jsclient-doctor", "on_event": _ignore}) as js:  # type: ignore[arg-type]
        return await examine(js, options.stream, options.consumer)


def _ignore(_: Event) -> None:
    """Ignore an event, because the findings report the same."""


def _print_versions() -> None:
    from importlib.metadata import version

    from .. import __version__
    from .._runtime.connection.speedups import chosen

    print(f"jsclient {__version__}, nats-py {version('nats-py')}, Python {platform.python_version()}")
    print(f"reader: {chosen().text}")


def _print(findings: list[Finding], *, as_json: bool) -> None:
    for finding in findings:
        if as_json:
            print(json.dumps(msgspec.structs.asdict(finding)))
            continue
        print(f"{_MARKS[finding.level]} {finding.what}")
        if finding.evidence:
            print(f"    {finding.evidence}")
        if finding.fix and finding.level != "ok":
            print(f"    what to do: {finding.fix}")
