"""What the reports of a query add up to, and how it is written."""

from __future__ import annotations

import pytest

from jsclient.spark.monitoring.figures import QueryFigures, SourceFigures, Unread
from jsclient.spark.monitoring.progress import LogPlace, SourceReport
from tests.support.reports import CREATED, figures, log, report

OTHER = "2026-02-01T00:00:00+00:00"


def test_counts_add_up():
    made = figures(report(log(20)), report(log(30), batch=8), report(log(40), batch=9, output_rows=None))
    assert (made.batch, made.output_rows, made.sources[0].rows) == (9, 6, 9)
    assert made.sources[0].lag_messages() == 10


@pytest.mark.parametrize(("seq", "last", "lag"), [(20, 50, 30), (50, 50, 0), (50, 20, 0), (20, None, None)])
def test_lag_in_messages(seq, last, lag):
    assert SourceFigures(log(seq, last)).lag_messages() == lag


def test_lag_of_queue():
    assert SourceFigures(SourceReport(0, "queue", "JOBS", 3, pending=12)).lag_messages() == 12
    assert SourceFigures(SourceReport(0, "epochs", "flights", 3)).lag_messages() is None


def test_lag_in_seconds():
    source = SourceFigures(log(20, 50))
    assert source.lag_seconds(100.0) is None
    source.answered(LogPlace("ORDERS", CREATED, 20), Unread(80, 90.0))
    assert (source.lag_messages(), source.lag_seconds(100.0)) == (60, 10.0)
    source.add(log(70, 70))  # an upper bound, until the server is asked again
    assert (source.lag_messages(), source.lag_seconds(101.0)) == (10, 11.0)
    source.add(log(80, 80))
    assert (source.lag_messages(), source.lag_seconds(102.0)) == (0, 0.0)
    source.answered(LogPlace("ORDERS", CREATED, 80), Unread(0, 102.0))
    assert (source.lag_messages(), source.lag_seconds(103.0)) == (0, 0.0)
    source.answered(LogPlace("ORDERS", CREATED, 80), None)
    assert source.lag_seconds(103.0) is None


@pytest.mark.parametrize("asked", [LogPlace("ORDERS", OTHER, 20), LogPlace("ORDERS", CREATED, 21)])
def test_answer_about_another_place_ignored(asked):
    source = SourceFigures(log(20, 50))
    source.answered(asked, Unread(80, 90.0))
    assert source.unread is None


def test_answer_about_previous_stream_dropped():
    source = SourceFigures(log(20, 50))
    source.answered(LogPlace("ORDERS", CREATED, 20), Unread(80, 90.0))
    source.add(log(3, 5, created=OTHER))
    assert (source.lag_messages(), source.lag_seconds(100.0)) == (2, None)


def test_losses_are_noticed_once():
    made = QueryFigures("i", "r", "copy")
    assert made.add(report(log())) == []
    (worse,) = made.add(report(log(lost=4)))
    assert worse is made.sources[0]
    assert made.add(report(log(lost=4))) == []
    assert made.add(report(log(lost=4, expired=1))) == [worse]
    assert len(figures().add(report(log(lost=1)))) == 1  # the first report


def test_sentence():
    made = figures(report(log()))
    source = made.sources[0]
    assert made.line(source, 0.0) == "query copy, batch 7: 3 rows of stream ORDERS, 6 rows/s, lag 30 messages"
    source.answered(LogPlace("ORDERS", CREATED, 20), Unread(80, 90.0))
    assert made.line(source, 92.5).endswith(", lag 60 messages and 2.5 s")
    made = figures(report(log(lost=4, expired=2, last=None, processed_rate=None)))
    assert made.line(made.sources[0], 0.0) == (
        "query copy, batch 7: 3 rows of stream ORDERS; since the start, 4 messages were removed before they were "
        "read; since the start, 2 messages were removed while their batch ran"
    )
    unnamed = QueryFigures("i", "r")
    unnamed.add(report(SourceReport(1, "queue", "", 3, lapsed=2), name=""))
    assert unnamed.line(unnamed.sources[1], 0.0) == (
        "query i, batch 7: 3 rows of source 1; since the start, 2 claims have lapsed"
    )


def test_fields_do_not_hide_those_of_log_records():
    import logging

    made = figures(report(log()))
    record = logging.getLogger("x").makeRecord(
        "x", logging.INFO, "", 0, "", (), None, extra=made.fields(made.sources[0], 0.0)
    )
    assert (record.event, record.query, record.batch, record.lag_messages) == ("QueryProgress", "copy", 7, 30)


def test_rates_at_rest():
    made = figures(report(log(input_rate=1.0)))
    made.rest()
    assert (made.sources[0].report.input_rate, made.sources[0].report.processed_rate) == (0.0, 0.0)
    assert made.sources[0].rows == 3
