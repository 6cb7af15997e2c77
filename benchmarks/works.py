"""The measurements: the rows of the tables, and the goal of each."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["GROUPS", "WORKS", "Goal", "Work", "select"]


@dataclass(frozen=True)
class Goal:
    """The goal of jsclient: the maximum CPU µs per message, the factor by which it is less than with nats-py, and the
    minimum rate as a fraction of the raw limit."""

    cpu_us: float
    less: float
    of_raw: float | None = None


@dataclass(frozen=True)
class Work:
    """A row.

    Attributes:
        name: A unique name, for ``--works``.
        title: The heading, in Markdown.
        group: The name of the group, also for ``--works``.
        kind: The function of a client.
        counts: Messages, by client. A client that is missing does not take part. Slow clients move fewer messages,
            because a run should take one or two seconds.
        reads: Whether it reads stored messages. Otherwise it publishes messages itself or has them published.
        pulls: The ack policy of the pull consumer it needs, "" if none.
        handlers: Handlers of a worker that run at the same time, and ``pause``, the seconds that each handler sleeps.
        core: Whether it moves core messages, with another process as the other side, and no stream.
        asks: Whether another process publishes the messages, each after the ack of the previous message.
        size, headers, tls: The properties of the messages and the connection. None takes the value of the options.
        go: The API that nats.go uses for it, in Markdown.
        goal: The goal, or None.
    """

    name: str
    title: str
    group: str
    kind: str
    counts: dict[str, int]
    reads: bool = True
    pulls: str = ""
    batch: int = 0
    window: int = 0
    subscriptions: int = 1
    handlers: int = 0
    pause: float = 0.0
    core: bool = False
    asks: bool = False
    size: int | None = None
    headers: bool | None = None
    tls: bool | None = None
    go: str = ""
    goal: Goal | None = None
    figures: tuple[str, ...] = ("rate", "cpu_us")


def _counts(
    raw: int, ours: int, natspy: int = 0, natsrpy: int = 0, natsjetstream: int = 0, *, natsgo: int = 0
) -> dict[str, int]:
    named = {
        "raw": raw,
        "nats.go": natsgo,
        "jsclient": ours,
        "jsclient-speedups": ours,
        "nats-py": natspy,
        "natsrpy": natsrpy,
        "nats-jetstream": natsjetstream,
    }
    return {client: count for client, count in named.items() if count}


_LATENCY = ("p50_us", "p99_us", "cpu_us")
_MEMORY = ("rss_mb", "base_mb")

TABLE = [
    Work(
        "ordered",
        "push, ordered, `async for`",
        "table",
        "ordered",
        _counts(400_000, 400_000, 50_000, 10_000, 50_000, natsgo=400_000),
        goal=Goal(1.3, 15, 0.6),
        go="`NextMsg`",
    ),
    Work(
        "callback",
        "push, callback",
        "table",
        "callback",
        _counts(400_000, 400_000, 200_000, natsgo=400_000),
        goal=Goal(1.2, 4, 0.65),
        go="callback",
    ),
    Work(
        "messages",
        "pull `messages()`, ack each",
        "table",
        "messages",
        _counts(200_000, 200_000, 40_000, 5_000, 50_000, natsgo=200_000),
        pulls="explicit",
        window=500,
        goal=Goal(2.3, 12, 0.8),
        go="`Messages`",
    ),
    Work(
        "fetch-500",
        "`fetch(500)`, ack none",
        "table",
        "fetch",
        _counts(300_000, 300_000, 50_000, 200_000, 50_000, natsgo=300_000),
        pulls="none",
        batch=500,
        goal=Goal(1.4, 18, 0.65),
        go="`Fetch`",
    ),
    Work(
        "fetch-10",
        "`fetch(10)`, ack none",
        "table",
        "fetch",
        _counts(60_000, 60_000, 20_000, 30_000, 5_000, natsgo=60_000),
        pulls="none",
        batch=10,
        goal=Goal(7.5, 5, 0.7),
        go="`Fetch`",
    ),
    Work(
        "publisher",
        "`publisher`, 1,000 in flight",
        "table",
        "publisher",
        _counts(300_000, 200_000, 50_000, 20_000, 50_000, natsgo=200_000),
        reads=False,
        window=1000,
        goal=Goal(2.5, 6, 0.5),
        go="`PublishMsgAsync`",
    ),
    Work(
        "publish",
        "`publish`, one by one",
        "table",
        "publish",
        _counts(10_000, 8_000, 6_000, 5_000, 500, natsgo=8_000),
        reads=False,
        goal=Goal(58, 2.1),
        figures=("rate", "cpu_us", "p50_us", "p99_us"),
        go="`PublishMsg`",
    ),
]

LATENCY = [
    Work(
        "next",
        "`next()`, one by one",
        "latency",
        "next",
        _counts(10_000, 8_000, 5_000, 5_000, 500, natsgo=8_000),
        pulls="none",
        figures=_LATENCY,
        go="`Next`",
    ),
    Work(
        "end-to-end",
        "publish to push callback, 2,000 a second",
        "latency",
        "end-to-end",
        _counts(4_000, 4_000, 4_000),
        reads=False,
        figures=_LATENCY,
    ),
]


def _core(name: str, title: str, ours: int, natspy: int, go: str, **fields: Any) -> Work:
    counts = _counts(0 if "request" in name else ours, ours, natspy, 0, natspy, natsgo=ours)
    return Work(name, title, "core", name, counts, reads=False, core=True, go=go, **fields)


CORE = [
    _core("core-publish", "core `publish`, `flush` at the end", 300_000, 100_000, "`Publish`"),
    _core("core-subscribe", "core subscription, `async for`", 300_000, 100_000, "`NextMsg`"),
    _core("core-request", "core `request`, one by one", 8_000, 6_000, "`Request`", figures=_LATENCY),
    _core("core-requests", "core `request`, by 1,000 tasks", 40_000, 20_000, "`Request`"),
]


def _variant(work: Work, group: str, name: str, suffix: str, scale: float, **fields: Any) -> Work:
    # 500 divides all counts, so that every fetch is full.
    counts = {client: max(500, int(count * scale) // 500 * 500) for client, count in work.counts.items()}
    clients = {
        client: count for client, count in counts.items() if client not in {"natsrpy", "nats-jetstream"}
    }
    values = {"title": f"{work.title}, {suffix}", "counts": clients} | fields
    return replace(work, name=f"{work.name}/{name}", group=group, goal=None, **values)


WITH_HEADERS = [
    _variant(
        work,
        "headers",
        "headers",
        "headers" if work.kind == "publisher" else "`msg.headers[…]`",
        0.25,
        headers=True,
        go=work.go if work.kind == "publisher" else f"{work.go}, `Header.Get`",
    )
    for work in TABLE
    if work.name in {"ordered", "callback", "messages", "publisher"}
]
BY_METHOD = [
    _variant(
        TABLE[0],
        "headers",
        "header",
        "`msg.header(…)`",
        0.25,
        kind="ordered-header",
        counts=_counts(0, 100_000),
        headers=True,
        go="",
    )
]
MORE = [
    Work(
        "send",
        "`Publisher.send`, 1,000 in flight",
        "more",
        "send",
        _counts(300_000, 200_000),
        reads=False,
        window=1000,
    ),
    Work(
        "publish-many",
        "`publish_many`, 1,000 in flight",
        "more",
        "publish-many",
        _counts(300_000, 200_000),
        reads=False,
        window=1000,
    ),
    Work(
        "batches",
        "atomic batches of 100",
        "more",
        "batches",
        _counts(50_000, 50_000),
        reads=False,
        batch=100,
        window=20,
    ),
    Work("topic", "topic, one by one", "more", "topic", _counts(0, 200_000)),
    Work("topic-batches", "topic, `batches()`", "more", "topic-batches", _counts(0, 200_000)),
]
WIDE = [
    _variant(TABLE[2], "window", str(window), f"{window:,} asked for", 1.0, window=window)
    for window in (2_000, 10_000)
]
_SIZES = {
    # by bytes of a payload: the name, and the number of messages relative to 128 bytes
    16: ("16 B", 1.0),
    1024: ("1 KiB", 0.5),
    16384: ("16 KiB", 0.1),
}
# Large messages. As many take 400 to 450 MB, so fewer are fetched, or in flight, at a time.
_HALF, _WHOLE = 512 * 1024, 1024 * 1024
_AT_ONCE = {500: 50, 10: 10, 0: 0}  # messages in a fetch
_IN_FLIGHT = 100


def _large(work: Work, size: int, title: str) -> Work:
    reading = _counts(800, 800, 200, natsgo=800)
    batch = _AT_ONCE[work.batch]
    fewer = work.title.replace("fetch(500)", f"fetch({batch})").replace("1,000 in", f"{_IN_FLIGHT} in")
    return _variant(
        work,
        "sizes",
        title.replace(" ", ""),
        title,
        1.0,
        title=f"{fewer}, {title}",
        counts=reading if work.reads else {client: 400 for client in work.counts if client in reading},
        size=size,
        batch=batch,
        window=min(work.window, _IN_FLIGHT),
    )


def _sized(work: Work) -> list[Work]:
    rows = [
        _variant(work, "sizes", title.replace(" ", ""), title, scale, size=size)
        for size, (title, scale) in _SIZES.items()
    ]
    rows.append(_large(work, _HALF, "512 KiB"))
    if work.name in {"publisher", "publish-many"}:
        rows.append(_large(work, _WHOLE, "1 MiB"))
    # The documentation shows some of the rows.
    return rows if work.name in _SHOWN else [replace(row, group="more-sizes") for row in rows]


_SHOWN = {"ordered", "messages", "publisher", "publish-many"}
SIZES = [row for work in (TABLE[0], TABLE[2], TABLE[5], MORE[1]) for row in _sized(work)]
MORE_SIZES = [row for work in (TABLE[1], TABLE[3], TABLE[4], TABLE[6]) for row in _sized(work)]
TLS = [
    _variant(work, "tls", "tls", "TLS", 0.5, tls=True)
    for work in TABLE
    if work.name in {"ordered", "callback", "messages", "publisher", "publish"}
]
_SLEEP = 0.001  # seconds


def _worker(name: str, title: str, ours: int, natspy: int, **fields: Any) -> Work:
    return Work(name, title, "workers", "run", _counts(0, ours, natspy), pulls="explicit", **fields)


WORKERS = [
    *(
        _worker(
            f"run/{number}",
            f"`run()`, {number} handler{'s' if number > 1 else ''}",
            60_000,
            20_000,
            handlers=number,
        )
        for number in (1, 20, 200)
    ),
    *(
        _worker(
            f"run/{number}/sleep",
            f"`run()`, {number} handlers that sleep 1 ms",
            ours,
            natspy,
            handlers=number,
            pause=_SLEEP,
        )
        for number, ours, natspy in ((20, 15_000, 15_000), (200, 40_000, 20_000))
    ),
    replace(
        TABLE[2],
        name="by-hand",
        title="`messages()`, `ack` by hand",
        group="workers",
        counts=_counts(200_000, 200_000, 40_000, natsgo=200_000),
        goal=None,
    ),
]
ANSWERS = [
    *(
        _worker(
            f"run/{number}/request",
            f"`run()`, {number} handler{'s' if number > 1 else ''}",
            3_000,
            3_000,
            handlers=number,
            reads=False,
            asks=True,
            figures=_LATENCY,
        )
        for number in (1, 20)
    ),
    replace(
        TABLE[2],
        name="by-hand/request",
        title="`messages()`, `ack` by hand",
        group="workers",
        counts=_counts(0, 3_000, 3_000),
        reads=False,
        asks=True,
        goal=None,
        figures=_LATENCY,
        go="",
    ),
]
SUBSCRIPTIONS = [
    Work(
        f"subscriptions/{number}",
        f"push, callback, {number} subscription{'s' if number > 1 else ''}",
        "subscriptions",
        "subscriptions",
        _counts(0, 1_000_000, 200_000),
        reads=False,
        window=1000,
        subscriptions=number,
    )
    for number in (1, 10, 100, 1_000)
]
LINEAR = [
    Work(
        f"ordered/{title.replace(',', '')}",
        f"push, ordered, `async for`, {title} messages",
        "linear",
        "ordered",
        _counts(count, count, count if count == 100_000 else 0),
    )
    for count, title in ((100_000, "100,000"), (1_000_000, "1,000,000"), (5_000_000, "5,000,000"))
]
MEMORY = [
    Work(
        kind,
        f"500,000 wait for a slow handler: {title}",
        "memory",
        kind,
        _counts(0, 500_000, 500_000),
        pulls="explicit" if kind == "slow messages" else "",
        figures=_MEMORY,
    )
    for kind, title in (
        ("slow callback", "push, callback"),
        ("slow ordered", "push, ordered"),
        ("slow messages", "pull `messages()`"),
    )
]
IMPORT = [
    Work(
        "import",
        "import in a new process",
        "import",
        "import",
        dict.fromkeys(("raw", "jsclient", "nats-py", "natsrpy", "nats-jetstream"), 1),
        figures=("cpu_ms",),
    )
]
WORKS = [
    *TABLE,
    *LATENCY,
    *CORE,
    *WITH_HEADERS,
    *BY_METHOD,
    *MORE,
    *WORKERS,
    *ANSWERS,
    *SIZES,
    *TLS,
    *MORE_SIZES,
    *WIDE,
    *SUBSCRIPTIONS,
    *LINEAR,
    *MEMORY,
    *IMPORT,
]
GROUPS = list(dict.fromkeys(work.group for work in WORKS))


def select(names: Iterable[str]) -> list[Work]:
    """Return the works with these names, groups or patterns, or ``all``.

    Raises:
        ValueError: A name matches no work.
    """
    chosen: list[Work] = []
    for name in names:
        result = [work for work in WORKS if name in {"all", work.name, work.group} or _fits(name, work.name)]
        if not result:
            raise ValueError(f"no work is called {name!r}; groups are {', '.join(GROUPS)}")
        chosen += [work for work in result if work not in chosen]
    return chosen


def _fits(pattern: str, name: str) -> bool:
    """Return whether the pattern matches. An asterisk does not match a slash."""
    return pattern.count("/") == name.count("/") and fnmatch.fnmatchcase(name, pattern)
