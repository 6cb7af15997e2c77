"""Metrics of queries, and their text for Prometheus."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.parser import text_string_to_metric_families

from jsclient.spark.monitoring.figures import QueryFigures, Unread
from jsclient.spark.monitoring.metrics import METRICS, prometheus_text
from jsclient.spark.monitoring.progress import LogPosition
from tests.support.reports import CREATED, ORDERS, figures, log, queue, report, several


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


def every_metric():
    """Queries with a value of each metric."""
    jobs = queue(pending=12, lapsed=1)
    created = figures(report(log(lost=4, expired=2), jobs)), figures(report(log(input_rate=0.25)))
    for one in created:
        one.sources[0].streams["ORDERS"].answered(ORDERS, Unread(80, 90.0))
    return created


def parsed(text):
    """The series of each metric, as Prometheus' own parser reads them: labels and value."""
    return {
        family.name: (family.type, family.documentation, [(one.labels, one.value) for one in family.samples])
        for family in text_string_to_metric_families(text)
    }


def test_parser_reads_every_metric():
    one, two = every_metric()
    two.id, two.name = "j", "other"
    text = prometheus_text([one, two], 100.0)
    assert text.endswith("\n")
    actual = parsed(text)
    assert {name: (kind, text) for name, (kind, text, _) in actual.items()} == {
        f"jsclient_spark_{metric.name}": (metric.kind, metric.help) for metric in METRICS
    }
    for metric in METRICS:
        series = actual[f"jsclient_spark_{metric.name}"][2]
        assert series == [(labels, float(value)) for labels, value in metric.values([one, two], 100.0)]
        assert len({tuple(labels.items()) for labels, _ in series}) == len(series) > 0


def test_names_of_counters_end_with_total():
    text = prometheus_text(every_metric()[:1], 100.0)
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    assert len(kinds) == len(METRICS)
    assert {name.endswith("_total") for name, kind in kinds.items() if kind == "counter"} == {True}
    assert {name.endswith("_total") for name, kind in kinds.items() if kind == "gauge"} == {False}


@given(st.text())
def test_any_name_comes_back(name):
    ((labels, _),) = parsed(prometheus_text([QueryFigures("i", "r", name)], 0.0))["jsclient_spark_query_up"][
        2
    ]
    assert labels == {"query": name, "query_id": "i"}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ('a "b"', r"a \"b\""),
        ("a\\n", r"a\\n"),
        ("a\nb", r"a\nb"),
        ("a\r}", "a\r}"),
        ("half \ud800", "half ?"),
    ],
)
def test_labels_are_escaped(name, written):
    """A name from Java may contain half of a surrogate pair, which cannot be encoded."""
    text = prometheus_text([QueryFigures("i", "r", name)], 0.0)
    assert f'{{query="{written}",query_id="i"}} 1\n' in text
    text.encode()


def test_content_type_of_page():
    page = Path(__file__).parents[3] / "docs" / "howto" / "spark-monitoring.md"
    assert f'"Content-Type", "{CONTENT_TYPE_PLAIN_0_0_4}"' in page.read_text(encoding="utf-8")


def series(metric, *queries, now=100.0):
    """The values of a metric by stream."""
    (actual,) = [one for one in METRICS if one.name == metric]
    return {labels["stream"]: value for labels, value in actual.values(queries, now)}


def test_series_for_each_stream():
    """The rows are counted for the source. All other figures are counted for each stream."""
    created = figures(report(several(log(20, 50, name="A", lost=4), log(5, 9, name="B", expired=1))))
    created.sources[0].streams["A"].answered(LogPosition("A", CREATED, 20), Unread(80, 90.0))
    assert series("rows", created) == {"": 6}
    assert series("position", created) == {"A": 20, "B": 5}
    assert series("end_position", created) == {"A": 80, "B": 9}
    assert series("lag_messages", created) == {"A": 60, "B": 4}
    assert series("lag_seconds", created) == {"A": 10.0}
    assert series("lost_messages", created) == {"A": 4, "B": 0}
    assert series("expired_messages", created) == {"A": 0, "B": 1}
    assert series("lapsed_claims", created) == {}


def test_stream_that_went_away_loses_its_series():
    created = figures(report(several(log(name="A"), log(name="B"))), report(several(log(name="B"))))
    assert series("position", created) == series("lost_messages", created) | {"B": 20} == {"B": 20}
    assert "A" not in prometheus_text([created], 0.0)


def test_positions_only_in_log_mode():
    created = figures(report(queue(pending=12)))
    assert series("position", created) == series("end_position", created) == {}
    assert (series("lag_messages", created), series("lapsed_claims", created)) == ({"JOBS": 12}, {"JOBS": 0})
    assert series("lost_messages", created) == {"JOBS": 0}


def test_large_counts_keep_digits():
    text = prometheus_text([figures(report(log(rows=2**53 + 1)))], 0.0)
    assert " 9007199254740993\n" in text


def test_fractions_are_short():
    created = figures(report(log()))
    created.sources[0].streams["ORDERS"].answered(ORDERS, Unread(80, 90.3))
    assert 'lag_seconds{query="copy",query_id="i",source="0",stream="ORDERS"} 9.7\n' in prometheus_text(
        [created], 100.0
    )


def test_failed_query_is_down():
    created = figures(report(log()))
    created.failed = True
    assert lines(created)[-1] == 'jsclient_spark_query_up{query="copy",query_id="i"} 0'
    assert len(lines(created)) == 3
