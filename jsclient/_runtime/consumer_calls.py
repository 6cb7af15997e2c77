"""What every handle of a consumer asks the server."""

from __future__ import annotations

from ..errors import ConsumerNotFoundError, StreamNotFoundError
from ..protocol.codec import from_wire
from ..protocol.models.consumer import ConsumerInfo
from .context import Context

__all__ = ["consumer_info", "delete_consumer"]


async def consumer_info(context: Context, stream: str, consumer: str) -> ConsumerInfo:
    """The consumer's present state. Raises `ConsumerNotFoundError` and those of any request."""
    answer = await context.call(
        context.api.consumer_info(stream, consumer), what=f"info of consumer {consumer!r}"
    )
    return from_wire(ConsumerInfo, answer)


async def delete_consumer(context: Context, stream: str, consumer: str) -> None:
    """Delete a consumer of ours; that it is gone already is as wished. Raises those of any request."""
    try:
        await context.call(
            context.api.consumer_delete(stream, consumer), what=f"delete consumer {consumer!r}"
        )
    except (ConsumerNotFoundError, StreamNotFoundError):
        pass
