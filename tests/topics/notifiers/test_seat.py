"""Notifiers on objects: the seat of ``examples/12_seat.py``, and a price that a display watches."""

from __future__ import annotations

import asyncio
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from jsclient import make_notifier_kit
from tests.support.virtual import settle, virtual

Seat = runpy.run_path(str(Path(__file__).resolve().parents[3] / "examples" / "12_seat.py"))["Seat"]


@virtual
@pytest.mark.covers("A51", "A52")
async def test_seat_hides_its_producer():
    seat = Seat({"money": 10})
    assert seat.get_notifier() is seat.get_notifier() is seat.user.get_notifier()
    for view in (seat, seat.user):
        assert not hasattr(view, "get_subscription")
        assert not hasattr(view, "get_updater")


@virtual
@pytest.mark.covers("A53", "A55")
async def test_each_change_of_allocation_reported():
    seat = Seat({"money": 10})
    notifier = seat.user.get_notifier()
    record = await notifier.get_update_since()
    assert record.value == {"money": 10}
    watching = asyncio.create_task(notifier.get_update_since(record.update_count))
    await settle()
    with pytest.raises(ValueError, match="not enough"):
        seat.trade(money=-11)
    await settle()
    assert not watching.done(), "nothing has changed"
    seat.trade(money=-4, tickets=1)
    assert (await watching).value == {"money": 6, "tickets": 1}


@virtual
@pytest.mark.covers("A54", "A55")
async def test_exit_is_last_shown():
    seat = Seat({"money": 10})
    seat.trade(money=-4, tickets=1)
    shown = (await seat.user.get_notifier().get_update_since()).value
    assert seat.exit() == shown
    assert await seat.get_notifier().get_update_since() == (shown, None)
    assert await seat.user.get_notifier().completion() == shown


@virtual
async def test_seat_kicked_out_tells_why():
    seat = Seat({"money": 10})
    watching = asyncio.create_task(anext(aiter(seat.user.get_notifier())))
    await watching
    seat.kick_out(PermissionError("the contract was stopped"))
    with pytest.raises(PermissionError, match="stopped"):
        await seat.user.get_notifier().completion()


@virtual
@pytest.mark.covers("A9", "A21")
async def test_display_keeps_its_pace():
    updater, prices = make_notifier_kit(100)
    shown = []

    async def display() -> None:
        async for price in prices:
            shown.append(price)
            await asyncio.sleep(1)  # to draw it

    drawing = asyncio.create_task(display())
    for tick in range(1, 51):
        await asyncio.sleep(0.1)
        updater.update_state(100 + tick)
    updater.finish(None)
    await drawing
    assert shown[0] == 100
    assert len(shown) <= 7
    assert shown == sorted(set(shown))
    assert all(later - earlier >= 9 for earlier, later in pairwise(shown))
