"""The summary of the Spark part, and its last message. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from ..flights import Flight
from .rows import Statistic
from .view import PipelineView
from .words import SparkIsUp

__all__ = ["closing", "end_of_flights", "kept", "weather_table"]


def end_of_flights(last: Flight) -> Flight:
    """A message after the last flight, days later, so that the watermark passes every hour with flights."""
    later = datetime.fromisoformat(last.scheduled) + timedelta(days=4)
    return Flight(later.isoformat(timespec="minutes"), "", 0, None, "", "", None, None, 0)


def weather_table(statistics: Iterable[Statistic]) -> list[str]:
    """A table of departures by the weather at the airport."""
    kinds = {
        "dry, clear": (0, 0, 0.0),
        "low visibility": (0, 0, 0.0),
        "rain or snow": (0, 0, 0.0),
        "not known": (0, 0, 0.0),
    }
    for row in statistics:
        kind = _kind(row)
        flights, cancelled, delay = kinds[kind]
        minutes = (row.mean_delay or 0.0) * (row.flights - row.cancelled)
        kinds[kind] = flights + row.flights, cancelled + row.cancelled, delay + minutes
    lines = ["Departures by the weather at the airport     cancelled   delay, minutes"]
    for kind, (flights, cancelled, delay) in kinds.items():
        if flights:
            mean = f"{delay / (flights - cancelled):+.1f}" if flights > cancelled else "-"
            lines.append(f"{kind:<18} {flights:>9,} flights {cancelled / flights:>13.1%} {mean:>16}")
    return lines


def _kind(row: Statistic) -> str:
    if row.precip is None or row.visib is None:
        return "not known"
    if row.precip > 0:
        return "rain or snow"
    return "low visibility" if row.visib < 3 else "dry, clear"


def closing(view: PipelineView, versions: SparkIsUp, *, ran: float, whole: float) -> list[str]:
    """The duration in seconds: ``ran`` of the Spark part, ``whole`` of the demonstration."""
    rows = sum(stage.rows for stage in view.stages.values())
    batches = sum(stage.batches for stage in view.stages.values())
    starts = sum(entry.get("event") == "up" for entry in view.log)
    times = "one start" if starts == 1 else f"{starts} starts"
    return [
        f"Spark {versions.spark}: {rows:,} rows in {batches} batches in {ran:.1f} s, including {times};",
        f"{whole:.1f} s in all.",
    ]


def kept(view: PipelineView, about: dict[str, Any]) -> dict[str, Any]:
    """The progress of the queries for a chart. Times are seconds since the Spark part began."""
    stages = {
        stage.name: {"does": stage.does, "rows": stage.rows, "total": stage.total}
        for stage in view.stages.values()
    }
    return {"about": about, "queries": stages, "log": view.log}
