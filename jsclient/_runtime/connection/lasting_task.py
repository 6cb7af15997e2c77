"""A task of the connection that only its owner can end, because `asyncio.run` cancels all tasks at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..loop_end import LoopEnd
from ..tasks import until_done

__all__ = ["LastingTask"]

REVIVE = 1.0
"""How long to wait before a cancelled task is started again, in seconds."""


class LastingTask:
    """A task that starts again if any code except its owner cancels it. Its work then begins from the start.

    Handles that end with the program need the connection until their last request. A timer starts the task again,
    because a task would remain at the end of the event loop.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._work = work
        self._name = f"jsclient:{name}"
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._loop_end = LoopEnd(self._end_with_loop)

    @property
    def is_running(self) -> bool:
        """Whether the task runs or will be started again."""
        return self._timer is not None or (self._task is not None and not self._task.done())

    def start(self) -> None:
        """Start the task. Does nothing if it runs, or after `cancel`."""
        if self._over or self.is_running:
            return
        self._task = asyncio.get_running_loop().create_task(self._work(), name=self._name)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # Mark the exception as retrieved. The work itself reports its errors.
            self._loop_end.stop_watching()
        elif not self._over and self._timer is None:
            # Watch for the end of the loop from now on. When the timer starts the task again, the loop may already be
            # closing its generators. It would then be too late to begin watching, and nothing would end the task.
            self._loop_end.watch()
            self._timer = asyncio.get_running_loop().call_later(REVIVE, self._revive)

    def _revive(self) -> None:
        self._timer = None
        self.start()

    def cancel(self) -> None:
        """End the task permanently."""
        self._over = True
        self._loop_end.stop_watching()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None and self._task is not _current_task():
            self._task.cancel()

    async def wait(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for the end of the task, after `cancel`."""
        if self._task is not None and self._task is not asyncio.current_task():
            await until_done(self._task, timeout)

    async def _end_with_loop(self) -> None:
        self.cancel()
        await self.wait(1.0)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop is running
        return None
