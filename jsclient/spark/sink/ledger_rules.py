"""What the epoch ledger says, and what follows from it.

A stream remembers message ids for its duplicate window only. The ledger remembers where the epochs of a query began in
the target, so that a task which may be a replay can read what is stored from there on, and leave that out.

Two keys in a bucket. That of the *query* holds for its latest epochs the target's sequence before which nothing of the
epoch is stored, and the run that began it; whichever task is first writes it, before anybody publishes. That of the
*partition* says that a task of it has begun an epoch, in which run.

The beginning belongs to the epoch and not to the partition, because the rows of a replay can be in other partitions
than before: a task looks for its rows from where the first of all tasks began.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["Begin", "Beginning", "PartitionRecord", "QueryRecord", "decide"]

KEPT = 100
"""Epochs whose beginnings are kept, as many as Spark keeps by default."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where an epoch begins in the target.

    Attributes:
        epoch: Its number.
        start: Everything of it has this sequence or a later one.
        run: Who began it: a text that each try of Spark to write an epoch has for itself.
    """

    epoch: int
    start: int
    run: str


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The value of a query's key.

    Attributes:
        target: The stream that is written to, and when it was made.
        beginnings: By epoch, the latest last.
    """

    target: tuple[str, str]
    beginnings: tuple[Beginning, ...] = ()

    def encode(self) -> bytes:
        starts = [[one.epoch, one.start, one.run] for one in self.beginnings]
        return json.dumps({"v": 1, "target": self.target, "epochs": starts}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> QueryRecord:
        """
        Raises:
            ConfigError: It is no such value.
        """
        try:
            read = json.loads(value)
            if read["v"] != 1:
                raise ValueError("another version")
            name, created = read["target"]
            beginnings = tuple(Beginning(int(e), int(s), str(r)) for e, s, r in read["epochs"])
            return cls((str(name), str(created)), beginnings)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the ledger holds what this version cannot read ({value[:60]!r}): "
                "use another bucket by option 'ledger'"
            ) from error

    def find(self, epoch: int) -> Beginning | None:
        return next((one for one in self.beginnings if one.epoch == epoch), None)

    def with_epoch(self, beginning: Beginning) -> QueryRecord:
        """With one more; the oldest gives way."""
        beginnings = sorted((*self.beginnings, beginning), key=lambda one: one.epoch)
        return QueryRecord(self.target, tuple(beginnings[-KEPT:]))


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """The value of a partition's key: a task has begun ``epoch`` in ``run``."""

    epoch: int
    run: str

    def encode(self) -> bytes:
        return f"{self.epoch} {self.run}".encode()

    @classmethod
    def decode(cls, value: bytes) -> PartitionRecord:
        epoch, _, run = value.decode(errors="replace").partition(" ")
        return cls(int(epoch) if epoch.isdecimal() else -1, run)


@dataclass(frozen=True, slots=True)
class Begin:
    """The epoch is new: begin it at the end of the target, by writing ``record`` with it."""

    record: QueryRecord


def decide(
    record: QueryRecord | None,
    partition: PartitionRecord | None,
    *,
    target: tuple[str, str],
    epoch: int,
    run: str,
) -> Begin | int:
    """What a task does before its first row.

    Returns:
        `Begin`: write the beginning, and decide again. A sequence: rows of this task may be stored, from there on.
        0: none can be.

    Raises:
        ConfigError: The epoch is older than the ledger reaches back.
    """
    if record is None or record.target != target:
        # Nothing is known of this stream. One that was made anew holds nothing of ours.
        return Begin(QueryRecord(target))
    beginning = record.find(epoch)
    if beginning is None:
        beginnings = record.beginnings
        if beginnings and epoch < beginnings[0].epoch:
            raise ConfigError(
                f"epoch {epoch} is written again, but the ledger reaches back to epoch {beginnings[0].epoch} only: "
                "what is stored of it cannot be told. Was the checkpoint put back? Set option 'exactlyOnce' to "
                "'window' for as long as it catches up, which may store rows twice"
            )
        return Begin(record)
    if beginning.run == run and (partition is None or partition != PartitionRecord(epoch, run)):
        return 0  # a first try, beside others of the same run
    return beginning.start
