"""The record of runs: the sequences at which earlier runs of a batch stored their rows, and the runs it keeps."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.spark.sink.run_record import KEPT, MAX_RUNS, RunRecord

TARGET = ("OUT", "2026-01-31T00:00:00Z")


def test_part_of_earlier_runs() -> None:
    """From the beginning of the first run to the beginning of the run that asks."""
    record, actual = RunRecord(TARGET), []
    for run, begin in {"a": 11, "b": 31, "c": 41}.items():
        record = record.with_run(7, run, begin)
        actual.append(record.earlier(7, run))
    assert actual == [range(11, 11), range(11, 31), range(11, 41)]
    assert record.earlier(7, "d") is None
    assert record.earlier(8, "a") is None


def test_time_before() -> None:
    record = RunRecord(TARGET).with_run(7, "a", 11, 1000).with_run(8, "b", 21, 2000)
    assert record.time_before(7, "a") == 0
    record = record.with_run(7, "c", 31, 3000).with_run(7, "d", 41, 4000)
    assert RunRecord.decode(record.encode()).time_before(7, "d") == 3000


def test_run_that_is_not_the_last() -> None:
    """Its tasks may still run, but none of them may begin. Tasks of other batches may."""
    record = RunRecord(TARGET).with_run(7, "a", 11).with_run(8, "a", 21).with_run(7, "b", 31)
    with pytest.raises(ConfigError, match="batch 7 is being written by another run"):
        record.earlier(7, "a")
    assert record.earlier(8, "a") == range(21, 21)


def test_as_it_is_stored() -> None:
    record = RunRecord(TARGET, forgotten=5).with_run(7, "a", 11).with_run(8, "b", 31)
    assert RunRecord.decode(record.encode()) == record


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"7",
        b'{"v":2}',
        b'{"v":1,"target":["OUT"]}',
        b'{"v":1,"target":["A","B"],"forgotten":-1,"batches":[[1,[]]]}',
    ],
)
def test_something_else_is_refused(value: bytes) -> None:
    with pytest.raises(ConfigError, match="option 'ledger'"):
        RunRecord.decode(value)


def test_latest_batches_are_retained() -> None:
    """Those that were written last, whatever their numbers: an older checkpoint may have been restored."""
    record = RunRecord(TARGET)
    for epoch in [*range(50, 50 + KEPT), 3]:
        record = record.with_run(epoch, "a", 1)
    assert [one.epoch for one in record.batches] == [*range(51, 50 + KEPT), 3]


def test_batch_that_was_forgotten() -> None:
    """It is not taken for a new one, nor is it when it is repeated. A new one is, whatever its number."""
    record = RunRecord(TARGET)
    for epoch in [20, *range(50, 50 + KEPT)]:
        record = record.with_run(epoch, "a", 1)
    record = RunRecord.decode(record.encode()).with_run(20, "b", 7)
    assert record.earlier(20, "b") == range(7)
    record = record.with_run(20, "c", 8).with_run(49, "a", 9)
    assert record.forgotten == 50 + 1
    assert record.earlier(20, "c") == range(8)
    assert record.earlier(49, "a") == range(9)
    assert record.with_run(90 + KEPT, "a", 10).earlier(90 + KEPT, "a") == range(10, 10)


def test_first_run_is_retained() -> None:
    record = RunRecord(TARGET)
    for run in range(3 * MAX_RUNS):
        record = record.with_run(7, f"{run}", 10 * run + 1)
    last = 3 * MAX_RUNS - 1
    assert len(record.batches[0].runs) == MAX_RUNS
    assert record.earlier(7, f"{last}") == range(1, 10 * last + 1)
