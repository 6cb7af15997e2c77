"""The figures of running queries, which are the sum of their reports, and log lines about them. No I/O and no clock.

Times are seconds of a monotonic clock, which callers pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .progress import LogPlace, QueryReport, SourceReport

__all__ = ["QueryFigures", "SourceFigures", "Unread"]


@dataclass(frozen=True, slots=True)
class Unread:
    """What a server has answered about the messages after a place."""

    last: int  # the last matching sequence; 0 if none is stored after the place
    since: float  # no message after the place was stored before this time


@dataclass
class SourceFigures:
    """The figures of one source since its query started."""

    report: SourceReport  # the latest
    rows: int = 0  # of all batches
    unread: Unread | None = None  # the latest answer; None: not asked, or the server did not answer

    def add(self, report: SourceReport) -> None:
        """Add the report of a batch."""
        before, self.report = self.report.place, report
        self.rows += report.rows
        if before is None or report.place is None or before.created != report.place.created:
            self.unread = None  # it belongs to a previous stream

    def answered(self, asked: LogPlace, unread: Unread | None) -> None:
        """Keep the answer of a server about the messages after an earlier place of this source, or its latest one."""
        place = self.report.place
        if place is not None and place.created == asked.created and place.seq >= asked.seq:
            self.unread = unread

    def lag_messages(self) -> int | None:
        """Messages after the last completed batch; in log mode their sequences, of which some may be deleted."""
        place = self.report.place
        if place is None:
            return self.report.pending
        ends = [self.report.last, None if self.unread is None else self.unread.last]
        known = [end for end in ends if end is not None]
        return max(0, max(known) - place.seq) if known else None

    def lag_seconds(self, now: float) -> float | None:
        """The age of the oldest message that is not read; while the query reads on, an upper bound of it."""
        if self.unread is None:
            return None
        return max(0.0, now - self.unread.since) if self.lag_messages() else 0.0


@dataclass
class QueryFigures:
    """The figures of one run of a query."""

    id: str
    run: str
    name: str = ""
    batch: int | None = None  # the last completed one
    seconds: float | None = None  # its duration
    output_rows: int | None = None  # of all batches; None: the sink does not count
    failed: bool = False
    sources: dict[int, SourceFigures] = field(default_factory=dict)

    def add(self, report: QueryReport) -> list[SourceFigures]:
        """Add the progress of a batch. Returns the sources with more losses or lapsed claims than before."""
        self.name, self.batch, self.seconds = report.name, report.batch, report.seconds
        if report.output_rows is not None:
            self.output_rows = (self.output_rows or 0) + report.output_rows
        worse = []
        for one in report.sources:
            figures = self.sources.setdefault(one.number, SourceFigures(one))
            before = 0 if figures.report is one else _harm(figures.report)
            figures.add(one)
            if _harm(one) > before:
                worse.append(figures)
        return worse

    def rest(self) -> None:
        """Set all rates to zero, since the query has no new rows."""
        for one in self.sources.values():
            one.report = replace(one.report, input_rate=0.0, processed_rate=0.0)

    def line(self, source: SourceFigures, now: float) -> str:
        """A sentence about the last batch of a source."""
        report = source.report
        stream = f"stream {report.stream}" if report.stream else f"source {report.number}"
        text = f"query {self.name or self.id}, batch {self.batch}: {report.rows} rows of {stream}"
        if report.processed_rate is not None:
            text += f", {report.processed_rate:.0f} rows/s"
        if (lag := source.lag_messages()) is not None:
            text += f", lag {lag} messages"
            if (seconds := source.lag_seconds(now)) is not None:
                text += f" and {seconds:.1f} s"
        for count, what in (
            (report.lost, "messages were removed before they were read"),
            (report.expired, "messages were removed while their batch ran"),
            (report.lapsed, "claims have lapsed"),
        ):
            if count:
                text += f"; since the start, {count} {what}"
        return text

    def fields(self, source: SourceFigures, now: float) -> dict[str, Any]:
        """The same as attributes of a log record."""
        report = source.report
        return {
            "event": "QueryProgress",
            "query": self.name,
            "query_id": self.id,
            "run_id": self.run,
            "batch": self.batch,
            "source": report.number,
            "stream": report.stream,
            "rows": report.rows,
            "rows_per_second": report.processed_rate,
            "lag_messages": source.lag_messages(),
            "lag_seconds": source.lag_seconds(now),
            "lost": report.lost,
            "expired": report.expired,
            "lapsed": report.lapsed,
        }


def _harm(report: SourceReport) -> int:
    return report.lost + report.expired + report.lapsed
