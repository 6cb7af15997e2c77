"""Plain functions as handlers run in threads."""

from __future__ import annotations

import asyncio
import threading

from tests.consumers.worker.kit import NAK, seqs, working
from tests.support.strategies import data


def in_real_time(scenario) -> None:
    """Threads do not wait for virtual time."""
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_plain_function_runs_in_thread():
    async def scenario():
        threads, gate = set(), threading.Event()

        def handler(message):
            threads.add(threading.current_thread())
            gate.wait(10)
            if message.metadata.stream_seq == 2:
                raise StopIteration  # a future cannot have this exception

        async with working(handler, concurrency=2) as work:
            await work.deliver(data(1), data(2), data(3))
            while len(threads) < 2:
                await asyncio.sleep(0.001)
            gate.set()
            while work.worker.counts.handled + work.worker.counts.failed < 3:
                await asyncio.sleep(0.001)
            assert sorted(work.acked) == [1, 3]
            assert seqs(work.connection, NAK) == [2]
            assert threading.main_thread() not in threads
            assert len(threads) == 2

    in_real_time(scenario)


def test_plain_function_may_give_coroutine():
    async def scenario():
        async def real(message):
            await message.term("unfit")

        def handler(message):
            return real(message)

        async with working(handler) as work:
            await work.deliver(data(1))
            while not work.connection.acks():
                await asyncio.sleep(0.001)
            assert work.connection.acks() == [b"+TERM unfit"]

    in_real_time(scenario)


def test_stuck_function_loses_message():
    async def scenario():
        gate, seen = threading.Event(), []

        def handler(message):
            seen.append(message.metadata.stream_seq)
            gate.wait(10)

        async with working(handler, handler_timeout=0.05) as work:
            await work.deliver(data(1), data(2))
            while not seqs(work.connection, NAK):
                await asyncio.sleep(0.01)
            assert (seen, work.worker.counts.running) == ([1], 1)
            await asyncio.sleep(0.2)  # longer than the next call would have taken, had it begun
            assert work.worker.counts.failed == 1
            gate.set()
            while not work.acked:
                await asyncio.sleep(0.001)
            assert (seen, work.acked) == ([1, 2], [2])

    in_real_time(scenario)


def test_stuck_function_lets_stop():
    async def scenario():
        gate = threading.Event()
        try:
            async with working(lambda _: gate.wait(10)) as work:
                await work.deliver(data(1))
                while not work.worker.counts.running:
                    await asyncio.sleep(0.001)
                work.worker.stop(grace=0.05)
                counts = await work.worker
                assert (counts.returned, seqs(work.connection, NAK)) == (1, [1])
        finally:
            gate.set()

    in_real_time(scenario)
