"""Background tasks with an owner, timers, and a signal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

__all__ = ["Signal", "Tasks", "Timer", "clock", "step_at_once", "until_done"]

_LAST = 1.0  # seconds for a task to finish, and then for its cancellation, when the event loop ends
_ROUNDS = 3  # rounds of cancellations, because a cancelled task may start another task


def clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return ``loop.time``, or the function that it calls, which takes half the time."""
    return time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time


class Tasks:
    """A group of background tasks. Errors are reported to ``on_error``.

    `asyncio.run` cancels the tasks of a program that ends, but not a task that a cancelled task starts, such as the
    deletion of a new consumer. When the loop closes its asynchronous generators, the group waits for such tasks for a
    second, and then cancels them. For this, the group keeps a generator open as long as tasks run.
    """

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
        self._tasks: set[asyncio.Task[Any]] = set()
        self._at_end: AsyncGenerator[None, None] | None = None
        self._ended_loop: asyncio.AbstractEventLoop | None = None

    def start(
        self, coroutine: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False
    ) -> asyncio.Task[Any]:
        """Run a coroutine in the background. ``name`` is shown in task dumps.

        ``awaited`` is true if the caller awaits the result, so that its error is not reported.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(coroutine, name=f"jsclient:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._forget_task if awaited else self._ended)
        if self._at_end is None and loop is not self._ended_loop:
            self._at_end = self._end_with(loop)
            try:
                step_at_once(self._at_end.asend(None))
            # Raised if warnings are errors and the loop is already closing its generators.
            except ResourceWarning:
                self._at_end = None
        return task

    async def _end_with(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if self._tasks:  # the event loop has closed the generator, not `_discard`
                self._at_end, self._ended_loop = None, loop
                await self._finish_tasks()

    async def _finish_tasks(self) -> None:
        """Wait for the tasks, which other generators may await at their end.

        Then cancel them and the tasks that they start.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + _LAST
        while self._tasks and now() < deadline:
            await asyncio.wait(self._tasks, timeout=deadline - now())
        for _ in range(_ROUNDS):
            if not self._tasks:
                break
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_LAST)

    def _discard(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self._tasks and self._at_end is not None:
            at_end, self._at_end = self._at_end, None
            step_at_once(at_end.aclose())

    def _forget_task(self, task: asyncio.Task[Any]) -> None:
        self._discard(task)
        if not task.cancelled():
            task.exception()  # mark the exception as retrieved, because the caller gets it

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)

    async def settle(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for running tasks. Then cancel the remaining tasks and wait for their end."""
        others = self._tasks - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=timeout)
        await self.cancel()

    async def cancel(self) -> None:
        """Cancel all tasks except the calling task, and wait until they have ended."""
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)


def step_at_once(step: Coroutine[Any, Any, object]) -> None:
    """Carry out a step of an asynchronous generator that does not wait."""
    try:
        step.send(None)
    except StopIteration:
        pass


async def until_done(future: asyncio.Future[Any], timeout: float) -> bool:
    """Wait up to ``timeout`` seconds, and return whether the future is done. Its error is not raised.

    Unlike `asyncio.wait_for`, this does not cancel the future, which others may await.
    """
    done, _ = await asyncio.wait({future}, timeout=timeout)
    if done and not future.cancelled():
        future.exception()  # mark the exception as retrieved, because it isn't raised here
    return bool(done)


class Timer:
    """Calls back when a moving deadline is reached.

    The deadline of a monitor moves with every message, but the event loop's timer does not. If the timer fires early,
    it is set again, so a message causes no work here.
    """

    __slots__ = ("_at", "_callback", "_handle", "_loop")

    def __init__(self, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._handle: asyncio.Handle | None = None
        # Store the time, because uvloop's handle doesn't provide it if the time is very near.
        self._at = 0.0

    def set(self, deadline: float | None) -> None:
        """Call back at ``deadline`` (monotonic seconds of the loop) or slightly earlier. None cancels the timer."""
        if deadline is None:
            self.cancel()
        elif self._handle is None or deadline < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = deadline
            self._handle = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._handle = None
        self._callback()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Signal:
    """Wakes all waiting tasks. It carries no value: check the state again after waking.

    An item stays in its queue until the woken task takes it, so a task that is cancelled between the wake-up and its
    turn has removed no item.

    Attributes:
        waiters: The futures of the waiting tasks. If there are none, `set` does nothing, and the caller may skip it.
    """

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: list[asyncio.Future[None]] = []

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits."""
        return bool(self.waiters)

    def set(self) -> None:
        """Wake all waiting tasks."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for the next call of `set`."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await waiter
        finally:
            if not waiter.done() or waiter.cancelled():
                self._discard(waiter)

    async def wait_until(self, deadline: float | None) -> bool:
        """Return True at the next `set`, or False at ``deadline`` (monotonic seconds of the loop; None means never)."""
        if deadline is None:
            await self.wait()
            return True
        loop = asyncio.get_running_loop()
        if deadline <= loop.time():
            return False
        waiter = loop.create_future()
        self.waiters.append(waiter)
        timer = loop.call_at(deadline, _expire, waiter)
        try:
            return await waiter is None
        finally:
            timer.cancel()
            self._discard(waiter)

    def _discard(self, waiter: asyncio.Future[None]) -> None:
        if waiter in self.waiters:
            self.waiters.remove(waiter)


def _expire(waiter: asyncio.Future[object]) -> None:
    if not waiter.done():
        waiter.set_result(False)
