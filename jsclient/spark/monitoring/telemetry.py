"""Metrics of queries as OpenTelemetry instruments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ...errors import ConfigError
from .metrics import METRICS, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

__all__ = ["register_metrics"]

Values = Callable[[Metric], Iterable[tuple[dict[str, str], float]]]


def register_metrics(meter: Meter, values: Values) -> None:
    """Create an observable instrument for each metric.

    Args:
        meter: The meter that creates the instruments.
        values: A function that returns the labels and the value of each series of a metric. OpenTelemetry calls it in
            its own threads.

    Raises:
        ConfigError: The package opentelemetry-api is not installed.
    """
    try:
        from opentelemetry.metrics import Observation
    except ImportError as error:
        raise ConfigError(f"register needs OpenTelemetry ({error}): pip install 'jsclient[otel]'") from error

    def observed(metric: Metric) -> Callable[[CallbackOptions], list[Observation]]:
        return lambda _: [Observation(value, labels) for labels, value in values(metric)]

    for metric in METRICS:
        counter = metric.kind == "counter"
        create = meter.create_observable_counter if counter else meter.create_observable_gauge
        create(f"jsclient.spark.{metric.name}", [observed(metric)], metric.unit, metric.help)
