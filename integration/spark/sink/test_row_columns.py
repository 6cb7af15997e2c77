"""Ids of rows by the messages that they were made from: one form for all batches."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jsclient.spark.sink.message_ids import SourceIds
from jsclient.spark.sink.row_columns import RowReader, RowShape


def batch(streams: list[str], created: list[int], subjects: list[str]) -> pa.RecordBatch:
    columns = {
        "data": pa.array([b"x"] * len(streams), pa.binary()),
        "subject": pa.array(subjects, pa.string()),
        "stream": pa.array(streams, pa.string()),
        "stream_created": pa.array(created, pa.timestamp("us", tz="UTC")),
        "sequence": pa.array(range(7, 7 + len(streams)), pa.int64()),
    }
    return pa.RecordBatch.from_pydict(columns)


def ids_of(rows: pa.RecordBatch) -> list[bytes] | None:
    shape = RowShape("data", True, False, False, None, by_source=True)
    return RowReader(shape, frozenset(), SourceIds()).read_batch(rows).ids


@pytest.mark.parametrize("subjects", [["a", "a", "a"], ["a", "b%d", "a"]])
def test_ids_do_not_depend_on_the_rows_beside(subjects: list[str]) -> None:
    """Rows of one stream and one subject have the ids that they have among rows of several."""
    alone = ids_of(batch(["S%s"] * 3, [5] * 3, subjects))
    mixed = ids_of(batch(["S%s"] * 3 + ["T"], [5] * 3 + [6], [*subjects, "c"]))
    assert alone is not None
    assert mixed is not None
    assert alone == mixed[:3]
    assert [one.rpartition(b".")[0] for one in alone] == [b"S%s.5.7", b"S%s.5.8", b"S%s.5.9"]


def test_rows_of_a_part_of_a_batch() -> None:
    """A slice of a batch has the sequences of its rows. An empty one has no ids."""
    whole = batch(["S"] * 4, [5] * 4, ["a"] * 4)
    assert ids_of(whole.slice(2, 2)) == (ids_of(whole) or [])[2:]
    assert ids_of(whole.slice(0, 0)) == []
