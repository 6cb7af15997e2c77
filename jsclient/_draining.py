"""Drains all handles of a connection: readers first, because their handlers may still publish, then publishes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from ._runtime.context import Closable, Context, as_reported
from .consumers.pull.in_hand import in_hand
from .consumers.pull.messages import Messages
from .consumers.pull.subscription import PullSubscription
from .consumers.push.subscription import Subscription
from .consumers.worker.worker import Worker
from .core.services.service import Service
from .core.subscription import CoreSubscription
from .errors import JetStreamError, RequestTimeoutError
from .publishing.ack_window import AckWindow

__all__ = ["drain_handles", "is_handler_of_one"]

# How long a drain may exceed its timeout, to report what it waited for, and how long a reader stays open that the
# application has stopped reading, in seconds.
_GRACE: Final = 1.0
_LOOK: Final = 0.02  # seconds between two checks for unread messages and requests in flight


def is_handler_of_one(context: Context, task: asyncio.Task[Any] | None) -> bool:
    """Return whether a task is a handler. A drain that a handler awaits would wait for this handler to end."""
    for one in context.open:
        if isinstance(one, CoreSubscription | Worker) and one.has(task):
            return True
        if isinstance(one, Subscription) and one._is_handler(task):  # noqa: SLF001
            return True
    return False


async def drain_handles(context: Context, timeout: float) -> list[str]:
    """Drain readers, then publishes and requests, within ``timeout`` seconds. Return descriptions of what remained."""
    deadline = context.connection.now() + timeout
    in_hand(context).end_pulls()
    # Drain pull subscriptions last. Draining one may delete its consumer, which then accepts no acks, so wait until the
    # application has acked its messages.
    remaining = await _drain_readers(context, deadline, [one for one in context.open if not _is_pull(one)])
    remaining += await _await_acks(context, deadline)
    remaining += await _drain_readers(context, deadline, filter(_is_pull, context.open))
    await in_hand(context).return_late_messages()
    remaining += await _settle_publishes(context, deadline)
    try:
        # The server doesn't answer acks, but it answers this PING only after it has read all earlier acks.
        await context.connection.ping(max(0.1, deadline - context.connection.now()))
    except JetStreamError as error:
        remaining.append(f"what was written last, such as acks: {error}")
    return remaining


def _is_pull(one: Closable) -> bool:
    return isinstance(one, PullSubscription)


async def _await_acks(context: Context, deadline: float) -> list[str]:
    """Wait until the application has acked the fetched messages that it still has."""
    handed = in_hand(context)
    while context.connection.now() < deadline:
        # A fetch returns its messages only when its task runs again, and `unacked` doesn't count them before that. So
        # also wait until no fetch is running.
        if not handed.is_fetching and not handed.unacked:
            break
        await asyncio.sleep(_LOOK)
    count = handed.unacked
    return [f"{count} fetched messages that were not acked"] if count else []


async def _drain_readers(context: Context, deadline: float, readers: Iterable[Closable]) -> list[str]:
    """Drain readers together. A reader without a handler ends when the application has read all received messages."""
    left = max(0.0, deadline - context.connection.now())
    loops = {loop for one in context.open if isinstance(one, PullSubscription) for loop in one.open_loops}
    abandoned = _Abandoned(context.connection.now, loops)
    ends = {one: end for one in list(readers) if (end := _end_of(one, left)) is not None}
    results = await asyncio.gather(*(_in_time(end, left) for end in ends.values()))
    failures = dict(zip(ends, results, strict=True))
    # A reader whose drain has returned stays open until the application has read its messages. Wait until it is closed.
    while context.open & ends.keys() - {one for one, error in failures.items() if error}:
        if context.connection.now() >= deadline:
            break
        await abandoned.close_readers()
        await asyncio.sleep(_LOOK)
    texts = []
    for one, error in failures.items():
        if error is not None:
            texts.append(f"{one!r}: {error}")
        elif one in context.open:
            waiting = getattr(one, "pending", None)
            texts.append(f"{one!r}: {'' if waiting is None else f'{waiting} '}messages that were not read")
    return texts


class _Abandoned:
    """Closes pull readers that the application has stopped reading, because they would never end.

    The messages of a closed reader are returned to the server. A reader counts as in use if its number of pending
    messages changes, or if the application hasn't acked the latest message yet.
    """

    def __init__(self, now: Callable[[], float], readers: set[Messages]) -> None:
        self._now = now
        self._used = {reader: (reader.pending, now()) for reader in readers}

    async def close_readers(self) -> None:
        for reader, (pending, at) in self._used.items():
            if reader.pending != pending or reader.has_unacked:
                self._used[reader] = reader.pending, self._now()
            elif self._now() >= at + _GRACE:
                await reader.close()


def _end_of(one: Closable, timeout: float) -> Coroutine[Any, Any, Any] | None:
    """Return the coroutine that drains a handle, or None if the handle is not a reader or ends with the connection."""
    match one:
        case Subscription() | CoreSubscription():
            return one.drain(max(timeout, 0.001))
        case PullSubscription() | Messages():
            return one.drain()
        case Service():
            return one.stop(max(timeout, 0.001))
        case Worker():
            return _stop_worker(one, timeout)
        case _:
            return None


async def _stop_worker(worker: Worker, timeout: float) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    worker.stop(timeout)
    await worker.wait()
    if loop.time() >= deadline:
        raise RequestTimeoutError("drain: the handlers did not end", timeout)


async def _in_time(end: Coroutine[Any, Any, Any], timeout: float) -> JetStreamError | None:
    """Return the error of a drain, or None.

    It gets some additional time, so that its own timeout can report details.
    """
    try:
        async with asyncio.timeout(timeout + _GRACE):
            await end
    except TimeoutError as error:
        late = RequestTimeoutError("drain: it did not end", timeout)
        return error if isinstance(error, JetStreamError) else late
    except Exception as error:  # noqa: BLE001  the others are drained too
        return as_reported(error)
    return None


async def _settle_publishes(context: Context, deadline: float) -> list[str]:
    """Wait until no publish and no request is in flight."""
    windows = [one for one in list(context.open) if isinstance(one, AckWindow)]
    try:
        async with asyncio.timeout(max(0.0, deadline - context.connection.now())):
            await asyncio.gather(*(window.idle() for window in windows))
            while context.requests.in_flight:  # noqa: ASYNC110  answers come often, and a drain is rare
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        pass
    counts = {
        "publishes without an ack": sum(window.window.count for window in windows),
        "requests without an answer": context.requests.in_flight,
    }
    return [f"{count} {what}" for what, count in counts.items() if count]
