"""The readers through which Spark reads streams as a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ...tables.bounded import plan_bounded
from ...tables.pushdown import Narrowed, pushed
from ...tables.source_options import SourceOptions
from ...tables.tasks import read_spec
from .grouping import group_width, grouped

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogBatchReader", "PushdownReader"]


class LogBatchReader(DataSourceReader):
    """Batch reader for all messages between two positions, which are resolved when the read is planned."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._spec = read_spec(options, columns)
        self._narrowed = Narrowed(subjects=options.subjects)

    def partitions(self) -> list[InputPartition]:
        options, tasks = self._options, plan_bounded(self._options, self._narrowed)
        widths = [task.range.width for task in tasks if task.range is not None]
        together = 0
        if options.has_several:
            together = group_width(widths, options.min_partitions, options.max_messages_per_partition)
        return [InputPartition(group) for group in grouped(tasks, widths, together)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from ...tables.reading import read_range

        if partition.value is None:  # if a read has no tasks, Spark plans an empty task
            return iter(())
        return chain.from_iterable(read_range(part.spec(self._spec), part.range) for part in partition.value)


class PushdownReader(LogBatchReader):
    """Batch reader with filter pushdown. Spark rejects it in sessions that do not enable pushdown."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        self._narrowed, remaining = pushed(
            filters, self._narrowed, direct=self._options.read_mode == "direct"
        )
        return remaining
