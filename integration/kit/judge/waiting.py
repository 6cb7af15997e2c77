"""Waiting for something to become true, in place of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar, overload

T = TypeVar("T")

_UNTRIED = object()
_TICK = 0.01


@overload
async def eventually(
    fn: Callable[[], Awaitable[T]], timeout: float = ..., what: str = ..., *, interval: float = ...
) -> T: ...
@overload
async def eventually(
    fn: Callable[[], T], timeout: float = ..., what: str = ..., *, interval: float = ...
) -> T: ...
async def eventually(
    fn: Callable[[], Any], timeout: float = 60.0, what: str = "the condition", *, interval: float = 0.01
) -> Any:
    """Return the first truthy result of `fn`, plain or async.

    An AssertionError raised by `fn` counts as "not yet", so asserts can be written inside it.

    Raises:
        AssertionError: not within `timeout` seconds. Names `what` and the last result.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    last: object = _UNTRIED
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                result = fn()
                if inspect.isawaitable(result):
                    result = await result
            if result:
                return result
            last = result
        except AssertionError as error:
            last = error
        except TimeoutError:
            # Only our own deadline means "too late". A timeout inside fn is one more failed try.
            if loop.time() >= deadline:
                break
            last = "a timeout inside the condition"
        if loop.time() >= deadline:
            break
        await asyncio.sleep(interval)
    reports = "it never returned" if last is _UNTRIED else f"last: {last!r}"
    raise AssertionError(f"{what}: not within {timeout} s ({reports})")


async def never(
    fn: Callable[[], object], during: float, what: str = "the condition", *, interval: float = 0.02
) -> None:
    """Check for `during` seconds that `fn` stays falsy.

    Raises:
        AssertionError: it became truthy. Names `what` and the result.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + during
    while True:
        result = fn()
        if inspect.isawaitable(result):
            result = await result
        if result:
            raise AssertionError(f"{what}: happened, and must not ({result!r})")
        if loop.time() >= end:
            return
        await asyncio.sleep(interval)


async def within(timeout: float, awaitable: Awaitable[T], what: str = "the call") -> T:
    """Await with a limit. A hang is an AssertionError that names `what`."""
    try:
        async with asyncio.timeout(timeout) as limit:
            return await awaitable
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"{what}: still not done after {timeout} s") from None


class LostTime:
    """How long the event loop did not get its turn: `async with LostTime() as lost`, then `lost.seconds`.

    A bound on time allows for it, because timers are late by as much.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        try:
            while True:
                await asyncio.sleep(_TICK)
                self.seconds += max(0.0, loop.time() - before - 2 * _TICK)
                before = loop.time()
        finally:
            self.seconds += max(0.0, loop.time() - before - 2 * _TICK)


def eventually_sync(fn: Callable[[], object], timeout: float, what: str, *, interval: float = 0.1) -> None:
    """Return once plain `fn` is truthy, in a program without an event loop.

    Raises:
        AssertionError: not within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while not fn():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not within {timeout} s")
        time.sleep(interval)
