"""The record of the runs that have written a batch. Does no I/O.

Spark writes a batch again after a failure or a restart. Such a *run* has the same rows, but perhaps in other
partitions. The record contains, for each of the latest batches, the sequence in the target at which each of its runs
began. The messages that earlier runs have stored are therefore between the beginning of the first run and the beginning
of this run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ...errors import ConfigError

__all__ = ["BatchRuns", "RunRecord"]

KEPT = 100
"""Number of batches whose runs are kept, which are the last ones written. By default, Spark keeps the same number."""

MAX_RUNS = 20
"""Number of runs of a batch that are kept, which are the first run and the latest runs."""


@dataclass(frozen=True, slots=True)
class BatchRuns:
    """The runs of a batch.

    A run has an id, the sequence of the target at or after which all its messages are stored, and the Unix time in
    seconds at which it began. The first run has sequence 0 if the record may have forgotten earlier runs.
    """

    epoch: int
    runs: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The value of the record's key."""

    target: tuple[str, str]  # name and creation time of the target stream
    batches: tuple[BatchRuns, ...] = ()  # in the order in which they were written last
    forgotten: int = -1  # the highest number of a batch that was removed from the record, or -1

    def encode(self) -> bytes:
        batches = [[batch.epoch, batch.runs] for batch in self.batches]
        value = {"v": 1, "target": self.target, "batches": batches, "forgotten": self.forgotten}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, value: bytes) -> RunRecord:
        """Parse the stored value. Raises `ConfigError` if it is not a valid record of this version."""
        try:
            read = json.loads(value)
            if read["v"] != 1:
                raise ValueError("another version")
            name, created = read["target"]
            batches = tuple(
                BatchRuns(int(epoch), tuple((str(run), int(begin), int(time)) for run, begin, time in runs))
                for epoch, runs in read["batches"]
            )
            if not all(batch.runs for batch in batches):
                raise ValueError("a batch without a run")
            return cls((str(name), str(created)), batches, int(read["forgotten"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the record of runs is not one that this version can read ({value[:60]!r}): "
                "use another bucket by option 'ledger'"
            ) from error

    def earlier(self, epoch: int, run: str) -> range | None:
        """Return the sequences at which earlier runs of a batch may have stored rows.

        They start with 0 if the record does not reach back to the first run. Returns None if the record does not
        contain this run.

        Raises:
            ConfigError: Another run has begun after this run. Its tasks would not see what this run publishes now.
        """
        for batch in self.batches:
            begins = {run: begin for run, begin, _ in batch.runs}
            if batch.epoch != epoch or run not in begins:
                continue
            if batch.runs[-1][0] != run:
                raise ConfigError(
                    f"batch {epoch} is being written by another run, which began after this one: does another driver "
                    "use the checkpoint, or another write the same dedupKey? A task that Spark has given up is harmless"
                )
            return range(batch.runs[0][1], begins[run])
        return None

    def time_before(self, epoch: int, run: str) -> int:
        """Return the Unix time when the latest run of a batch before this run began, or 0 if unknown."""
        times = [
            time for one in self.batches if one.epoch == epoch for name, _, time in one.runs if name != run
        ]
        return max(times, default=0)

    def with_run(self, epoch: int, run: str, begin: int, time: int = 0) -> RunRecord:
        """Return a copy with an additional run. If there are more than `KEPT` batches, the oldest are dropped."""
        before = (("", 0, 0),) if epoch <= self.forgotten else ()
        runs = next((batch.runs for batch in self.batches if batch.epoch == epoch), before)
        runs = (*runs, (run, begin, time))
        if len(runs) > MAX_RUNS:
            runs = (runs[0], *runs[1 - MAX_RUNS :])
        batches = (*(batch for batch in self.batches if batch.epoch != epoch), BatchRuns(epoch, runs))
        forgotten = max((batch.epoch for batch in batches[:-KEPT]), default=-1)
        return RunRecord(self.target, batches[-KEPT:], max(forgotten, self.forgotten))
