"""Rows that are known without reading messages, because the stream has no gaps and only sequences are needed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from .columns import arrow_schema, known_columns, record_batch

if TYPE_CHECKING:
    from ..client import JetStream
    from ..protocol.models.stream import StreamInfo
    from .ranges import SequenceRange
    from .tasks import ReadSpec

__all__ = ["has_each_message", "known_rows"]

# Columns whose values are known without reading the message.
_KNOWN = frozenset({"stream", "sequence", "stream_created"})


async def has_each_message(js: JetStream, spec: ReadSpec, part: SequenceRange) -> bool:
    """Return whether `known_rows` can return the rows of a range. If not, the messages must be read.

    Filters, other columns and an explicit ``readMode`` always require the messages. Otherwise a request for the
    stream's info shows whether the stream has gaps.
    """
    if spec.subjects or spec.read_mode != "auto" or not _KNOWN.issuperset(spec.columns):
        return False
    return _is_whole((await js.stream(spec.stream)).cached_info, spec, part)


def _is_whole(info: StreamInfo, spec: ReadSpec, part: SequenceRange) -> bool:
    """Return whether the stream has no gaps and includes the whole range."""
    state = info.state
    if spec.created is not None and info.created != datetime.fromisoformat(spec.created):
        return False  # the stream was recreated, and reading its messages raises the error
    has_gaps = state.num_deleted > 0 or state.messages != state.last_seq - state.first_seq + 1
    return not has_gaps and not state.lost and state.first_seq <= part.first and part.last <= state.last_seq


def known_rows(spec: ReadSpec, part: SequenceRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range that has a message at each sequence."""
    schema = arrow_schema(spec.columns)
    for first in range(part.first, part.last + 1, spec.batch_rows):
        sequences = array("q", range(first, min(first + spec.batch_rows, part.last + 1)))
        yield record_batch(schema, known_columns(sequences, spec.stream, spec.created))
