"""What the handles of a stream ask the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ..protocol.models.stream import StreamInfo
from ..protocol.wire.api import next_offset
from ..protocol.wire.codec import from_wire
from .context import Context

__all__ = ["subject_pages"]


async def subject_pages(
    context: Context, stream: str, subjects_filter: str, **fields: Any
) -> AsyncIterator[StreamInfo]:
    """The stream's info with ``state.subjects``, again and again: up to 100,000 subjects each, until all were told.

    Raises:
        StreamNotFoundError, ProtocolError, and those of any request.
    """
    offset: int | None = 0
    while offset is not None:
        body = {"subjects_filter": subjects_filter, **fields}
        if offset:
            body["offset"] = offset
        answer = await context.call(context.api.stream_info(stream), body, what="stream info")
        info = from_wire(StreamInfo, answer)
        yield info
        offset = next_offset(answer, offset, len(info.state.subjects or ()))
