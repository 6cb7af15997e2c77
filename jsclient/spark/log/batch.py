"""Batch reads of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ...errors import ConfigError
from ..options.source import SourceOptions
from .lookup import Lookup
from .offsets import StreamFacts, lost_head
from .pushdown import Narrowed, pushed
from .ranges import SequenceRange
from .tasks import LogPartition, cut, plan, read_spec

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogBatchReader", "PushdownReader"]


class LogBatchReader(DataSourceReader):
    """Reads all messages between two positions. The positions are resolved when the read is planned."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._spec = read_spec(options, columns)
        self._narrowed = Narrowed(subjects=options.subjects)

    def partitions(self) -> list[LogPartition]:
        options, narrowed = self._options, self._narrowed
        lookup = Lookup(options)
        facts = lookup.facts()
        read_mode = lookup.read_mode(facts)
        first, last = _first(options, lookup, facts), _last(options, lookup, facts)
        if options.start.kind == "sequence":
            first = first if lookup.accept(lost_head(first, last, facts)) else max(first, facts.first_seq)
        first, last = max(first, narrowed.first), min(last, narrowed.last)
        if narrowed.since is not None:
            first = max(first, lookup.sequence_at(narrowed.since, facts))
        if narrowed.nothing or last < first:
            return []
        lookup.subjects = narrowed.subjects
        parts = cut(lookup, options, SequenceRange(first, last), facts)
        return plan(parts, lookup, facts, read_mode)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .reading import read_range

        assert isinstance(partition, LogPartition)
        return read_range(partition.spec(self._spec), partition.range)


class PushdownReader(LogBatchReader):
    """`LogBatchReader` with filter pushdown. Spark rejects it in sessions that do not enable pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        self._narrowed, left = pushed(filters, self._narrowed, direct=self._options.read_mode == "direct")
        return left


def _first(options: SourceOptions, lookup: Lookup, facts: StreamFacts) -> int:
    start = options.start
    if start.kind == "sequence":
        _not_beyond("startingSequence", start.sequence, facts.last_seq + 1, options, facts)
        return start.sequence
    if start.kind == "time":
        return max(lookup.sequence_at(start.time, facts), facts.first_seq)
    return facts.last_seq + 1 if start.kind == "latest" else facts.first_seq


def _last(options: SourceOptions, lookup: Lookup, facts: StreamFacts) -> int:
    end = options.end
    if end.kind == "sequence":
        _not_beyond("endingSequence", end.sequence, facts.last_seq, options, facts)
        return min(end.sequence, facts.last_seq)
    if end.kind == "time":
        return lookup.sequence_at(end.time, facts) - 1
    return facts.last_seq


def _not_beyond(name: str, given: int, most: int, options: SourceOptions, facts: StreamFacts) -> None:
    """Raise `ConfigError` for a sequence after the end of the stream, instead of silently reading less."""
    if given > most and options.fail_on_data_loss:
        raise ConfigError(
            f"option {name!r} is {given}, but stream {facts.name!r} ends at sequence {facts.last_seq}: give a smaller "
            "one, or 'failOnDataLoss' = 'false' to read the messages that exist"
        )
