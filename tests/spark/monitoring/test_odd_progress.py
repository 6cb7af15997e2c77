"""Progress in a form that no Spark writes today: it is read as far as it is known, and metrics stay readable."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from jsclient.spark.monitoring.figures import QueryFigures
from jsclient.spark.monitoring.metrics import METRICS, prometheus_text
from jsclient.spark.monitoring.progress import read_progress
from tests.support.reports import CREATED

LARGEST = 2**63 - 1  # of a count that all monitoring systems take

numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 2**64, -1, 0, True])
leaves = (
    st.none() | numbers | st.text(max_size=5) | st.sampled_from([CREATED, "ORDERS", "\ud800", "None", "{"])
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def mostly(**fields):
    """An object with these fields, of which any may be missing or odd."""
    whole = st.fixed_dictionaries(fields)
    one = st.dictionaries(st.sampled_from(sorted(fields)), values, max_size=1)
    missing = st.sampled_from([None, None, *fields])
    return st.builds(
        lambda fields, odd, missing: {
            name: one for name, one in {**fields, **odd}.items() if name != missing
        },
        whole,
        one,
        missing,
    )


counts = st.integers(0, 100) | numbers
position = mostly(
    seq=counts,
    created=st.just(CREATED),
    stream=st.sampled_from(["ORDERS", "\ud800"]),
    lost=counts,
    expired=counts,
)
streams = mostly(streams=st.fixed_dictionaries({}, optional={"A": position, "B": position, "C": values}))
claims = mostly(b=counts, runs=values, stream=st.just("JOBS"), consumer=st.text(max_size=3), pending=counts)
epochs = mostly(v=counts, since=values, frontiers=values, stream=st.text(max_size=3))


def source_of(offset):
    written = offset | offset.map(json.dumps)
    return mostly(
        endOffset=written,
        latestOffset=written,
        numInputRows=counts,
        inputRowsPerSecond=counts,
        processedRowsPerSecond=counts,
    )


source = st.one_of(*(source_of(one) for one in (position, streams, claims, epochs)))
progress = st.builds(
    lambda needed, more: {**more, **needed},
    st.fixed_dictionaries({"id": st.text(), "runId": st.text(), "batchId": st.integers()}),
    mostly(
        name=st.text(max_size=5),
        batchDuration=counts,
        sources=st.lists(source | values, max_size=3),
        sink=mostly(numOutputRows=counts),
    ),
)


@given(st.lists(progress, max_size=3))
def test_any_progress_leaves_metrics_readable(reports):
    query = QueryFigures("i", "r")
    for one in reports:
        for figures in query.add_progress(read_progress(one)):
            query.line(figures, 0.0)
    for source in query.sources.values():
        query.line(source, 0.0)
        query.fields(source, 0.0)
    text = prometheus_text([query], 0.0)
    text.encode()
    assert all(list(family.samples) for family in text_string_to_metric_families(text))
    for metric in METRICS:
        actual = list(metric.values([query], 0.0))
        assert all(math.isfinite(value) and value >= 0 for _, value in actual)
        assert len({tuple(labels.items()) for labels, _ in actual}) == len(actual)


def only(**fields):
    read = read_progress({"id": "i", "runId": "r", "batchId": 1, **fields})
    return read.sources


@pytest.mark.parametrize("sources", [None, {}, "x", 3, [None, 3, "x", []], [{}]])
def test_sources_of_another_form(sources):
    assert only(sources=sources) == only() == ()


@pytest.mark.parametrize("seq", [None, -1, "20", 1.5, LARGEST + 1, {}])
def test_sequence_of_another_form_is_no_position(seq):
    """A query at sequence 0 would be one with a lag."""
    end = {"seq": seq, "created": CREATED}
    assert only(sources=[{"endOffset": end}]) == ()
    several = {"endOffset": {"streams": {"A": end}}, "latestOffset": {"streams": {"A": {"seq": 5}}}}
    (one,) = only(sources=[several])
    assert one.streams == ()


@pytest.mark.parametrize("number", [10**400, LARGEST + 1, -1, math.nan, math.inf, "3", None])
def test_numbers_that_cannot_be(number):
    end = {"endOffset": {"seq": 5, "created": CREATED}, "latestOffset": {"lost": number}}
    rates = {"numInputRows": number, "inputRowsPerSecond": number, "processedRowsPerSecond": number}
    read = read_progress(
        {
            "id": "i",
            "runId": "r",
            "batchId": 1,
            "batchDuration": number,
            "sources": [end | rates],
            "sink": {"numOutputRows": number},
        }
    )
    (one,) = read.sources
    assert (one.rows, one.streams[0].lost, read.output_rows) == (0, 0, None)
    if number != LARGEST + 1:  # a rate may be
        assert (one.input_rate, one.processed_rate, read.seconds) == (None, None, None)


@pytest.mark.parametrize("needed", ["id", "runId", "batchId"])
def test_progress_without_its_query_is_refused(needed):
    progress = {"id": "i", "runId": "r", "batchId": 1}
    del progress[needed]
    with pytest.raises(KeyError):
        read_progress(progress)


def test_sum_of_rows_may_be_large():
    query = QueryFigures("i", "r")
    for _ in range(3):
        query.add_progress(
            read_progress(
                {
                    "id": "i",
                    "runId": "r",
                    "batchId": 1,
                    "sources": [{"endOffset": {"seq": 5, "created": CREATED}, "numInputRows": LARGEST}],
                }
            )
        )
    assert f" {3 * LARGEST}\n" in prometheus_text([query], 0.0)
