"""A worker on a fake connection, in virtual time: what it answers, how many messages it takes, and in which order."""

from __future__ import annotations

import asyncio

import pytest

import jsclient
from jsclient import (
    ConsumerConfig,
)
from jsclient.consumers.worker import worker as worker_module
from jsclient.protocol.events import (
    ErrorRaised,
    HandlerFailed,
)
from tests.consumers.worker.kit import ALIVE, NAK, TERM, Handler, nak, now, seqs, working
from tests.support.strategies import STREAM, data, status
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


@virtual
async def test_fails_tried_again_after_pause_grows():
    handler = Handler()
    async with working(handler) as work:
        for deliveries in (1, 2, 3):
            await work.deliver(data(1, delivered=deliveries))
            handler.end(1, error=ValueError("busy"))
            await settle()
        assert work.connection.acks() == [nak(0.5), nak(1.0), nak(2.0)]
        reports = work.connection.told(HandlerFailed)
        assert [(event.attempt, event.retry_in) for event in reports] == [(1, 0.5), (2, 1.0), (3, 2.0)]
        assert {(event.stream, event.consumer, event.subject) for event in reports} == {
            (STREAM, "worker", "orders.new")
        }
        assert (work.worker.counts.failed, work.worker.counts.retried) == (3, 3)


@virtual
@pytest.mark.row(113)
async def test_backoff_of_consumer_left_to_server():
    """A nak would be at once, and a nak with a delay is off by what the server adds."""
    handler = Handler()
    async with working(handler, config=ConsumerConfig(backoff=[3.0, 9.0], max_deliver=5)) as work:
        await work.deliver(data(1))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [ALIVE]
        assert work.connection.told(HandlerFailed)[0].retry_in == 3.0
        await asyncio.sleep(20)
        assert work.connection.acks() == [ALIVE]  # it is not kept alive any more


@virtual
async def test_a_delay_of_ones_own():
    handler = Handler()
    async with working(handler, retry_delay=lambda attempt: 10.0 * attempt) as work:
        await work.deliver(data(1, delivered=4))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [nak(40.0)]


@virtual
async def test_delay_function_may_raise():
    handler = Handler()
    async with working(handler, retry_delay=lambda attempt: 1 / 0) as work:
        await work.deliver(data(1))
        handler.end(1, error=ValueError())
        await settle()
        assert work.connection.acks() == [nak(0.5)]
        (event,) = work.connection.told(ErrorRaised)
        assert "ZeroDivisionError" in str(event.error)


@virtual
@pytest.mark.parametrize("raises", [False, True])
async def test_handler_settles_itself_left_at(raises):
    async def handler(message):
        await message.nak(delay=5)
        if raises:
            raise ValueError

    async with working(handler, max_deliver=1) as work:
        await work.deliver(data(1))
        assert work.connection.acks() == [nak(5.0)]
        counts = work.worker.counts
        assert (counts.handled, counts.failed, counts.terminated) == ((0, 1, 0) if raises else (1, 0, 0))
        assert len(work.connection.told(HandlerFailed)) == raises


@virtual
async def test_inner_cancel_fails_message():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(data(1), data(2))
        handler.running[1].cancel()
        await settle()
        assert work.connection.acks() == [nak(0.5)]
        handler.end(2)
        await settle()
        assert work.acked == [2]
        await work.deliver(data(3))
        assert handler.seen == [1, 2, 3]


@virtual
async def test_base_exception_ends_worker():
    handler = Handler()
    async with working(handler, concurrency=2) as work:
        await work.deliver(*[data(seq) for seq in range(1, 7)])
        handler.end(1, error=SystemExit(3))
        with pytest.raises(SystemExit):
            await work.worker
        assert sorted(seqs(work.connection, NAK)) == [1, 2, 3, 4, 5, 6]
        assert handler.cancelled == [2]
        assert work.worker.counts.returned == 6


@virtual
async def test_ack_may_be_one_server_confirms():
    handler = Handler(waits=False)
    async with working(handler, ack_sync=True) as work:
        await work.deliver(data(1))
        (ack,) = work.connection.to("$JS.ACK.")
        assert ack.reply
        assert work.worker.counts.handled == 0
        work.connection.deliver(ack.reply, [(ack.reply.encode(), b"", b"", b"")])
        await settle()
        assert work.worker.counts.handled == 1


