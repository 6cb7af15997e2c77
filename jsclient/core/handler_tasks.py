"""Tasks that call a handler with the messages of a queue."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from .._runtime.context import Context
from .._runtime.loop_watch import LoopWatch

__all__ = ["HandlerTasks"]

T = TypeVar("T")

_TURN = 0.005  # seconds after which handlers yield to other tasks
_EVERY = 8  # number of messages after which the clock is read again


class _Running(Generic[T]):
    """The state of one task: its current item, and when it last read the clock."""

    __slots__ = ("began", "count", "item", "noted")

    def __init__(self) -> None:
        self.item: T | None = None
        self.count = 0  # number of items so far
        self.began = 0.0  # time at which the clock was last read
        self.noted = 0  # value of ``count`` at that time


class HandlerTasks(Generic[T]):
    """Runs up to ``concurrency`` tasks, which take items from a queue and call a coroutine function with each item.

    A task is started when there is an item and all existing tasks are busy. Idle tasks wait for more items. If the
    concurrency is 1, items are handled in order.
    """

    def __init__(
        self,
        context: Context,
        queue: deque[T],
        handle: Callable[[T], Awaitable[None]],
        *,
        concurrency: int,
        name: str,
        slow: Callable[[float, int, T | None], None],
    ) -> None:
        """Prepare the tasks.

        Args:
            handle: The coroutine function to call with each item. It must not raise an ``Exception``.
            name: Name of the tasks.
            slow: Called when a handler has blocked the event loop. See `LoopWatch`.
        """
        self._slow = slow
        self._watch: LoopWatch[T | None] | None = None
        self._running: set[_Running[T]] = set()
        # True once a handler has blocked the event loop. From then on, the clock is read after each item, so that the
        # item whose handler blocks is known.
        self._blocks = False
        self._context = context
        self._queue = queue
        self._handle = handle
        self._concurrency = concurrency
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle: list[asyncio.Future[None]] = []
        self._ended = False

    def has(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether a handler runs in ``task``."""
        return task in self._tasks

    def wake(self) -> None:
        """Wake up or start tasks. Call this method after adding items to the queue."""
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
        queue, running = self._queue, _Running[T]()
        since = self._begin_item(running)
        try:
            while True:
                if queue:
                    running.item = queue.popleft()
                    running.count += 1
                    await self._handle(running.item)
                    # Handlers that never wait would block the event loop, so yield from time to time.
                    checks = self._blocks or not running.count % _EVERY
                    if checks and self._read_clock(running) - since > _TURN:
                        await asyncio.sleep(0)
                        since = self._read_clock(running)
                    continue
                self._read_clock(running)
                if self._ended:
                    return
                self._running.discard(running)
                await self._wait()
                since = self._begin_item(running)
        finally:
            self._running.discard(running)
            if not self._running and self._ended and self._watch is not None:
                self._watch.close()

    def _begin_item(self, running: _Running[T]) -> float:
        self._running.add(running)
        return self._read_clock(running)

    def _read_clock(self, running: _Running[T]) -> float:
        """Read the clock, report if the event loop was blocked, and return the time."""
        watch = self._watch
        if watch is None:
            watch = self._watch = LoopWatch(self._items_running, self._report_block)
        moment = self._context.connection.now()
        if moment >= watch.due:
            watch.check_loop(moment)
        running.began, running.noted = moment, running.count
        return moment

    def _items_running(self) -> list[tuple[float, T | None]]:
        # If a task handled several items since the clock was last read, we can't tell which one blocked the event loop.
        return [(one.began, one.item if one.count <= one.noted + 1 else None) for one in self._running]

    def _report_block(self, blocked: float, count: int, item: T | None) -> None:
        self._blocks = True
        self._slow(blocked, count, item)

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = self._context.connection.running_loop().create_future()
        self._idle.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._idle:
                self._idle.remove(waiter)
            elif waiter.done() and not waiter.cancelled():
                self.wake()  # this task was woken up to handle an item, so let another task handle it
            raise

    def end_tasks(self) -> None:
        """Let the tasks end as soon as the queue is empty."""
        self._ended = True
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)

    async def join(self, timeout: float) -> bool:
        """Wait until all tasks except the calling task have ended. Return False if the timeout expires."""
        others = self._tasks - {asyncio.current_task()}
        if not others:
            return True
        _, late = await asyncio.wait(others, timeout=timeout)
        return not late

    async def cancel(self, timeout: float) -> None:
        """Cancel all tasks except the calling task, and wait up to ``timeout`` seconds until they have ended."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=timeout)
