"""A worker on a fake connection, in virtual time: its answers, how many messages it takes, and in which order."""

from __future__ import annotations

import asyncio

import pytest

import jsclient
from jsclient import (
    ConsumerConfig,
)
from jsclient.consumers.worker import worker as worker_module
from jsclient.protocol.events import (
    HandlerFailed,
)
from tests.consumers.worker.kit import NAK, TERM, Handler, seqs, working
from tests.support.strategies import data
from tests.support.virtual import settle, virtual

# --- what is answered ----------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_what_is_handled_is_acked(pull):
    handler = Handler()
    async with working(handler, pull=pull, concurrency=2, prefetch=10) as work:
        await work.deliver(data(1), data(2), data(3))
        assert handler.seen == [1, 2]
        handler.end(2)
        await settle()
        assert work.acked == [2]
        assert handler.seen == [1, 2, 3]
        handler.end(1, 3)
        await settle()
        assert sorted(work.acked) == [1, 2, 3]
        assert (work.worker.counts.handled, work.worker.counts.running) == (3, 0)
        assert work.worker.is_running
        work.worker.stop()
        counts = await work.worker
        assert counts == jsclient.WorkCounts(handled=3)
        assert not work.worker.is_running


# --- how many, in which order --------------------------------------------------------------------------------


@virtual
async def test_more_wait_than_are_taken_over(monkeypatch):
    """A push subscription with a long backlog: the event loop stood still."""
    monkeypatch.setattr(worker_module, "_MOST_KEPT", 3)
    handler = Handler()
    async with working(handler, config=ConsumerConfig(ack_wait=30.0, max_ack_pending=100)) as work:
        await work.deliver(*(data(seq) for seq in range(1, 21)))
        for _ in range(10):
            await asyncio.sleep(10)
        assert handler.seen == [1]
        assert work.worker.is_running


@virtual
async def test_one_after_other_for_each_key():
    handler = Handler()
    async with working(handler, concurrency=4, key=lambda m: m.data) as work:
        keys = {seq: bytes([65 + seq % 2]) for seq in range(1, 9)}
        await work.deliver(*[data(seq, payload=key) for seq, key in keys.items()])
        assert handler.seen == [1, 2]
        handler.end(2)
        await settle()
        assert handler.seen == [1, 2, 4]
        handler.end(4, error=ValueError())
        await settle()
        assert handler.seen == [1, 2, 4]  # 6 waits
        await asyncio.sleep(0.51)  # the retry is due after 0.5
        assert handler.seen == [1, 2, 4, 4]
        handler.end(4)
        await settle()
        assert handler.seen == [1, 2, 4, 4, 6]
        assert work.acked == [2, 4]
        assert seqs(work.connection, NAK) == []


@virtual
@pytest.mark.parametrize("key", [lambda _: 1 / 0, lambda _: []])
async def test_message_without_key_failed(key):
    handler = Handler()
    async with working(handler, key=key, max_deliver=2) as work:
        await work.deliver(data(1))
        await asyncio.sleep(1)
        assert handler.seen == []
        assert seqs(work.connection, TERM) == [1]
        assert len(work.connection.told(HandlerFailed)) == 2
