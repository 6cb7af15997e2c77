"""Tasks that call a handler: how many run, what a cancelled one leaves, how they end."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from jsclient._runtime.tasks import Tasks
from jsclient.core.handler_tasks import HandlerTasks
from tests.support.virtual import virtual


class Handlers:
    """Handlers of numbers, which wait until they are released."""

    def __init__(self, concurrency: int) -> None:
        loop = asyncio.get_running_loop()
        connection = SimpleNamespace(now=loop.time, running_loop=lambda: loop)
        self.background = Tasks(self._unexpected)
        context: Any = SimpleNamespace(connection=connection, tasks=self.background)
        self.queue: deque[int] = deque()
        self.started: list[int] = []
        self.done: list[int] = []
        self.blocks: list[tuple[float, int, int | None]] = []
        self.release = asyncio.Semaphore(0)
        self.tasks: HandlerTasks[int] = HandlerTasks(
            context, self.queue, self._handle, concurrency=concurrency, name="test", slow=self._slow
        )

    def _slow(self, blocked: float, count: int, number: int | None) -> None:
        self.blocks.append((blocked, count, number))

    def _unexpected(self, error: BaseException) -> None:
        raise error

    async def _handle(self, number: int) -> None:
        self.started.append(number)
        await self.release.acquire()
        self.done.append(number)

    async def add(self, *numbers: int) -> None:
        self.queue.extend(numbers)
        self.tasks.wake()
        await self.turn()

    async def turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def finish(self, count: int) -> None:
        for _ in range(count):
            self.release.release()
        await self.turn()


@virtual
async def test_one_at_a_time():
    handlers = Handlers(1)
    await handlers.add(1, 2, 3)
    assert handlers.started == [1]
    await handlers.finish(2)
    assert (handlers.started, handlers.done) == ([1, 2, 3], [1, 2])
    handlers.tasks.end_tasks()
    await handlers.finish(1)
    assert await handlers.tasks.join(0.1)


@virtual
async def test_no_more_tasks_than_items():
    handlers = Handlers(10)
    await handlers.add(1, 2)
    assert handlers.started == [1, 2]
    assert len(handlers.tasks._tasks) == 2
    await handlers.finish(2)
    await handlers.add(3)
    assert len(handlers.tasks._tasks) == 2, "idle tasks are used before new ones"
    await handlers.tasks.cancel(1)


@virtual
async def test_limit_of_tasks():
    handlers = Handlers(3)
    await handlers.add(*range(10))
    assert handlers.started == [0, 1, 2]
    await handlers.finish(10)
    assert sorted(handlers.done) == list(range(10))
    await handlers.tasks.cancel(1)


@virtual
async def test_each_item_once():
    handlers = Handlers(4)
    for number in range(200):
        await handlers.add(2 * number, 2 * number + 1)
        await handlers.finish(2)
    assert sorted(handlers.done) == list(range(400))
    await handlers.tasks.cancel(1)


@virtual
async def test_cancelled_idle_task_passes_item_on():
    handlers = Handlers(2)
    await handlers.add(1, 2)
    await handlers.finish(2)
    handlers.queue.append(3)
    handlers.tasks.wake()
    first = next(iter(handlers.tasks._tasks))
    second = next(task for task in handlers.tasks._tasks if task is not first)
    for task in (first, second):
        task.cancel()
        await handlers.turn()
        if 3 in handlers.started:
            break
    assert 3 in handlers.started
    await handlers.finish(1)
    await handlers.tasks.cancel(1)


@virtual
async def test_end_handles_queued_items():
    handlers = Handlers(1)
    await handlers.add(1, 2, 3)
    handlers.tasks.end_tasks()
    assert not await handlers.tasks.join(0.01)
    await handlers.finish(3)
    assert await handlers.tasks.join(1)
    assert handlers.done == [1, 2, 3]


@virtual
async def test_end_while_idle():
    handlers = Handlers(3)
    await handlers.add(1, 2)
    await handlers.finish(2)
    handlers.tasks.end_tasks()
    assert await handlers.tasks.join(1)


@virtual
async def test_calling_task_is_not_awaited():
    joined: list[bool] = []
    handlers = Handlers(1)

    async def handle(number: int) -> None:
        joined.append(handlers.tasks.has(asyncio.current_task()))
        joined.append(await handlers.tasks.join(0.01))

    handlers.tasks._handle = handle
    await handlers.add(1)
    assert joined == [True, True]
    assert not handlers.tasks.has(asyncio.current_task())
    await handlers.tasks.cancel(1)


@virtual
async def test_handlers_that_never_wait_let_loop_run():
    handlers = Handlers(1)
    turns = 0

    async def busy(number: int) -> None:
        asyncio.get_running_loop().advance(0.001)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    handlers.tasks._handle = busy
    counter = asyncio.create_task(count_turns())
    await handlers.add(*range(100))
    handlers.tasks.end_tasks()
    assert await handlers.tasks.join(30)
    counter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await counter
    assert turns >= 8
