"""Waking without losing: a signal carries nothing, so a cancelled waiter takes nothing with it."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest

from jsclient._runtime.wakeup import Signal
from tests.support.virtual import EverybodyWaitsError, run, settle, virtual


@virtual
async def test_a_set_wakes_everybody_who_waits():
    signal = Signal()
    waiting = [asyncio.ensure_future(signal.wait()) for _ in range(3)]
    limited = asyncio.ensure_future(signal.wait_until(asyncio.get_running_loop().time() + 3600))
    await settle()
    signal.set()
    await asyncio.gather(*waiting)
    assert await limited is True


def test_a_set_is_not_remembered():
    async def main():
        signal = Signal()
        signal.set()
        await signal.wait()

    with pytest.raises(EverybodyWaitsError):
        run(main())


@virtual
async def test_the_deadline_is_kept_and_tells():
    signal, loop = Signal(), asyncio.get_running_loop()
    start = loop.time()
    assert await signal.wait_until(start + 7200.0) is False
    assert loop.time() == pytest.approx(start + 7200.0)
    assert await signal.wait_until(loop.time()) is False
    assert await signal.wait_until(loop.time() - 1) is False


@virtual
async def test_nobody_stays_in_the_list_who_does_not_wait():
    signal, loop = Signal(), asyncio.get_running_loop()
    tasks = [asyncio.ensure_future(signal.wait()), asyncio.ensure_future(signal.wait_until(loop.time() + 9))]
    await settle()
    assert len(signal._waiters) == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await signal.wait_until(loop.time() + 1)
    assert signal._waiters == []


@virtual
async def test_items_are_lost_neither_by_cancellation_nor_by_timeouts_whenever_they_happen():
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
            if chance.random() < 0.4:
                which = chance.randrange(3)
                readers[which].cancel()
                readers[which] = asyncio.ensure_future(reader())
        await settle()
        assert got == list(range(60)), seed
        for task in readers:
            task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
