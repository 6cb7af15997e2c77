"""The records of the epoch ledger and the decisions based on them. Does no I/O.

A stream remembers message ids only for its duplicate window. The ledger records at which sequence of the target each
epoch of a query began. A task that may be a replay reads the messages stored from that sequence on, and skips the rows
that are already stored.

The ledger uses two kinds of keys in a bucket. The *query* key contains, for each of the latest epochs, the sequence of
the target at or after which all messages of the epoch are stored, and the run that began the epoch. The first task
writes it before any task publishes. The *partition* key contains the last epoch that a task of the partition has begun,
and the run of that task.

The beginning is recorded per epoch instead of per partition because a replay may distribute rows over partitions
differently. A task searches for its rows from the point at which the first task of the epoch began.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["Begin", "Beginning", "CheckpointBehindError", "PartitionRecord", "QueryRecord", "decide"]


class CheckpointBehindError(ConfigError):
    """Raised when a query writes an epoch after later epochs, which shows that an older checkpoint was restored."""


KEPT = 100
"""Number of epochs whose beginnings are kept. By default, Spark keeps the same number of batches."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of an epoch in the target stream."""

    epoch: int
    start: int  # all messages of the epoch have this sequence or a later sequence
    run: str  # id of the run that began the epoch, unique to each attempt of Spark to write an epoch


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The value of a query key."""

    target: tuple[str, str]  # name and creation time of the target stream
    beginnings: tuple[Beginning, ...] = ()  # beginnings in ascending order of epochs

    def encode(self) -> bytes:
        starts = [[beginning.epoch, beginning.start, beginning.run] for beginning in self.beginnings]
        return json.dumps({"v": 1, "target": self.target, "epochs": starts}, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> QueryRecord:
        """Parse the stored value. Raises `ConfigError` if it is not a valid record of this version."""
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
        return next((beginning for beginning in self.beginnings if beginning.epoch == epoch), None)

    def with_epoch(self, beginning: Beginning) -> QueryRecord:
        """Return a copy with an additional beginning. If there are more than `KEPT`, the oldest are dropped."""
        beginnings = sorted((*self.beginnings, beginning), key=lambda beginning: beginning.epoch)
        return QueryRecord(self.target, tuple(beginnings[-KEPT:]))


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """The value of a partition key, which records that a task has begun ``epoch`` in ``run``."""

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
    """The decision to begin a new epoch.

    The caller adds the beginning of the epoch, at the end of the target, to ``record`` and writes the record.
    """

    record: QueryRecord


def decide(
    record: QueryRecord | None,
    partition: PartitionRecord | None,
    *,
    target: tuple[str, str],
    epoch: int,
    run: str,
    ascending: bool = False,
) -> Begin | int:
    """Decide what a task does before its first row.

    ``ascending`` says whether epochs are written in order, so that later epochs in the ledger are an error.

    Returns:
        `Begin` if the caller must write the beginning of the epoch and decide again. Otherwise the sequence at or after
        which rows of this task may be stored, or 0 if no row of this task can be stored.

    Raises:
        CheckpointBehindError: The epoch is older than the oldest epoch in the ledger. With ``ascending``, it is older
            than the newest epoch.
    """
    if record is None or record.target != target:
        # The ledger has no record for this stream. A recreated stream has no rows of this query.
        return Begin(QueryRecord(target))
    beginning, beginnings = record.find(epoch), record.beginnings
    newest = max((one.epoch for one in beginnings), default=epoch)
    # A task that Spark has abandoned may start after a later epoch has begun. Accept the task if the same run began its
    # epoch.
    if ascending and epoch < newest and (beginning is None or beginning.run != run):
        raise CheckpointBehindError(
            f"epoch {epoch} is written, but the ledger has epoch {newest} of this query already: was an older "
            "checkpoint restored, or does another driver use it? Rows are stored twice if the epochs do not have the "
            "same rows as before, for example with other limits. Use the latest checkpoint, or continue with option "
            "'failOnOlderCheckpoint' = 'false'"
        )
    if beginning is None:
        if beginnings and epoch < beginnings[0].epoch:
            raise CheckpointBehindError(
                f"epoch {epoch} is written again, but the ledger reaches back to epoch {beginnings[0].epoch} only: "
                "it is unknown which of its rows are stored. Was the checkpoint put back? Set option 'exactlyOnce' to "
                "'window' for as long as it catches up, which may store rows twice"
            )
        return Begin(record)
    if beginning.run == run and (partition is None or partition != PartitionRecord(epoch, run)):
        return 0  # this is the first attempt of the task, in a run that another task has begun
    return beginning.start
