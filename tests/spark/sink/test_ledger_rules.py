"""The epoch ledger: which run begins an epoch, which run looks for stored rows, and which state cannot be decided."""

from __future__ import annotations

import pytest

from jsclient.errors import ConfigError
from jsclient.spark.sink.ledger_rules import (
    KEPT,
    Begin,
    Beginning,
    CheckpointBehindError,
    PartitionRecord,
    QueryRecord,
    decide,
)

TARGET = ("OUT", "2026-01-01T00:00:00+00:00")


def record(*epochs: tuple[int, int, str]) -> QueryRecord:
    return QueryRecord(TARGET, tuple(Beginning(*one) for one in epochs))


def ask(
    known: QueryRecord | None, partition: PartitionRecord | None = None, *, epoch: int = 5, run: str = "r2"
) -> Begin | int:
    return decide(known, partition, target=TARGET, epoch=epoch, run=run)


def test_first_of_all() -> None:
    """The ledger is empty: begin."""
    assert ask(None) == Begin(QueryRecord(TARGET))


def test_next_epoch() -> None:
    """The ledger has the epoch before: begin, and keep that."""
    known = record((4, 10, "r1"))
    assert ask(known) == Begin(known)
    assert known.with_epoch(Beginning(5, 20, "r2")) == record((4, 10, "r1"), (5, 20, "r2"))


def test_first_try_beside_others() -> None:
    """Another task of the same run has begun the epoch, so no row of this epoch can be stored."""
    assert ask(record((5, 20, "r2"))) == 0
    assert ask(record((5, 20, "r2")), PartitionRecord(4, "r1")) == 0


def test_task_again() -> None:
    """A task of this partition has begun in this run: look from the beginning of the epoch."""
    assert ask(record((5, 20, "r2")), PartitionRecord(5, "r2")) == 20


def test_replay() -> None:
    """Another run has begun the epoch: every task looks, also one whose partition had not begun."""
    assert ask(record((5, 20, "r1"))) == 20
    assert ask(record((5, 20, "r1")), PartitionRecord(5, "r1")) == 20


def test_third_run() -> None:
    """The beginning stays the beginning of the first run."""
    assert ask(record((5, 20, "r1")), PartitionRecord(5, "r2"), run="r3") == 20


def test_older_epochs_are_replayed() -> None:
    """The ledger reaches back, because commits can lag."""
    assert ask(record((4, 10, "r1"), (5, 20, "r1")), epoch=4) == 10
    # An epoch that was never begun had no rows.
    known = record((3, 10, "r1"), (5, 20, "r1"))
    assert ask(known, epoch=4) == Begin(known)
    assert known.with_epoch(Beginning(4, 30, "r2")).find(5) == Beginning(5, 20, "r1")


def test_older_checkpoint_refused() -> None:
    """Another run has begun a later epoch: the checkpoint was put back."""
    for known in (record((4, 10, "r1"), (6, 30, "r1")), record((5, 20, "r1"), (6, 30, "r1"))):
        with pytest.raises(CheckpointBehindError, match="epoch 5 is written, but the ledger has epoch 6"):
            decide(known, None, target=TARGET, epoch=5, run="r2", ascending=True)


def test_abandoned_task_begins_late() -> None:
    """The next epoch has begun, but this run has begun its own."""
    known = record((5, 20, "r2"), (6, 30, "r3"))
    assert decide(known, None, target=TARGET, epoch=5, run="r2", ascending=True) == 0


def test_too_old() -> None:
    """An epoch before all that are kept: refused, with what helps."""
    with pytest.raises(CheckpointBehindError, match="reaches back to epoch 6"):
        ask(record((6, 10, "r1")))


def test_bounded() -> None:
    """As many epochs are kept as Spark keeps."""
    known = QueryRecord(TARGET)
    for epoch in range(KEPT + 10):
        known = known.with_epoch(Beginning(epoch, epoch + 1, "r"))
    assert [one.epoch for one in known.beginnings] == list(range(10, KEPT + 10))
    assert len(known.encode()) < 10_000


def test_another_target() -> None:
    """The target was recreated, or is another stream, so it has none of our rows."""
    known = QueryRecord(("OUT", "2025-01-01T00:00:00+00:00"), (Beginning(5, 20, "r1"),))
    assert ask(known) == Begin(QueryRecord(TARGET))


def test_values() -> None:
    """What is written is read again. What is strange is refused by name."""
    known = record((4, 10, "r1"), (5, 20, "r2"))
    assert QueryRecord.decode(known.encode()) == known
    assert PartitionRecord.decode(PartitionRecord(5, "r2").encode()) == PartitionRecord(5, "r2")
    assert PartitionRecord.decode(b"\xff x") != PartitionRecord(5, "r2")
    for value in (b"", b"[]", b"{}", b'{"v":2}', b'{"v":1,"target":["a"],"epochs":[]}', b"null"):
        with pytest.raises(ConfigError, match="'ledger'"):
            QueryRecord.decode(value)
