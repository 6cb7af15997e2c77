"""Handlers that take long: messages are kept alive, and a handler that exceeds its time is cancelled."""

from __future__ import annotations

import asyncio

import pytest

import jsclient
from jsclient.protocol.events import (
    HandlerFailed,
)
from tests.consumers.worker.kit import ALIVE, NAK, Handler, nak, seqs, working
from tests.support.strategies import data
from tests.support.virtual import settle, virtual

# --- kept alive ----------------------------------------------------------------------------------------------


@virtual
@pytest.mark.row(112)
@pytest.mark.parametrize("pull", [True, False])
async def test_handled_and_waits_kept_alive(pull):
    handler = Handler()
    async with working(handler, pull=pull, prefetch=10) as work:
        await work.deliver(data(1), data(2))
        await asyncio.sleep(9.9)
        assert work.connection.acks() == []
        await asyncio.sleep(20)
        assert seqs(work.connection, ALIVE) == [1, 2, 1, 2]
        handler.end(1)
        await asyncio.sleep(5)
        assert seqs(work.connection, ALIVE) == [1, 2, 1, 2, 2]
        assert work.worker.counts.kept_alive == 5


@virtual
async def test_old_messages_taken_first():
    """A pull reader that is full ends meanwhile: nothing comes that could not be kept alive."""
    handler = Handler()
    async with working(handler, pull=True, concurrency=1, prefetch=6) as work:
        (pull,) = work.connection.pulls()
        assert pull.json["batch"] == 3
        await work.deliver(data(1), data(2), data(3))
        await work.deliver(data(4), data(5), data(6), data(7))
        listening = len(work.connection.inboxes)
        await asyncio.sleep(10.1)
        assert len(work.connection.inboxes) == listening - 1
        await asyncio.sleep(10)
        assert set(seqs(work.connection, ALIVE)) == {1, 2, 3, 4, 5, 6, 7}
        before = len(work.connection.pulls())
        for seq in range(1, 8):
            handler.end(seq)
            await settle()
        assert handler.ended == list(range(1, 8))
        assert len(work.connection.pulls()) == before + 1
        await work.deliver(data(8))
        assert handler.seen[-1] == 8


@virtual
async def test_keep_alive_for_push_buffer():
    handler = Handler()
    async with working(handler) as work:
        await work.deliver(*[data(seq) for seq in range(1, 31)])
        await asyncio.sleep(29)
        assert set(seqs(work.connection, ALIVE)) == set(range(1, 31))
        await work.deliver(*[data(seq) for seq in range(31, 41)])
        await asyncio.sleep(29)
        assert set(seqs(work.connection, ALIVE)) == set(range(1, 41))
        for seq in range(1, 41):
            handler.end(seq)
            await settle()
        assert work.acked == list(range(1, 41))


@virtual
async def test_without_keep_alive_nothing_said():
    handler = Handler()
    async with working(handler, keep_alive=False, handler_timeout=None) as work:
        await work.deliver(data(1))
        await asyncio.sleep(1000)
        assert work.connection.acks() == []


@virtual
async def test_redelivery_not_handled_twice():
    handler = Handler()
    async with working(handler, concurrency=3) as work:
        await work.deliver(data(1))
        await work.deliver(data(1, 2, delivered=2))
        assert handler.seen == [1]
        handler.end(1)
        await settle()
        (ack,) = work.connection.to("$JS.ACK.")
        assert ack.subject.split(".")[4] == "2"  # the newest delivery
        assert work.worker.counts.duplicates == 1


# --- too long ------------------------------------------------------------------------------------------------


@virtual
async def test_hanging_handler_cancelled():
    handler = Handler()
    async with working(handler, handler_timeout=60.0) as work:
        await work.deliver(data(1), data(2))
        await asyncio.sleep(59)
        assert handler.cancelled == []
        await asyncio.sleep(2)
        assert handler.cancelled == [1]
        assert work.connection.acks()[-1] == nak(0.5)
        (event,) = work.connection.told(HandlerFailed)
        assert isinstance(event.error, TimeoutError)
        assert "60" in str(event.error)
        handler.end(2)  # the next handler began in its place
        await settle()
        assert work.acked == [2]


@virtual
async def test_stuck_handler_loses_message():
    gate = asyncio.Event()
    seen = []

    async def stubborn(message):
        seen.append(message.metadata.stream_seq)
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass

    async with working(stubborn, handler_timeout=60.0, concurrency=1) as work:
        await work.deliver(data(1), data(2))
        await asyncio.sleep(62)
        assert seqs(work.connection, NAK) == [1]
        assert seen == [1]
        gate.set()
        await settle()
        assert seen == [1, 2]
        assert work.acked == [2]
        assert work.worker.counts.handled == 1


@virtual
async def test_time_ack_takes_not_handlers():
    handler = Handler()
    async with working(handler, handler_timeout=5.0, ack_sync=True) as work:
        await work.deliver(data(1))
        await asyncio.sleep(4)
        handler.end(1)
        await asyncio.sleep(4)
        (ack,) = work.connection.to("$JS.ACK.")
        work.connection.deliver(ack.reply, [(ack.reply.encode(), b"", b"", b"")])
        await settle()
        assert work.worker.counts == jsclient.WorkCounts(handled=1)


@virtual
async def test_success_despite_cancel():
    async def late(_):
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)

    async with working(late, handler_timeout=60.0) as work:
        await work.deliver(data(1))
        await asyncio.sleep(62)
        assert work.acked == [1]
        await work.deliver(data(2))  # and the cancellation does not count against the next handler
        await asyncio.sleep(62)
        assert work.acked == [1, 2]
