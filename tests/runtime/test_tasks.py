"""Background tasks, the timer of a tracker, and the wake-up signal."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import deque

import pytest

from jsclient._runtime.tasks import Signal, Tasks, Timer
from tests.support.virtual import EverybodyWaitsError, run, settle, virtual


async def fails():
    raise ValueError("mine")


@virtual
async def test_task_dies_reported_and_others_go_on():
    errors = []
    tasks = Tasks(errors.append)
    other = tasks.start(asyncio.sleep(10, "done"), "other")
    tasks.start(fails(), "bad")
    assert await other == "done"
    assert [str(error) for error in errors] == ["mine"]


@virtual
async def test_task_cancelled_no_error():
    errors = []
    tasks = Tasks(errors.append)
    tasks.start(asyncio.sleep(3600), "x").cancel()
    await settle()
    assert errors == []


def test_task_started_while_the_loop_ends_is_cancelled(caplog):
    """`asyncio.run` does not cancel it: "Task was destroyed but it is pending!". The group serves the next loop."""
    tasks, ended = Tasks(pytest.fail), []

    async def last():
        await asyncio.sleep(3600)

    async def late():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("late")
            tasks.start(last(), "last")

    async def first():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("first")
            tasks.start(late(), "late")

    async def main():
        assert await tasks.start(asyncio.sleep(0, "done"), "short") == "done"
        asyncio.ensure_future(first())  # noqa: RUF006
        await asyncio.sleep(0)

    for _ in range(2):
        asyncio.run(main())
    gc.collect()
    assert ended == ["first", "late"] * 2
    assert caplog.text == ""


@virtual
async def test_end_waits_for_cleanup():
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
async def test_settle_then_cancel():
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
async def test_task_may_end_others():
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


@virtual
async def test_fires_once_at_deadline():
    loop, fired = asyncio.get_running_loop(), []
    timer = Timer(lambda: fired.append(loop.time()))
    timer.set(2000.0)
    await asyncio.sleep(5000)
    assert fired == [pytest.approx(2000.0)]


@virtual
async def test_moved_deadline_one_timer():
    loop, fired = asyncio.get_running_loop(), []
    timer = Timer(lambda: fired.append(loop.time()))
    timer.set(1010.0)
    handle = timer._handle
    for moment in range(1011, 1100):
        timer.set(float(moment))
    assert timer._handle is handle
    await asyncio.sleep(200)
    assert fired == [pytest.approx(1010.0)], "early: whoever was called looks at the time and sets it again"


@virtual
async def test_deadline_comes_nearer_counts():
    loop, fired = asyncio.get_running_loop(), []
    timer = Timer(lambda: fired.append(loop.time()))
    timer.set(1100.0)
    timer.set(1050.0)
    await asyncio.sleep(500)
    assert fired == [pytest.approx(1050.0)]


class NearMoments(asyncio.AbstractEventLoop):
    """A loop that returns a plain handle, as uvloop does for a moment less than half a millisecond away."""

    def __init__(self):
        self.handles = []

    def call_at(self, when, callback, *args, context=None):
        self.handles.append(asyncio.Handle(callback, args, self))
        return self.handles[-1]

    def get_debug(self):
        return False


def test_timer_moves_nearer_with_plain_handles(monkeypatch):
    loop = NearMoments()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    timer = Timer(pytest.fail)
    timer.set(10.0)
    timer.set(11.0)
    assert len(loop.handles) == 1
    timer.set(9.0)
    assert [handle.cancelled() for handle in loop.handles] == [True, False]


@virtual
async def test_can_be_stopped_and_set_again():
    fired = []
    timer = Timer(lambda: fired.append(1))
    timer.set(1010.0)
    timer.set(None)
    await asyncio.sleep(100)
    timer.cancel()
    assert fired == []
    timer.set(1200.0)
    await asyncio.sleep(500)
    assert fired == [1]


@virtual
async def test_callback_may_set_again():
    loop, fired = asyncio.get_running_loop(), []

    def tick():
        fired.append(loop.time())
        if len(fired) < 3:
            timer.set(loop.time() + 3600)

    timer = Timer(tick)
    timer.set(1000.0)
    await asyncio.sleep(100_000)
    assert fired == pytest.approx([1000.0, 4600.0, 8200.0])


def test_days_pass_in_moments():
    started = time.monotonic()
    run(asyncio.sleep(30 * 86_400))
    assert time.monotonic() - started < 5.0


def test_empty_wait_is_error():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(EverybodyWaitsError, match="everybody waits"):
        run(main())


def test_task_still_running_is_error():
    async def main():
        main.task = asyncio.ensure_future(asyncio.sleep(3600))

    with pytest.raises(AssertionError, match="left running"):
        run(main())


def test_task_failed_unseen_error():
    async def main():
        async def fails():
            raise ValueError("unseen")

        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.gather(fails(), return_exceptions=True)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run(main())


@virtual
async def test_set_wakes_everybody_who_waits():
    signal = Signal()
    waiting = [asyncio.ensure_future(signal.wait()) for _ in range(3)]
    limited = asyncio.ensure_future(signal.wait_until(asyncio.get_running_loop().time() + 3600))
    await settle()
    signal.set()
    await asyncio.gather(*waiting)
    assert await limited is True


@pytest.mark.covers("A67")
@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("how", ["cancelled before", "cancelled with", "timeout"])
@virtual
async def test_who_leaves_takes_no_wake_up_of_others(which, how):
    signal, now = Signal(), asyncio.get_running_loop().time()
    waiting = [
        asyncio.ensure_future(
            signal.wait_until(now + 1) if (at, how) == (which, "timeout") else signal.wait_until(None)
        )
        for at in range(4)
    ]
    await settle()
    # the wake-up has reached the task that leaves, so it must be passed on
    if how == "cancelled with":
        signal.set()
    waiting[which].cancel() if how != "timeout" else await asyncio.sleep(2)
    await settle()
    signal.set()
    await settle()
    remaining = waiting.pop(which)
    assert remaining.cancelled() if how != "timeout" else remaining.result() is False
    assert [one.done() and one.result() for one in waiting] == [True] * 3


def test_a_set_is_not_remembered():
    async def main():
        signal = Signal()
        signal.set()
        await signal.wait()

    with pytest.raises(EverybodyWaitsError):
        run(main())


@virtual
async def test_wait_until_deadline_returns_false():
    signal, loop = Signal(), asyncio.get_running_loop()
    start = loop.time()
    assert await signal.wait_until(start + 7200.0) is False
    assert loop.time() == pytest.approx(start + 7200.0)
    assert await signal.wait_until(loop.time()) is False
    assert await signal.wait_until(loop.time() - 1) is False


@virtual
async def test_no_stale_waiters():
    signal, loop = Signal(), asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(signal.wait()), asyncio.ensure_future(signal.wait_until(loop.time() + 9))]
    await settle()
    assert len(signal.waiters) == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await signal.wait_until(loop.time() + 1)
    assert signal.waiters == []


@virtual
async def test_no_items_lost():
    """Readers of one queue are cancelled at random instants, also between the wake-up and their turn."""
    for seed in range(100):
        chance, signal, items, got = random.Random(seed), Signal(), deque(), []
        loop = asyncio.get_running_loop()

        async def reader(*, signal=signal, items=items, got=got, chance=chance, loop=loop):
            while True:
                while not items:
                    deadline = loop.time() + chance.random() if chance.random() < 0.5 else None
                    await signal.wait_until(deadline)
                got.append(items.popleft())

        readers = [asyncio.ensure_future(reader()) for _ in range(3)]
        for number in range(60):
            items.append(number)
            signal.set()
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice([0, 0, 0.3]))
            # Cancel a reader, perhaps a reader that was just woken. Another reader must take its item.
            if chance.random() < 0.4:
                which = chance.randrange(3)
                readers[which].cancel()
                readers[which] = asyncio.ensure_future(reader())
        await settle()
        assert got == list(range(60)), seed
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
