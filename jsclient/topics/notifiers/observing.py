"""Iterations that are reported to an observer, call by call."""

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
    """Report an iteration to ``observer``: its methods ``update_state``, ``finish`` and ``fail``, those that it has.

    With the producer of a kit as observer this is a mirror of any iteration. What a method returns is awaited, if it
    can be, before the next call.

    Args:
        iterable: Any asynchronous iterable, or something to be awaited for it.
        observer: What is told.
        on_error: Told what cannot be raised: what an awaited result raised (the observation goes on), and the reason of
            a failure if the observer has no method ``fail``. Without it the event loop's exception handler is told.

    Returns:
        The completion, None for an iterable that has none. After a failure, None.

    Raises:
        Exception: What a method of the observer raised in its call: the observation ends there.

    Cancelled: the iteration is given up, its iterator closed.
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
    """Report what is left of an iteration to ``observer``, as `jsclient.observe_iteration` does.

    The iterator is not closed: when a method has raised, it stands behind the value that it was told.
    """
    source = await _arrived(iterator)
    while True:
        try:
            value = await anext(source)
        except StopAsyncIteration:
            completion = getattr(source, "completion", None)
            await _tell(observer, "finish", completion, on_error)
            return completion
        except Exception as error:  # noqa: BLE001  whatever the iteration failed with
            await _tell_failure(observer, error, on_error)
            return None
        await _tell(observer, "update_state", value, on_error)


async def _arrived(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


async def _tell_failure(observer: object, error: Exception, on_error: OnError | None) -> None:
    if not callable(getattr(observer, "fail", None)):
        _report(error, on_error)
    reason = error.reason if isinstance(error, IterationFailed) else error
    await _tell(observer, "fail", reason, on_error)


async def _tell(observer: object, method: str, value: Any, on_error: OnError | None) -> None:
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
    context = {"message": "an observed iteration: nobody else is there to be told", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
