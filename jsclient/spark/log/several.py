"""The streaming source of log mode for several streams: a planner for each, and an offset with one for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from ..options.source import SourceOptions
from .delay import TriggerDelay
from .limits import limits, read_limit
from .lookup import NoSuchStreamError
from .members import Members
from .offsets import LogOffset, StreamOffsets, deleted, unknown_stream
from .planner import Ahead
from .ranges import shares
from .tasks import LogPartition, read_spec

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SeveralStreamsReader"]


class SeveralStreamsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of log mode for several streams. Spark calls it as `LogStreamReader`."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._spec = read_spec(options, columns)
        self._asking: Members | None = None  # None on executors
        self._delay = TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        members = self._members()
        begins = members.start()
        members.check_filters()
        return StreamOffsets(begins).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._members().hold_ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return read_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """The end of the next batch, or ``start`` without new messages. Everything up to ``start`` is processed."""
        members = self._members()
        members.refresh()
        given = _by_name(start, members.created)
        if isinstance(given, LogOffset):
            members.policy.accept(unknown_stream(given))
            given = members.beginnings(given)
        ends = members.joining(given)
        ahead = self._ahead(given, look=self._delay.holding)
        members.check_filters()
        if (
            not members.is_held
            and not ends
            and all(ahead.get(name) is offset for name, offset in given.items())
        ):
            ahead = self._ahead(given, look=True)
        ends |= {name: one for name, one in ahead.items() if isinstance(one, LogOffset)}
        found = {name: one for name, one in ahead.items() if isinstance(one, Ahead)}
        ends |= {name: given[name] for name in found} if self._holds(found) else self._ends(found, limit)
        return start if ends == given else StreamOffsets(ends).to_json()

    def _ahead(self, given: Mapping[str, LogOffset], *, look: bool) -> dict[str, Ahead | LogOffset]:
        """What is ahead of each offset; the offset itself for a stream that is not read. Without deleted streams.

        ``look``: whether to refresh the ends of all streams, see `StreamPlanner.ahead`.
        """
        members, looked = self._members(), False
        found: dict[str, Ahead | LogOffset] = {**given}
        for name, offset in given.items():
            try:
                if members.reads(name, offset):
                    found[name] = members.planner(name).ahead(offset, look=look)
                    looked = True
            except NoSuchStreamError:
                if not offset.idle:
                    members.policy.accept(deleted(name, offset))
                if members.forget(name):
                    del found[name]
        if look and not looked:
            time.sleep(self._options.poll_interval)
        return found

    def _holds(self, found: Mapping[str, Ahead]) -> bool:
        """Whether the batch waits for more messages, of all streams together."""
        if not found or self._members().is_held:
            return False
        after, last = sum(one.after for one in found.values()), sum(one.last for one in found.values())
        return self._delay.holds(after, last, lambda: sum(self._rows(found).values()))

    def _rows(self, found: Mapping[str, Ahead]) -> dict[str, int]:
        """The number of messages ahead in each stream, an estimate."""
        members = self._members()
        return {name: members.planner(name).rows(one) for name, one in found.items()}

    def _ends(self, found: Mapping[str, Ahead], limit: ReadLimit) -> dict[str, LogOffset]:
        """The end of the batch in each stream. Limits and tasks are shared in proportion to the messages ahead."""
        waiting = {name: one.width for name, one in found.items()}
        most = self._most(found, waiting, limit)
        if most is not None and sum(waiting.values()) > most:
            waiting = {
                name: max(1, rows) for name, rows in self._rows(found).items()
            }  # the counts may be wrong
            most = self._most(found, waiting, limit)
        counts = list(waiting.values())
        rows = counts if most is None else shares(counts, most)
        total, least = max(1, sum(rows)), self._options.min_partitions
        is_limited = sum(rows) < sum(counts)
        ends = {}
        for (name, one), share in zip(found.items(), rows, strict=True):
            pieces = max(1, -(-least * share // total))
            ends[name] = self._members().planner(name).end(one, share if is_limited else None, pieces)
        return ends

    def _most(self, found: Mapping[str, Ahead], waiting: Mapping[str, int], limit: ReadLimit) -> int | None:
        """The maximum rows of a batch of these messages, whose bytes are estimated; None: no limit."""
        rows, size = limits(self._options, limit)
        total = sum(waiting.values())
        by_size = None
        if size is not None and total:
            by_size = max(
                1, size * total // sum(waiting[name] * one.facts.mean_bytes for name, one in found.items())
            )
        return min((most for most in (rows, by_size) if most is not None), default=None)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """The last known end and the losses so far of each stream, without a request."""
        return None if self._asking is None else {"streams": self._asking.report()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of all streams, in the order of their names."""
        ends = StreamOffsets.of_json(end).streams
        begins = _by_name(start, lambda: {name: one.created for name, one in ends.items()})
        if isinstance(begins, LogOffset):
            self._members().policy.accept(unknown_stream(begins))
            begins = {}
        return [
            InputPartition(task)
            for name, stop in sorted(ends.items())
            for task in self._tasks(name, begins.get(name) or stop.first, stop)
        ]

    def _tasks(self, name: str, begin: LogOffset, stop: LogOffset) -> list[LogPartition]:
        """The tasks of one stream. They are empty if it was deleted, so those of the others keep their numbers."""
        if begin == stop or stop.is_start:
            return []
        members = self._members()
        try:
            return members.planner(name).partitions(begin, stop)
        except NoSuchStreamError:
            members.policy.accept(deleted(name, begin))
        return [LogPartition(None, stop.created, stream=name) for _ in stop.cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from .reading import read_range

        return read_range(partition.value.spec(self._spec), partition.value.range)

    def _members(self) -> Members:
        if self._asking is None:
            self._asking = Members(self._options)
        return self._asking


def _by_name(
    start: Mapping[str, Any], created: Callable[[], Mapping[str, str]]
) -> Mapping[str, LogOffset] | LogOffset:
    """The start of a batch in each stream. The checkpoint may be that of a source of one of them.

    Returns the offset if it is, and the stream is not one of these: it may have been recreated since.

    Args:
        start: As Spark has it.
        created: Returns the time when each stream was created, which identifies that one.
    """
    if "streams" in start:
        return StreamOffsets.of_json(start).streams
    one = LogOffset.of_json(start)
    names = [name for name, time in created().items() if time == one.created]
    return {names[0]: one} if len(names) == 1 else one
