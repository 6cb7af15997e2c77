"""Samples of the progress of a query, and the figures that add them up."""

from __future__ import annotations

from typing import Any

from jsclient.spark.monitoring.figures import QueryFigures
from jsclient.spark.monitoring.progress import (
    LogPosition,
    QueryReport,
    QueuePosition,
    SourceReport,
    StreamReport,
)

__all__ = ["CREATED", "JOBS", "ORDERS", "figures", "log", "queue", "report", "several"]

CREATED = "2026-01-31T12:00:00+00:00"
ORDERS = LogPosition("ORDERS", CREATED, 20)
JOBS = QueuePosition("JOBS", "c")

_OF_STREAM = {"pending", "lost", "expired", "lapsed"}


def log(
    seq: int = 20, last: int | None = 50, *, created: str = CREATED, name: str = "ORDERS", **more: Any
) -> SourceReport:
    """Of a source in log mode, which has read the stream ORDERS up to ``seq``."""
    options = {"rows": 3, "processed_rate": 6.0, **more}
    counts = {what: options.pop(what) for what in _OF_STREAM & options.keys()}
    stream = StreamReport(name, LogPosition(name, created, seq), last=last, **counts)
    return SourceReport(0, "log", name, streams=(stream,), **options)


def several(*sources: SourceReport) -> SourceReport:
    """Of a source that has read the streams of these."""
    streams = tuple(stream for one in sources for stream in one.streams)
    return SourceReport(0, "log", "", sum(one.rows for one in sources), streams, processed_rate=6.0)


def queue(number: int = 1, **counts: Any) -> SourceReport:
    """Of a source in queue mode, which reads the stream JOBS."""
    return SourceReport(number, "queue", "JOBS", 3, (StreamReport("JOBS", JOBS, **counts),), 1.0, 2.0)


def report(*sources: SourceReport, batch: int = 7, **more: Any) -> QueryReport:
    options = {"name": "copy", "seconds": 1.5, "output_rows": 3, **more}
    return QueryReport(id="i", run="r", batch=batch, sources=sources, **options)


def figures(*reports: QueryReport) -> QueryFigures:
    created = QueryFigures("i", "r", "copy")
    for one in reports:
        created.add_progress(one)
    return created
