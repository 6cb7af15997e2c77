"""Reading a range of a stream on an executor: batches of rows, as they come."""

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

_FEW = 256  # messages for which a consumer is not worth its making


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """What all tasks of a query read alike. It is pickled to the executors.

    Attributes:
        subjects: Filters; none: all messages.
        columns: Names of columns, in the order of the rows.
        created: When the stream was made, as ``StreamInfo.created.isoformat()``; None: any.
        read_mode: "consumer", "direct", or "auto".
        batch_rows: Rows that a batch should have.
        fetch_max_bytes: Bytes that one request asks for.
        check_loss: Whether messages that were removed before they were read are an error.
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
    """All messages of a range, in order, each once.

    Raises:
        HistoryTruncatedError: Messages were removed before they were read.
        PositionInvalidError: The stream is another one than was planned with.
        ConfigError: The stream cannot be read in this mode.
        JetStreamError: Those of any request.
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
    """A reader of a range, in the mode of the options, or in that which fits. To be closed. Raises as `read_range`."""
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
