"""What the reports of a query add up to, and how it is written."""

from __future__ import annotations

import pytest

from jsclient.spark.monitoring.figures import QueryFigures, StreamFigures, Unread
from jsclient.spark.monitoring.progress import LogPosition, QueuePosition, SourceReport, StreamReport
from tests.support.reports import CREATED, JOBS, ORDERS, figures, log, queue, report, several

OTHER = "2026-02-01T00:00:00+00:00"


def test_counts_add_up():
    created = figures(report(log(20)), report(log(30), batch=8), report(log(40), batch=9, output_rows=None))
    assert (created.batch, created.output_rows, created.sources[0].rows) == (9, 6, 9)
    assert created.sources[0].lag_messages() == 10


def stream(source):
    """The figures of the only stream of a source."""
    (one,) = source.streams
    return StreamFigures(one)


@pytest.mark.parametrize(("seq", "last", "lag"), [(20, 50, 30), (50, 50, 0), (50, 20, 0), (20, None, None)])
def test_lag_in_messages(seq, last, lag):
    one = stream(log(seq, last))
    assert one.lag_messages() == lag
    assert (one.position(), one.end()) == (seq, None if lag is None else seq + lag)


def test_lag_of_queue():
    one = stream(queue(pending=12))
    assert (one.lag_messages(), one.lag_seconds(100.0), one.position(), one.end()) == (12, None, None, None)
    one.answered(JOBS, Unread(15, 90.0))  # including the messages of the batch that runs
    assert (one.lag_messages(), one.lag_seconds(100.0)) == (15, 10.0)
    one.add_report(queue(pending=3).streams[0])
    assert (one.lag_messages(), one.lag_seconds(101.0)) == (3, 11.0)
    one.add_report(StreamReport("JOBS", JOBS))
    assert one.unread is None  # it is not known whether this is the same
    one.answered(JOBS, Unread(0, 102.0))
    assert (one.lag_messages(), one.lag_seconds(103.0)) == (0, 0.0)
    one.answered(QueuePosition("JOBS", "other"), Unread(5, 102.0))
    assert one.lag_messages() == 0


def test_lag_of_epochs_unknown():
    assert StreamFigures(StreamReport("flights")).lag_messages() is None


def test_lag_in_seconds():
    one = stream(log(20, 50))
    assert one.lag_seconds(100.0) is None
    one.answered(ORDERS, Unread(80, 90.0))
    assert (one.lag_messages(), one.lag_seconds(100.0)) == (60, 10.0)
    one.add_report(log(70, 70).streams[0])  # an upper bound, until the server is asked again
    assert (one.lag_messages(), one.lag_seconds(101.0)) == (10, 11.0)
    one.add_report(log(80, 80).streams[0])
    assert (one.lag_messages(), one.lag_seconds(102.0)) == (0, 0.0)
    one.answered(LogPosition("ORDERS", CREATED, 80), Unread(0, 102.0))
    assert (one.lag_messages(), one.lag_seconds(103.0)) == (0, 0.0)
    one.answered(LogPosition("ORDERS", CREATED, 80), None)
    assert one.lag_seconds(103.0) is None


@pytest.mark.parametrize(
    "requested", [LogPosition("ORDERS", OTHER, 20), LogPosition("ORDERS", CREATED, 21), JOBS]
)
def test_answer_about_another_position_is_ignored(requested):
    one = stream(log(20, 50))
    one.answered(requested, Unread(80, 90.0))
    assert one.unread is None


def test_answer_about_previous_stream_dropped():
    one = stream(log(20, 50))
    one.answered(ORDERS, Unread(80, 90.0))
    one.add_report(log(3, 5, created=OTHER).streams[0])
    assert (one.lag_messages(), one.lag_seconds(100.0)) == (2, None)


