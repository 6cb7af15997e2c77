"""The readers of a topic of epochs, one for streaming queries and one for batch reads, and their view of the topic."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from ...errors import ConfigError, JetStreamError, PositionInvalidError, ProtocolError, TopicNotFoundError
from ...protocol.epochs.frontier import Antichain, Int, Order
from ...protocol.epochs.records import EpochPosition, FrontierEntry, Schema
from ...streams.stream import Stream
from ...tables.lookup import Lookup
from ...tables.offsets import LogOffset, StreamFacts, cut_short
from ...tables.session import context_of
from ...tables.source_options import BY_SCHEMA, EPOCH_COLUMNS
from ...tables.tasks import pieces_of, read_spec
from ...topics.epochs.history import EpochHistory
from ...topics.epochs.home import StreamHome
from ...topics.stream_log import StreamLog
from ..options.epochs import EpochSourceOptions
from .planning import (
    BatchCut,
    ReadRequest,
    Segment,
    TopicHistory,
    cut_of,
    order_of,
    place_of,
    position_to_json,
    request_between,
)
from .reading import EpochSpec, read_segments

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["EpochBatchReader", "EpochPartition", "EpochStreamReader", "TopicLook", "epoch_columns"]

_PAGE, _PAGE_BYTES = 5000, 4 * 1024 * 1024  # limits of a page of frontier records
_AGAIN = 0.1  # seconds before records are requested again
_TRIES = 100  # attempts to read records that exist, but that a lagging replica may lack


def epoch_columns(options: EpochSourceOptions) -> dict[str, str]:
    """Return the default columns of a topic, which depend on the order of its times.

    Looks up the topic, and raises the same errors as `TopicLook`.
    """
    topic = TopicLook(options)
    topic.open_topic()
    omitted = BY_SCHEMA if options.read.include_headers else {*BY_SCHEMA, "headers"}
    kinds = {**EPOCH_COLUMNS, "epoch": "bigint" if isinstance(topic.order, Int) else "string"}
    return {name: kind for name, kind in kinds.items() if name not in omitted}


class TopicLook:
    """The driver's view of one topic.

    Every method raises `ConfigError` if the topic does not exist, may not be read, or has an unknown order. If the
    server stays unavailable, a method raises the usual errors of a request.

    Attributes:
        order, order_name, partitions: The order of times, its name, and the number of partitions, from the schema.
        facts: The state of the stream at the last lookup.
        history: The frontier records that planning needs.
        read_mode: The read mode for the executors.
    """

    order: Order[Any]
    order_name: str
    partitions: int
    facts: StreamFacts
    history: TopicHistory[Any]
    read_mode: str

    def __init__(self, options: EpochSourceOptions) -> None:
        self._options = options
        self.lookup: Lookup = Lookup(options.read)
        self._since = -1  # frontier records were read up to this sequence, or -1 if none were read
        self._floor = 0  # frontier records were read from this sequence on
        self._next = 0.0  # monotonic time when the records may be read again

    def open_topic(self) -> None:
        """Look up the stream and the topic's schema."""
        options, lookup = self._options, self.lookup
        self.facts = lookup.facts()
        schema = lookup.run(self._schema)
        self.order, self.order_name = order_of(schema.order, options.topic), schema.order
        self.partitions = schema.partitions
        self.read_mode = lookup.read_mode(self.facts)
        self.history = TopicHistory(self.order, schema.partitions)

    def read_frontiers(self, *, now: bool = False) -> None:
        """Read new frontier records. Sleeps until the poll interval has passed, unless ``now`` is set."""
        if not now and (wait := self._next - time.monotonic()) > 0:
            time.sleep(wait)
        self.facts = self.lookup.facts()
        if self._since < 0:
            self._floor = self._since = 0
        if self.facts.last_seq > self._since:
            while self.lookup.run(self._read_page):
                pass
        self._next = time.monotonic() + self._options.read.poll_interval

    def begin_at(self, epoch_position: EpochPosition[Any]) -> None:
        """Make the history start at a position. Missing records are read, and earlier records are dropped."""
        first = min(seq for _, seq in epoch_position.records)
        if self._since < 0 or first < self._floor:
            self.history = TopicHistory(self.order, self.partitions)
            self._floor, self._since = first, max(first - 1, 0)
            self.read_frontiers(now=True)
        self.history.forget_records(epoch_position)
        self._floor = first

    def look_at_last(self) -> None:
        """Make the history start at the last record of each partition."""
        self.facts = self.lookup.facts()

        async def last(stream: Stream) -> list[FrontierEntry[Any] | None]:
            stored = self._stored(stream)
            return [(await stored.last_frontier(number)).entry for number in range(self.partitions)]

        entries = self.lookup.run(last)
        for partition, entry in enumerate(entries):
            if entry is not None:
                self.history.add_entry(partition, entry)
        self._floor = min(0 if entry is None else entry.seq for entry in entries)
        self._since = max(self._floor - 1, 0)

    def restart(self) -> None:
        """Read all records again from the beginning of the stream."""
        self.history, self._since, self._floor = TopicHistory(self.order, self.partitions), -1, 0
        self.read_frontiers(now=True)

    def again(self) -> None:
        """Wait a short time for a replica that may lag, then read new records."""
        time.sleep(_AGAIN)
        self.read_frontiers(now=True)

    async def _schema(self, _: Stream) -> Schema:
        topic, stream = self._options.topic, self._options.read.stream
        try:
            return await StreamHome(self.lookup.js, topic, stream).schema()
        except TopicNotFoundError as error:
            raise ConfigError(
                f"option 'epochs': topic {topic!r} does not exist in stream {stream!r}: create it first (a sink does, "
                "and js.epochs(name).create()), or give its 'stream'"
            ) from error

    def _stored(self, stream: Stream) -> EpochHistory[Any]:
        topic = self._options.topic
        log = StreamLog(context_of(self.lookup.js), stream, f"{topic}.*.frontier")
        return EpochHistory(log, self.order, topic)

    async def _read_page(self, stream: Stream) -> bool:
        """Add a page of records to the history, and report invalid records. Returns whether more pages follow."""
        stored = self._stored(stream)
        page = await stored.log.history(self._since, _PAGE, _PAGE_BYTES)
        for record in page.records:
            token = record.subject.split(".")[-2]
            try:
                if not (token.isascii() and token.isdecimal()):
                    raise ProtocolError(f"message {record.seq} on {record.subject!r} belongs to no partition")
                entry = FrontierEntry.from_record(record, self.order)
            except ProtocolError as error:
                stored.report_skipped(record, error)
                continue
            if int(token) < self.partitions:
                self.history.add_entry(int(token), entry)
        # The page is complete up to `up_to`, which can be after its last record.
        self._since = max(self._since, page.up_to, *(record.seq for record in page.records[-1:]))
        return page.more


