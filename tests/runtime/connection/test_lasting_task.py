"""A task that is started again after a cancellation by others."""

from __future__ import annotations

import asyncio

import pytest

from jsclient._runtime.connection import lasting_task
from jsclient._runtime.connection.lasting_task import REVIVE, LastingTask
from tests.support.virtual import virtual


def sleeper(seconds: float = 3600.0):
    """Work that sleeps, and the times at which it began."""
    started: list[float] = []

    async def work() -> None:
        started.append(asyncio.get_running_loop().time())
        await asyncio.sleep(seconds)

    return work, started


@virtual
async def test_started_again_after_cancellation():
    work, started = sleeper()
    task = LastingTask(work, "test")
    task.start()
    await asyncio.sleep(0)
    task._task.cancel()
    await asyncio.sleep(REVIVE / 2)
    assert len(started) == 1
    assert task.is_running
    await asyncio.sleep(REVIVE)
    assert len(started) == 2
    task.cancel()
    await task.wait(1.0)


@virtual
async def test_owner_ends_it():
    work, started = sleeper()
    task = LastingTask(work, "test")
    task.start()
    await asyncio.sleep(0)
    task.cancel()
    task.start()
    await asyncio.sleep(10 * REVIVE)
    assert len(started) == 1
    assert not task.is_running


@virtual
async def test_end_between_cancellation_and_revival():
    work, started = sleeper()
    task = LastingTask(work, "test")
    task.start()
    await asyncio.sleep(0)
    task._task.cancel()
    await asyncio.sleep(REVIVE / 2)
    task.cancel()
    await asyncio.sleep(10 * REVIVE)
    assert len(started) == 1


@virtual
async def test_work_that_is_done_may_start_again():
    work, started = sleeper(1.0)
    task = LastingTask(work, "test")
    for _ in range(3):
        task.start()
        task.start()
        await asyncio.sleep(2.0)
    assert len(started) == 3
    assert not task.is_running


@pytest.mark.filterwarnings("ignore:asynchronous generator:ResourceWarning")
def test_not_started_again_while_the_loop_ends(monkeypatch):
    """A generator of the program needs longer to close than a cancelled task waits. Nobody would end a new task."""
    monkeypatch.setattr(lasting_task, "REVIVE", 0.01)
    work, started = sleeper()
    task = LastingTask(work, "test")

    async def closes_slowly():
        try:
            yield
        finally:
            await asyncio.sleep(0.1)

    async def program():
        task.start()
        await asyncio.sleep(0)
        await anext(slow)

    slow = closes_slowly()
    asyncio.run(program())
    assert len(started) == 1
    assert not task.is_running
