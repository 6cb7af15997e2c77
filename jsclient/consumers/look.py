"""Finds out why a consumer delivers no messages. Used by readers and by the command ``jsclient doctor``."""

from __future__ import annotations

from typing import NamedTuple

from .._runtime.calls import consumer_info
from .._runtime.context import Context
from ..errors import ClosedError, DisconnectedError, JetStreamError, PermissionDeniedError
from ..protocol.consumers.diagnosis import Finding, Local, cannot_look, diagnose, handler_due
from ..protocol.models.consumer import ConsumerInfo
from ..protocol.models.stream import StreamInfo
from ..protocol.wire.codec import from_wire

__all__ = ["Seen", "look_at_consumer", "stream_info"]


class Seen(NamedTuple):
    """The result of checking a consumer. Returned by `look_at_consumer`."""

    findings: list[Finding]
    info: ConsumerInfo | None = None
    due: float | None = None  # seconds until a handler in this process counts as stuck
    # True if the info of the stream can't explain why no message arrives. Later checks then don't request it.
    fits: bool = False
    denied: bool = False  # True if the user lacks the permission to request the information


async def look_at_consumer(
    context: Context, stream: str, consumer: str, local: Local | None = None, *, with_stream: bool = True
) -> Seen | None:
    """Check the consumer once.

    Returns None if the connection was lost or closed during the check, because that explains why no message arrives.
    """
    try:
        info = await consumer_info(context, stream, consumer)
        state: StreamInfo | None = None
        fits = False
        # If messages are pending, the filter matches, so the info of the stream has nothing to add.
        if with_stream and not info.num_pending:
            state, fits = await _stream(context, info)
    except (ClosedError, DisconnectedError):
        return None
    except JetStreamError as error:
        denied = isinstance(error, PermissionDeniedError)
        return Seen([cannot_look(error, stream, consumer)], denied=denied)
    due = None if local is None else handler_due(info, local)
    return Seen(diagnose(info, state, local), info, due, fits)


async def _stream(context: Context, info: ConsumerInfo) -> tuple[StreamInfo | None, bool]:
    """Return the info of the stream, or None if it is unavailable, and whether later checks can do without it.

    Later checks can do without the info if the user may not request it. They also can if the filter can match the
    subjects of the stream, and the stream is neither a mirror nor has sources, whose state may change.
    """
    try:
        stream = await stream_info(context, info.stream_name)
    except PermissionDeniedError:
        return None, True
    except (ClosedError, DisconnectedError):
        raise
    except JetStreamError:
        return None, False
    is_copy = bool(stream.config.mirror or stream.config.sources)
    return stream, not is_copy and not diagnose(info, stream)


async def stream_info(context: Context, stream: str) -> StreamInfo:
    """Request the configuration and state of a stream.

    Raises `StreamNotFoundError` if the stream doesn't exist. May raise any other error common to API requests.
    """
    answer = await context.call(context.api.stream_info(stream), what=f"info of stream {stream!r}")
    return from_wire(StreamInfo, answer)
