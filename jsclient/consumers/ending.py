"""The end of a subscription's consumer: deleted if the subscription created it. Source: ADR-15."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .._runtime.calls import consumer_info, delete_consumer
from .._runtime.context import Context
from ..errors import JetStreamError
from ..protocol.consumers.subscribe import Binding
from ..protocol.events import ConsumerNotKept, DurableDeleted, Event
from ..protocol.models.consumer import ConsumerInfo

__all__ = ["delete_created", "warn_of_deletion"]

_COUNTED = 0.1  # seconds in which the server counts the acks that it has read, and notices readers that left


def warn_of_deletion(
    binding: Binding, emit: Callable[[Event], None], *, delete_on_close: bool | None
) -> None:
    """Report a named consumer that this subscription created, if nobody said whether to delete it at the end."""
    if binding.created and binding.is_named and delete_on_close is None:
        emit(ConsumerNotKept(stream=binding.stream, consumer=binding.consumer))


async def delete_created(
    context: Context,
    binding: Binding,
    consumer: str,
    emit: Callable[[Event], None],
    *,
    chosen: bool,
) -> None:
    """Delete the consumer, and report a named one, with what it takes along. Raises those of any request.

    It takes one request timeout at most; the question about what is left, half of that.
    """
    connection = context.connection
    deadline = connection.now() + context.timeout
    info = await _last_state(context, binding) if binding.is_named else None
    timeout = max(deadline - connection.now(), context.timeout / 2)  # the event loop may have been blocked
    existed = await delete_consumer(context, binding.stream, consumer, timeout=timeout)
    if existed and binding.is_named:
        emit(_deleted(binding, info, chosen=chosen))


def _deleted(binding: Binding, info: ConsumerInfo | None, *, chosen: bool) -> DurableDeleted:
    if info is None:
        return DurableDeleted(stream=binding.stream, consumer=binding.consumer, chosen=chosen)
    return DurableDeleted(
        stream=binding.stream,
        consumer=binding.consumer,
        pending=info.num_pending,
        unacked=info.num_ack_pending,
        num_waiting=info.num_waiting,
        push_bound=bool(info.push_bound),
        chosen=chosen,
    )


async def _last_state(context: Context, binding: Binding) -> ConsumerInfo | None:
    try:
        async with asyncio.timeout(context.timeout / 2):
            info = await consumer_info(context, binding.stream, binding.consumer)
            if (info.num_ack_pending and not info.num_pending) or info.push_bound or info.num_waiting:
                await asyncio.sleep(_COUNTED)
                info = await consumer_info(context, binding.stream, binding.consumer)
    except (JetStreamError, TimeoutError):
        return None  # gone, no permission to ask, or no answer in time
    return info
