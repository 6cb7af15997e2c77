"""Forwards the members of an iteration to the methods of an observer."""

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
    """Forward a whole iteration to an observer, by calling a method for each value and for the end.

    ``update_state`` is called with each value, and ``finish`` or ``fail`` at the end. Methods that the observer doesn't
    have are skipped. If a method returns an awaitable, it is awaited before the next call.

    If the observer is the producer of a kit, the kit becomes a copy of the iteration::

        kit = make_notifier_kit()
        await observe_iteration(subscription, kit.updater)

    If the call is cancelled, the iterator is closed.

    Args:
        iterable: An asynchronous iterable, or an awaitable that returns one.
        observer: The object whose methods are called. See `IterationObserver`.
        on_error: A function to call with errors that can't be raised. If awaiting a result raises an error, the
            observation continues after ``on_error`` was called. If the iteration fails and the observer has no method
            ``fail``, ``on_error`` receives the reason. Defaults to the exception handler of the event loop.

    Returns:
        The value passed to `Producer.finish`, or None if the iteration fails or comes from a different library.

    Raises:
        Exception: A method of the observer raised this exception, which ended the observation.
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
    """Forward the remaining values and the end of an iteration to an observer.

    It works like `jsclient.kits.observe_iteration`, but doesn't close the iterator. If a method of the observer raises
    an exception, the value of that call has been consumed, and you can continue to use the iterator.

    Args:
        iterator: An asynchronous iterator, or an awaitable that returns one.
        observer: The object whose methods are called. See `IterationObserver`.
        on_error: A function to call with errors that can't be raised, as for `jsclient.kits.observe_iteration`.

    Returns:
        The value passed to `Producer.finish`, or None if the iteration fails or comes from a different library.

    Raises:
        Exception: A method of the observer raised this exception, which ended the observation.
    """
    source = await _arrived(iterator)
    while True:
        try:
            value = await anext(source)
        except StopAsyncIteration:
            # Only iterators of jsclient have a completion. For any other iterator, it is None.
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


async def _arrived(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def _call(observer: object, method: str, value: Any, on_error: OnError | None) -> None:
    call = getattr(observer, method, None)
    if not callable(call):
        return
    result = call(value)
    if inspect.isawaitable(result):
        try:
            await result
        except Exception as error:  # noqa: BLE001  an error must not end the observation
            _report(error, on_error)


def _report(error: Exception, on_error: OnError | None) -> None:
    if on_error is not None:
        on_error(error)
        return
    context = {"message": "error of an observed iteration", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
