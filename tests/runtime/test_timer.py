"""The timer of a tracker, and the clock of these tests."""

from __future__ import annotations

import asyncio
import time

import pytest

from jsclient._runtime.timer import Timer
from tests.support.virtual import EverybodyWaitsError, run, virtual


@virtual
async def test_it_fires_once_at_its_deadline():
    loop, fired = asyncio.get_running_loop(), []
    timer = Timer(lambda: fired.append(loop.time()))
    timer.set(2000.0)
    await asyncio.sleep(5000)
    assert fired == [pytest.approx(2000.0)]


@virtual
async def test_a_deadline_that_moves_away_costs_no_new_timer_and_it_fires_early():
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
async def test_a_deadline_that_comes_nearer_counts():
    loop, fired = asyncio.get_running_loop(), []
    timer = Timer(lambda: fired.append(loop.time()))
    timer.set(1100.0)
    timer.set(1050.0)
    await asyncio.sleep(500)
    assert fired == [pytest.approx(1050.0)]


@virtual
async def test_it_can_be_stopped_and_set_again():
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
async def test_its_callback_may_set_it_again():
    loop, fired = asyncio.get_running_loop(), []

    def tick():
        fired.append(loop.time())
        if len(fired) < 3:
            timer.set(loop.time() + 3600)

    timer = Timer(tick)
    timer.set(1000.0)
    await asyncio.sleep(100_000)
    assert fired == pytest.approx([1000.0, 4600.0, 8200.0])


# --- the clock of these tests --------------------------------------------------------------------------------


def test_days_pass_in_moments():
    started = time.monotonic()
    run(asyncio.sleep(30 * 86_400))
    assert time.monotonic() - started < 5.0


def test_waiting_for_nothing_is_an_error_and_not_a_hang():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(EverybodyWaitsError, match="everybody waits"):
        run(main())


def test_a_task_that_is_left_over_is_an_error():
    async def main():
        main.task = asyncio.ensure_future(asyncio.sleep(3600))

    with pytest.raises(AssertionError, match="left running"):
        run(main())


def test_a_task_that_failed_unseen_is_an_error():
    async def main():
        async def fails():
            raise ValueError("unseen")

        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.gather(fails(), return_exceptions=True)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run(main())
