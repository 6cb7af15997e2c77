"""Figures of running queries, computed from their reports, and log lines about them.

This module does no I/O and reads no clock. Callers pass times as seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...errors import counted
from .progress import LogPosition, QueryPosition, QueryReport, QueuePosition, SourceReport, StreamReport

__all__ = ["QueryFigures", "SourceFigures", "StreamFigures", "Unread"]


@dataclass(frozen=True, slots=True)
class Unread:
    """The unread messages after a position, as the server reported them."""

    # In log mode, the sequence of the last unread message that matches the filters, or 0 if there is none. In queue
    # mode, the number of messages that are pending or not acked.
    last: int
    since: float  # no unread message was stored before this time


@dataclass
class StreamFigures:
    """The figures of one stream of a source."""

    report: StreamReport  # the latest report
    unread: Unread | None = None  # the server's latest answer, or None without an answer

    def add_report(self, report: StreamReport) -> bool:
        """Add the report of a batch. Returns whether losses or lapsed claims increased since the previous report."""
        before, self.report = self.report, report
        query_position, old = report.query_position, before.query_position
        if (
            isinstance(query_position, LogPosition)
            and isinstance(old, LogPosition)
            and query_position.created == old.created
        ):
            pass  # the stream is the same, so the answer is still valid
        elif (
            isinstance(query_position, QueuePosition) and query_position == old and report.pending is not None
        ):
            self.unread = self.unread and replace(self.unread, last=report.pending)
        else:
            self.unread = None  # the answer may be about another stream
        return _harm(report) > _harm(before)

    def answered(self, request: QueryPosition, unread: Unread | None) -> None:
        """Store the server's answer if ``request`` is the latest or an earlier position of this source."""
        query_position = self.report.query_position
        if isinstance(query_position, LogPosition) and isinstance(request, LogPosition):
            fits = query_position.created == request.created and query_position.seq >= request.seq
        else:
            fits = query_position == request
        if fits:
            self.unread = unread

    def position(self) -> int | None:
        """Return the last sequence of the last completed batch, or None outside log mode."""
        query_position = self.report.query_position
        return query_position.seq if isinstance(query_position, LogPosition) else None

    def end(self) -> int | None:
        """Return the last known sequence that matches the filters, or None if unknown or outside log mode."""
        known = (self.report.last, None if self.unread is None else self.unread.last)
        ends, position = [end for end in known if end is not None], self.position()
        return max(position, *ends) if position is not None and ends else None

    def lag_messages(self) -> int | None:
        """Return the number of messages after the last completed batch, or None if unknown.

        In log mode the number includes deleted sequences.
        """
        position, end = self.position(), self.end()
        if position is not None:
            return None if end is None else end - position
        return self.report.pending if self.unread is None else self.unread.last

    def lag_seconds(self, now: float) -> float | None:
        """Return the age of the oldest unread message in seconds, 0 without unread messages, or None if unknown.

        While the query reads, this is an upper bound.
        """
        if self.unread is None:
            return None
        return max(0.0, now - self.unread.since) if self.lag_messages() else 0.0


@dataclass
class SourceFigures:
    """The figures of one source since its query started."""

    report: SourceReport  # the latest report
    rows: int = 0  # rows of all batches
    streams: dict[str, StreamFigures] = field(default_factory=dict)  # streams of the latest report, by name

    def add_report(self, report: SourceReport) -> bool:
        """Add the report of a batch. Returns whether losses or lapsed claims of a stream increased."""
        self.report = report
        self.rows += report.rows
        before = self.streams
        self.streams = {
            one.name: before.get(one.name) or StreamFigures(StreamReport(one.name)) for one in report.streams
        }
        return sum(self.streams[one.name].add_report(one) for one in report.streams) > 0

    def lag_messages(self) -> int | None:
        """Return the total lag of the streams whose lag is known, or None if no lag is known."""
        known = [lag for stream in self.streams.values() if (lag := stream.lag_messages()) is not None]
        return sum(known) if known else None

    def lag_seconds(self, now: float) -> float | None:
        """Return the largest lag of the streams whose lag is known, or None if no lag is known."""
        known = (stream.lag_seconds(now) for stream in self.streams.values())
        return max((lag for lag in known if lag is not None), default=None)


@dataclass
class QueryFigures:
    """The figures of one run of a query."""

    id: str
    run: str
    name: str = ""
    batch: int | None = None  # the last completed batch
    seconds: float | None = None  # duration of that batch
    output_rows: int | None = None  # rows of all batches, or None if the sink does not count them
    failed: bool = False
    sources: dict[int, SourceFigures] = field(default_factory=dict)

    def add_progress(self, report: QueryReport) -> list[SourceFigures]:
        """Add the progress of a batch. Returns the sources whose losses or lapsed claims increased."""
        self.name, self.batch, self.seconds = report.name, report.batch, report.seconds
        if report.output_rows is not None:
            self.output_rows = (self.output_rows or 0) + report.output_rows
        worse = []
        for one in report.sources:
            figures = self.sources.setdefault(one.number, SourceFigures(one))
            if figures.add_report(one):
                worse.append(figures)
        return worse

    def rest(self) -> None:
        """Set all rates to zero when the query is idle."""
        for one in self.sources.values():
            one.report = replace(one.report, input_rate=0.0, processed_rate=0.0)

    def line(self, source: SourceFigures, now: float) -> str:
        """Return the log line about the last batch of a source."""
        report = source.report
        streams = source.streams.values()
        what = f"stream {report.stream}" if report.stream else f"source {report.number}"
        if len(streams) > 1:
            what = f"{len(streams)} streams"
        text = f"query {self.name or self.id}, batch {self.batch}: {counted(report.rows, 'row')} of {what}"
        if report.processed_rate is not None:
            text += f", {report.processed_rate:.0f} rows/s"
        if (lag := source.lag_messages()) is not None:
            text += f", lag {counted(lag, 'message')}"
            if (seconds := source.lag_seconds(now)) is not None:
                text += f" and {seconds:.1f} s"
        harm = [text for one in streams for text in _harms(one.report, is_named=not report.stream)]
        return f"{text}; since the start: {', '.join(harm)}" if harm else text

    def fields(self, source: SourceFigures, now: float) -> dict[str, Any]:
        """Return the figures of a source as attributes of a log record."""
        report, streams = source.report, source.streams.values()
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
            "lost": sum(one.report.lost for one in streams),
            "expired": sum(one.report.expired for one in streams),
            "lapsed": sum(one.report.lapsed for one in streams),
        }


def _harm(report: StreamReport) -> int:
    return report.lost + report.expired + report.lapsed


def _harms(report: StreamReport, *, is_named: bool) -> list[str]:
    stream = f" of stream {report.name}" if is_named and report.name else ""
    texts = (
        (report.lost, f"{counted(report.lost, 'message')}{stream} removed unread"),
        (report.expired, f"{counted(report.expired, 'message')}{stream} removed while the batch ran"),
        (report.lapsed, f"{counted(report.lapsed, 'claim')}{stream} lapsed"),
    )
    return [text for count, text in texts if count]
