"""What one run is told, and how it measures itself.

A run is a process. It connects once and does its work twice: a short part that warms up (imports, connection, first
message, caches of the interpreter), then the part that is measured.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.figures import quantile
from benchmarks.usage import cpu, cpu_of, memory

__all__ = ["HEADER", "HEADERS", "Job", "Meter", "Part", "WorkSkippedError", "job_of", "payload"]

HEADERS = {
    "Content-Type": "application/json",
    "Trace-Id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "Tenant": "blue",
}
HEADER = "Trace-Id"  # the one that is read


class WorkSkippedError(Exception):
    """The run did not receive, or not store, what it was told to: its figures mean nothing."""


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        kind: Which function of the client.
        count: Messages that are measured. They are the last ones of the stream.
        warm: Messages before them that are not.
        size: Bytes of a payload.
        headers: Whether messages have headers, one of which is read.
        last: The last sequence in the stream that is read. 0 where the work publishes.
        consumers: Pull consumers that are there: for the warm-up, and for what is measured.
        batch: Messages in one fetch.
        window: Messages that a continuous reader asks for at a time, or publishes that are under way.
        subscriptions: How many, on one connection. Each gets every message, so there are that many fewer.
        handlers: Handlers of a worker that run at the same time.
        pause: Seconds that each of them sleeps.
        asks: Whether another process publishes the messages, each after the ack of the one before it, and measures the
            time in between.
        host, port: The server.
        server: Its process, 0 where its CPU is not measured.
        ca: The file with the authority of its certificate, "" without TLS.
        loop: asyncio or uvloop.
    """

    client: str
    kind: str
    count: int
    warm: int
    stream: str
    subject: str
    host: str
    port: int
    size: int = 128
    headers: bool = False
    last: int = 0
    consumers: tuple[str, str] = ("", "")
    batch: int = 0
    window: int = 0
    subscriptions: int = 1
    handlers: int = 0
    pause: float = 0.0
    asks: bool = False
    server: int = 0
    ca: str = ""
    loop: str = "asyncio"

    @property
    def url(self) -> str:
        """The server's address."""
        return f"{'tls' if self.ca else 'nats'}://{self.host}:{self.port}"

    def tls(self) -> ssl.SSLContext | None:
        """How a client checks the server, or None without TLS."""
        return ssl.create_default_context(cafile=self.ca) if self.ca else None

    def as_dict(self) -> dict[str, Any]:
        """For the command line of the run."""
        return asdict(self)


def job_of(text: str) -> Job:
    """The job that a process was given on its command line."""
    data = json.loads(text)
    return Job(**{**data, "consumers": tuple(data["consumers"])})


def payload(job: Job) -> bytes:
    """What is published."""
    return b"x" * job.size


@dataclass
class Part:
    """One of the two parts of a run.

    Attributes:
        count: Messages to move.
        start: The stream sequence of the first of them.
        consumer: The pull consumer to read them from.
        last: The stream sequence of the last of them.
        latencies: Where the work puts nanoseconds, one for each message, if it measures them.
    """

    meter: Meter
    count: int
    start: int
    consumer: str
    last: int
    latencies: list[int]

    def begin(self, moved: int) -> None:
        """Measure from here: ``moved`` messages of this part were moved while it was set up."""
        self.meter.begin(moved)

    def done(self, moved: int, last: int, figures: dict[str, float] | None = None) -> None:
        """The work is done: ``moved`` messages, the last of which has the stream sequence ``last``.

        ``figures`` are those of another process, if it did the work.

        Raises:
            WorkSkippedError: It is not.
        """
        self.meter.end(moved, figures)
        if moved != self.count or last != self.last:
            raise WorkSkippedError(
                f"moved {moved} messages up to sequence {last}, not {self.count} up to {self.last}"
            )


class Meter:
    """The clock of a run: time, CPU and memory of this process, and the CPU of the server."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._begun = (0.0, 0.0)
        self._moved = 0
        self._figures: dict[str, float] = {}
        self._latencies: list[int] = []

    def parts(self) -> Iterator[Part]:
        """The warm-up, then what is measured."""
        job = self._job
        for count, stored, consumer in (
            (job.warm, job.warm, job.consumers[0]),
            (job.count, job.warm + job.count, job.consumers[1]),
        ):
            last = job.last or stored // job.subscriptions
            self._latencies = []
            self.begin(0)
            yield Part(self, count, last - count + 1, consumer, last, self._latencies)
            if not self._figures:
                raise WorkSkippedError("the work did not come to its end")

    def begin(self, moved: int) -> None:
        """Start the clock."""
        self._moved = moved
        self._figures = {}
        self._base = memory()[0]
        self._served = cpu_of(self._job.server)
        self._begun = (time.perf_counter(), cpu())

    def end(self, moved: int, figures: dict[str, float] | None = None) -> None:
        """Stop the clock. ``figures``: of another clock."""
        seconds, used = time.perf_counter() - self._begun[0], cpu() - self._begun[1]
        served = cpu_of(self._job.server) - self._served
        measured = moved - self._moved
        self._figures = figures or {
            "count": measured,
            "seconds": seconds,
            "rate": measured / seconds,
            "cpu_us": used / measured * 1e6,
            "base_mb": self._base,
            "rss_mb": memory()[1],
        }
        if self._job.server and not figures:
            self._figures["server_us"] = served / measured * 1e6

    def figures(self) -> dict[str, float]:
        """What was measured. Call it after the work."""
        if self._figures["count"] * 2 < self._job.count:
            raise WorkSkippedError(
                f"only {self._figures['count']} of {self._job.count} messages were measured"
            )
        if self._latencies:
            result = sorted(self._latencies)
            self._figures["p50_us"] = quantile(result, 0.5) / 1000
            self._figures["p99_us"] = quantile(result, 0.99) / 1000
        return self._figures
