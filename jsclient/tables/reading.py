"""Read ranges on the executors as Arrow batches. The driver does not import this module, to start faster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa

from ..client import JetStream
from ..protocol.models.stream_config import RetentionPolicy
from ..protocol.streams.direct_get import BATCH_GET_SERVER
from ..protocol.wire.checks import is_at_least
from .columns import arrow_schema, direct_columns, frame_batch, record_batch
from .known_rows import has_each_message, known_rows
from .range_reader import ConsumerRange, DirectRange
from .ranges import SequenceRange
from .session import session
from .tasks import ReadSpec

__all__ = ["open_range", "read_range"]

log: logging.Logger = logging.getLogger("jsclient.spark")

_FEW = 256  # number of sequences below which creating a consumer costs more than a direct get
_FEW_PAYLOADS = 8  # as `_FEW`, if the payloads aren't needed. Only a consumer can omit them


def read_range(spec: ReadSpec, wanted: SequenceRange | None) -> Iterator[pa.RecordBatch]:
    """Yield all messages of a range as record batches, in order, each message exactly once.

    If ``wanted`` is None, no batch is yielded.

    Raises:
        HistoryTruncatedError: Messages were removed before they were read.
        PositionInvalidError: The stream was recreated after the read was planned.
        ConfigError: The stream cannot be read in this mode.
    """
    if wanted is None:
        return
    opened = session(spec.connect)
    if opened.run(has_each_message(opened.js, spec, wanted)):
        yield from known_rows(spec, wanted)
        return
    schema = arrow_schema(spec.columns)
    headers_only = "data" not in spec.columns
    reader = opened.run(open_range(opened.js, spec, wanted, headers_only=headers_only))
    try:
        while messages := opened.run(reader.read_messages(spec.batch_rows)):
            for start in range(0, len(messages), spec.batch_rows):
                part = messages[start : start + spec.batch_rows]
                # Consumers carry the metadata of a message in its ack subject, and direct gets in its headers. The two
                # forms need different decoders.
                if isinstance(reader, ConsumerRange):
                    yield frame_batch(
                        part, schema, spec.stream, created=spec.created, headers_only=headers_only
                    )
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
        opened.end(reader.close())


async def open_range(
    js: JetStream, spec: ReadSpec, wanted: SequenceRange, *, headers_only: bool = False
) -> ConsumerRange | DirectRange:
    """Create a reader for a range, which the caller must close. Raises the same errors as `read_range`.

    In read mode "auto", the reader uses direct gets if the stream and the server support them, and if the range is
    small or the stream is a work queue. Otherwise it uses a consumer. `RangeReader` describes ``headers_only``.
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
        # For a small range, creating a consumer costs more than a direct get.
        few = _FEW_PAYLOADS if headers_only else _FEW
        by_get = able and (config.retention == RetentionPolicy.WORKQUEUE or wanted.last - wanted.first < few)
    kind: type[ConsumerRange | DirectRange] = DirectRange if by_get else ConsumerRange
    return kind(
        stream,
        wanted.first,
        wanted.last,
        subjects=spec.subjects,
        created=None if spec.created is None else datetime.fromisoformat(spec.created),
        check_loss=spec.check_loss,
        may_supersede=spec.may_supersede,
        since=spec.since,
        max_bytes=spec.fetch_max_bytes,
        headers_only=headers_only,
    )
