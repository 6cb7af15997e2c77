"""The watch over the driver's queries: its reports, and the failures after which it starts the driver again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from examples.flights.pipeline import watching
from examples.flights.pipeline.watching import Watch, is_transient
from examples.flights.pipeline.words import BatchDone, QueryBegins, QueryEnded, QueryStartsAgain

SPARK = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted due to stage failure\n"
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 4 times, most "
    "recent failure: Lost task 0.0 in stage 4.0 (TID 4) (localhost executor driver): java.io.OptionalDataException\n"
    "\tat java.base/java.io.ObjectInputStream.readObject0(ObjectInputStream.java:1759)\n"
)
SLOW = "org.apache.spark.SparkException: Python worker failed to connect back.\n"
OURS = SPARK + "jsclient.errors.StreamNotFoundError: stream not found\n"


class Query:
    """A query that has ended, with these batches."""

    def __init__(self, name, batches=(), error=None):
        self.name, self._error = name, error
        self.isActive = False
        self.recentProgress = [
            SimpleNamespace(
                batchId=batch,
                durationMs={"addBatch": 5},
                stateOperators=[],
                numInputRows=10,
                processedRowsPerSecond=2.0,
            )
            for batch in batches
        ]

    def exception(self):
        return self._error


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(watching.time, "sleep", lambda _: None)


def starts_of(*queries):
    """A function that starts one after the other."""
    remaining = list(queries)
    return lambda: remaining.pop(0)


def test_failed_query_is_restarted():
    reports, renewed = [], []
    watch = Watch(reports.append, lambda: renewed.append(len(reports)))
    failed, again = Query("a", [0], RuntimeError(SPARK)), Query("a", [0, 1])
    watch.until_ended([starts_of(failed, again), starts_of(Query("b", [0]))])
    kinds = [type(report) for report in reports if report.query == "a"]
    assert kinds == [QueryBegins, BatchDone, QueryStartsAgain, BatchDone, QueryEnded]
    assert [report.batch for report in reports if report.query == "a" and isinstance(report, BatchDone)] == [
        0,
        1,
    ]
    (start,) = [report for report in reports if isinstance(report, QueryStartsAgain)]
    assert start.reason.startswith("SparkException: Job aborted")
    assert len(renewed) == 1
    assert reports[renewed[0] - 1] is start, "renewed before it is started"


def test_failure_of_source_raised():
    reports = []
    with pytest.raises(RuntimeError, match="stream not found"):
        Watch(reports.append, pytest.fail).until_ended([starts_of(Query("a", error=RuntimeError(OURS)))])
    assert [type(report) for report in reports] == [QueryBegins]


def test_fourth_failure_raised():
    reports, failed = [], [Query("a", error=RuntimeError(SLOW)) for _ in range(5)]
    with pytest.raises(RuntimeError, match="connect back"):
        Watch(reports.append, lambda: None).until_ended([starts_of(*failed)])
    assert sum(isinstance(report, QueryStartsAgain) for report in reports) == 3


@pytest.mark.parametrize(
    ("text", "transient"),
    [
        (SPARK, True),
        (SLOW, True),
        ("java.util.ConcurrentModificationException\n\tat java.base/java.util.HashMap", True),
        (OURS, False),
        ("org.apache.spark.SparkException: [MALFORMED_RECORD_IN_PARSING]", False),
    ],
)
def test_only_spark_faults_transient(text, transient):
    assert is_transient(RuntimeError(text)) is transient
