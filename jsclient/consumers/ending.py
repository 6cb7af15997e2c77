"""The end of a subscription's consumer: deleted if the subscription created it. Source: ADR-15."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._runtime.calls import consumer_info, delete_consumer
from .._runtime.context import Context
from ..errors import JetStreamError
from ..protocol.consumers.subscribe import Binding
from ..protocol.events import DurableDeleted, Event

__all__ = ["delete_created"]

_COUNTED = 0.1  # seconds in which the server counts the acks that it has read


async def delete_created(
    context: Context, binding: Binding, consumer: str, emit: Callable[[Event], None]
) -> None:
    """Delete the consumer, and report a durable one in which messages were left. Raises those of any request.

    It takes one request timeout at most; the question about what is left, half of that.
    """
    connection = context.connection
    deadline = connection.now() + context.timeout
    left = await _left(context, binding) if binding.is_durable else None
    timeout = max(deadline - connection.now(), context.timeout / 2)  # the event loop may have been blocked
    await delete_consumer(context, binding.stream, consumer, timeout=timeout)
    if left is not None:
        emit(left)


async def _left(context: Context, binding: Binding) -> DurableDeleted | None:
    try:
        async with asyncio.timeout(context.timeout / 2):
            info = await consumer_info(context, binding.stream, binding.consumer)
            if info.num_ack_pending and not info.num_pending:
                await asyncio.sleep(_COUNTED)
                info = await consumer_info(context, binding.stream, binding.consumer)
    except (JetStreamError, TimeoutError):
        return None  # gone, no permission to ask, or no answer in time
    pending, unacked = info.num_pending, info.num_ack_pending
    if not pending and not unacked:
        return None
    return DurableDeleted(stream=binding.stream, consumer=binding.consumer, pending=pending, unacked=unacked)