@dataclass(frozen=True)
class EpochPartition(InputPartition):
    """The segments that one task reads, and the epochs to select from them."""

    spec: EpochSpec
    segments: tuple[Segment, ...]


class _Source:
    """Base class of both readers. Only the driver looks up the topic."""

    def __init__(self, options: EpochSourceOptions, columns: tuple[str, ...], numbers: bool | None) -> None:  # noqa: FBT001  internal
        """Create a reader. ``numbers`` is whether the column ``epoch`` is numeric, or None without that column."""
        self._options = options
        # On executors, treat missing messages as an error whatever the options say, because an epoch must be read
        # completely or not at all.
        self._spec = EpochSpec(
            replace(read_spec(options.read, columns), check_loss=True, may_supersede=False), options.topic
        )
        self._numbers = numbers
        self._topic: TopicLook | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Leave out the topic, because executors don't use it.
        return {**self.__dict__, "_topic": None}

    def _open_topic(self) -> TopicLook:
        if self._topic is None:
            topic = TopicLook(self._options)
            topic.open_topic()
            if self._numbers and not isinstance(topic.order, Int):
                raise ConfigError(
                    "the schema has column 'epoch' as bigint, but the times of this topic are not integers: use string"
                )
            self._topic = topic
        return self._topic

    def _first(self, topic: TopicLook) -> ReadRequest[Any]:
        """Return a request for the epochs that a new query reads."""
        start, history, first_seq = self._options.start, topic.history, topic.facts.first_seq
        if start == "latest":
            return history.latest()
        earliest = history.earliest(first_seq)
        if not isinstance(start, int):
            return earliest
        if not isinstance(topic.order, Int):
            raise ConfigError("option 'startingEpoch' is for topics whose times are numbers")
        epochs: ReadRequest[Any] = ReadRequest(topic.order, (topic.order.encode(start),))
        error = history.lost_epochs(epochs, first_seq)
        return epochs if topic.lookup.accept(error) else earliest

    def _cut(self, segments: Sequence[Segment]) -> BatchCut:
        return BatchCut.of_segments(
            segments, pieces_of(self._options.read, sum(segment.width for segment in segments))
        )

    def _tasks(
        self, topic: TopicLook, epochs: ReadRequest[Any], cut: BatchCut | None = None
    ) -> list[EpochPartition]:
        """Return the tasks that read these epochs, whose end the topic must have reached.

        ``cut`` is the recorded division of the batch. If it is None, the options decide.
        """
        segments = topic.history.segments(epochs)
        # The offset was planned from these frontier records, so they exist. If a read lacks them, a lagging replica has
        # answered, so read again.
        for _ in range(_TRIES):
            if segments is not None:
                break
            topic.again()
            segments = topic.history.segments(epochs)
        if segments is None:
            raise ProtocolError(
                f"topic {self._options.topic!r} ends before the position up to which it was read"
            )
        cut = cut or self._cut(segments)
        spec = replace(
            self._spec,
            read=replace(self._spec.read, created=topic.facts.created, read_mode=topic.read_mode),
            order=topic.order_name,
            numbers=isinstance(topic.order, Int) if self._numbers is None else self._numbers,
        ).between(topic.order, epochs)
        return [EpochPartition(spec, tuple(share)) for share in cut.share(segments)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EpochPartition):  # if a read has no tasks, Spark plans an empty task
            return iter(())
        return read_segments(partition.spec, partition.segments)


