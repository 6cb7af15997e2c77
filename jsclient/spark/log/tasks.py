"""Tasks of log mode: planned on the driver, read on the executors as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from ...client import JetStream
from ...protocol.models.stream_config import RetentionPolicy
from ...protocol.streams.direct_get import BATCH_GET_SERVER
from ...protocol.wire.version import is_at_least
from ..columns import arrow_schema, direct_columns, frame_batch, record_batch
from ..engine import session
from ..options.connect import ConnectOptions
from ..options.source import SourceOptions
from .lookup import Lookup
from .offsets import StreamFacts
from .range_reader import ConsumerRange, DirectRange
from .ranges import SPARSE, SequenceRange, pieces_for, plan_ranges, plan_sparse

__all__ = [
    "LogPartition",
    "ReadSpec",
    "cut",
    "open_range",
    "pieces_of",
    "plan",
    "read_limit",
    "read_range",
    "read_spec",
]

log: logging.Logger = logging.getLogger("jsclient.spark")

_FEW = 256  # messages; for smaller ranges creating a consumer costs too much
_WORTH_COUNTING = 10_000  # sequences; smaller ranges are split by sequence if counting needs a consumer


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The read settings common to all tasks of a query. Pickled and sent to the executors."""

    connect: ConnectOptions
    stream: str
    subjects: tuple[str, ...]  # subject filters; empty: all messages
    columns: tuple[str, ...]  # column names, in the order of the schema
    created: str | None  # when the stream was created, as ``StreamInfo.created.isoformat()``; None: any
    read_mode: str  # "consumer", "direct", or "auto"
    batch_rows: int  # maximum rows per batch
    fetch_max_bytes: int  # bytes to request at a time
    check_loss: bool  # whether to raise an error if messages were removed before they were read


def read_range(spec: ReadSpec, wanted: SequenceRange | None) -> Iterator[pa.RecordBatch]:
    """Yield all messages of a range in order, each exactly once. Nothing without a range.

    Raises:
        HistoryTruncatedError: Messages were removed before they were read.
        PositionInvalidError: The stream was recreated after the read was planned.
        ConfigError: The stream cannot be read in this mode.
    """
    if wanted is None:
        return
    opened = session(spec.connect)
    schema = arrow_schema(spec.columns)
    reader = opened.run(open_range(opened.js, spec, wanted))
    try:
        while messages := opened.run(reader.read(spec.batch_rows)):
            for start in range(0, len(messages), spec.batch_rows):
                part = messages[start : start + spec.batch_rows]
                if isinstance(reader, ConsumerRange):
                    yield frame_batch(part, schema, spec.stream, created=spec.created)
                else:
                    columns = direct_columns(part, spec.columns, spec.stream, spec.created)
                    yield record_batch(schema, columns)
        if reader.lost:
            log.warning(
                "%d messages of stream %r at most, of sequences %d to %d, were removed before a task read them",
                reader.lost,
                spec.stream,
                wanted.first,
                wanted.last,
            )
    finally:
        opened.run(reader.close())


async def open_range(js: JetStream, spec: ReadSpec, wanted: SequenceRange) -> ConsumerRange | DirectRange:
    """Create a reader for a range, which the caller must close. Raises the same errors as `read_range`.

    In read mode "auto", it reads by direct get if the stream and the server support it, and the range is small or the
    stream is a work queue; otherwise through a consumer.
    """
    stream = await js.stream(spec.stream)
    config = stream.config
    by_get = spec.read_mode == "direct"
    if spec.read_mode == "auto":
        able = (
            bool(config.allow_direct)
            and len(spec.subjects) < 2
            and is_at_least(js.server_version, BATCH_GET_SERVER)
        )
        by_get = able and (config.retention == RetentionPolicy.WORKQUEUE or wanted.last - wanted.first < _FEW)
    kind: type[ConsumerRange | DirectRange] = DirectRange if by_get else ConsumerRange
    return kind(
        stream,
        wanted.first,
        wanted.last,
        subjects=spec.subjects,
        created=None if spec.created is None else datetime.fromisoformat(spec.created),
        check_loss=spec.check_loss,
        max_bytes=spec.fetch_max_bytes,
    )


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """The part of a stream that one task reads."""

    range: SequenceRange | None  # None: nothing is left of it
    created: str  # when the stream was created, see `ReadSpec`
    subjects: tuple[str, ...] = ()
    read_mode: str = "auto"  # see `ReadSpec`

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


def read_limit(options: SourceOptions) -> ReadLimit:
    """The limit of a micro-batch. If both limits are given, `latestOffset` applies the other one."""
    if options.max_messages_per_trigger is not None:
        return ReadMaxRows(options.max_messages_per_trigger)
    if options.max_bytes_per_trigger is not None:
        return ReadMaxBytes(options.max_bytes_per_trigger)
    return ReadAllAvailable()


def pieces_of(options: SourceOptions, rows: int) -> int:
    """The number of tasks for a number of rows."""
    return pieces_for(
        rows, options.min_partitions, options.max_messages_per_partition, options.min_partition_rows
    )


def cut(
    lookup: Lookup, options: SourceOptions, whole: SequenceRange, facts: StreamFacts
) -> list[SequenceRange]:
    """Split a range into tasks. Together they cover the whole range even if counts were wrong."""
    if pieces_of(options, whole.width) == 1:
        return [whole]
    dense = not lookup.subjects and not facts.gaps
    if dense or (whole.width < _WORTH_COUNTING and not lookup.counts_cheaply(facts)):
        return plan_ranges(whole, pieces_of(options, whole.width))
    rest, after = lookup.rest(whole.first, facts), lookup.rest(whole.last + 1, facts)
    rows = max(0, rest - after)
    pieces = pieces_of(options, rows)
    if pieces == 1:
        return [whole]
    if options.max_messages_per_partition is None and whole.width <= SPARSE * rows:
        return plan_ranges(whole, pieces)
    return lookup.drive(plan_sparse(whole, rest, after, pieces), facts)


def plan(
    parts: Iterable[SequenceRange | None], lookup: Lookup, facts: StreamFacts, read_mode: str
) -> list[LogPartition]:
    """The tasks that read these ranges."""
    return [LogPartition(part, facts.created, lookup.subjects, read_mode) for part in parts]
