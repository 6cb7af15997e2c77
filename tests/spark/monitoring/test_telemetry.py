"""Instruments of OpenTelemetry, of which only the class of observations is needed."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from jsclient.errors import ConfigError
from jsclient.spark.monitoring.figures import QueryFigures
from jsclient.spark.monitoring.metrics import METRICS
from jsclient.spark.monitoring.telemetry import register_metrics


class Meter:
    """Keeps the instruments that are created."""

    def __init__(self):
        self.made = {}

    def create_observable_gauge(self, name, callbacks, unit, description):
        self.made[name] = ("gauge", callbacks, unit, description)

    def create_observable_counter(self, name, callbacks, unit, description):
        self.made[name] = ("counter", callbacks, unit, description)


@pytest.fixture
def telemetry(monkeypatch):
    """The package as far as it is used."""
    package, module = ModuleType("opentelemetry"), ModuleType("opentelemetry.metrics")
    module.Observation = lambda value, labels: SimpleNamespace(value=value, attributes=labels)
    package.metrics = module
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", module)


def test_each_metric_is_an_instrument(telemetry):
    meter, queries = Meter(), [QueryFigures("i", "r", "copy")]
    register_metrics(meter, lambda metric: metric.values(queries, 0.0))
    assert {name: made[0] for name, made in meter.made.items()} == {
        f"jsclient.spark.{one.name}": one.kind for one in METRICS
    }
    _, (callback,), unit, description = meter.made["jsclient.spark.query_up"]
    (one,) = callback(None)
    assert (one.value, one.attributes) == (1.0, {"query": "copy", "query_id": "i"})
    assert (unit, description) == ("", "1 while the query runs, 0 after it failed.")
    queries.clear()
    assert callback(None) == []


def test_without_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", None)
    with pytest.raises(ConfigError, match=r"pip install 'jsclient\[otel\]'"):
        register_metrics(Meter(), lambda metric: ())
