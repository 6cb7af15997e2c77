"""Publishes while a run reads, from a process of its own, so that it takes nothing from the one that is measured.

At a steady rate, with the time in each payload, it is what end-to-end latency is measured with. The clock is
CLOCK_MONOTONIC, which is the same in all processes of a machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.job import Job, job_of
from benchmarks.wire import Wire, publish_many

__all__ = ["RATE", "flooded", "paced"]

RATE = 2000  # messages a second


def paced(job: Job, count: int) -> AbstractContextManager[None]:
    """Have ``count`` messages published meanwhile, `RATE` a second, each with the time in ns as its first 19 bytes."""
    return _published(job, count, "paced")


def flooded(job: Job, count: int) -> AbstractContextManager[None]:
    """Have ``count`` messages published meanwhile, as fast as they are stored."""
    return _published(job, count, "flooded")


@contextmanager
def _published(job: Job, count: int, how: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.pacer", how, str(count), json.dumps(job.as_dict())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()  # it is ready
        process.stdin.close()  # begin
        yield
    if process.returncode:
        raise RuntimeError(f"the pacer ended with code {process.returncode}")


def _pace(wire: Wire, job: Job, count: int) -> None:
    size = max(job.size, 19)
    head = f"PUB {job.subject} {size}\r\n".encode()
    tail = b"x" * (size - 19) + b"\r\n"
    due = time.monotonic()
    for _ in range(count):
        due += 1 / RATE
        while (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        wire.send(b"%b%019d%b" % (head, time.monotonic_ns(), tail))
    wire.send(b"PING\r\n")
    while b"PONG" not in wire.read():
        pass


def _main(how: str, count: int, job: Job) -> None:
    with Wire.of(job) as wire:
        wire.send(b"SUB acks 1\r\n")
        print("ready", flush=True)
        sys.stdin.read()
        if how == "paced":
            _pace(wire, job, count)
        else:
            publish_many(wire, job, count)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), job_of(sys.argv[3]))
