"""Samples of the progress of a query, and the figures that add them up."""

from __future__ import annotations

from typing import Any

from jsclient.spark.monitoring.figures import QueryFigures
from jsclient.spark.monitoring.progress import LogPlace, QueryReport, SourceReport

__all__ = ["CREATED", "figures", "log", "report"]

CREATED = "2026-01-31T12:00:00+00:00"


def log(seq: int = 20, last: int | None = 50, *, created: str = CREATED, **more: Any) -> SourceReport:
    """Of a source in log mode, which has read the stream ORDERS up to ``seq``."""
    given = {"rows": 3, "processed_rate": 6.0, **more}
    return SourceReport(0, "log", "ORDERS", **given, place=LogPlace("ORDERS", created, seq), last=last)


def report(*sources: SourceReport, batch: int = 7, **more: Any) -> QueryReport:
    given = {"name": "copy", "seconds": 1.5, "output_rows": 3, **more}
    return QueryReport(id="i", run="r", batch=batch, sources=sources, **given)


def figures(*reports: QueryReport) -> QueryFigures:
    made = QueryFigures("i", "r", "copy")
    for one in reports:
        made.add(one)
    return made
