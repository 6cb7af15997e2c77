"""The parameters of one run, and the meter with which it measures itself.

A run is a process. It connects once and does its work twice: a short part that warms up (imports, connection, first
message, caches of the interpreter), then the measured part.
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

__all__ = ["HEADER", "HEADERS", "Job", "Meter", "Part", "WorkSkippedError", "job_of", "payload", "shares"]

HEADERS = {
    "Content-Type": "application/json",
    "Trace-Id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "Tenant": "blue",
}
HEADER = "Trace-Id"  # the header that is read


class WorkSkippedError(Exception):
    """The run did not receive or store the messages of its job, so its figures mean nothing."""


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        kind: The name of the client's function.
        count: Number of measured messages. They are the last messages of the stream.
        warm: Number of messages before them that warm up.
        size: Bytes of a payload.
        headers: Whether messages have headers, one of which is read.
        last: The last sequence in the stream that is read, or 0 if the work publishes.
        consumers: Existing pull consumers: one for the warm-up, and one for the measured part.
        batch: Messages in one fetch.
        window: Number of messages that a continuous reader requests at a time, or of publishes in flight.
        subscriptions: Number of subscriptions on one connection. Each receives every message, so the stream has fewer
            messages by this factor.
        handlers: Handlers of a worker that run at the same time.
        pause: Seconds that each handler sleeps.
        asks: Whether another process publishes the messages, each after the ack of the previous message, and measures
            the time in between.
        host, port: The server.
        server: The id of its process, or 0 if its CPU is not measured.
        ca: The file with the authority of the server's certificate, or "" without TLS.
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
        """Return the TLS context with which a client verifies the server, or None without TLS."""
        return ssl.create_default_context(cafile=self.ca) if self.ca else None

    def as_dict(self) -> dict[str, Any]:
        """Return the job as a mapping, for the command line of the run."""
        return asdict(self)


def job_of(text: str) -> Job:
    """Return the job that a process received on its command line."""
    data = json.loads(text)
    return Job(**{**data, "consumers": tuple(data["consumers"])})


def payload(job: Job) -> bytes:
    """Return the payload to publish."""
    return b"x" * job.size


def shares(count: int, tasks: int = 1_000) -> list[int]:
    """Divide a number of requests among tasks that run at once."""
    each, more = divmod(count, tasks)
    return [each + (number < more) for number in range(tasks)]


@dataclass
class Part:
    """One of the two parts of a run.

    Attributes:
        count: Messages to move.
        start: The stream sequence of the first of them.
        consumer: The pull consumer to read them from.
        last: The stream sequence of the last of them.
        latencies: A list to which the work adds nanoseconds for each message, if it measures latency.
    """

    meter: Meter
    count: int
    start: int
    consumer: str
    last: int
    latencies: list[int]

    def begin(self, moved: int) -> None:
        """Start to measure. ``moved`` messages of this part were moved during the setup."""
        self.meter.begin(moved)

    def done(self, moved: int, last: int, figures: dict[str, float] | None = None) -> None:
        """The work is done. It moved ``moved`` messages, the last of which has the stream sequence ``last``.

        ``figures`` come from another process, if it did the work.

        Raises:
            WorkSkippedError: The work is not done.
        """
        self.meter.end(moved, figures)
        if moved != self.count or last != self.last:
            raise WorkSkippedError(
                f"moved {moved} messages up to sequence {last}, not {self.count} up to {self.last}"
            )


class Meter:
    """Measures the time, CPU and memory of this process during a run, and the CPU of the server."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._begun = (0.0, 0.0)
        self._moved = 0
        self._figures: dict[str, float] = {}
        self._latencies: list[int] = []

    def parts(self) -> Iterator[Part]:
        """Yield the warm-up, then the measured part."""
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
        """Stop the clock. ``figures`` come from another clock."""
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
        """Return the figures. Call it after the work."""
        if self._figures["count"] * 2 < self._job.count:
            raise WorkSkippedError(
                f"only {self._figures['count']} of {self._job.count} messages were measured"
            )
        if self._latencies:
            result = sorted(self._latencies)
            self._figures["p50_us"] = quantile(result, 0.5) / 1000
            self._figures["p99_us"] = quantile(result, 0.99) / 1000
        return self._figures
