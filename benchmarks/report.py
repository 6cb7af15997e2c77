"""Tables from stored figures, in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.clients import CLIENTS, OURS
from benchmarks.figures import Summary, ratio, summarize
from benchmarks.works import WORKS, Work

__all__ = [
    "FORMAT",
    "about_line",
    "across",
    "between",
    "markdown",
    "overview",
    "report",
    "section",
    "short",
    "table",
    "thousands",
    "verdict",
    "workers",
]

FORMAT = 2  # version of the files' format
Clients = Mapping[str, Mapping[str, Summary]]
_MAIN = ("table", "headers", "more")  # groups
_APART = ("core", "workers", "sizes", "tls")  # groups with separate tables in the documentation
_COMPARED = (*OURS, "nats-py")

_TITLES = {
    "table": "Rate and CPU",
    "latency": "Latency",
    "core": "Core messages",
    "workers": "Workers",
    "tls": "TLS",
    "sizes": "Payload sizes",
    "more-sizes": "Payload sizes, other workloads",
    "headers": "Headers on every message, one read",
    "more": "More ways to publish and to read",
    "window": "Asking for more at a time",
    "subscriptions": "Subscriptions on one connection",
    "linear": "Longer runs",
    "memory": "Memory with a slow handler",
    "import": "Import",
}


def about_line(about: Mapping[str, Any]) -> str:
    """Describe the source of the figures in a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in about["clients"].items() if version)
    headers = (", with headers" if about["headers"] else "") + (", TLS" if about.get("tls") else "")
    return (
        f"{about['date']}: Python {about['python']} ({about['loop']}), nats-server {about['server']}, {versions}; "
        f"{about['cores']} cores, {about['system']}; {about['size']} bytes{headers}, {about['storage']} storage; "
        f"medians of {about['rounds']} rounds."
    )


def report(stored: Mapping[str, Any]) -> str:
    """Return all tables of one file."""
    runs = summarize(stored["runs"])
    done = [work for work in WORKS if work.name in runs]
    blocks = [about_line(stored["about"])]
    for group in dict.fromkeys(work.group for work in done):
        some = [work for work in done if work.group == group]
        if group in _APART:
            blocks += section(group, some, runs)
            continue
        blocks += [f"### {_TITLES[group]}", table(some, runs)]
        if group == "table":
            blocks += [
                "### Against nats-py and the limit",
                against(some, runs, goals=_aimed(stored["about"])),
            ]
            if timed := _timed(some):
                blocks += ["### Latency, one by one", latency(timed, runs)]
    return "\n\n".join(blocks) + "\n"


def overview(stored: Mapping[str, Any]) -> str:
    """Return rate and CPU of one file in a single table, the latencies, and a section for each separate group."""
    runs = summarize(stored["runs"])
    works = [work for work in WORKS if work.name in runs and work.group in _MAIN]
    blocks = [about_line(stored["about"]), table(works, runs, ways=True)]
    if timed := _timed(works):
        blocks += ["Latency:", latency(timed, runs)]
    for group in _APART:
        blocks += section(group, [work for work in WORKS if work.name in runs and work.group == group], runs)
    return "\n\n".join(blocks) + "\n"


def section(group: str, works: Sequence[Work], runs: Mapping[str, Clients]) -> list[str]:
    """Return a heading with the tables of a group: rate and CPU, and the latencies of sequential works."""
    if not works:
        return []
    if group == "workers":
        timed = [work for work in works if work.asks]
        others = [work for work in works if not work.asks]
        tables = [workers(others, runs)] if others else []
        words = "From a request to its ack at the server, one by one:"
    else:
        timed, tables, words = _timed(works), [table(works, runs, ways=True)], "Latency:"
    return [f"### {_TITLES[group]}", *tables, *([words, latency(timed, runs)] if timed else [])]


def workers(works: Sequence[Work], runs: Mapping[str, Clients]) -> str:
    """Return rate, CPU and the server's CPU, and how many times less CPU jsclient uses than nats-py."""
    clients = _present(works, runs)
    ours = [client for client in OURS if client in clients]
    rows = []
    for work in works:
        cells = []
        for client in clients:
            served = runs[work.name].get(client, {}).get("server_us")
            cell = _rate_and_cpu(runs[work.name].get(client))
            cells.append(f"{cell} · {short(served.median)}" if served else cell)
        less = [ratio(runs[work.name], "cpu_us", "nats-py", client) for client in ours]
        cells.append(" · ".join("–" if value is None else f"{short(value)}x less" for value in less))
        rows.append([work.title, *cells])
    return markdown(["msg/s · CPU µs/msg · server's CPU µs/msg", *clients, "CPU against nats-py"], rows)


def _timed(works: Iterable[Work]) -> list[Work]:
    return [work for work in works if "p50_us" in work.figures]


def across(files: Sequence[Mapping[str, Any]]) -> str:
    """Compare the main works of several files, which differ in Python, loop, storage or size."""
    labels, columns = [], []
    for stored in files:
        about = stored["about"]
        others = [
            about["loop"],
            about["storage"],
            f"{about['size']} B",
            *(["headers"] if about["headers"] else []),
            *(["TLS"] if about.get("tls") else []),
        ]
        labels.append(", ".join([about["python"], *others]))
        columns.append(summarize(stored["runs"]))
    clients = [
        client
        for client in _COMPARED
        if any(client in results for runs in columns for results in runs.values())
    ]
    rows = []
    for work in (work for work in WORKS if work.group in _MAIN):
        result = [runs.get(work.name, {}) for runs in columns]
        # A work without jsclient, such as a work that failed everywhere, compares nothing.
        if any("jsclient" in figures for figures in result):
            rows.append([work.title, *(_used(figures, clients) for figures in result)])
    return markdown([f"CPU µs/msg: {' · '.join(clients)}", *labels], rows)


