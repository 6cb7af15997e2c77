"""Arithmetic on runs: medians, spread, ratios. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Summary", "quantile", "ratio", "summarize"]


def quantile(data: Sequence[float], fraction: float) -> float:
    """Return the value that ``fraction`` of the sorted values do not exceed (nearest rank)."""
    if not data:
        raise ValueError("no values")
    return data[max(0, math.ceil(fraction * len(data)) - 1)]


@dataclass(frozen=True)
class Summary:
    """One figure over all rounds."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half the distance between the lowest and the highest value, as a fraction of the median."""
        return (self.high - self.low) / 2 / self.median if self.median else 0.0


def summarize(runs: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Summary]]]:
    """Summarize the runs of all rounds by work, client and figure. Failed runs are omitted."""
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in runs:
        if "error" in run:
            continue
        figures = results.setdefault(run["work"], {}).setdefault(run["client"], {})
        for name, value in run["figures"].items():
            figures.setdefault(name, []).append(value)
    return {
        work: {
            client: {
                name: Summary(statistics.median(values), min(values), max(values))
                for name, values in figures.items()
            }
            for client, figures in clients.items()
        }
        for work, clients in results.items()
    }


def ratio(clients: Mapping[str, Mapping[str, Summary]], figure: str, above: str, below: str) -> float | None:
    """Divide the median of ``figure`` of client ``above`` by that of client ``below``. None if one is missing."""
    try:
        over, under = clients[above][figure].median, clients[below][figure].median
    except KeyError:
        return None
    return over / under if under else None
