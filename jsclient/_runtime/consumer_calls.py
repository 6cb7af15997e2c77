"""What every handle of a consumer asks the server."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ConsumerNotFoundError, JetStreamError, StreamNotFoundError
from ..protocol.consumers.ack import AckKind
from ..protocol.models.consumer import ConsumerConfig, ConsumerInfo
from ..protocol.wire.codec import from_wire
from ..protocol.wire.frames import Frame
from ..protocol.wire.version import check_server
from .context import Context
from .nats.connection import Connection

__all__ = ["check_known", "consumer_info", "delete_consumer", "is_gone", "nak_all"]

_SINCE_2_11 = ("pause_until", "priority_groups", "priority_timeout")


def check_known(context: Context, config: ConsumerConfig) -> None:
    """Raises `ConfigError` where the server is too old for a field that is set and would overlook it."""
    for field in _SINCE_2_11:
        if getattr(config, field):
            check_server(context.connection.server_version, (2, 11), f"{field} of a consumer")


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


async def is_gone(context: Context, stream: str, consumer: str) -> bool:
    """Whether the server says that there is no such consumer, or no such stream. Not known is no."""
    try:
        await consumer_info(context, stream, consumer)
    except (ConsumerNotFoundError, StreamNotFoundError):
        return True
    except JetStreamError:
        pass
    return False


async def nak_all(connection: Connection, frames: Iterable[Frame]) -> None:
    """Messages that nobody will take: let the server deliver them elsewhere at once (nak)."""
    try:
        for frame in frames:
            await connection.ack(frame[1], AckKind.NAK.value, settles=False)
    except JetStreamError:
        pass  # ack_wait does the same, later
