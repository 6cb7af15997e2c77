"""Notifiers on objects, over a server: a seat whose holder watches from another site what would be paid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from integration.kit.clients.kits import Kits
from integration.kit.judge.waiting import eventually
from jsclient import IterationFailed
from tests.topics.notifiers.test_seat import Seat


@pytest.fixture
async def kits(server: Any, connect: Any) -> AsyncIterator[Kits]:
    kits = Kits(await connect(server), await connect(server))
    yield kits
    await kits.clear()


async def holder_of(kits: Kits, **allocation: int) -> Any:
    return Seat(allocation, await kits.notifier_kit(allocation))


@pytest.mark.covers("A51", "A52", "A53", "A55")
async def test_holder_sees_changes(kits: Kits) -> None:
    held = await holder_of(kits, money=10)
    notifier = held.user.get_notifier()
    assert held.get_notifier() is notifier
    for view in (held, held.user):
        assert not hasattr(view, "get_subscription")
        assert not hasattr(view, "get_updater")
    record = await notifier.get_update_since()
    assert record.value == {"money": 10}
    for spent in range(1, 5):
        watching = asyncio.create_task(notifier.get_update_since(record.update_count))
        with pytest.raises(ValueError, match="not enough"):
            held.trade(money=-11)
        held.trade(money=-1, tickets=1)
        record = await watching
        assert record.value == {"money": 10 - spent, "tickets": spent}


@pytest.mark.covers("A54", "A55")
async def test_exit_is_last_shown(kits: Kits) -> None:
    held = await holder_of(kits, money=10)
    held.trade(money=-4, tickets=1)
    notifier = held.user.get_notifier()

    async def shown() -> Any:
        value = (await notifier.get_update_since()).value
        return value if "tickets" in value else None

    last = await eventually(shown, what="the trade")
    assert held.exit() == last
    assert await notifier.completion() == last
    assert await notifier.get_update_since() == (last, None)


async def test_seat_kicked_out_tells_why(kits: Kits) -> None:
    held = await holder_of(kits, money=10)
    held.kick_out(PermissionError("the contract was stopped"))
    with pytest.raises(IterationFailed, match="PermissionError: the contract was stopped"):
        await held.user.get_notifier().completion()


@pytest.mark.covers("A9", "A21")
async def test_remote_display_keeps_pace(kits: Kits) -> None:
    updater, prices = await kits.notifier_kit(100)
    shown, may_draw = [], asyncio.Semaphore(0)

    async def display() -> None:
        async for price in prices:
            shown.append(price)
            await may_draw.acquire()

    drawing = asyncio.create_task(display())
    await kits.until(lambda: shown == [100])
    for tick in range(1, 51):
        await updater.update_state(100 + tick)
        if tick % 10 == 0:
            may_draw.release()
            await kits.until(lambda tick=tick: shown[-1] == 100 + tick)
    await updater.finish(None)
    may_draw.release()
    await drawing
    assert shown == [100, 110, 120, 130, 140, 150]
    assert all(later - earlier == 10 for earlier, later in pairwise(shown))
