"""Runs the works in turn and prints tables of medians. benchmarks/README.md describes the works."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks import draw
from benchmarks.clients import CLIENTS, load
from benchmarks.figures import summarize
from benchmarks.report import FORMAT, about_line, across, between, overview, report
from benchmarks.run import Settings, compare, has_tls
from benchmarks.servers import plain_server, tls_server
from benchmarks.works import GROUPS, WORKS, select

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "explanation" / "performance.md"

_EXAMPLES = """\
examples:
  python -m benchmarks                                       the table of seven works, with all clients there are
  python -m benchmarks --works ordered 'fetch-*' --clients jsclient raw
  python -m benchmarks --scale 0.05 --rounds 1               a quick look
  python -m benchmarks --works all --rounds 5 --save         everything; figures to benchmarks/results/
  python -m benchmarks --list                                all works
  python -m benchmarks --report FILE ... [--save]            the tables of stored figures; with --save into the docs
  python -m benchmarks --draw FILE                           the picture of stored figures, into the docs
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command_line = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What a message costs: jsclient, other clients, and the server's own limit.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command_line.add_argument
    add("--rounds", type=int, default=3, metavar="N", help="rounds; medians are shown (3)")
    add("--scale", type=float, default=1.0, metavar="X", help="how much of each work (1.0)")
    add(
        "--works",
        nargs="+",
        default=["table"],
        metavar="WORK",
        help=f"by name, pattern or group: {', '.join(GROUPS)}, all (table)",
    )
    add(
        "--clients",
        nargs="+",
        default=list(CLIENTS),
        choices=CLIENTS,
        metavar="CLIENT",
        help=", ".join(CLIENTS),
    )
    add(
        "--size",
        type=int,
        default=128,
        metavar="BYTES",
        help="of a payload, where the work does not say (128)",
    )
    add("--headers", action="store_true", help="three headers on every message, one of which is read")
    add("--tls", action="store_true", help="connect with TLS")
    add("--storage", choices=("memory", "file"), default="memory", help="of the streams (memory)")
    add("--loop", choices=("asyncio", "uvloop"), default="asyncio", help="event loop (asyncio)")
    add(
        "--save",
        action="store_true",
        help="keep the figures in benchmarks/results/; with --report: fill the docs",
    )
    add("--draw", nargs="?", const="", metavar="FILE", help="draw the picture, of this run or of FILE")
    add("--report", nargs="+", type=Path, metavar="FILE", help="no runs: print the tables of stored figures")
    add("--list", action="store_true", help="no runs: list the works")
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    command = parser()
    options = command.parse_args(arguments)
    if options.list:
        for work in WORKS:
            print(f"{work.group:14} {work.name:22} {work.title}")
        return 0
    # Stored figures are only shown, so the checks of the other options do not matter.
    if options.report:
        return _report(options.report, save=options.save)
    if options.draw:
        return _draw(_read(Path(options.draw)))
    try:
        works = select(options.works)
    except ValueError as error:
        command.error(str(error))
    if options.rounds < 1 or options.scale <= 0 or options.size < 1:
        command.error("--rounds, --scale and --size must be over 0")
    stored = asyncio.run(_measure(works, options))
    print(report(stored))
    if options.save:
        _save(stored)
    if options.draw is not None:
        _draw(stored)
    # Another client may fail without failing the program: only jsclient is under test.
    return 1 if any("error" in run and run["client"] == "jsclient" for run in stored["runs"]) else 0


async def _measure(works: Sequence[Any], options: argparse.Namespace) -> dict[str, Any]:
    settings = Settings(
        options.rounds,
        options.scale,
        options.size,
        options.headers,
        options.storage,
        options.loop,
        options.tls,
    )
    clients = {client: version for client in options.clients if (version := _version(client)) is not None}
    async with AsyncExitStack() as stack:
        targets = {False: await stack.enter_async_context(plain_server())}
        if any(has_tls(work, settings) for work in works):
            targets[True] = await stack.enter_async_context(tls_server())
        about = {
            "date": time.strftime("%Y-%m-%d"),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "server": targets[False].server.version,
            "clients": clients,
            "loop": options.loop,
            "storage": options.storage,
            "size": options.size,
            "headers": options.headers,
            "tls": options.tls,
            "rounds": options.rounds,
            "scale": options.scale,
            "works": options.works,
        }
        return {
            "format": FORMAT,
            "about": about,
            "runs": await compare(targets, works, list(clients), settings),
        }


def _version(client: str) -> str | None:
    """Return the version of a client, or "" if it has none. If the client is missing, report it and return None."""
    try:
        result: str = load(client).VERSION
    except ImportError as error:
        print(f"{client} is left out: {error}", file=sys.stderr)
        return None
    return result


def _read(path: Path) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if stored.get("format") != FORMAT:
        raise SystemExit(f"{path} is of another format; measure again")
    return stored


def _save(stored: dict[str, Any]) -> None:
    about = stored["about"]
    works = "-".join(name.replace("*", "").replace("/", "") for name in about["works"])
    size = f"{about['size']}B" + ("-headers" if about["headers"] else "") + ("-tls" if about["tls"] else "")
    name = f"{about['date']}-{works}-python{about['python']}-{about['loop']}-{about['storage']}-{size}.json"
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(stored, indent=1)
    (RESULTS / name).write_text(text + "\n", encoding="utf-8")
    print(f"saved as benchmarks/results/{name}")


def _report(paths: Sequence[Path], *, save: bool) -> int:
    files = [_read(path) for path in paths]
    first = report(files[0])
    others = f"\n### Other settings\n\n{across(files)}\n" if len(files) > 1 else ""
    print(first + others)
    if save:
        for page, tables in ((HERE / "README.md", first + others), (PAGE, overview(files[0]) + others)):
            text = page.read_text(encoding="utf-8")
            page.write_text(between(text, "tables", tables), encoding="utf-8")
            print(f"filled {page.name}")
    return 0


def _draw(stored: dict[str, Any]) -> int:
    runs = summarize(stored["runs"])
    works = [work for work in WORKS if work.group == "table"]
    for name, theme in (("light", draw.LIGHT), ("dark", draw.DARK)):
        path = PAGE.parent / f"performance-{name}.svg"
        path.write_text(draw.picture(works, runs, theme, about_line(stored["about"])), encoding="utf-8")
        print(f"drew {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
