"""One write a turn of the loop, and a bound."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from jsclient._runtime.nats.write_buffer import HIGH_WATER, Outbox
from tests.support.virtual import virtual


class Transport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unsent = 0
        self._io_writer = self
        self.transport = self

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    async def drain(self) -> None:
        self.unsent = 0


@virtual
async def test_what_comes_in_one_turn_is_one_write():
    transport = Transport()
    out = Outbox(SimpleNamespace(_transport=transport))
    for number in range(3):
        out.write(b"%d" % number)
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"012"]


@virtual
async def test_a_request_is_written_at_once_and_those_beside_it_together():
    transport = Transport()
    out = Outbox(SimpleNamespace(_transport=transport))
    for number in range(4):
        out.write_now(b"%d" % number)
    assert transport.writes == [b"0"]
    await asyncio.sleep(0)
    assert transport.writes == [b"0", b"123"]
    out.write_now(b"4")
    assert transport.writes == [b"0", b"123"], "nothing was read: more may come"
    await asyncio.sleep(0)
    out.answered = True
    out.write_now(b"5")
    assert transport.writes == [b"0", b"123", b"4", b"5"]


@virtual
async def test_a_request_does_not_overtake_what_was_written_before_it():
    transport = Transport()
    out = Outbox(SimpleNamespace(_transport=transport))
    out.write(b"a")
    out.write_now(b"b")
    await asyncio.sleep(0)
    assert transport.writes == [b"ab"]


@virtual
async def test_more_than_should_wait_is_not_taken_without_waiting():
    transport = Transport()
    out = Outbox(SimpleNamespace(_transport=transport))
    assert out.write_if_room(b"x" * (HIGH_WATER + 1))
    assert not out.write_if_room(b"y")
    assert out.is_full
    transport.unsent = HIGH_WATER + 1
    out.flush()
    assert out.is_full
    assert not out.write_if_room(b"y")
    await out.drain()
    assert not out.is_full
    assert out.write_if_room(b"y")


@virtual
async def test_nothing_is_written_later_on_another_connection():
    transport = Transport()
    out = Outbox(SimpleNamespace(_transport=None))
    out.write(b"a")
    out.clear()
    out._transport = lambda: transport
    await asyncio.sleep(0)
    assert transport.writes == []
