"""Deletes the consumer that a subscription has created when the subscription ends. Source: ADR-15."""

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

_RECONNECT = 1.0  # how long the deletion waits for a reconnect, in seconds
_COUNTED = 0.1  # seconds the server needs to count the last acks and to notice that a reader has gone


def warn_of_deletion(
    binding: Binding, emit: Callable[[Event], None], *, delete_on_close: bool | None
) -> None:
    """Warn that a new, named consumer will be deleted with the subscription, unless ``delete_on_close`` was chosen."""
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
    """Delete the consumer. If it has a name, report the deletion together with the number of pending messages.

    The call takes at most one request timeout. Half of it may be used to request the number of pending messages.

    While the client is disconnected, the call waits for the reconnect, but for a second at most, so that the
    application can end. Without this wait, the deletion would often fail: the first messages after a reconnect are read
    before the connection counts as connected, and a reader may end as soon as it gets them.

    May raise any error common to API requests.
    """
    connection = context.connection
    deadline = connection.now() + context.timeout
    if not connection.is_connected:
        await connection.wait_connected(connection.now() + min(_RECONNECT, context.timeout))
    info = await _last_state(context, binding) if binding.is_named else None
    # Even if a blocked event loop has used up the time, give the server time to answer. Otherwise, the consumer would
    # remain.
    timeout = max(deadline - connection.now(), context.timeout / 2)
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
            # The server may not have counted the last acks yet, or may still list this reader, so ask again shortly.
            if (info.num_ack_pending and not info.num_pending) or info.push_bound or info.num_waiting:
                await asyncio.sleep(_COUNTED)
                info = await consumer_info(context, binding.stream, binding.consumer)
    except (JetStreamError, TimeoutError):
        return None  # the numbers only make the event more useful, so any failure to get them is ignored
    return info
