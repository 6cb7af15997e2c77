"""The measurements of topics: the tables, their rows and columns, and the goals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.job import Job

__all__ = ["KINDS", "WORKS", "Column", "TopicWork", "job", "select"]

KINDS = (
    "waiting",
    "notifier",
    "notifier_turns",
    "publishing",
    "filtering",
    "subscribing",
    "catching_up",
    "live",
    "keeping",
)
"""The kinds of runs. Their functions are in `benchmarks.topics.child`."""

_WARM = 2_000  # maximum number of messages
_WINDOW = 1_000


@dataclass(frozen=True)
class Column:
    """A figure as it is shown.

    Attributes:
        figure: Its name.
        title: The heading.
        form: "k" for thousands, "d" for an integer, "g" for at most three digits, "%" for a fraction.
    """

    figure: str
    title: str
    form: str = "g"


@dataclass(frozen=True)
class TopicWork:
    """A table.

    Attributes:
        name: A unique name, for ``--works``. Its first part is the group.
        title: The heading, in Markdown.
        kind: One of `KINDS`.
        rows: By client: how many messages, readers or updates.
        columns: The figures.
        compared: The figure that is compared with nats-py. A lower figure is better.
        size: Bytes of a payload.
        stored: Whether it reads a stream that is full.
        goals: By client, the maximum of ``compared``.
    """

    name: str
    title: str
    kind: str
    rows: Mapping[str, int]
    columns: Sequence[Column]
    compared: str = "cpu_us"
    size: int = 128
    stored: bool = False
    goals: Mapping[str, float] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The group. The works of a group are selected together."""
        return self.name.partition("/")[0]


_RATE = Column("rate", "records/s", "k")
_CPU = Column("cpu_us", "CPU µs/record")
_READ = {"pages": 200_000, "async for": 200_000, "fetch": 200_000, "ordered": 200_000, "nats-py": 50_000}

WORKS = [
    TopicWork(
        "waiting",
        "Waiting readers",
        "waiting",
        {"republish": 1_000, "consumer": 1_000, "nats-py": 1_000},
        [
            Column("consumers", "consumers on the server", "d"),
            Column("kb", "server KiB/reader"),
            Column("open_ms", "all open after ms", "d"),
            Column("idle_messages", "messages/reader/min, idle"),
            Column("messages", "messages/reader/record"),
            Column("server_us", "server CPU µs/reader/record"),
        ],
        compared="kb",
    ),
    TopicWork(
        "notifier",
        "A notifier that is read 42 times during 5,000 updates",
        "notifier",
        {"jsclient": 5_000, "nats-py": 5_000},
        [
            Column("messages", "messages received", "d"),
            Column("per_ask", "per read"),
            Column("consumers", "consumers on the server", "d"),
            Column("p50_us", "update to waiting read: p50 µs", "d"),
            Column("p99_us", "p99 µs", "d"),
        ],
        compared="messages",
    ),
    TopicWork(
        "notifier-turns",
        "From an update to a waiting read, both in turns in one process",
        "notifier_turns",
        {"both": 500},
        [
            Column("p50_us", "jsclient: p50 µs", "d"),
            Column("p99_us", "p99 µs", "d"),
            Column("cpu_us", "CPU µs", "d"),
            Column("natspy_p50_us", "nats-py: p50 µs", "d"),
            Column("natspy_p99_us", "p99 µs", "d"),
            Column("natspy_cpu_us", "CPU µs", "d"),
            Column("p99_ratio", "jsclient's p99 / nats-py's"),
            Column("p50_ratio", "jsclient's p50 / nats-py's"),
        ],
        compared="p50_ratio",
        goals={"both": 1.0},
    ),
    TopicWork(
        "publish",
        "Publishing",
        "publishing",
        {
            "topic": 100_000,
            "chained": 100_000,
            "publisher": 100_000,
            "nats-py": 30_000,
            "kit": 5_000,
            "nats-py, linked": 5_000,
        },
        [_RATE, _CPU],
    ),
    TopicWork(
        "filter",
        "The filter of epochs, without a server",
        "filtering",
        {"Int": 200_000, "Product": 200_000},
        [Column("dropped_us", "dropped: µs/message"), Column("passed_us", "passed: µs/message")],
    ),
    TopicWork(
        "epochs",
        "An epoch subscriber, from the server to its events",
        "subscribing",
        {"jsclient": 50_000},
        [_RATE, _CPU],
    ),
    *(
        TopicWork(
            f"catch-up/{size}",
            f"Reading stored records, {size:,} bytes",
            "catching_up",
            _READ,
            [_RATE, _CPU, Column("rss_mb", "peak MB", "d")],
            size=size,
            stored=True,
            goals={"pages": 4.0} if size == 128 else {},
        )
        for size in (128, 1024)
    ),
    TopicWork(
        "live",
        "Reading live records",
        "live",
        {"republish": 200_000, "consumer": 200_000, "ordered": 200_000, "nats-py": 50_000},
        [_RATE, _CPU, Column("pushed", "by push", "%")],
        goals={"republish": 5.0, "consumer": 5.0},
    ),
    TopicWork(
        "table",
        "Keeping the newest record of each of 500 subjects",
        "keeping",
        {"table": 200_000, "ordered": 200_000, "nats-py": 50_000},
        [_RATE, _CPU, Column("pushed", "by push", "%")],
    ),
]


def job(work: TopicWork, client: str, scale: float, *, port: int) -> Job:
    """Return the job of one run."""
    count = max(100, int(work.rows[client] * scale))
    stored = stored_in(work, scale) if work.stored else 0
    name = f"BENCH{work.size}" if work.stored else "OWN"
    return Job(
        client,
        work.kind,
        count,
        min(_WARM, count // 10),
        name,
        f"{name.lower()}.x",
        "127.0.0.1",
        port,
        work.size,
        last=stored,
        window=_WINDOW,
    )


def stored_in(work: TopicWork, scale: float) -> int:
    """Return the number of messages in the stream that all clients of a work read."""
    count = max(100, int(max(work.rows.values()) * scale))
    return count + min(_WARM, count // 10)


def select(names: Iterable[str]) -> list[TopicWork]:
    """Return the works with these names or groups, or ``all``.

    Raises:
        ValueError: A name matches no work.
    """
    expected = list(names)
    for name in expected:
        if name != "all" and not any(name in {work.name, work.group} for work in WORKS):
            raise ValueError(f"no work is called {name!r}: {', '.join(work.name for work in WORKS)}")
    return [work for work in WORKS if {"all", work.name, work.group} & set(expected)]
