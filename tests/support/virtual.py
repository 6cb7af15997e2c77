"""An event loop whose clock jumps: hours pass in milliseconds, and a wait that cannot end is an error, not a hang."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

__all__ = ["EverybodyWaitsError", "VirtualLoop", "noting", "run", "settle", "virtual"]


class EverybodyWaitsError(AssertionError):
    """No task can continue and no timer is set: this would be a hang."""


class _Selector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout=None):
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            waiting = sorted(repr(task) for task in asyncio.all_tasks(self.loop))
            raise EverybodyWaitsError("everybody waits and no timer is set:\n" + "\n".join(waiting))
        self.loop.advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time stands still while a task can run, then jumps to the next timer."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._virtual = 1000.0
        self.problems: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def time(self) -> float:
        return self._virtual

    def advance(self, seconds: float) -> None:
        self._virtual += seconds


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in virtual time. A task that it leaves running, or whose failure is unseen, is an error."""
    loop = VirtualLoop()
    try:
        result = loop.run_until_complete(main)
        remaining = asyncio.all_tasks(loop)
        if remaining:
            raise AssertionError(f"left running: {remaining}")
        return result
    finally:
        _end(loop)


def _end(loop: VirtualLoop) -> None:
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if loop.problems:
            raise AssertionError(f"went wrong unseen: {loop.problems}")
    finally:
        loop.close()


def virtual(test: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Run an async test in virtual time."""

    @functools.wraps(test)
    def in_virtual_time(*args: Any, **kwargs: Any) -> Any:
        return run(test(*args, **kwargs))

    return in_virtual_time


def noting(into: list[Any]) -> Callable[[Any], Awaitable[None]]:
    """A handler that runs on the loop: a plain function would run in a thread, for which virtual time does not wait."""

    async def note(item: Any) -> None:
        into.append(item)

    return note


async def settle(turns: int = 20) -> None:
    """Let every task that can continue do so. No time passes."""
    for _ in range(turns):
        await asyncio.sleep(0)
