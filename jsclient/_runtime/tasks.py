"""Background tasks with an owner: each is awaited or cancelled at close, and its error is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Tasks"]


class Tasks:
    """A group of background tasks. Errors are reported to ``on_error``."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(
        self, coroutine: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False
    ) -> asyncio.Task[Any]:
        """Run a coroutine in the background; ``name`` is shown in task dumps.

        ``awaited``: the caller awaits the result, so its error is not reported.
        """
        task = asyncio.get_running_loop().create_task(coroutine, name=f"jsclient:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._forget if awaited else self._ended)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved: it is raised to the caller

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def settle(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for running tasks, then cancel the rest and wait for them to end."""
        others = self._tasks - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=timeout)
        await self.cancel()

    async def cancel(self) -> None:
        """Cancel all tasks but the calling one, and wait until they have ended."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