def test_lag_of_several_streams():
    """The sum of the messages and the greatest age, as far as they are known."""
    created = figures(report(several(log(20, 50, name="A"), log(5, 9, name="B"), log(5, None, name="C"))))
    source = created.sources[0]
    assert (source.lag_messages(), source.lag_seconds(100.0)) == (34, None)
    source.streams["B"].answered(LogPosition("B", CREATED, 5), Unread(10, 97.0))
    source.streams["A"].answered(LogPosition("A", CREATED, 20), Unread(50, 98.0))
    assert (source.lag_messages(), source.lag_seconds(100.0)) == (35, 3.0)
    created.add_progress(report(several(log(7, 10, name="B"))))  # A and C went away
    assert (list(source.streams), source.rows, source.lag_messages()) == (["B"], 12, 3)
    assert source.lag_seconds(100.0) == 3.0


def test_losses_are_noticed_once():
    created = QueryFigures("i", "r", "copy")
    assert created.add_progress(report(log())) == []
    (worse,) = created.add_progress(report(log(lost=4)))
    assert worse is created.sources[0]
    assert created.add_progress(report(log(lost=4))) == []
    assert created.add_progress(report(log(lost=4, expired=1))) == [worse]
    assert len(figures().add_progress(report(log(lost=1)))) == 1  # the first report


def test_loss_of_one_stream_is_noticed():
    """Though the sum falls, since another stream went away."""
    created = figures(report(several(log(name="A", lost=9), log(name="B", lost=1))))
    assert created.add_progress(report(several(log(name="B", lost=2)))) == [created.sources[0]]
    assert created.add_progress(report(several(log(name="B", lost=2), log(name="C")))) == []


def test_sentence():
    created = figures(report(log()))
    source = created.sources[0]
    assert (
        created.line(source, 0.0) == "query copy, batch 7: 3 rows of stream ORDERS, 6 rows/s, lag 30 messages"
    )
    source.streams["ORDERS"].answered(ORDERS, Unread(80, 90.0))
    assert created.line(source, 92.5).endswith(", lag 60 messages and 2.5 s")
    created = figures(report(log(lost=4, expired=2, last=None, processed_rate=None)))
    assert created.line(created.sources[0], 0.0) == (
        "query copy, batch 7: 3 rows of stream ORDERS; since the start: 4 messages removed unread, 2 messages removed "
        "while the batch ran"
    )
    unnamed = QueryFigures("i", "r")
    unnamed.add_progress(report(SourceReport(1, "queue", "", 3, (StreamReport("", lapsed=2),)), name=""))
    assert unnamed.line(unnamed.sources[1], 0.0) == (
        "query i, batch 7: 3 rows of source 1; since the start: 2 claims lapsed"
    )
    created = figures(report(log(20, 21, rows=1, lost=1)))
    assert created.line(created.sources[0], 0.0) == (
        "query copy, batch 7: 1 row of stream ORDERS, 6 rows/s, lag 1 message; since the start: 1 message removed "
        "unread"
    )


def test_sentence_about_several_streams():
    created = figures(report(several(log(20, 50, name="A", lost=4), log(5, 9, name="B"))))
    assert created.line(created.sources[0], 0.0) == (
        "query copy, batch 7: 6 rows of 2 streams, 6 rows/s, lag 34 messages; since the start: 4 messages of stream A "
        "removed unread"
    )
    fields = created.fields(created.sources[0], 0.0)
    assert (fields["stream"], fields["lag_messages"], fields["lost"]) == ("", 34, 4)


def test_fields_do_not_hide_those_of_log_records():
    import logging

    created = figures(report(log()))
    record = logging.getLogger("x").makeRecord(
        "x", logging.INFO, "", 0, "", (), None, extra=created.fields(created.sources[0], 0.0)
    )
    assert (record.event, record.query, record.batch, record.lag_messages) == ("QueryProgress", "copy", 7, 30)


def test_rates_when_idle():
    created = figures(report(log(input_rate=1.0)))
    created.rest()
    assert (created.sources[0].report.input_rate, created.sources[0].report.processed_rate) == (0.0, 0.0)
    assert created.sources[0].rows == 3
