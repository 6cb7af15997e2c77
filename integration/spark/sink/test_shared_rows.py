"""Two different rows with one id are detected, in whatever tasks they are."""

from __future__ import annotations

import pickle
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jsclient.spark.sink.column_ids import ColumnIds
from jsclient.spark.sink.row_columns import RowMessages
from jsclient.spark.sink.row_keys import RowKeys, id_hash
from jsclient.spark.sink.shared_rows import different_rows, ids_of_different_rows

Row = tuple[bytes, bytes, bytes]  # id, subject, payload

tasks = st.lists(
    st.lists(
        st.tuples(st.sampled_from([b"1", b"2", b"3"]), st.sampled_from([b"a", b"b"]), st.sampled_from([b"x", b"y"])),
        max_size=4,
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


def keys_of(rows: list[Row]) -> RowKeys:
    column = ColumnIds(one_stream=False)
    for number, (msg_id, subject, data) in enumerate(rows):
        column.add_rows(RowMessages([subject], None, [data], [msg_id]), number)
    keys: RowKeys = pickle.loads(pickle.dumps(column.keys))
    return keys


@given(tasks)
def test_different_rows_detected(rows_of: list[list[Row]]) -> None:
    """One stream stores the first row with an id. Two rows are reported exactly if a row is lost by that."""
    every = [row for rows in rows_of for row in rows]
    dropped = len(every) - len({row[0] for row in every})
    contents = Counter(row[0] for row in set(every))
    pair = different_rows(dict(enumerate(map(keys_of, rows_of))), dropped)
    if pair is None:
        assert set(contents.values()) <= {1}
        return
    one, other = (rows_of[partition][row] for partition, row in pair)
    assert one[0] == other[0]
    assert one[1:] != other[1:]


@given(tasks)
def test_different_rows_in_two_streams(rows_of: list[list[Row]]) -> None:
    """If only equal rows are stored once, no row is lost, because the other rows went to several streams."""
    every = [row for rows in rows_of for row in rows]
    keys = dict(enumerate(map(keys_of, rows_of)))
    assert different_rows(keys, len(every) - len(set(every))) is None


def test_rows_with_one_id_and_two_subjects_are_no_candidates() -> None:
    """Separate streams may have stored both. A task whose row was not stored has seen it by the subject."""
    tasks = {
        0: keys_of([(b"1", b"s1.a", b"x"), (b"2", b"s1.a", b"x")]),
        1: keys_of([(b"1", b"s2.a", b"x"), (b"2", b"s1.a", b"y")]),
    }
    assert ids_of_different_rows(tasks) == [id_hash(b"2")]
