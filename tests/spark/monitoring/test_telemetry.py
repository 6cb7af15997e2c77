"""Instruments of OpenTelemetry, read back through its SDK."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Sum

from jsclient.errors import ConfigError
from jsclient.spark.monitoring.figures import Unread
from jsclient.spark.monitoring.metrics import METRICS
from jsclient.spark.monitoring.telemetry import register_metrics
from tests.support.reports import ORDERS, figures, log, queue, report


class Exported:
    """The metrics that an exporter receives of some queries at the time 100."""

    def __init__(self, queries):
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])
        register_metrics(
            self.provider.get_meter("orders"), lambda metric: list(metric.values(queries, 100.0))
        )

    def metrics(self):
        data = self._reader.get_metrics_data()
        resources = [] if data is None else data.resource_metrics
        return {one.name: one for of in resources for scope in of.scope_metrics for one in scope.metrics}

    def points(self, name):
        return [(dict(one.attributes), one.value) for one in self.metrics()[name].data.data_points]


@pytest.fixture
def exported():
    results = []

    def export(queries):
        results.append(Exported(queries))
        return results[-1]

    yield export
    for one in results:
        one.provider.shutdown()


def every_metric():
    created = figures(report(log(lost=4), queue(pending=12, lapsed=1)))
    created.sources[0].streams["ORDERS"].answered(ORDERS, Unread(80, 90.0))
    return created


def test_each_metric_is_exported(exported):
    metrics = exported([every_metric()]).metrics()
    assert {name: (one.unit, one.description) for name, one in metrics.items()} == {
        f"jsclient.spark.{one.name}": (one.unit, one.help) for one in METRICS
    }
    counters = {name for name, one in metrics.items() if isinstance(one.data, Sum)}
    assert counters == {f"jsclient.spark.{one.name}" for one in METRICS if one.kind == "counter"}
    assert all(metrics[name].data.is_monotonic for name in counters)


def test_values_and_labels(exported):
    actual = exported([every_metric()])
    query = {"query": "copy", "query_id": "i"}
    orders, jobs = query | {"source": "0", "stream": "ORDERS"}, query | {"source": "1", "stream": "JOBS"}
    assert actual.points("jsclient.spark.query_up") == [(query, 1.0)]
    assert actual.points("jsclient.spark.rows") == [(orders, 3), (jobs, 3)]
    assert actual.points("jsclient.spark.lag_messages") == [(orders, 60), (jobs, 12)]
    assert actual.points("jsclient.spark.lag_seconds") == [(orders, 10.0)]
    assert actual.points("jsclient.spark.lost_messages") == [(orders, 4), (jobs, 0)]
    assert actual.points("jsclient.spark.lapsed_claims") == [(jobs, 1)]


def test_query_that_ends_is_exported_no_more(exported):
    queries = [every_metric()]
    actual = exported(queries)
    assert actual.metrics()
    queries.clear()
    assert actual.metrics() == {}


def test_without_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ConfigError, match=r"pip install 'jsclient\[otel\]'"):
        register_metrics(None, lambda metric: ())
