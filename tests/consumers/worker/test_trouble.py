"""A worker without a connection, without rights or with wrong arguments."""

from __future__ import annotations

import asyncio

import pytest

import jsclient
from jsclient import (
    ConsumerConfig,
)
from jsclient.protocol.events import (
    AcksUnsent,
    DeadLetterFailed,
    ErrorRaised,
    WorkerFailed,
)
from tests.consumers.worker.kit import ACK, ALIVE, NAK, Handler, now, seqs, working
from tests.support.fake import SILENCE, connected
from tests.support.strategies import STREAM, data
from tests.support.virtual import settle, virtual


@virtual
async def test_offline_answers_wait():
    handler = Handler()
    async with working(handler, concurrency=3) as work:
        await work.deliver(data(1), data(2), data(3))
        work.connection.disconnect()
        handler.end(1)
        handler.end(2, error=ValueError())
        await asyncio.sleep(3)
        assert work.connection.acks() == []
        work.connection.reconnect()
        await settle()
        assert work.acked == [1]
        assert seqs(work.connection, NAK) == [2]
        assert 3 in seqs(work.connection, ALIVE)  # at once
        assert work.worker.counts.handled == 1


@virtual
async def test_offline_stop_ends_in_time():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(data(1), data(2), data(3))
        work.connection.disconnect()
        handler.end(1)
        started = now()
        work.worker.stop(grace=5.0)
        await asyncio.wait({work.worker.task})
        assert now() - started <= 8.0
        assert work.worker.counts == jsclient.WorkCounts(unsettled=3)


@virtual
async def test_offline_stop_ends_with_its_handlers():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(data(1), data(2), data(3))
        work.connection.disconnect()
        handler.end(1)
        work.worker.stop(grace=500.0)
        await asyncio.sleep(100)
        assert work.worker.is_running  # handler 2 runs
        assert work.connection.told(AcksUnsent) == []
        handler.end(2)
        ended = now()
        await asyncio.wait(
            {work.worker.task}
        )  # to await the worker is to await the deletion of its consumer, too
        assert now() - ended <= 2.0
        counts = work.worker.counts
        assert (counts.handled, counts.returned, counts.unsettled) == (0, 0, 3)
        (event,) = work.connection.told(AcksUnsent)
        assert (event.stream, event.count, event.returned) == (STREAM, 2, 1)


@virtual
async def test_offline_stop_sends_acks_on_a_quick_reconnect():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(data(1), data(2))
        work.connection.disconnect()
        handler.end(1, 2)
        work.worker.stop(grace=500.0)
        await asyncio.sleep(0.5)
        work.connection.reconnect()
        counts = await work.worker
        assert (counts.handled, counts.unsettled) == (2, 0)
        assert sorted(work.acked) == [1, 2]
        assert work.connection.told(AcksUnsent) == []


@virtual
async def test_offline_grace_ends_what_was_handled_is_not_dead_lettered():
    """A running handler delays the end. The handled last delivery beside it is unsettled, not undeliverable."""
    handler = Handler()
    config = ConsumerConfig(max_deliver=1)
    async with working(handler, config=config, concurrency=2, dead_letter="dead") as work:
        await work.deliver(data(1))
        await work.deliver(data(2))
        work.connection.disconnect()
        handler.end(1)
        work.worker.stop(grace=5.0)
        await work.worker
        reports = [event.stream_seq for event in work.connection.told(DeadLetterFailed)]
        assert reports == [2]


@virtual
async def test_closed_under_way_it_ends():
    handler = Handler()
    async with working(handler) as work:
        await work.deliver(data(1))
        await work.connection.close()
        handler.end(1)
        counts = await work.worker
        assert counts.unsettled == 1


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_worker_without_info_right(pull):
    handler = Handler(waits=False)
    async with connected() as (js, connection):
        subscribe = js.pull_subscribe if pull else js.subscribe
        sub = await subscribe("orders.new", config=ConsumerConfig(ack_wait=3.0))
        connection.api.on("CONSUMER.INFO", SILENCE)
        worker = sub.run(handler)
        await asyncio.sleep(6)
        where = connection.pulls()[-1].reply if pull else sub.subject
        connection.deliver(where, [data(1)])
        await settle()
        assert seqs(connection, ACK) == [1]
        worker.stop()
        await worker


@virtual
async def test_cannot_begin_with_consumer_deleted():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        connection.api.consumers.clear()
        with pytest.raises(jsclient.ConsumerNotFoundError):
            await sub.run(Handler())
        worker = sub.run(Handler())  # and it is reported where no task waits for it
        await settle(100)
        (event,) = connection.told(ErrorRaised)
        assert isinstance(event, WorkerFailed)
        assert isinstance(event.error, jsclient.ConsumerNotFoundError)
        assert not worker.is_running


@virtual
async def test_stopped_before_began_ends():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        connection.api.on("CONSUMER.INFO", SILENCE)
        worker = sub.run(Handler())
        worker.stop()
        assert await worker == jsclient.WorkCounts()
        worker = sub.run(Handler())
        await settle()
        worker.stop()
        assert await worker == jsclient.WorkCounts()
