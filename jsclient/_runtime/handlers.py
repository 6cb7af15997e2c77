"""Calls the user's handlers. Coroutine functions run on the event loop, and plain functions in a thread.

A function whose result is used at once, such as a key function, must be a plain function.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError, ConfigError

if TYPE_CHECKING:  # imported when a plain function is called
    from concurrent.futures import ThreadPoolExecutor

__all__ = [
    "Threads",
    "await_suspended",
    "check_function",
    "check_handler",
    "check_plain",
    "is_coroutine_function",
]


def is_coroutine_function(function: object) -> bool:
    """Return whether a call of the function, or of its ``__call__``, returns a coroutine. A wrapper may hide that."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  inspects `__call__` of the object
    )


def check_function(name: str, function: object, of: str) -> None:
    """Raise `ConfigError` for a generator function, or for a value that cannot be called."""
    if not callable(function):
        hint = (
            "; it was called: give the function itself, without ()" if inspect.iscoroutine(function) else ""
        )
        raise ConfigError(f"{name} is {type(function).__name__}: it must be a function of the {of}{hint}")
    called = getattr(function, "__call__", None)  # noqa: B004  inspects `__call__` of the object
    if any(map(inspect.isgeneratorfunction, (function, called))) or any(
        map(inspect.isasyncgenfunction, (function, called))
    ):
        raise ConfigError(f"{name} is a generator function: calling it does not run it; leave yield out")


def check_handler(name: str, handler: object, of: str = "message") -> None:
    """Raise an error for a handler that cannot be called with one argument, before any message fails because of it.

    Raises:
        ConfigError: The handler is not callable, needs another number of arguments, or is a generator function.
    """
    check_function(name, handler, of)
    assert callable(handler)
    try:
        signature = inspect.signature(handler)
    except (ValueError, TypeError):
        return  # some builtins have no signature
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(
            f"{name} is called with one argument, the {of}, and takes {signature}: {error}"
        ) from None


def check_plain(name: str, function: object) -> None:
    """Raise `ConfigError` for a coroutine function. Used if the result is needed at once."""
    if is_coroutine_function(function):
        raise ConfigError(f"{name} is a coroutine function: a plain one is needed, which answers at once")


@types.coroutine
def await_suspended(coroutine: Coroutine[Any, Any, Any], waited: Any) -> Generator[Any, Any, Any]:
    """Continue a coroutine that has run up to its first wait. ``waited`` is the value that it yielded there.

    If the call is cancelled, the coroutine is cancelled where it waits.
    """
    while True:
        try:
            yield waited
        except BaseException as error:  # noqa: BLE001  the coroutine decides
            try:
                waited = coroutine.throw(error)
            except StopIteration as end:
                return end.value
        else:
            return (yield from coroutine)


class Threads:
    """Threads for the plain functions of one subscription, worker or peer. They cannot be interrupted."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def begin_call(
        self, function: Callable[..., Any], /, *args: Any, **named: Any
    ) -> asyncio.Future[tuple[Any, BaseException | None]]:
        """Call the function in a thread, with the context of the caller. The future has its result and its exception.

        A call that waits for a thread does not start if its future is cancelled. Raises `ClosedError` after `close`.
        """
        if self._closed:
            raise ClosedError("a plain function cannot be called: its subscription, worker or peer is closed")
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="jsclient-handler")
        call = partial(contextvars.copy_context().run, _outcome, function, args, named)
        return asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def call(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Call the function in a thread. An awaitable that it returns is awaited on the event loop.

        If the call is cancelled, a running function continues in its thread, and its result is ignored. A
        function that waits for a thread is not called.
        """
        result, error = await self.begin_call(function, *args, **named)
        if error is not None:
            raise error
        return await result if inspect.isawaitable(result) else result

    def close(self) -> None:
        """Refuse further calls, and cancel calls that wait for a thread. A running function continues in its thread."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _outcome(
    function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, BaseException | None]:
    # Return the error as a value, because a future can't raise StopIteration, and SystemExit would end the thread.
    try:
        result = function(*args, **named)
    except BaseException as error:  # noqa: BLE001  raised again on the event loop
        return None, error
    # `check_handler` can't detect that a wrapper returns a generator, so check the result.
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return None, TypeError("the handler returned a generator, which does not run: leave yield out")
    return result, None
