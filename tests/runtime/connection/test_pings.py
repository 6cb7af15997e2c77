"""PINGs and their PONGs, and the timer of PINGs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from jsclient._runtime.connection.pings import Pings
from jsclient._runtime.connection.unconfirmed_acks import UnconfirmedAcks
from jsclient._runtime.connection.wire import Outbox
from jsclient.errors import DisconnectedError, RequestTimeoutError
from tests.support.virtual import settle, virtual


class Wire:
    """PINGs on a wire that writes nothing, and the times at which they were written."""

    def __init__(self) -> None:
        self.log: list[tuple[str, float]] = []
        self.acks = UnconfirmedAcks()
        transport = SimpleNamespace(write=lambda data: self.note(data.decode().strip()), backlog=lambda: 0)
        out = Outbox(SimpleNamespace(transport=transport))
        self.pings = Pings(out, self.acks, lambda: self.note("stale"))
        self.pings.interval = 10.0
        self._start = asyncio.get_running_loop().time()

    def note(self, what: str) -> None:
        self.log.append((what, asyncio.get_running_loop().time() - self._start))


def asking(wire: Wire, timeout: float = 5.0) -> asyncio.Task:
    return asyncio.create_task(wire.pings.round_trip(timeout, lambda: "the reason"))


@virtual
async def test_pongs_come_in_order_of_pings():
    wire = Wire()
    first = asking(wire)
    await settle()
    wire.pings.send()
    last = asking(wire)
    await settle()
    for done in ((True, False), (True, False), (True, True)):
        wire.pings.pong_received()
        await settle()
        assert (first.done(), last.done()) == done
    wire.pings.pong_received()  # an answer without a ping
    assert await first >= 0
    assert await last >= 0


@virtual
async def test_pong_of_timed_out_waiter_is_consumed():
    wire = Wire()
    with pytest.raises(RequestTimeoutError, match="the reason"):
        await asking(wire, 1.0)
    second = asking(wire)
    await settle()
    wire.pings.pong_received()
    await settle()
    assert not second.done()
    wire.pings.pong_received()
    await second


@virtual
async def test_lost_connection_fails_all():
    wire = Wire()
    waiting = asking(wire)
    await settle()
    wire.pings.stop(DisconnectedError("lost"))
    with pytest.raises(DisconnectedError):
        await waiting
    later = asking(wire)
    await settle()
    wire.pings.pong_received()
    await later


@virtual
async def test_pong_confirms_acks():
    wire = Wire()
    wire.acks.acks.append(b"ack")
    wire.pings.send()
    wire.acks.acks.append(b"later")
    wire.pings.pong_received()
    assert list(wire.acks.acks) == [b"later"]


@virtual
async def test_timer_pings_until_no_pong_comes():
    wire = Wire()
    wire.pings.start()
    await asyncio.sleep(25)
    wire.pings.pong_received()
    await asyncio.sleep(30)
    assert wire.log == [("PING", 10), ("PING", 20), ("PING", 30), ("PING", 40), ("stale", 50)]
    wire.pings.stop(DisconnectedError("lost"))
    await asyncio.sleep(100)
    assert len(wire.log) == 5


@virtual
async def test_new_connection_starts_timer_anew():
    wire = Wire()
    wire.pings.start()
    await asyncio.sleep(25)
    wire.pings.start()
    await asyncio.sleep(25)
    wire.pings.stop(DisconnectedError("lost"))
    assert [what for what, _ in wire.log] == ["PING"] * 4
