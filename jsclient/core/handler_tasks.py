"""Tasks that call a handler with the messages of a queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from .._runtime.context import Context

__all__ = ["HandlerTasks"]

T = TypeVar("T")

_TURN = 0.005  # handlers yield to other tasks after this many seconds
_EVERY = 8  # the clock is read only once for so many messages


class HandlerTasks(Generic[T]):
    """Runs up to ``concurrency`` tasks, which take items from a queue and call a coroutine function with each of them.

    A task is started when there is an item and all existing tasks are busy. Idle tasks wait for further items. With a
    concurrency of 1, items are handled in order.
    """

    def __init__(
        self,
        context: Context,
        queue: deque[T],
        handle: Callable[[T], Awaitable[None]],
        *,
        concurrency: int,
        name: str,
    ) -> None:
        """Prepare the tasks. ``handle`` must not raise an ``Exception``, and ``name`` is the name of the tasks."""
        self._context = context
        self._queue = queue
        self._handle = handle
        self._concurrency = concurrency
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._ended = False

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return True if a handler runs in this task."""
        return task in self._tasks

    def wake(self) -> None:
        """Wake up or start tasks. This must be called after items were added to the queue."""
        waiting = len(self._queue)
        while waiting and self._idle:
            waiter = self._idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                waiting -= 1
        while waiting and len(self._tasks) < self._concurrency:
            task = self._context.tasks.start(self._run_handlers(), self._name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            waiting -= 1

    async def _run_handlers(self) -> None:
        queue, now = self._queue, self._context.connection.now
        since, count = now(), 0
        while True:
            if queue:
                await self._handle(queue.popleft())
                count += 1
                # Without this, handlers that never wait would block the event loop as long as there are items.
                if not count % _EVERY and now() - since > _TURN:
                    await asyncio.sleep(0)
                    since = now()
            elif self._ended:
                return
            else:
                await self._wait()
                since = now()

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self._context.connection.running_loop().create_future()
        self._idle.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._idle:
                self._idle.remove(waiter)
            elif waiter.done() and not waiter.cancelled():
                self.wake()  # this task was woken up for an item, so another task must handle that item
            raise

    def end_tasks(self) -> None:
        """Let the tasks end as soon as the queue is empty."""
        self._ended = True
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)

    async def join(self, timeout: float) -> bool:
        """Wait for the end of all tasks except for the calling task. Returns False if the timeout expires."""
        others = self._tasks - {asyncio.current_task()}
        if not others:
            return True
        _, late = await asyncio.wait(others, timeout=timeout)
        return not late

    async def cancel(self, timeout: float) -> None:
        """Cancel all tasks except for the calling task, and wait up to ``timeout`` seconds for their end."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=timeout)
