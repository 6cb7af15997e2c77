"""Publishes while a run reads, from a separate process, so that it takes no CPU time from the measured process.

For a worker that answers requests, it publishes each message after the ack of the previous message. To measure
end-to-end latency, it publishes at a steady rate, with the time in each payload. The clock is CLOCK_MONOTONIC, which is
the same in all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager

from benchmarks.job import Job, Part, job_of
from benchmarks.wire import Wire, publish_many

__all__ = ["RATE", "flooded", "paced", "requested"]

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
        process.stdout.readline()  # the process is ready
        process.stdin.close()  # let the process begin
        yield
    if process.returncode:
        raise RuntimeError(f"the pacer ended with code {process.returncode}")


@asynccontextmanager
async def requested(job: Job, part: Part) -> AsyncIterator[None]:
    """If the job says so, let the pacer publish the messages of the part, each after the ack of the previous message.

    Leaving adds the time between each message and its ack to the latencies of the part.
    """
    if not job.asks:
        yield
        return
    command = [
        sys.executable,
        "-m",
        "benchmarks.pacer",
        "requests",
        str(part.count),
        json.dumps(job.as_dict()),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 24
    )
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()  # the process is ready
    process.stdin.close()  # let the process begin
    part.begin(0)
    yield
    # The event loop keeps running, because the last ack may not be sent yet.
    part.latencies += json.loads(await process.stdout.readline())
    await process.wait()


def _request(wire: Wire, job: Job, count: int) -> list[int]:
    """Publish messages, each after the ack of the previous one. Return nanoseconds from each message to its ack."""
    latencies = []
    data = b"PUB %b %d\r\n%b\r\n" % (job.subject.encode(), job.size, b"x" * job.size)
    wire.send(f"SUB $JS.ACK.{job.stream}.> 2\r\n".encode())
    for _ in range(count):
        began = time.perf_counter_ns()
        wire.send(data)
        answer = wire.read()
        while answer.count(b"\r\n") < 2:  # a control line, and "+ACK" or nothing
            answer += wire.read()
        latencies.append(time.perf_counter_ns() - began)
    return latencies


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
        elif how == "requests":
            print(json.dumps(_request(wire, job, count)))
        else:
            publish_many(wire, job, count)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), job_of(sys.argv[3]))
