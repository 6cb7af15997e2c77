"""The streaming source of log mode for several streams.

Each stream has its own planner, and its own offset within the offset of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from ...tables.lookup import NoSuchStreamError
from ...tables.offsets import LogOffset, StreamOffsets, deleted, unknown_stream
from ...tables.ranges import shares
from ...tables.source_options import SourceOptions
from ...tables.tasks import LogPartition, read_spec
from .delay import TriggerDelay
from .grouping import group_width, grouped
from .limits import limits, read_limit
from .members import Members
from .planner import Ahead

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SeveralStreamsReader"]


class SeveralStreamsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of log mode for several streams. Spark calls it like `LogStreamReader`."""

    def __init__(self, options: SourceOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._spec = read_spec(options, columns)
        self._asking: Members | None = None  # None on executors
        self._delay = TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        members = self._members()
        begins = members.start_offsets()
        members.check_filters()
        return StreamOffsets(begins).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._members().hold_ends()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return read_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the end of the next batch, or ``start`` if there are no new messages.

        The query has processed all messages up to ``start``.
        """
        members = self._members()
        members.refresh()
        offsets = _by_name(start, members.created)
        if isinstance(offsets, LogOffset):
            members.policy.accept(unknown_stream(offsets))
            offsets = members.beginnings(offsets)
        ends = members.joining(offsets)
        ahead = self._ahead(offsets, look=self._delay.holding)
        members.check_filters()
        # If no stream has new messages, wait for the poll interval before checking again, to spare the server.
        if (
            not members.is_held
            and not ends
            and all(ahead.get(name) is offset for name, offset in offsets.items())
        ):
            ahead = self._ahead(offsets, look=True)
        ends |= {name: one for name, one in ahead.items() if isinstance(one, LogOffset)}
        pending = {name: one for name, one in ahead.items() if isinstance(one, Ahead)}
        ends |= (
            {name: offsets[name] for name in pending}
            if self._waits_for_more(pending)
            else self._ends(pending, limit)
        )
        return start if ends == offsets else StreamOffsets(ends, self._together(offsets, ends)).to_json()

    def _together(self, offsets: Mapping[str, LogOffset], ends: Mapping[str, LogOffset]) -> int:
        """Return how many sequences of several streams one task of the batch reads, see `StreamOffsets.together`."""
        new = (stop for name, stop in ends.items() if offsets.get(name) is not stop)
        widths = [part.width for stop in new for part in stop.parts]
        return group_width(widths, self._options.min_partitions, self._options.max_messages_per_partition)

    def _ahead(self, offsets: Mapping[str, LogOffset], *, look: bool) -> dict[str, Ahead | LogOffset]:
        """Return what is ahead of each offset, or the offset itself for a stream that is not read.

        A deleted stream that matched the pattern is omitted. With ``look``, the ends of all streams are refreshed,
        after a sleep if the last round was too recent. Otherwise they are refreshed only if that takes no sleep.
        """
        members = self._members()
        ahead: dict[str, Ahead | LogOffset] = {**offsets}
        members.begin_round(look=look)
        for name, offset in offsets.items():
            try:
                if members.reads(name, offset):
                    ahead[name] = members.planner(name).ahead(offset, look=False)
            except NoSuchStreamError:
                # No message up to an idle offset matched a filter, so the query loses nothing by the stream's deletion.
                if not offset.idle:
                    members.policy.accept(deleted(name, offset))
                if members.forget_stream(name):
                    del ahead[name]
        members.end_round()
        return ahead

    def _waits_for_more(self, pending: Mapping[str, Ahead]) -> bool:
        """Return whether the batch waits for more messages. The messages of all streams count together."""
        if not pending or self._members().is_held:
            return False
        after, last = (
            sum(ahead.after for ahead in pending.values()),
            sum(ahead.last for ahead in pending.values()),
        )
        return self._delay.holds(after, last, lambda: sum(self._rows(pending).values()))

    def _rows(self, pending: Mapping[str, Ahead]) -> dict[str, int]:
        """Estimate the number of messages ahead in each stream."""
        members = self._members()
        return {name: members.planner(name).rows(ahead) for name, ahead in pending.items()}

    def _ends(self, pending: Mapping[str, Ahead], limit: ReadLimit) -> dict[str, LogOffset]:
        """Return the end of the batch in each stream.

        The streams share limits and tasks in proportion to the messages ahead.
        """
        waiting = {name: ahead.width for name, ahead in pending.items()}
        most = self._most(pending, waiting, limit)
        if most is not None and sum(waiting.values()) > most:
            # The counts may be inaccurate. Inaccurate counts do no harm, because a replay uses the division recorded in
            # the offset.
            waiting = {name: max(1, rows) for name, rows in self._rows(pending).items()}
            most = self._most(pending, waiting, limit)
        counts = list(waiting.values())
        rows = counts if most is None else shares(counts, most)
        total, least = max(1, sum(rows)), self._options.min_partitions
        is_limited = sum(rows) < sum(counts)
        ends = {}
        size = limits(self._options, limit)[1]
        estimated = [
            share * ahead.facts.mean_bytes for ahead, share in zip(pending.values(), rows, strict=True)
        ]
        for (name, ahead), share, estimate in zip(pending.items(), rows, estimated, strict=True):
            pieces = max(1, -(-least * share // total))
            size_share = None if size is None else max(1, size * estimate // max(1, sum(estimated)))
            planner = self._members().planner(name)
            ends[name] = planner.batch_end(ahead, share if is_limited else None, pieces, size=size_share)
        return ends

    def _most(self, pending: Mapping[str, Ahead], waiting: Mapping[str, int], limit: ReadLimit) -> int | None:
        """Return the maximum number of rows of the batch, or None without a limit.

        A limit of bytes is converted to rows by the mean sizes of the messages.
        """
        rows, size = limits(self._options, limit)
        total = sum(waiting.values())
        by_size = None
        if size is not None and total:
            by_size = max(
                1,
                size
                * total
                // sum(waiting[name] * ahead.facts.mean_bytes for name, ahead in pending.items()),
            )
        return min((most for most in (rows, by_size) if most is not None), default=None)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """Return the last known end and the losses so far of each stream. Sends no request."""
        return None if self._asking is None else {"streams": self._asking.report_streams()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of all streams, in the order of their names. A task may read ranges of several streams."""
        stored = StreamOffsets.of_json(end)
        ends, together = stored.streams, stored.together
        begins = _by_name(start, lambda: {name: offset.created for name, offset in ends.items()})
        if isinstance(begins, LogOffset):
            self._members().policy.accept(unknown_stream(begins))
            begins = {}
        self._members().refresh_facts([name for name, stop in ends.items() if begins.get(name) != stop])
        tasks: list[LogPartition] = []
        # Group the ranges by their recorded widths, not by what remains of them. If messages were removed, a replay
        # would otherwise form different groups, so tasks would get different numbers.
        widths: list[int] = []
        for name, stop in sorted(ends.items()):
            planned = self._tasks(name, begins.get(name) or stop.first, stop)
            parts = stop.parts
            tasks += planned
            widths += (
                [part.width for part in parts]
                if len(parts) == len(planned)
                else [together + 1] * len(planned)
            )
        return [InputPartition(group) for group in grouped(tasks, widths, together)]

    def _tasks(self, name: str, begin: LogOffset, stop: LogOffset) -> list[LogPartition]:
        """Return the tasks of one stream.

        If the stream was deleted, its tasks are empty, so that the tasks of other streams keep their numbers.
        """
        if begin == stop or stop.is_start:
            return []
        members = self._members()
        try:
            return members.planner(name).partitions(begin, stop)
        except NoSuchStreamError:
            members.policy.accept(deleted(name, begin))
        return [LogPartition(None, stop.created, stream=name) for _ in stop.cuts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from ...tables.reading import read_range

        for part in partition.value or ():
            yield from read_range(part.spec(self._spec), part.range)

    def _members(self) -> Members:
        if self._asking is None:
            self._asking = Members(self._options)
        return self._asking


def _by_name(
    start: Mapping[str, Any], created: Callable[[], Mapping[str, str]]
) -> Mapping[str, LogOffset] | LogOffset:
    """Return the start of a batch in each stream.

    The checkpoint may be from a source of one stream. If the source no longer reads that stream, for example because it
    was recreated, its offset alone is returned.

    Args:
        start: The offset that Spark has stored.
        created: A function that returns the creation time of each stream, which identifies the stream.
    """
    if "streams" in start:
        return StreamOffsets.of_json(start).streams
    offset = LogOffset.of_json(start)
    names = [name for name, time in created().items() if time == offset.created]
    return {names[0]: offset} if len(names) == 1 else offset
