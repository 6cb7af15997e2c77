"""The listener that users add to a Spark session to collect the figures of its queries."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.streaming import StreamingQueryListener

from ...protocol.wire.checks import check_seconds
from ...tables.server_options import ServerOptions
from .figures import QueryFigures, SourceFigures, Unread
from .harmless_log import HarmlessLog
from .lag import LagWatch
from .metrics import Metric, prometheus_text
from .progress import QueryPosition, read_progress
from .telemetry import register_metrics

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["JetStreamListener"]

E = TypeVar("E")
_Key = tuple[str, int, str]  # id of a query, number of a source, name of a stream

_PAST = 1000  # number of ended runs that are remembered
_FAILED = 100  # number of failed queries whose `query_up` is kept


def _harmless(
    callback: Callable[[JetStreamListener, E], None],
) -> Callable[[JetStreamListener, E], None]:
    """Wrap a callback for Spark so that it logs each kind of error once instead of raising it."""

    @functools.wraps(callback)
    def called(self: JetStreamListener, event: E) -> None:
        try:
            callback(self, event)
        except Exception as error:  # noqa: BLE001  the error is logged
            self._log.warn_once(f"an event of a query was not counted ({callback.__name__})", error)

    return called


class JetStreamListener(StreamingQueryListener):
    """Measures how far streaming queries lag behind their streams, how fast they read, and what they have lost.

    Add the listener before the queries start, in a classic session or under Spark Connect::

        listener = JetStreamListener()
        spark.streams.addListener(listener)

    The listener logs to ``jsclient.spark.progress``: a sentence about each source at level INFO, and a warning as soon
    as messages are lost or claims have lapsed. To pass the figures to a monitoring system, use `prometheus` or
    `register`. A stopped query disappears from the figures. A failed query keeps ``query_up``, with value 0, so you can
    alert on it.

    Args:
        log_every: Minimum time between two sentences about a query, in seconds. 0 logs each batch, and None only
            warnings.
        servers: Comma-separated URLs, or a mapping with the connection options. If given, the listener also measures
            the lag in seconds of sources in modes log and queue, in its own thread and with its own connection. By
            default, no request is sent.
        ask_every: Interval between rounds of requests to the server, in seconds. A round takes one request for each
            stream. A stream with unread messages takes one more, or two for each subject filter. In queue mode, a
            stream takes up to three.

    Raises:
        ConfigError: An option is invalid.
    """

    def __init__(
        self,
        *,
        log_every: float | None = 60.0,
        servers: Mapping[str, str] | str | None = None,
        ask_every: float = 15.0,
    ) -> None:
        if log_every is not None and log_every != 0:
            check_seconds("log_every", log_every)
        check_seconds("ask_every", ask_every)
        self._log_every = log_every
        self._log = HarmlessLog()
        self._lock = threading.Lock()
        self._queries: dict[str, QueryFigures] = {}  # by id, which a query keeps over restarts
        self._logged: dict[str, float] = {}  # time when the next log line about a query is due, by query id
        self._past: deque[str] = deque(maxlen=_PAST)  # ended runs, whose last reports can arrive late
        self._watch: LagWatch[_Key] | None = None
        if servers is not None:
            self._watch = LagWatch(ServerOptions.of(servers), ask_every, self._positions, self._answered)

    # --- called by Spark ---------------------------------------------------------------------------------------

    @_harmless
    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  Spark's name
        with self._lock:
            self._begin_run(str(event.id), str(event.runId), event.name or "")

    @_harmless
    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  Spark's name
        report = read_progress(event.progress)
        now = time.monotonic()
        with self._lock:
            query = self._queries.get(report.id)
            if report.run in self._past:
                return
            if query is None or query.run != report.run:  # the listener was added after the query had started
                query = self._begin_run(report.id, report.run, report.name)
            worse = query.add_progress(report)
            lines = list(self._due(query, worse, now))
        for level, text, fields in lines:
            self._log.write(level, "%s", text, extra=fields)
        if self._watch is not None:
            self._watch.start_thread()

    @_harmless
    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  Spark's name
        with self._lock:
            query = self._queries.get(str(event.id))
            if query is not None and query.run == str(event.runId):
                query.rest()

    @_harmless
    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  Spark's name
        with self._lock:
            query = self._queries.get(str(event.id))
            if query is None or query.run != str(event.runId):
                return
            self._end_run(query)
            if event.exception is not None:
                query.failed = True
                self._queries[query.id] = query  # moves the query to the end, where the newest queries are
                failed = [figures.id for figures in self._queries.values() if figures.failed]
                for old in failed[:-_FAILED]:
                    del self._queries[old]
        if event.exception is not None:
            fields = {"event": "QueryFailed", "query": query.name, "query_id": query.id, "run_id": query.run}
            self._log.write(
                logging.ERROR, "query %s failed: %s", query.name or query.id, event.exception, extra=fields
            )

    # --- for monitoring systems --------------------------------------------------------------------------------

    def prometheus(self) -> str:
        """Return the figures in the text format of Prometheus, version 0.0.4. Serve it from your metrics endpoint.

        Counters start at 0 again when a query is restarted. If the listener is added later, it counts only the rows of
        the batches that follow. Figures that are unknown are left out. The method may be called from any thread.
        """
        with self._lock:
            return prometheus_text(self._queries.values(), time.monotonic())

    def register(self, meter: Meter) -> None:
        """Export the figures with OpenTelemetry, by creating an observable instrument of this meter for each metric.

        The instruments have the same names as in `prometheus`, but with the prefix ``jsclient.spark.`` and without the
        suffix ``_total``.

        Args:
            meter: The result of ``opentelemetry.metrics.get_meter``.

        Raises:
            ConfigError: The package opentelemetry-api isn't installed.
        """
        register_metrics(meter, self._values)

    def close(self) -> None:
        """Stop the requests to the server, which measure the lag in seconds.

        The listener still receives events until you remove it with ``spark.streams.removeListener``.
        """
        if self._watch is not None:
            self._watch.close()

    def _values(self, metric: Metric) -> list[tuple[dict[str, str], float]]:
        with self._lock:
            return list(metric.values(self._queries.values(), time.monotonic()))

    # --- state; the lock is held -------------------------------------------------------------------------------

    def _begin_run(self, query: str, run: str, name: str) -> QueryFigures:
        if (before := self._queries.get(query)) is not None:
            self._end_run(before)
        figures = self._queries[query] = QueryFigures(query, run, name)
        return figures

    def _end_run(self, query: QueryFigures) -> None:
        del self._queries[query.id]
        self._logged.pop(query.id, None)
        self._past.append(query.run)

    def _due(
        self, query: QueryFigures, worse: list[SourceFigures], now: float
    ) -> Iterable[tuple[int, str, dict[str, Any]]]:
        """Yield the level, text and fields of each log record that is due after a batch."""
        due = self._log_every is not None and now >= self._logged.get(query.id, now)
        if self._log_every is not None and due and query.sources:
            self._logged[query.id] = now + self._log_every
        for source in query.sources.values():
            bad = any(source is one for one in worse)
            if due or bad:
                level = logging.WARNING if bad else logging.INFO
                yield level, query.line(source, now), query.fields(source, now)

    # --- for the watch -----------------------------------------------------------------------------------------

    def _positions(self) -> dict[_Key, QueryPosition]:
        with self._lock:
            return {
                (query.id, number, name): query_position
                for query in self._queries.values()
                if not query.failed
                for number, source in query.sources.items()
                for name, stream in source.streams.items()
                if name and (query_position := stream.report.query_position) is not None
            }

    def _answered(self, key: _Key, position: QueryPosition, unread: Unread | None) -> None:
        query_id, number, name = key
        with self._lock:
            query = self._queries.get(query_id)
            source = None if query is None else query.sources.get(number)
            stream = None if source is None else source.streams.get(name)
            if stream is not None:
                stream.answered(position, unread)
