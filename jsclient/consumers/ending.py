"""The end of a subscription's consumer, which is deleted if the subscription created it. Source: ADR-15."""

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

_RECONNECT = 1.0  # seconds that the deletion waits for the connection to return
_COUNTED = 0.1  # seconds that the server needs to count acks, and to notice that a reader has ended


def warn_of_deletion(
    binding: Binding, emit: Callable[[Event], None], *, delete_on_close: bool | None
) -> None:
    """Report a named consumer that this subscription created, unless the caller chose whether to delete it."""
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
    """Delete the consumer, and report the deletion of a named consumer with its pending messages.

    Raises the errors of any API request. The deletion takes at most one request timeout, and the request for the
    pending messages half of that. While the client is disconnected, it waits at most one second, so that the program
    can end. It has to wait, because the first messages after a reconnect are read before the connection counts as
    connected, and their reader may end at that moment.
    """
    connection = context.connection
    deadline = connection.now() + context.timeout
    if not connection.is_connected:
        await connection.wait_connected(connection.now() + min(_RECONNECT, context.timeout))
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
        return None  # the consumer is gone, there is no permission, or no answer arrived in time
    return info
