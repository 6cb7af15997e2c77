"""Measures the figures in the documentation, and fills its tables. This takes about twenty minutes.

It first measures the works that are compared with other clients, with workers, payload sizes and TLS. Then come
jsclient and nats-py on uvloop, and with each ``--python``. Figures are saved in ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parent.parent
_WORKS = ("table", "headers", "more")
_APART = ("core", "workers", "sizes", "tls")  # with the first interpreter and loop only
_ALL = ("raw", "nats.go", "jsclient", "jsclient-speedups", "nats-py")
_SOME = _ALL[2:]
_SAVED = "saved as "


def parser() -> argparse.ArgumentParser:
    """The command line."""
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    add = command_line.add_argument
    add(
        "--python",
        nargs="+",
        default=[],
        metavar="PROGRAM",
        help="other interpreters, in whose environments jsclient's dependencies and nats-py are installed",
    )
    add(
        "--rounds",
        type=int,
        default=4,
        metavar="N",
        help="rounds with all clients; half as many of the rest (4)",
    )
    add("--scale", type=float, default=1.0, metavar="X", help="how much of each work (1.0)")
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program. The exit code is 1 if a part failed. The tables then show the other parts."""
    options = parser().parse_args(arguments)
    began = time.monotonic()
    # Other loops and Pythons are only compared with the first part, so fewer rounds are enough.
    fewer = max(1, options.rounds // 2)
    parts = [(sys.executable, "asyncio", _ALL, (*_WORKS, *_APART), options.rounds)]
    if importlib.util.find_spec("uvloop") is None:
        print("uvloop is left out: it is not installed", file=sys.stderr)
    else:
        parts.append((sys.executable, "uvloop", _SOME, _WORKS, fewer))
    parts += [(python, "asyncio", _SOME, _WORKS, fewer) for python in options.python]
    files: list[str] = []
    failed = False
    for python, loop, clients, works, rounds in parts:
        print(f"after {time.monotonic() - began:.0f} s: {python}, {loop}", flush=True)
        size = ["--rounds", str(rounds), "--scale", str(options.scale), "--loop", loop]
        code, text = _run(python, "benchmarks", "--works", *works, "--clients", *clients, *size, "--save")
        failed |= code != 0
        files += [line.removeprefix(_SAVED) for line in text.splitlines() if line.startswith(_SAVED)]
    steps: list[tuple[str, ...]] = [("benchmarks.import_time", "--save")]
    # Without figures there is nothing to report or draw, but the import time can still be measured.
    if files:
        steps += [("benchmarks", "--report", *files, "--save"), ("benchmarks", "--draw", files[0])]
    for step in steps:
        code, text = _run(sys.executable, *step)
        print(text, flush=True)
        failed |= code != 0
    print(f"{time.monotonic() - began:.0f} s in all; {', '.join(files) or 'no file was saved'}")
    return int(failed)


def _run(python: str, module: str, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [python, "-m", module, *options], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stdout


if __name__ == "__main__":
    sys.exit(main())
