"""Fuzz guided by coverage: `python -m integration.campaign.fuzz.guided --seconds 60 [--target NAME]`, with atheris.

Each target runs in a separate process, because the fuzzer never returns. Its corpus begins with the samples. atheris is
installed from PyPI and exists for some versions of Python only (3.11 to 3.13 when this was written), so the session
`campaign` does not need it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from integration.campaign.fuzz.targets import TARGETS
from integration.campaign.report import Outcome, told
from jsclient.errors import JetStreamError

MAX = 4096  # bytes of an input
CHILD = """
import sys, atheris
with atheris.instrument_imports(include=["jsclient"], enable_loader_override=False):
    from integration.campaign.fuzz import guided
guided.fuzz(*sys.argv[1:])
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="guided", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", default="", help="a part of the name; by default all")
    options = parser.parse_args(arguments)
    fine = True
    for target in TARGETS:
        if options.target in target.name:
            outcome = one(target, options)
            print("\n".join(told(outcome)[:-1]), flush=True)
            fine = fine and outcome.is_fine
    return 0 if fine else 1


def one(target: Any, given: argparse.Namespace) -> Outcome:
    """Run a target in a process, and read what the fuzzer printed."""
    outcome = Outcome("guided fuzz", target.name, given.seed)
    with tempfile.TemporaryDirectory() as corpus:
        for number, sample in enumerate(target.samples):
            Path(corpus, str(number)).write_bytes(sample)
        command = [sys.executable, "-c", CHILD, target.name, corpus, str(given.seconds), str(given.seed)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, cwd=corpus
        )
    last = re.findall(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)
    if last:
        outcome.ran = dict(
            zip(("inputs", "blocks covered", "features", "corpus"), map(int, last[-1]), strict=True)
        )
    raised = re.findall(r"Uncaught Python exception: ===\s*\n(.*)", done.stdout)
    outcome.none_of("no undocumented exception, and implementations agree", raised, known=target.known)
    if not raised:
        outcome.check(
            "the fuzzer ended by itself", done.returncode == 0 and last, "" if last else done.stderr[-300:]
        )
    return outcome


def fuzz(name: str, corpus: str, seconds: str, seed: str) -> None:
    """Fuzz one target. Does not return."""
    import atheris

    target = next(target for target in TARGETS if target.name == name)
    take = target.make(Random(int(seed)))

    def test(data: bytes) -> None:
        try:
            take(data)
        except JetStreamError:
            if target.total:
                raise

    arguments = [
        sys.argv[0],
        corpus,
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={MAX}",
        "-timeout=10",
    ]
    atheris.Setup(arguments, test)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
