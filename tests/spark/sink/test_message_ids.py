"""Message ids: the same for the same rows in any order, different for all others, and short."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsclient.errors import ConfigError
from jsclient.spark.sink import message_ids
from jsclient.spark.sink.message_ids import ContentIds, SourceIds, epoch_prefix, query_hash

# Do not change them: see `test_ids_are_those_of_earlier_versions`.
GOLDEN = [
    b"BsQSqkArU0w.7.3.5lxTPV3vLWMNP3u2",
    b"BsQSqkArU0w.7.3.JEoq6t5g9l/7Khto",
    b"BsQSqkArU0w.7.3.UOlRUgutHghJMDGC",
    b"BsQSqkArU0w.7.3.5lxTPV3vLWMNP3u2.1",
]
QUERY = "0d9b1e0c-34a1-4a53-a7a1-0a3f4b6c7d8e"

rows = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b.c"]),
        st.sampled_from([b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"NATS/1.0\r\nA: c\r\n\r\n"]),
        st.sampled_from([b"", b"x", b"NATS/1.0\r\nA: b\r\n\r\n", b"y" * 200]),
    ),
    max_size=40,
)

Row = tuple[bytes, bytes, bytes]


def ids_of(batches: list[list[Row]], *, partition: int | None = 0, plain: bool = False) -> list[bytes]:
    """The ids of rows that come in these batches. `plain`: a batch without headers is said to have none."""
    ids = ContentIds(epoch_prefix(QUERY, 7), partition)
    results = []
    for batch in batches:
        blocks: list[bytes] | None = [row[1] for row in batch]
        if plain and not any(blocks or ()):
            blocks = None
        results += ids.tails([row[0] for row in batch], blocks, [row[2] for row in batch])
    return [ids.prefix + tail for tail in results]


@given(rows, st.randoms(use_true_random=False))
def test_order_and_batches_do_not_matter(partition_rows: list[Row], chance: random.Random) -> None:
    """The rows of a partition have the same ids in any order, cut into batches in any way."""
    shuffled = chance.sample(partition_rows, len(partition_rows))
    cut = chance.randint(0, len(partition_rows))
    first = ids_of([partition_rows])
    second = ids_of([shuffled[:cut], shuffled[cut:]], plain=True)
    assert Counter(first) == Counter(second)


@given(rows)
def test_every_row_has_its_own_id(partition_rows: list[Row]) -> None:
    """Also equal rows, and a payload that looks like headers is not taken for them."""
    actual = ids_of([partition_rows])
    assert len(set(actual)) == len(actual)


@given(rows)
def test_equal_rows_share_their_hash(partition_rows: list[Row]) -> None:
    """Rows are numbered only among their like."""
    contents = {message_id.split(b".")[3] for message_id in ids_of([partition_rows])}
    assert len(contents) == len(set(partition_rows))


@given(rows, st.booleans())
def test_rows_beside_it_do_not_matter(partition_rows: list[Row], plain: bool) -> None:
    """A row's id does not depend on the headers that the rows beside it have."""
    one_subject = [(b"a", block, data) for _, block, data in partition_rows]
    assert ids_of([one_subject]) == ids_of([[row] for row in one_subject], plain=plain)


def test_ids_are_those_of_earlier_versions() -> None:
    """A query that was stopped in an epoch repeats it with the version that is installed then."""
    partition_rows = [
        (b"a", b"", b"x"),
        (b"b.c", b"", b""),
        (b"a", b"NATS/1.0\r\nA: b\r\n\r\n", b"y" * 4096),
        (b"a", b"", b"x"),
    ]
    assert ids_of([partition_rows], partition=3) == GOLDEN


def test_subject_belongs_to_the_id() -> None:
    """Two writes of the same rows to two subjects are not taken for repetitions of each other."""
    first, second = ([[(subject, b"", b"x"), (subject, b"", b"y")]] for subject in (b"a", b"b"))
    assert not set(ids_of(first)) & set(ids_of(second))


def test_scope() -> None:
    """Equal rows of two partitions have two ids. With the epoch as scope they have one."""
    row = [[(b"a", b"", b"x")]]
    assert ids_of(row, partition=0) != ids_of(row, partition=1)
    assert ids_of(row, partition=None) == ids_of(row, partition=None)


def test_ids_are_short() -> None:
    """The server keeps each in memory."""
    prefix = epoch_prefix(QUERY, 1_000_000)
    (actual,) = (
        ContentIds(prefix, 199).prefix + tail for tail in ContentIds(prefix, 199).tails([b"s"], None, [b"x"])
    )
    assert len(actual) <= 40
    assert actual.startswith(query_hash(QUERY).encode() + b".f4240.c7.")


def test_queries_differ() -> None:
    """The hash of a query may stand in a subject."""
    many = {query_hash(f"{number}") for number in range(1000)}
    assert len(many) == 1000
    assert all(len(one) == 11 and set(one) <= set(map(chr, range(33, 127))) - set(".*>+/ ") for one in many)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b.c", b"d"]), st.integers(1, 5))))
def test_source(pairs: list[tuple[bytes, int]]) -> None:
    """An id names the message and the subject, whatever rows are beside it. Another write has other ids."""
    subjects, messages = [one for one, _ in pairs], [b"S.1.%d" % number for _, number in pairs]
    ids = SourceIds().ids(subjects, messages)
    alone = [SourceIds().ids([subject], [b"S.1.%d" % number])[0] for subject, number in pairs]
    assert ids == alone
    assert len(set(ids)) == len(set(pairs))
    assert all(one.startswith(message + b".") for one, message in zip(ids, messages, strict=True))
    assert not set(ids) & set(SourceIds(1).ids(subjects, messages))


def test_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than can be remembered are refused, with what helps."""
    monkeypatch.setattr(message_ids, "MAX_ROWS", 3)
    ids = ContentIds(b"q.1.", 0)
    ids.tails([b"s"] * 2, None, [b"a", b"b"])
    with pytest.raises(ConfigError, match="more partitions"):
        ids.tails([b"s"] * 2, None, [b"c", b"d"])


def test_many_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subjects are remembered up to a bound. Ids do not depend on it."""
    subjects = [b"s.%d" % number for number in range(50)]
    whole = ContentIds(b"q.1.", 0).tails(subjects, None, [b"x"] * 50)
    monkeypatch.setattr(message_ids, "_MAX_SUBJECTS", 4)
    assert ContentIds(b"q.1.", 0).tails(subjects, None, [b"x"] * 50) == whole
