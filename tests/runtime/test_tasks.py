"""Background tasks have an owner: none dies unseen, none is left."""

from __future__ import annotations

import asyncio

import pytest

from jsclient._runtime.tasks import Tasks
from tests.support.virtual import settle, virtual


async def fails():
    raise ValueError("mine")


@virtual
async def test_a_task_that_dies_is_told_and_the_others_go_on():
    errors = []
    tasks = Tasks(errors.append)
    other = tasks.start(asyncio.sleep(10, "done"), "other")
    tasks.start(fails(), "bad")
    assert await other == "done"
    assert [str(error) for error in errors] == ["mine"]


@virtual
async def test_a_task_that_is_cancelled_is_no_error():
    errors = []
    tasks = Tasks(errors.append)
    tasks.start(asyncio.sleep(3600), "x").cancel()
    await settle()
    assert errors == []


@virtual
async def test_ending_waits_until_all_have_ended_those_that_clean_up_too():
    tasks, cleaned = Tasks(pytest.fail), []

    async def slow_to_end():
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(5)
            cleaned.append(1)

    tasks.start(slow_to_end(), "slow")
    await settle()
    await tasks.cancel()
    assert cleaned == [1]


@virtual
async def test_settling_gives_a_moment_and_then_cancels():
    tasks, done = Tasks(pytest.fail), []

    async def work(seconds):
        await asyncio.sleep(seconds)
        done.append(seconds)

    for seconds in (0.5, 100):
        tasks.start(work(seconds), "work")
    await tasks.settle(1.0)
    assert done == [0.5]
    await tasks.settle(1.0)


@virtual
async def test_a_task_may_end_the_others_without_ending_itself():
    tasks, ended = Tasks(pytest.fail), []

    async def last():
        await tasks.cancel()
        await tasks.settle(1.0)
        ended.append(1)

    other = tasks.start(asyncio.sleep(3600), "other")
    await tasks.start(last(), "last")
    assert ended == [1]
    assert other.cancelled()


@virtual
async def test_a_task_is_named():
    tasks = Tasks(pytest.fail)
    task = tasks.start(asyncio.sleep(0), "what it does")
    assert task.get_name() == "jsclient:what it does"
    await task