def _used(figures: Clients, clients: Sequence[str]) -> str:
    return " · ".join(
        short(figures[client]["cpu_us"].median) if client in figures else "–" for client in clients
    )


def table(works: Sequence[Work], runs: Mapping[str, Clients], *, ways: bool = False) -> str:
    """Return the works of one group. With ``ways``, also describe how nats.go does each."""
    # These three groups have other figures than a rate and a CPU time, and so their own tables.
    if works[0].group == "import":
        return imports(runs[works[0].name])
    if works[0].group == "memory":
        return memory(works, runs)
    if works[0].group == "latency":
        return latency(works, runs)
    clients = _present(works, runs)
    rows = [[work.title, *(_rate_and_cpu(runs[work.name].get(c)) for c in clients)] for work in works]
    header = ["msg/s · CPU µs/msg", *clients]
    if ways and "nats.go" in clients:
        rows = [
            [*row, work.go if "nats.go" in runs[work.name] else ""]
            for row, work in zip(rows, works, strict=True)
        ]
        header.append("nats.go by")
    return markdown(header, rows)


def _aimed(about: Mapping[str, Any]) -> bool:
    """Return whether the goals apply to these settings."""
    return (
        about["storage"] == "memory"
        and about["size"] == 128
        and not about["headers"]
        and not about.get("tls")
    )


def against(works: Sequence[Work], runs: Mapping[str, Clients], *, goals: bool) -> str:
    """Compare jsclient with nats-py and the limit, and with ``goals`` also with the goals."""
    rows = []
    for work in works:
        clients = runs[work.name]
        # Works without a goal are only shown beside the other clients, not judged.
        if "jsclient" not in clients or work.goal is None:
            continue
        used = clients["jsclient"]["cpu_us"]
        less = ratio(clients, "cpu_us", "nats-py", "jsclient")
        part = ratio(clients, "rate", "jsclient", "raw")
        goal = work.goal
        row = [
            work.title,
            verdict(f"{short(used.median)} ±{used.spread:.0%}", met=not goals or used.median <= goal.cpu_us),
            f"{goal.cpu_us:g}",
            "–" if less is None else verdict(f"{short(less)}x less", met=not goals or less >= goal.less),
            f"{goal.less:g}x",
            "–"
            if part is None or goal.of_raw is None
            else verdict(f"{part:.2f}", met=not goals or part >= goal.of_raw),
            "–" if goal.of_raw is None else f"{goal.of_raw:g}",
        ]
        rows.append(row if goals else row[:1] + row[1::2])
    header = ["jsclient", "CPU µs/msg", "goal", "CPU against nats-py", "goal", "rate against raw", "goal"]
    return markdown(header if goals else header[:1] + header[1::2], rows)


def latency(works: Sequence[Work], runs: Mapping[str, Clients]) -> str:
    """Return p50, p99 and CPU."""
    clients = _present(works, runs)
    rows = []
    for work in works:
        cells = []
        for client in clients:
            result = runs[work.name].get(client)
            if result is None or "p50_us" not in result:
                cells.append("")
                continue
            p50, p99, used = (result[name].median for name in ("p50_us", "p99_us", "cpu_us"))
            cells.append(f"{p50:,.0f} · {p99:,.0f} · {short(used)}")
        rows.append([work.title, *cells])
    return markdown(["p50 µs · p99 µs · CPU µs/msg", *clients], rows)


def memory(works: Sequence[Work], runs: Mapping[str, Clients]) -> str:
    """Return the peak resident memory, and the part of it that the work added."""
    clients = _present(works, runs)
    rows = []
    for work in works:
        cells = []
        for client in clients:
            result = runs[work.name].get(client)
            if result is None:
                cells.append("")
                continue
            peak, base = result["rss_mb"].median, result["base_mb"].median
            cells.append(f"{peak:.0f} · {peak - base:.0f}")
        rows.append([work.title, *cells])
    return markdown(["peak MB · over idle MB", *clients], rows)


def imports(clients: Clients) -> str:
    """Return the CPU of a process that imports and ends."""
    names = {"raw": "Python alone"}
    rows = [[names.get(c, c), f"{clients[c]['cpu_ms'].median:.0f}"] for c in CLIENTS if c in clients]
    return markdown(["import", "CPU ms"], rows)


def between(text: str, name: str, new: str) -> str:
    """Replace the part of ``text`` between the comments ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` by ``new``.

    Raises:
        ValueError: The comments are missing.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    head, result, remainder = text.partition(begin)
    _, closed, tail = remainder.partition(end)
    if not result or not closed:
        raise ValueError(f"there is no {begin} … {end}")
    return f"{head}{begin}\n\n{new.strip()}\n\n{end}{tail}"


def _present(works: Iterable[Work], runs: Mapping[str, Clients]) -> list[str]:
    result = {client for work in works for client in runs[work.name]}
    return [client for client in CLIENTS if client in result]


def _rate_and_cpu(figures: Mapping[str, Summary] | None) -> str:
    if figures is None:
        return ""
    return f"{thousands(figures['rate'].median)} · {short(figures['cpu_us'].median)}"


def thousands(rate: float) -> str:
    """Return a rate in thousands, or unchanged if it is lower."""
    if rate < 995:
        return f"{rate:.0f}"
    return f"{rate / 1000:,.0f}k" if rate >= 9950 else f"{rate / 1000:.1f}k"


def short(value: float) -> str:
    """Return a figure with at most three digits."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def verdict(text: str, *, met: bool) -> str:
    """Return the text in bold, unless the goal is met."""
    return text if met else f"**{text}**"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose columns are also aligned as plain text."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = [
        [
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in [padded[0], rule, *padded[1:]])
