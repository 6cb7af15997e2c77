"""Notifiers on objects: a seat whose holder watches what would be paid, and a price that a display watches."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from jsclient import Notifier, NotifierKit, make_notifier_kit
from tests.support.virtual import settle, virtual


class Seat:
    """A place in a contract, with what is allocated to it.

    The contract has the seat; its holder has ``seat.user``. Both can watch the allocation: what would be paid if
    nothing changed any more.
    """

    def __init__(self, allocation: dict[str, int], kit: NotifierKit | None = None) -> None:
        self._allocation = dict(allocation)
        self._updater, self._notifier = kit or make_notifier_kit(dict(allocation))
        self.user = UserSeat(self._notifier)

    def get_notifier(self) -> Notifier:
        return self._notifier

    def trade(self, **changes: int) -> None:
        changed = {what: self._allocation.get(what, 0) + by for what, by in changes.items()}
        if short := [what for what, amount in changed.items() if amount < 0]:
            raise ValueError(f"not enough of {short}")
        self._allocation |= changed
        self._updater.update_state(dict(self._allocation))

    def exit(self) -> dict[str, int]:
        """Pay out: what was allocated last."""
        self._updater.finish(dict(self._allocation))
        return self._allocation

    def kick_out(self, reason: Exception) -> None:
        self._updater.fail(reason)


class UserSeat:
    """The holder's view: to watch, and nothing else."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    def get_notifier(self) -> Notifier:
        return self._notifier


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
async def test_each_change_of_allocation_told():
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