@virtual
async def test_ack_never_confirmed_reported():
    handler = Handler(waits=False)
    async with working(handler, ack_sync=True) as work:
        await work.deliver(data(1))
        await asyncio.sleep(20)
        assert len(work.connection.told(ErrorRaised)) == 3
        assert (work.worker.counts.handled, work.worker.counts.unsettled) == (0, 1)


# --- how many, in which order --------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("pull", [True, False])
async def test_never_more_than_so_many_at_once(pull):
    handler = Handler()
    async with working(handler, pull=pull, concurrency=3, prefetch=100) as work:
        await work.deliver(*[data(seq) for seq in range(1, 41)])
        while handler.running:
            handler.end(*list(handler.running)[:2])
            await settle()
        assert handler.most == 3
        assert handler.seen == list(range(1, 41))


@virtual
async def test_idle_tasks_end():
    """Each handler has a task while there are messages. Ten seconds later the tasks are gone, and come again."""
    handler = Handler()
    async with working(handler, pull=True, concurrency=10, prefetch=20) as work:
        waiting = len(asyncio.all_tasks())
        for first in (1, 11):
            await work.deliver(*(data(seq) for seq in range(first, first + 10)))
            assert len(asyncio.all_tasks()) == waiting + 10
            handler.end(*range(first, first + 10))
            await asyncio.sleep(9)
            assert len(asyncio.all_tasks()) == waiting + 10
            await asyncio.sleep(2)
            assert len(asyncio.all_tasks()) == waiting
        assert work.acked == [*range(1, 21)]


@virtual
async def test_message_that_comes_when_tasks_end():
    """A task that had decided to end counted as one that could take the message."""
    seen = []

    async def handler(message) -> None:
        seen.append(message.metadata.stream_seq)

    async with working(handler, pull=True, keep_alive=False, handler_timeout=None) as work:
        await work.deliver(data(1))
        where = work.connection.pulls()[-1].reply
        loop = asyncio.get_running_loop()
        loop.call_at(now() + 10 - 1e-10, work.connection.deliver, where, [data(2)])
        await asyncio.sleep(11)
        assert seen == [1, 2]


@virtual
@pytest.mark.parametrize("concurrency", [1, 10])
async def test_idle_task_cancelled(concurrency):
    """As when a handler is cancelled by what it did not start itself: the worker ends."""

    async def handler(message) -> None:
        asyncio.get_running_loop().call_later(5, asyncio.current_task().cancel)

    async with working(handler, pull=True, concurrency=concurrency) as work:
        await work.deliver(data(1))
        await asyncio.sleep(6)
        assert not work.worker.is_running
        assert work.acked == [1]


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
async def test_requests_follow_the_speed():
    """While handlers return at once, requests grow. After a rest they are small again."""

    async def handler(message) -> None:
        pass

    async with working(handler, pull=True) as work:
        sizes = [work.connection.pulls()[-1].json["batch"]]
        delivered = 0
        while delivered < 2000:
            request = work.connection.pulls()[-1]
            sizes.append(request.json["batch"])
            await work.deliver(*(data(delivered + number) for number in range(1, sizes[-1] + 1)))
            delivered += sizes[-1]
        assert sizes[0] == 1
        assert max(sizes) > 100
        await asyncio.sleep(12)
        pending = work.connection.pulls()[-1].json["batch"]
        await work.deliver(status(408, "Request Timeout", Nats_Pending_Messages=pending))
        assert work.connection.pulls()[-1].json["batch"] <= 2


@virtual
async def test_loop_has_its_turn_between_fast_handlers():
    """A handler that never waits does not keep other tasks from running."""
    turns = []

    async def handler(message) -> None:
        turns.append(message.metadata.stream_seq)
        asyncio.get_running_loop().advance(0.002)

    async with working(handler, pull=True, prefetch=100) as work:
        where = work.connection.pulls()[-1].reply
        work.connection.deliver(where, [data(seq) for seq in range(1, 51)])
        seen = []
        while len(turns) < 50:
            await asyncio.sleep(0)
            seen.append(len(turns))
        assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) <= 4


@virtual
async def test_pull_worker_limits_requests():
    """Asked for, waiting and handled together stay within ``concurrency + prefetch``."""
    handler = Handler()
    async with working(handler, pull=True, concurrency=4, prefetch=4) as work:
        requests = delivered = 0
        for _ in range(50):
            requests = sum(pull.json["batch"] for pull in work.connection.pulls())
            assert requests - len(handler.ended) <= 8
            while delivered < requests:
                delivered += 1
                await work.deliver(data(delivered))
            handler.end(*list(handler.running)[:3])
            await settle()
        assert delivered >= 100


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
