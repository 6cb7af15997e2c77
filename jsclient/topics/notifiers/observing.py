"""Forwarding of iterations to an observer, call by call."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any

from ...errors import IterationFailed

__all__ = ["observe_iteration", "observe_iterator"]

OnError = Callable[[BaseException], object]


async def observe_iteration(
    iterable: AsyncIterable[Any] | Awaitable[AsyncIterable[Any]],
    observer: object,
    *,
    on_error: OnError | None = None,
) -> Any:
    """Forward an iteration to the methods ``update_state``, ``finish`` and ``fail`` of an observer, if it has them.

    With the producer of a kit as observer this mirrors any iteration. An awaitable result of a method is awaited before
    the next call.

    Args:
        iterable: An asynchronous iterable, or an awaitable of one.
        observer: Receives the calls.
        on_error: Called with errors that cannot be raised: those of awaited results (the observation continues), and
            the reason of a failure if the observer has no method ``fail``. By default they go to the event loop's
            exception handler.

    Returns:
        The completion; None if the iterable has none, or after a failure.

    Raises:
        Exception: A method of the observer raised it in its call, which ends the observation.

    Cancelled: the iterator is closed.
    """
    iterator = aiter(await _arrived(iterable))
    try:
        return await observe_iterator(iterator, observer, on_error=on_error)
    finally:
        if (close := getattr(iterator, "aclose", None)) is not None:
            await close()


async def observe_iterator(
    iterator: AsyncIterator[Any] | Awaitable[AsyncIterator[Any]],
    observer: object,
    *,
    on_error: OnError | None = None,
) -> Any:
    """Forward the rest of an iteration to ``observer``, as `jsclient.kits.observe_iteration`.

    The iterator is not closed: if a method has raised, the iterator continues after the value of that call.
    """
    source = await _arrived(iterator)
    while True:
        try:
            value = await anext(source)
        except StopAsyncIteration:
            completion = getattr(source, "completion", None)
            await _call(observer, "finish", completion, on_error)
            return completion
        except Exception as error:  # noqa: BLE001  an iteration may fail with any error
            if not callable(getattr(observer, "fail", None)):
                _report(error, on_error)
            reason = error.reason if isinstance(error, IterationFailed) else error
            await _call(observer, "fail", reason, on_error)
            return None
        await _call(observer, "update_state", value, on_error)


async def _arrived(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


async def _call(observer: object, method: str, value: Any, on_error: OnError | None) -> None:
    call = getattr(observer, method, None)
    if not callable(call):
        return
    result = call(value)
    if inspect.isawaitable(result):
        try:
            await result
        except Exception as error:  # noqa: BLE001  it must not end the observation
            _report(error, on_error)


def _report(error: Exception, on_error: OnError | None) -> None:
    if on_error is not None:
        on_error(error)
        return
    context = {"message": "error of an observed iteration", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
