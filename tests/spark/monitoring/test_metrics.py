"""Metrics of queries, and their text for Prometheus."""

from __future__ import annotations

from jsclient.spark.monitoring.figures import QueryFigures, Unread
from jsclient.spark.monitoring.metrics import METRICS, prometheus_text
from jsclient.spark.monitoring.progress import LogPlace, SourceReport
from tests.support.reports import CREATED, figures, log, report


def lines(*queries, now=0.0):
    return prometheus_text(queries, now).splitlines()


def test_prometheus_text():
    text = lines(figures(report(log())))
    labels = 'query="copy",query_id="i",source="0",stream="ORDERS"'
    assert "# HELP jsclient_spark_rows_total Rows read in completed batches." in text
    assert "# TYPE jsclient_spark_rows_total counter" in text
    assert f"jsclient_spark_rows_total{{{labels}}} 3" in text
    assert "# TYPE jsclient_spark_lag_messages gauge" in text
    assert f"jsclient_spark_lag_messages{{{labels}}} 30" in text
    assert 'jsclient_spark_query_up{query="copy",query_id="i"} 1' in text
    assert 'jsclient_spark_batch_duration_seconds{query="copy",query_id="i"} 1.5' in text
    assert not any("lag_seconds" in line or "lapsed" in line for line in text)
    assert prometheus_text([], 0.0) == ""
    assert prometheus_text([QueryFigures("i", "r")], 0.0).endswith("\n")


def test_each_metric_once_and_described():
    queue = SourceReport(1, "queue", "JOBS", 3, 1.0, 2.0, pending=12, lapsed=1)
    one, two = figures(report(log(), queue)), figures(report(log()))
    for made in (one, two):
        made.sources[0].answered(LogPlace("ORDERS", CREATED, 20), Unread(80, 90.0))
    text = lines(one, two, now=100.0)
    types = [line.split()[2] for line in text if line.startswith("# TYPE")]
    assert types == [line.split()[2] for line in text if line.startswith("# HELP")]
    assert len(types) == len(set(types)) == len(METRICS)
    # The series of a metric follow its type.
    at = ""
    for line in text:
        at = line.split()[2] if line.startswith("#") else at
        assert line.startswith(("#", f"{at}{{"))


def test_labels_are_escaped():
    text = prometheus_text([QueryFigures("i", "r", 'a "b"\\\nc')], 0.0)
    assert 'query="a \\"b\\"\\\\\\nc",' in text


def test_large_counts_keep_digits():
    text = prometheus_text([figures(report(log(rows=2**53 + 1)))], 0.0)
    assert " 9007199254740993\n" in text


def test_failed_query_is_down():
    made = figures(report(log()))
    made.failed = True
    assert lines(made)[-1] == 'jsclient_spark_query_up{query="copy",query_id="i"} 0'
    assert len(lines(made)) == 3
