"""The streaming source of log mode for one stream: offsets are sequences, so every batch can be read again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from ..options.source import SourceOptions
from .delay import TriggerDelay
from .limits import limits, read_limit
from .lookup import Lookup
from .mirror import Mirror
from .offsets import LogOffset
from .planner import StreamPlanner
from .tasks import read_spec

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LogStreamReader"]


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of log mode.

    Spark calls all methods except `read` sequentially in one process on the driver, and never calls `stop`.
    """

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._spec = read_spec(options, columns)
        self._asking: tuple[StreamPlanner, Mirror | None] | None = None  # None on executors
        self._delay = TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        planner, mirror = self._asked()
        planner.check(planner.facts)
        owner = ""
        if mirror is not None:
            mirror.claim("")
            owner = secrets.token_hex(8)
        start = planner.start()
        if mirror is not None:
            mirror.begin(start.seq)
        return msgspec.structs.replace(start, owner=owner).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._asked()[0].hold_end()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return read_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The end of the next batch, or ``start`` without new messages. Everything up to ``start`` is processed."""
        planner, mirror = self._asked()
        given = LogOffset.of_json(start)
        planner.check(planner.facts)
        owner = given.owner
        if mirror is not None:
            # The name of a new query is in no checkpoint before its first batch is.
            mirror.claim("" if given.init else owner)
            owner = owner or secrets.token_hex(8)
            if not given.init and given.created == planner.facts.created:
                mirror.done(given.seq)
        ahead = planner.ahead(given, look=planner.is_read(given) or self._delay.holding)
        if ahead is given:
            return start
        if isinstance(ahead, LogOffset):
            return msgspec.structs.replace(ahead, owner=owner).to_json()
        if not planner.is_held and self._delay.holds(ahead.after, ahead.last, lambda: planner.rows(ahead)):
            return start
        rows, size = limits(self._options, limit)
        by_size = None if size is None else max(1, size // ahead.facts.mean_bytes)
        most = min((most for most in (rows, by_size) if most is not None), default=None)
        return msgspec.structs.replace(planner.end(ahead, most), owner=owner).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The stream, its last known end, and the losses so far, for the progress. Sends no request."""
        known = {} if self._asking is None else self._asking[0].report() or {}
        subjects = {"subjects": [*self._options.subjects]} if self._options.subjects else {}
        return {**known, "stream": self._options.stream, **subjects}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        tasks = self._asked()[0].partitions(LogOffset.of_json(start), LogOffset.of_json(end))
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .reading import read_range

        return read_range(partition.value.spec(self._spec), partition.value.range)

    def _asked(self) -> tuple[StreamPlanner, Mirror | None]:
        if self._asking is None:
            lookup, name = Lookup(self._options), self._options.consumer
            mirror = None if name is None else Mirror(lookup, name, self._options.subjects)
            ensure = None if mirror is None else mirror.ensure
            self._asking = StreamPlanner(self._options, lookup, ensure), mirror
        return self._asking
