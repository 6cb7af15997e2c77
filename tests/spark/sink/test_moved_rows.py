"""The reports of tasks about moved rows, and the driver's conclusion: any runs of one batch store each row once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jsclient.spark.sink.moved_rows import Checked, StoredRow, StoredRows, remainder_of


def content(row: int) -> bytes:
    return b"%016d" % row


def id_of(partition: bytes, row: int, number: int) -> bytes:
    return b"%b.%b.%x" % (partition, content(row), number) if number else b"%b.%b" % (partition, content(row))


def stored_rows(sequences: range, partition: int, stored: list[tuple[bytes, int]]) -> StoredRows:
    rows = StoredRows("OUT", sequences, partition)
    for remainder, sequence in stored:
        rows.add_row(remainder, sequence)
    return rows


class MovedStream:
    """The ids that a stream has, in order, as a server without a window would keep them."""

    def __init__(self) -> None:
        self.ids: list[bytes] = []

    def store(self, one: bytes) -> None:
        if one not in self.ids:
            self.ids.append(one)

    def counts(self) -> Counter[bytes]:
        return Counter(one.split(b".")[1] for one in self.ids)


def run(stream: MovedStream, parts: list[list[int]], cuts: list[int | None]) -> None:
    """A run: a task for each part, which ends after this many rows, or is whole, then the driver if all are whole."""
    sequences = range(len(stream.ids))
    before = [(one, at) for at, one in enumerate(stream.ids)]
    reports: dict[int, Checked] = {}
    for partition, (rows, cut) in enumerate(zip(parts, cuts, strict=True)):
        stored = stored_rows(sequences, partition, before)
        seen: Counter[int] = Counter()
        for row in rows[:cut]:
            tail = id_of(b"%x" % partition, row, seen[row]).partition(b".")[2]
            seen[row] += 1
            # A row that this or an earlier run has stored is not stored again.
            if stored.own.pop(tail, None) is None and not stored.is_open(tail):
                stream.store(b"%x.%b" % (partition, tail))
        if cut is None and rows:
            reports[partition] = stored.result(stored.own)
    if all(cut is None for cut in cuts):
        remainder = remainder_of(reports, [one for one, _ in before])
        assert remainder.missing == 0
        for ids in remainder.ids.values():
            for one in ids:
                stream.store(one)


@given(st.data())
def test_each_row_once(data: st.DataObject) -> None:
    """After any number of runs that end anywhere, with any equal rows in any partitions, one run is whole."""
    rows = data.draw(st.lists(st.integers(0, 5), max_size=20))
    stream = MovedStream()
    for last in [False] * data.draw(st.integers(0, 4)) + [True]:
        partitions = data.draw(st.integers(1, 4))
        positions = data.draw(
            st.lists(st.integers(0, partitions - 1), min_size=len(rows), max_size=len(rows))
        )
        order = data.draw(st.permutations(range(len(rows))))
        parts = [[rows[at] for at in order if positions[at] == one] for one in range(partitions)]
        cuts = [None if last else data.draw(st.none() | st.integers(0, len(part))) for part in parts]
        run(stream, parts, cuts)
    assert stream.counts() == Counter(map(content, rows))


def test_other_ids_are_passed_over() -> None:
    """Ids of a batch that another version or another program has made."""
    assert StoredRow.from_suffix(b"1f." + content(3)) == StoredRow(b"1f", content(3), 0)
    assert StoredRow.from_suffix(b"1f." + content(3) + b".a") == StoredRow(b"1f", content(3), 10)
    for other in (b"", b"1", b"1.abc", b"1." + content(3) + b".z", content(3), b"1.2." + content(3)):
        assert StoredRow.from_suffix(other) is None


def test_stored_rows_missing_from_batch() -> None:
    """An earlier run has stored rows that the batch does not have any more."""
    stored = stored_rows(range(3), 0, [(id_of(b"0", one, 0), one) for one in range(3)])
    assert [one for one in stored.own if not stored.is_open(one)] == [content(one) for one in range(3)]
    del stored.own[content(1)]
    checked = stored.result(stored.own)
    remainder = remainder_of({0: checked}, [id_of(b"0", one, 0) for one in range(3)])
    assert (remainder.row_count, remainder.missing) == (0, 2)


def test_old_run_is_reported_if_it_has_rows_of_task() -> None:
    for remaining, open_rows, reports in (([1], [], 0), ([], [], 99), ([1], [2], 99)):
        stored = StoredRows("OUT", range(3), 0, old=99)
        for partition, row in ((b"0", 1), (b"1", 2)):
            stored.add_row(id_of(partition, row, 0), row)
        assert all(stored.is_open(content(row)) for row in open_rows)
        assert stored.result({content(row): row for row in remaining}).old == reports


def test_partitions_that_were_not_compared() -> None:
    """Their stored rows may still be theirs, so they explain no open row. It is published, rather than lost."""
    stored = [id_of(b"1", 7, 0)]
    open_row = Checked("OUT", 0, 1, open=content(7))
    assert remainder_of({0: open_row}, stored).row_count == 0
    assert remainder_of({0: open_row}, stored, not_compared=[1]).ids == {content(7): [b"0." + content(7)]}


def test_rows_of_this_run_are_not_missing() -> None:
    """With a ledger, a task also knows what an earlier attempt of itself has stored in this run."""
    stored = stored_rows(range(3), 0, [(id_of(b"0", 1, 0), 1)])
    checked = stored.result({content(1): 1, content(2): 5})
    assert checked.missing.split() == [content(1)]
