"""Splitting a range of a stream into tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

from ..options.source import SourceOptions
from .data_loss import StreamFacts
from .lookup import Lookup
from .ranges import SPARSE, SequenceRange, pieces_for, plan_ranges, plan_sparse
from .reading import ReadSpec

__all__ = ["LogPartition", "plan", "read_spec"]

_WORTH_COUNTING = 10_000  # sequences; smaller ranges are split by sequence if counting needs a consumer


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """The part of a stream that one task reads.

    Attributes:
        range: The sequences to read.
        created: When the stream was created, see `ReadSpec`.
        subjects: Filters.
        read_mode: See `ReadSpec`.
    """

    range: SequenceRange
    created: str
    subjects: tuple[str, ...] = ()
    read_mode: str = "auto"

    def spec(self, spec: ReadSpec) -> ReadSpec:
        """The common `ReadSpec` of all tasks, completed with the values of this plan."""
        return replace(spec, created=self.created, subjects=self.subjects, read_mode=self.read_mode)


def read_spec(options: SourceOptions, columns: tuple[str, ...]) -> ReadSpec:
    return ReadSpec(
        connect=options.connect,
        stream=options.stream,
        subjects=options.subjects,
        columns=columns,
        created=None,
        read_mode=options.read_mode,
        batch_rows=options.batch_rows,
        fetch_max_bytes=options.fetch_max_bytes,
        check_loss=options.fail_on_data_loss,
    )


def plan(
    lookup: Lookup, options: SourceOptions, whole: SequenceRange, facts: StreamFacts, read_mode: str
) -> list[LogPartition]:
    """Split a range into tasks. Together they cover the whole range even if counts were wrong."""
    parts = _parts(lookup, options, whole, facts)
    return [LogPartition(part, facts.created, lookup.subjects, read_mode) for part in parts]


def _parts(
    lookup: Lookup, options: SourceOptions, whole: SequenceRange, facts: StreamFacts
) -> list[SequenceRange]:
    least, most = options.min_partitions, options.max_messages_per_partition
    worth = options.min_partition_rows
    if pieces_for(whole.width, least, most, worth) == 1:
        return [whole]
    dense = not lookup.subjects and not facts.gaps
    if dense or (whole.width < _WORTH_COUNTING and not lookup.counts_cheaply(facts)):
        return plan_ranges(whole, pieces_for(whole.width, least, most, worth))
    rest, after = lookup.rest(whole.first, facts), lookup.rest(whole.last + 1, facts)
    rows = max(0, rest - after)
    pieces = pieces_for(rows, least, most, worth)
    if pieces == 1:
        return [whole]
    if most is None and whole.width <= SPARSE * rows:
        return plan_ranges(whole, pieces)
    return lookup.drive(plan_sparse(whole, rest, after, pieces), facts)
