"""Checks whether a filter can match a message of a stream, with a request only if needed."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError, JetStreamError, MessageNotFoundError
from ..protocol.models.consumer_checks import impossible_filters
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import StreamConfig
from ..protocol.wire.codec import from_wire
from .context import Context

__all__ = ["check_match"]

_TIMEOUT = 2.0  # seconds to wait for an answer. If none arrives, the filter is accepted


async def check_match(
    context: Context, stream: str, filters: Sequence[str], known: StreamConfig | None = None
) -> None:
    """Raise `ConfigError` for a filter that can match no message of the stream, stored or future.

    If the request is not permitted or not answered, the function accepts the filters.

    Args:
        context: Sends the requests. A missing permission is not reported.
        stream: The name of the stream.
        filters: The filters of a consumer.
        known: The stream's configuration, as the server last reported it. If the filters fit it, no request is sent.
    """
    if not filters or (known is not None and not impossible_filters(filters, known)):
        return
    if known is None and context.connection.outbox is None:
        # A user's nats-py connection doesn't report denials. If the user isn't allowed to request the stream's info,
        # this check would delay the caller by a whole timeout, so skip the check.
        return
    try:
        subject = context.api.stream_info(stream)
        answer = await context.call(subject, timeout=_TIMEOUT, what="stream info", optional=True)
        config = from_wire(StreamInfo, answer).config
        for unmatched in impossible_filters(filters, config):
            if not await _stores(context, stream, unmatched):
                break
        else:
            return
    except JetStreamError:
        return
    subjects = ", ".join(map(repr, config.subjects or ()))
    raise ConfigError(
        f"filter {unmatched!r} can match no message of stream {stream!r}, whose subjects are {subjects}: correct the "
        "filter, use another stream, or add the subject to this one"
    )


async def _stores(context: Context, stream: str, subject: str) -> bool:
    """Return whether a stored message matches. When it was stored, the stream may have had other subjects."""
    try:
        await context.call(
            context.api.stream_msg_get(stream),
            {"last_by_subj": subject},
            timeout=_TIMEOUT,
            what="get message",
            optional=True,
        )
    except MessageNotFoundError:
        return False
    return True
