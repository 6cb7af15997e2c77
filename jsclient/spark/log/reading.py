"""Reading a range of a stream on an executor, as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from ...client import JetStream
from ...protocol.models.stream import RetentionPolicy
from ...protocol.streams.direct_get import BATCH_GET_SERVER
from ...protocol.wire.version import is_at_least
from ..columns import arrow_schema, direct_columns, frame_batch, record_batch
from ..engine import session
from ..options.connect import ConnectOptions
from .range_reader import ConsumerRange, DirectRange
from .ranges import SequenceRange

__all__ = ["ReadSpec", "open_range", "read_range"]

_FEW = 256  # messages; for smaller ranges creating a consumer costs too much


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """The read settings common to all tasks of a query. Pickled and sent to the executors.

    Attributes:
        subjects: Subject filters; empty: all messages.
        columns: Column names, in the order of the schema.
        created: When the stream was created, as ``StreamInfo.created.isoformat()``; None: any.
        read_mode: "consumer", "direct", or "auto".
        batch_rows: Maximum rows per batch.
        fetch_max_bytes: Bytes to request at a time.
        check_loss: Whether to raise an error if messages were removed before they were read.
    """

    connect: ConnectOptions
    stream: str
    subjects: tuple[str, ...]
    columns: tuple[str, ...]
    created: str | None
    read_mode: str
    batch_rows: int
    fetch_max_bytes: int
    check_loss: bool


def read_range(spec: ReadSpec, wanted: SequenceRange) -> Iterator[pa.RecordBatch]:
    """Yield all messages of a range in order, each exactly once.

    Raises:
        HistoryTruncatedError: Messages were removed before they were read.
        PositionInvalidError: The stream was recreated after the read was planned.
        ConfigError: The stream cannot be read in this mode.
        JetStreamError: Any other failure of a request.
    """
    opened = session(spec.connect)
    schema = arrow_schema(spec.columns)
    reader = opened.run(open_range(opened.js, spec, wanted))
    try:
        while messages := opened.run(reader.read(spec.batch_rows)):
            for start in range(0, len(messages), spec.batch_rows):
                part = messages[start : start + spec.batch_rows]
                if isinstance(reader, ConsumerRange):
                    yield frame_batch(part, schema, spec.stream)
                else:
                    yield record_batch(schema, direct_columns(part, spec.columns, spec.stream))
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
