"""The tasks of a worker: how many there are, when they end, and how they share the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jsclient.consumers.worker.handler_pool import Caller, HandlerTask, Why
from tests.consumers.worker.kit import NAK, Handler, nak, now, seqs, working
from tests.support.strategies import data
from tests.support.virtual import run, settle, virtual


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


def test_cancelling_reaches_only_the_handler():
    """The task continues with the next message."""

    async def main():
        slot = HandlerTask()
        ended = []

        async def work():
            slot.handling = True
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                ended.append(slot.why)
            slot.handling = False
            slot.uncancel()
            assert not slot.is_cancelled
            slot.cancel(Why.STOPPED)
            await asyncio.sleep(0)
            ended.append("next")

        slot.task = asyncio.ensure_future(work())
        await settle()
        slot.cancel(Why.OVERDUE)
        slot.cancel(Why.OVERDUE)
        await slot.task
        assert ended == [Why.OVERDUE, "next"]
        assert slot.task.cancelling() == 0

    run(main())


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3)])
def test_plain_function_runs_in_a_thread_and_raises_here(error):
    threads = []

    def handler(message):
        threads.append(threading.current_thread())
        raise error

    async def main():
        slot = HandlerTask()
        slot.task = asyncio.current_task()
        caller = Caller(handler, 1)
        assert caller.coroutine_function is None
        with pytest.raises(type(error)) as caught:
            await caller.call_plain(slot, None)
        assert caught.value is error
        assert threads != [threading.main_thread()]
        caller.close()

    run(main())
