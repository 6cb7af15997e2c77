"""How a worker ends: by a call, a signal, an event, its subscription, or the end of its connection."""

from __future__ import annotations

import asyncio
import signal

import pytest

import jsclient
from jsclient import (
    ConsumerConfig,
    ConsumerDeletedError,
)
from jsclient.protocol.events import (
    ErrorRaised,
    HandlerFailed,
)
from jsclient.protocol.wire.headers import parse_headers
from tests.consumers.worker.kit import ALIVE, NAK, Handler, Stored, now, seqs, working
from tests.support.fake import connected
from tests.support.strategies import data, status
from tests.support.virtual import settle, virtual


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_stop_returns_waiting(pull):
    handler = Handler()
    async with working(handler, pull=pull, concurrency=2, prefetch=4, grace=30.0) as work:
        await work.deliver(*[data(seq) for seq in range(1, 5)])
        await work.deliver(data(5), data(6))
        work.worker.stop()
        await settle(100)
        assert seqs(work.connection, NAK) == [3, 4, 5, 6]
        ways = [how if how == "drain" else subject[:8] for how, subject in work.connection.log]
        assert ways.index("drain") < ways.index("$JS.ACK.")  # before, they would come back
        assert not work.worker.task.done()
        await asyncio.sleep(21)
        assert sorted(seqs(work.connection, ALIVE)) == [1, 1, 2, 2]  # while they run
        handler.end(1, 2)
        counts = await work.worker
        assert (counts.handled, counts.returned) == (2, 4)
        assert sorted(work.acked) == [1, 2]
        assert work.connection.listening == []
        assert work.sub.is_closed is not pull


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_grace_cancels_handlers(pull):
    handler = Handler()
    async with working(handler, pull=pull, concurrency=2, prefetch=4) as work:
        await work.deliver(data(1), data(2))
        started = now()
        work.worker.stop(grace=5.0)
        counts = await work.worker
        assert now() - started == pytest.approx(5.0)
        assert handler.cancelled == [1, 2]
        assert counts.returned == 2
        assert seqs(work.connection, NAK) == [1, 2]
        assert work.connection.told(HandlerFailed) == []


@virtual
async def test_stuck_handler_ends_with_stop():
    gate = asyncio.Event()

    async def stubborn(_):
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                pass

    async with working(stubborn) as work:
        await work.deliver(data(1))
        started = now()
        work.worker.stop(grace=5.0)
        counts = await work.worker
        assert now() - started <= 8.0
        assert (counts.returned, counts.running) == (1, 1)
        assert seqs(work.connection, NAK) == [1]
        gate.set()
        await settle()
        assert work.acked == []
        assert (counts.running, counts.handled) == (0, 0)


@virtual
async def test_second_stop_can_only_be_sooner():
    handler = Handler()
    async with working(handler) as work:
        await work.deliver(data(1))
        started = now()
        work.worker.stop(grace=10.0)
        await asyncio.sleep(1)
        work.worker.stop(grace=2.0)
        work.worker.stop(grace=100.0)
        await work.worker
        assert now() - started == pytest.approx(3.0)


@virtual
async def test_second_cancel_stops_at_once():
    handler = Handler()
    async with working(handler, grace=50.0) as work:
        await work.deliver(data(1), data(2))
        waiting = asyncio.ensure_future(work.worker.wait())
        await settle()
        waiting.cancel()
        await settle(100)
        assert seqs(work.connection, NAK) == [2]
        assert not waiting.done()
        started = now()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert now() == started
        assert seqs(work.connection, NAK) == [2, 1]


@virtual
async def test_an_event_stops_it():
    handler, stop = Handler(), asyncio.Event()
    async with working(handler, stop=stop) as work:
        await work.deliver(data(1))
        stop.set()
        await settle()
        handler.end(1)
        assert (await work.worker).handled == 1


@virtual
@pytest.mark.parametrize("how", ["event", "stop", "cancel"])
async def test_stop_during_drain(how):
    handler, stop = Handler(), asyncio.Event()
    async with working(handler, stop=stop, grace=3.0) as work:
        await work.deliver(data(1), data(2))
        started = now()
        draining = asyncio.ensure_future(work.sub.drain())
        waiting = asyncio.ensure_future(work.worker.wait())
        await asyncio.sleep(1)
        {"event": stop.set, "stop": work.worker.stop, "cancel": waiting.cancel}[how]()
        await asyncio.wait({waiting})
        assert now() - started == pytest.approx(4.0)
        await draining
        assert seqs(work.connection, NAK) == [2, 1]


@virtual
async def test_second_signal_does_not_wait():
    handler = Handler()
    async with working(handler, stop_signals=[signal.SIGUSR1]) as work:
        await work.deliver(data(1), data(2))
        signal.raise_signal(signal.SIGUSR1)
        await asyncio.sleep(1)
        assert seqs(work.connection, NAK) == [2]
        started = now()
        signal.raise_signal(signal.SIGUSR1)
        await work.worker
        assert now() - started < 1.0
        assert handler.cancelled == [1]
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@virtual
async def test_it_runs_as_long_as_a_block():
    handler = Handler()
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        async with sub.run(handler) as worker:
            await settle()
            connection.deliver(sub.subject, [data(1)])
            await settle()
            assert worker.counts.running == 1
            handler.end(1)
        assert worker.counts.handled == 1


