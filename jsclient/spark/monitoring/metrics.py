"""The metrics of queries, and their text format for Prometheus. This module does no I/O and reads no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from .figures import QueryFigures, SourceFigures, StreamFigures
from .progress import LogPosition, QueuePosition

__all__ = ["METRICS", "Metric", "prometheus_text"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric, with functions that compute its value for a query, a source or a stream.

    A series whose value is None is omitted.
    """

    name: str  # without the prefix "jsclient_spark_", and without the suffix "_total" of a counter
    kind: Literal["gauge", "counter"]
    help: str
    unit: str = ""  # unit in OpenTelemetry's notation
    of_query: Callable[[QueryFigures], float | None] | None = None
    of_source: Callable[[SourceFigures], float | None] | None = None
    of_stream: Callable[[StreamFigures, float], float | None] | None = None  # the float is the time

    def values(self, queries: Iterable[QueryFigures], now: float) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the labels and the value of each series at the time ``now``."""
        for query in queries:
            labels = {"query": _encodable(query.name), "query_id": query.id}
            if self.of_query is not None and (value := self.of_query(query)) is not None:
                yield labels, value
            for number, source in () if query.failed else sorted(query.sources.items()):
                of_source = {**labels, "source": str(number)}
                if self.of_source is not None and (value := self.of_source(source)) is not None:
                    yield {**of_source, "stream": _encodable(source.report.stream)}, value
                if self.of_stream is None:
                    continue
                for name, stream in source.streams.items():
                    if (value := self.of_stream(stream, now)) is not None:
                        yield {**of_source, "stream": _encodable(name)}, value


METRICS = (
    Metric(
        "query_up",
        "gauge",
        "1 while the query runs, 0 after it failed.",
        of_query=lambda q: float(not q.failed),
    ),
    Metric(
        "batch_duration_seconds",
        "gauge",
        "Duration of the last batch.",
        "s",
        of_query=lambda q: None if q.failed else q.seconds,
    ),
    Metric(
        "output_rows",
        "counter",
        "Rows that the sink has written.",
        "{row}",
        of_query=lambda q: None if q.failed else q.output_rows,
    ),
    Metric("rows", "counter", "Rows read in completed batches.", "{row}", of_source=lambda s: s.rows),
    Metric(
        "input_rows_per_second",
        "gauge",
        "Rows that arrived per second before the last batch.",
        "{row}/s",
        of_source=lambda s: s.report.input_rate,
    ),
    Metric(
        "processed_rows_per_second",
        "gauge",
        "Rows that the last batch processed per second.",
        "{row}/s",
        of_source=lambda s: s.report.processed_rate,
    ),
    Metric(
        "position",
        "gauge",
        "Last sequence of the last completed batch.",
        of_stream=lambda s, _: s.position(),
    ),
    Metric(
        "end_position",
        "gauge",
        "Last known sequence of the stream that matches.",
        of_stream=lambda s, _: s.end(),
    ),
    Metric(
        "lag_messages",
        "gauge",
        "Messages after the last completed batch.",
        "{message}",
        of_stream=lambda s, _: s.lag_messages(),
    ),
    Metric(
        "lag_seconds",
        "gauge",
        "Age of the oldest message after the last completed batch.",
        "s",
        of_stream=lambda s, now: s.lag_seconds(now),
    ),
    Metric(
        "lost_messages",
        "counter",
        "Messages that were removed before their batch was planned.",
        "{message}",
        of_stream=lambda s, _: s.report.lost if s.report.query_position is not None else None,
    ),
    Metric(
        "expired_messages",
        "counter",
        "Messages that were removed while their batch ran; tasks may have read some.",
        "{message}",
        of_stream=lambda s, _: s.report.expired if isinstance(s.report.query_position, LogPosition) else None,
    ),
    Metric(
        "lapsed_claims",
        "counter",
        "Claims of queue mode that other clients may have received as well.",
        "{claim}",
        of_stream=lambda s, _: (
            s.report.lapsed if isinstance(s.report.query_position, QueuePosition) else None
        ),
    ),
)


def prometheus_text(queries: Iterable[QueryFigures], now: float) -> str:
    """Return all metrics in the text format 0.0.4 of Prometheus. Metrics without a value are omitted."""
    lines: list[str] = []
    figures = list(queries)
    for metric in METRICS:
        series = list(metric.values(figures, now))
        if not series:
            continue
        name = f"jsclient_spark_{metric.name}{'_total' if metric.kind == 'counter' else ''}"
        lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        for labels, value in series:
            pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{name}{{{pairs}}} {_number(value)}")
    return "".join(f"{line}\n" for line in lines)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which Java strings may contain, by ``?``."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(value, 6))
