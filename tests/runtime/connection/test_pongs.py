"""PINGs and their PONGs, and the timer of PINGs."""

from __future__ import annotations

import asyncio

import pytest

from jsclient._runtime.connection.pongs import PingTimer, Pongs
from jsclient.errors import DisconnectedError
from tests.support.virtual import virtual


@virtual
async def test_pongs_come_in_order_of_pings():
    pongs = Pongs()
    first, none, last = pongs.expect(awaited=True), pongs.expect(awaited=False), pongs.expect(awaited=True)
    assert none is None
    pongs.received()
    assert (first.done(), last.done()) == (True, False)
    pongs.received()
    assert not last.done()
    pongs.received()
    assert last.done()
    pongs.received()  # of nobody


@virtual
async def test_cancelled_waiter_keeps_its_place():
    pongs = Pongs()
    first, second = pongs.expect(awaited=True), pongs.expect(awaited=True)
    first.cancel()
    pongs.received()
    assert not second.done()
    pongs.received()
    assert second.done()


@virtual
async def test_lost_connection_fails_all():
    pongs = Pongs()
    waiter = pongs.expect(awaited=True)
    pongs.fail(DisconnectedError("lost"))
    with pytest.raises(DisconnectedError):
        await waiter
    later = pongs.expect(awaited=True)
    pongs.received()
    assert later.done()


@virtual
async def test_timer_pings_until_no_pong_comes():
    done: list[tuple[str, float]] = []
    start = asyncio.get_running_loop().time()

    def note(what: str):
        return lambda: done.append((what, asyncio.get_running_loop().time() - start))

    timer = PingTimer(10.0, note("ping"), note("stale"))
    timer.start()
    await asyncio.sleep(25)
    timer.pong_received()
    await asyncio.sleep(30)
    assert done == [("ping", 10), ("ping", 20), ("ping", 30), ("ping", 40), ("stale", 50)]
    timer.stop()
    await asyncio.sleep(100)
    assert len(done) == 5


@virtual
async def test_new_connection_starts_timer_anew():
    done: list[str] = []
    timer = PingTimer(10.0, lambda: done.append("ping"), lambda: done.append("stale"))
    timer.start()
    await asyncio.sleep(25)
    timer.start()
    await asyncio.sleep(25)
    timer.stop()
    assert done == ["ping"] * 4