@virtual
@pytest.mark.parametrize("prefetch", [2, 40])
async def test_drain_handles_everything(prefetch):
    handler = Handler()
    async with working(handler, concurrency=2, prefetch=prefetch) as work:
        await work.deliver(*[data(seq) for seq in range(1, 8)])
        work.connection.under_way = [(work.sub.subject, [data(8)])]
        draining = asyncio.ensure_future(work.sub.drain())
        await asyncio.sleep(0.1)
        for _ in range(4):
            assert work.connection.deleted() == []
            handler.end(*list(handler.running))
            await settle()
        await draining
        assert work.connection.deleted() == ["worker"]
        assert sorted(work.acked) == list(range(1, 9))
        assert (await work.worker).handled == 8


@virtual
async def test_slow_drain_returns_unhandled_messages():
    handler = Handler()
    async with working(handler) as work:
        await work.deliver(data(1), data(2), data(3))
        with pytest.raises(jsclient.RequestTimeoutError):
            await work.sub.drain(timeout=5.0)
        assert handler.cancelled == [1]
        assert (await work.worker).returned >= 1
        assert work.connection.deleted() == ["worker"]


@virtual
async def test_pull_subscription_drains_worker():
    handler = Handler()
    async with working(handler, pull=True, prefetch=4) as work:
        await work.deliver(data(1), data(2))
        draining = asyncio.ensure_future(work.sub.drain())
        await settle(100)
        assert work.connection.deleted() == []
        handler.end(1)
        await draining
        assert work.connection.deleted() == ["worker"]
        assert (work.acked, seqs(work.connection, NAK)) == ([1], [2])


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_unsubscribe_interrupts_nothing(pull):
    handler = Handler()
    async with working(handler, pull=pull, prefetch=4) as work:
        await work.deliver(data(1), data(2))
        await work.sub.unsubscribe()
        await settle()
        handler.end(1)
        counts = await work.worker
        assert (counts.handled, counts.returned) == (1, 1)


@virtual
async def test_a_handler_may_end_it_all():
    """From a handler, drain only begins, stop does not wait, and close does not wait for the handler."""
    for how in ("stop", "drain", "close", "unsubscribe"):
        done = []

        async def handler(_, how=how, done=done):
            await {
                "stop": asyncio.sleep,
                "drain": work.sub.drain,
                "close": work.js.close,
                "unsubscribe": work.sub.unsubscribe,
            }[how](*([0] if how == "stop" else []))
            if how == "stop":
                work.worker.stop()
            done.append(how)

        async with working(handler) as work:
            started = now()
            await work.deliver(data(1))
            await work.worker
            assert done == [how]
            assert now() - started < 5.0


@virtual
@pytest.mark.parametrize("durable", [True, False])
async def test_close_keeps_durable(durable):
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", durable="worker" if durable else None)
        worker = sub.run(Handler(), grace=1.0)
        await settle()
        connection.deliver(sub.subject, [data(1), data(2)])
        await settle()
        await js.close()
        assert not worker.is_running
        assert len(connection.deleted()) == (not durable)


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_close_waits_for_handlers(pull):
    handler = Handler()
    async with working(handler, pull=pull, grace=5.0) as work:
        await work.deliver(data(1))
        closing = asyncio.ensure_future(work.js.close())
        await asyncio.sleep(3)
        handler.end(1)
        await closing
        assert work.acked == [1]
        assert (await work.worker).handled == 1


@virtual
async def test_deleted_pull_consumer_ends():
    handler = Handler()
    async with working(handler, pull=True) as work:
        await work.deliver(data(1))
        await work.deliver(status(409, "Consumer Deleted"))
        await settle()
        handler.end(1)
        with pytest.raises(ConsumerDeletedError):
            await work.worker
        assert work.worker.counts.handled == 1


@virtual
async def test_deleted_push_consumer_ends():
    handler = Handler()
    async with working(handler, config=ConsumerConfig(idle_heartbeat=5.0)) as work:
        work.connection.api.consumers.clear()
        with pytest.raises(ConsumerDeletedError):
            await work.worker


@virtual
async def test_push_status_is_event():
    handler = Handler(waits=False)
    async with working(handler) as work:
        await work.deliver(status(503, ""), data(1))
        assert work.acked == [1]
        assert len(work.connection.told(ErrorRaised)) == 1


@virtual
async def test_in_last_delivery_nothing_returned():
    handler = Handler()
    async with working(handler, config=ConsumerConfig(max_deliver=2), dead_letter="dead") as work:
        stored = Stored(work)
        await work.deliver(data(1), data(2, delivered=2), data(3))
        work.worker.stop(grace=5.0)
        await settle(100)
        assert seqs(work.connection, NAK) == [3]
        handler.end(1)
        await settle()
        assert handler.seen == [1, 2]
        counts = await work.worker  # handler 2 does not end in time
        assert (counts.handled, counts.returned, counts.dead_lettered) == (1, 1, 1)
        assert parse_headers(stored.letters[0].header)[1]["Dead-Letter-Sequence"] == "2"
