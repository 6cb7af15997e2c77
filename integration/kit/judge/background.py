"""Faults in the background of a test: errors that no task awaited, tasks that were never ended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import wraps
from typing import Any

from integration.kit.judge.leaks import describe_task, running_tasks

_SETTLE = 5.0  # seconds
_TURNS = 50  # waits of equal length, because a machine that stood still must not use up the time at once


class Background:
    """Errors that reached the loop's exception handler. `allow` those a test provokes."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._allowed: list[str] = []

    def allow(self, pattern: str) -> None:
        """Let errors be whose text, traceback included, has this regular expression in it."""
        self._allowed.append(pattern)

    @property
    def unexpected(self) -> list[str]:
        return [e for e in self.errors if not any(re.search(p, e) for p in self._allowed)]

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        text = str(context.get("message"))
        error = context.get("exception")
        if error is not None:
            text += "\n" + "".join(traceback.format_exception(error))
        self.errors.append(text)


@contextlib.asynccontextmanager
async def watched(settle: float = _SETTLE) -> AsyncIterator[Background]:
    """Fail for tasks that the block left running for ``settle`` seconds, and for errors it left unseen.

    Raises:
        AssertionError: names them.
    """
    loop = asyncio.get_running_loop()
    background = Background()
    before = running_tasks()
    loop.set_exception_handler(background.handle)
    try:
        yield background
        for _ in range(_TURNS):
            remaining = running_tasks() - before
            if not remaining:
                break
            await asyncio.wait(remaining, timeout=settle / _TURNS)
        leaked = [f"leaked task: {describe_task(task)}" for task in running_tasks() - before]
        # A task's exception that no one fetched is reported only when the task is freed.
        del remaining
        gc.collect()
        await asyncio.sleep(0)
    finally:
        loop.set_exception_handler(None)
    problems = leaked + [f"background error: {error}" for error in background.unexpected]
    if problems:
        raise AssertionError("\n".join(problems))


def limited(
    function: Callable[..., Coroutine[Any, Any, Any]], seconds: float
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Make a hang of an async test a failure that says what everything was waiting for."""

    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        waiting: list[str] = []

        def note() -> None:
            waiting.extend(describe_task(task) for task in asyncio.all_tasks())

        timer = asyncio.get_running_loop().call_later(seconds, note)
        try:
            async with asyncio.timeout(seconds + 0.1) as limit:
                return await function(*args, **kwargs)
        except TimeoutError:
            if not limit.expired():
                raise
            reports = "\n  ".join(waiting)
            raise AssertionError(f"the test hangs: not done after {seconds} s; tasks:\n  {reports}") from None
        finally:
            timer.cancel()

    return run