def _comes_after(start: Antichain[Any], end: Antichain[Any]) -> bool:
    """Return whether any epoch was completed between two frontiers."""
    return bool(start) and end != start and all(map(start.some_below, end))


class EpochBatchReader(_Source, DataSourceReader):
    """Batch reader for all epochs that are complete when the read is planned, and whose data is still stored."""

    def partitions(self) -> Sequence[EpochPartition]:
        topic = self._open_topic()
        topic.read_frontiers(now=True)
        first, end = self._first(topic), topic.history.lower_frontier
        if not _comes_after(first.start, end):
            return []
        epochs: ReadRequest[Any] = ReadRequest(
            topic.order, first.start.elements, end.elements, first.missed.elements
        )
        return self._tasks(topic, epochs)


class EpochStreamReader(_Source, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader for completed epochs as micro-batches. Offsets are positions among the epochs.

    Spark calls all methods except `read` in one process on the driver.
    """

    _has_end = False
    _target: Antichain[Any] | None = None  # the end of a query with trigger AvailableNow

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        topic = self._open_topic()
        if self._options.start == "latest":
            topic.look_at_last()
        else:
            topic.read_frontiers(now=True)
        return self._offset(topic, self._first(topic))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        self._has_end = True

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the end of the next batch, or ``start`` if no epoch was completed."""
        topic = self._open_topic()
        stored = place_of(start, topic.order, topic.partitions)
        position = self._valid(topic, stored)
        # If the stream was replaced or truncated, an empty batch moves the query to the new position.
        if position is not stored:
            return position_to_json(position)
        topic.begin_at(position)
        if self._target is None:
            topic.read_frontiers()
        end = topic.history.lower_frontier if self._target is None else self._target
        if self._has_end:
            self._target = end
        epochs = request_between(position, None, topic.order)
        if not _comes_after(epochs.start, end):
            return start
        most = self._options.max_epochs_per_trigger
        reached = end.elements if most is None else topic.history.limited(epochs, end, most)
        missed = epochs.missed.elements
        segments = topic.history.segments(ReadRequest(topic.order, epochs.start.elements, reached, missed))
        cut = None if segments is None else self._cut(segments)
        return self._offset(topic, ReadRequest(topic.order, reached, missed=missed), cut)

    def _offset(
        self, topic: TopicLook, epochs: ReadRequest[Any], cut: BatchCut | None = None
    ) -> dict[str, Any]:
        return position_to_json(
            topic.history.epoch_position(epochs, topic.facts.name, topic.facts.created), cut
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[EpochPartition]:
        topic = self._open_topic()
        begin, stop = (place_of(offset, topic.order, topic.partitions) for offset in (start, end))
        begin = self._valid(topic, begin)
        if begin.frontiers == stop.frontiers or (stop.stream, stop.incarnation) != (
            topic.facts.name,
            topic.facts.created,
        ):
            return []
        topic.begin_at(begin)
        epochs = request_between(begin, stop, topic.order)
        if not topic.lookup.accept(topic.history.lost_epochs(epochs, topic.facts.first_seq)):
            epochs = topic.history.whole(epochs, topic.facts.first_seq)
        return self._tasks(topic, epochs, cut_of(end))

    def _valid(self, topic: TopicLook, position: EpochPosition[Any]) -> EpochPosition[Any]:
        """Look up the stream, and return the position from which to continue.

        This is another position if the stream was replaced or truncated.
        """
        end = LogOffset(max(seq for _, seq in position.records), position.incarnation)
        topic.facts = topic.lookup.confirm_end(topic.lookup.facts(), end)
        if not topic.lookup.accept(_another_stream(position, topic.facts)):
            return self._restarted(topic)
        lost = cut_short(end, topic.facts, "with the complete epochs there")
        return position if topic.lookup.accept(lost) else self._restarted(topic)

    def _restarted(self, topic: TopicLook) -> EpochPosition[Any]:
        topic.restart()
        epochs = topic.history.earliest(topic.facts.first_seq)
        return topic.history.epoch_position(epochs, topic.facts.name, topic.facts.created)


def _another_stream(position: EpochPosition[Any], facts: StreamFacts) -> JetStreamError | None:
    if (position.stream, position.incarnation) == (facts.name, facts.created):
        return None
    return PositionInvalidError(
        f"the query has read stream {position.stream!r} created at {position.incarnation}, but this is {facts.name!r} "
        f"created at {facts.created}. Use a new checkpoint; with option 'failOnDataLoss' = 'false' the query continues "
        "with the complete epochs there"
    )
