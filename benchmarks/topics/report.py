"""Tables of the cost of topics, in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.figures import Summary, ratio, summarize
from benchmarks.report import markdown, short, thousands, verdict
from benchmarks.topics.works import WORKS, TopicWork

__all__ = ["about_line", "report"]


def about_line(about: Mapping[str, Any]) -> str:
    """Describe the source of the figures in a sentence."""
    return (
        f"{about['date']}: Python {about['python']}, nats-server {about['server']}, jsclient {about['jsclient']}, "
        f"nats-py {about['nats-py']}; {about['cores']} cores, {about['system']}; memory storage; "
        f"medians of {about['rounds']} rounds."
    )


def report(stored: Mapping[str, Any]) -> str:
    """Return all tables of one file."""
    runs = summarize(stored["runs"])
    blocks = [about_line(stored["about"])]
    for work in WORKS:
        if work.name in runs:
            blocks += [f"#### {work.title}", table(work, runs[work.name])]
    return "\n\n".join(blocks) + "\n"


def table(work: TopicWork, clients: Mapping[str, Mapping[str, Summary]]) -> str:
    """Return the table of one work, with a row for each client."""
    beside = "nats-py" in clients
    header = ["", *(column.title for column in work.columns), *(["against nats-py"] if beside else [])]
    rows = []
    for client in work.rows:
        if client not in clients:
            continue
        row = [f"`{client}`"]
        for column in work.columns:
            result = clients[client].get(column.figure)
            text = "" if result is None else _shown(result.median, column.form)
            # Goals exist only for the figure that is compared, and only for some clients.
            if column.figure == work.compared and result is not None and client in work.goals:
                goal = work.goals[client]
                text = f"{verdict(text, met=result.median <= goal)} (goal {goal:g})"
            row.append(text)
        rows.append([*row, *([_against(work, client, clients)] if beside else [])])
    return markdown(header, rows)


def _against(work: TopicWork, client: str, clients: Mapping[str, Mapping[str, Summary]]) -> str:
    """Return how many times lower the figure is than with nats-py, if nats-py does the same work."""
    other = f"nats-py, {_ALIKE[client]}" if client in _ALIKE else "nats-py"
    less = None if client.startswith("nats-py") else ratio(clients, work.compared, other, client)
    return "" if less is None else f"{short(less)}x less"


_ALIKE = {"kit": "linked"}  # clients that are compared with another work than the plain row


def _shown(value: float, form: str) -> str:
    match form:
        case "k":
            return thousands(value)
        case "d":
            return f"{value:,.0f}"
        case "%":
            return f"{value:.0%}"
    return short(value)
