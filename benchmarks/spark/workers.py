"""The CPU of a measurement's processes: Spark's JVM, its Python workers, nats-server. Needs Linux for `/proc`."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["KINDS", "cpu", "python_cpu"]

KINDS = {"jvm": "java", "python": "python", "server": "nats-server"}
"""Kinds of processes, and what their names contain."""

_TICKS = os.sysconf("SC_CLK_TCK")


def python_cpu() -> float:
    """Return the seconds of CPU that Spark's Python workers have used."""
    return cpu()["python"]


def cpu() -> dict[str, float]:
    """Return the seconds of user and system time by kind, of all descendants of this process, also ended ones."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    ended: dict[int, float] = {}  # CPU of ended children
    names: dict[int, str] = {}
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        try:
            text = (path / "stat").read_text()
        except OSError:  # the process has just ended
            continue
        name, _, remainder = text.partition(" (")[2].rpartition(") ")
        fields = remainder.split()
        pid = int(path.name)
        parents[pid], names[pid] = int(fields[1]), name
        used[pid] = sum(int(field) for field in fields[11:13]) / _TICKS
        ended[pid] = sum(int(field) for field in fields[13:15]) / _TICKS
    own = os.getpid()

    def is_below(pid: int) -> bool:
        while pid in parents and pid != own:
            pid = parents[pid]
        return pid == own

    results = dict.fromkeys(KINDS, 0.0)
    for pid, seconds in used.items():
        kind = next((kind for kind, name in KINDS.items() if name in names[pid]), None)
        if kind is not None and pid != own and is_below(pid):
            results[kind] += seconds
            results["python" if kind == "jvm" else kind] += ended[pid]  # the JVM starts Python only
    return results
