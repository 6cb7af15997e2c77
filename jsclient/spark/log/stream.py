"""The streaming source of log mode for one stream. Offsets are sequences, so every batch can be read again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from ...tables.lookup import Lookup
from ...tables.offsets import LogOffset
from ...tables.source_options import SourceOptions
from ...tables.tasks import read_spec
from .delay import TriggerDelay
from .limits import limits, read_limit
from .mirror import Mirror
from .planner import StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogStreamReader"]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of log mode for one stream.

    Spark calls all methods except `read` one after the other in a single process on the driver. It never calls `stop`.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._spec = read_spec(options, columns)
        self._planning: tuple[StreamPlanner, Mirror | None] | None = None  # None on executors
        self._delay = TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        planner, mirror = self._planner_and_mirror()
        planner.check_facts(planner.facts)
        owner = ""
        if mirror is not None:
            mirror.claim("")
            owner = secrets.token_hex(8)
        start = planner.start_offset()
        if mirror is not None:
            mirror.begin_query(start.seq)
        return msgspec.structs.replace(start, owner=owner).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._planner_and_mirror()[0].hold_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return read_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the end of the next batch, or ``start`` if there are no new messages.

        The query has processed all messages up to ``start``.
        """
        planner, mirror = self._planner_and_mirror()
        offset = LogOffset.of_json(start)
        planner.check_facts(planner.facts)
        owner = offset.owner
        if mirror is not None:
            # Until the first batch of a new query, the query's name isn't in the checkpoint, and would be different
            # after a restart. So only check the consumer, and don't claim it under this name yet.
            mirror.claim("" if offset.init else owner)
            owner = owner or secrets.token_hex(8)
            if not offset.init and offset.created == planner.facts.created:
                mirror.done(offset.seq)
        ahead = planner.ahead(offset, look=planner.is_read(offset) or self._delay.holding)
        if ahead is offset:
            return start
        if isinstance(ahead, LogOffset):
            return msgspec.structs.replace(ahead, owner=owner).to_json()
        if not planner.is_held and self._delay.holds(ahead.after, ahead.last, lambda: planner.rows(ahead)):
            return start
        rows, size = limits(self._options, limit)
        return msgspec.structs.replace(planner.batch_end(ahead, rows, size=size), owner=owner).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the stream, its last known end and the losses so far, for Spark's progress. Sends no request."""
        known = {} if self._planning is None else self._planning[0].report_progress() or {}
        subjects = {"subjects": [*self._options.subjects]} if self._options.subjects else {}
        return {**known, "stream": self._options.stream, **subjects}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = self._planner_and_mirror()[0].partitions(LogOffset.of_json(start), LogOffset.of_json(end))
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from ...tables.reading import read_range

        return read_range(partition.value.spec(self._spec), partition.value.range)

    def _planner_and_mirror(self) -> tuple[StreamPlanner, Mirror | None]:
        if self._planning is None:
            lookup, name = Lookup(self._options), self._options.consumer
            mirror = None if name is None else Mirror(lookup, name, self._options.subjects)
            ensure = None if mirror is None else mirror.ensure
            self._planning = StreamPlanner(self._options, lookup, ensure), mirror
        return self._planning
