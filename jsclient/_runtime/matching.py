"""Whether a filter can match a message of a stream: asked only where nothing else shows it."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError, JetStreamError, MessageNotFoundError
from ..protocol.models.consumer_checks import impossible_filters
from ..protocol.models.stream import StreamInfo
from ..protocol.models.stream_config import StreamConfig
from ..protocol.wire.codec import from_wire
from .context import Context

__all__ = ["check_match"]

_PATIENCE = 2.0  # seconds: what cannot be asked is not refused


async def check_match(
    context: Context, stream: str, filters: Sequence[str], known: StreamConfig | None = None
) -> None:
    """Raise `ConfigError` for a filter that can match no message of the stream, stored or to come.

    A filter is accepted if the server cannot be asked, or does not answer.

    Args:
        context: For the requests; a user who may not send them is not told.
        stream: The name of the stream.
        filters: The filters of a consumer.
        known: The stream's configuration as last seen. If the filters fit it, nothing is asked.
    """
    if not filters or (known is not None and not impossible_filters(filters, known)):
        return
    if known is None and context.connection.outbox is None:
        return  # a connection of the user: a denial would not be seen, and take as long as no answer
    try:
        subject = context.api.stream_info(stream)
        answer = await context.call(subject, timeout=_PATIENCE, what="stream info", optional=True)
        config = from_wire(StreamInfo, answer).config
        for one in impossible_filters(filters, config):
            if not await _stores(context, stream, one):
                break
        else:
            return
    except JetStreamError:
        return
    subjects = ", ".join(map(repr, config.subjects or ()))
    raise ConfigError(
        f"filter {one!r} can match no message of stream {stream!r}, whose subjects are {subjects}: correct the filter, "
        "use another stream, or add the subject to this one"
    )


async def _stores(context: Context, stream: str, subject: str) -> bool:
    """Whether a message that is stored matches: the stream may have had other subjects."""
    try:
        await context.call(
            context.api.stream_msg_get(stream),
            {"last_by_subj": subject},
            timeout=_PATIENCE,
            what="get message",
            optional=True,
        )
    except MessageNotFoundError:
        return False
    return True
