"""The works with nats.go, done by the program that ``JSCLIENT_BENCH_GO`` names. README.md describes it."""

from __future__ import annotations

import json
import os
import subprocess

from benchmarks.job import Job, Meter

_PROGRAM = os.environ.get("JSCLIENT_BENCH_GO", "")


def _answer(argument: str) -> str:
    done = subprocess.run([_PROGRAM, argument], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"{_PROGRAM} ended with code {done.returncode}")
    return done.stdout


def _work(job: Job, meter: Meter) -> None:
    for part, figures in zip(meter.parts(), json.loads(_answer(json.dumps(job.as_dict()))), strict=True):
        part.done(int(figures.pop("moved")), int(figures.pop("last")), figures)


if not _PROGRAM:
    raise ImportError("JSCLIENT_BENCH_GO does not name its program")
try:
    _about = json.loads(_answer("--version"))
except OSError as error:
    raise ImportError(f"JSCLIENT_BENCH_GO: {error}") from None

VERSION: str = _about["version"]
WORKS = dict.fromkeys(_about["kinds"], _work)
