"""The publisher on a fake connection, in virtual time: the calls that wait, and the costs that they avoid."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient import PublishFailed
from jsclient.errors import (
    DisconnectedError,
    RequestTimeoutError,
    TooManyInFlightError,
)
from tests.publishing.kit import ack_all, add_outbox, answer, both, now, payloads, published
from tests.support.fake import connected
from tests.support.virtual import settle, virtual

# --- the window ------------------------------------------------------------------------------------------------


@virtual
@both
async def test_waits_only_while_window_full(outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        async with js.publisher(max_in_flight=3) as pub:
            futures = [await pub.publish("a", b"%d" % n) for n in range(3)]
            fourth = asyncio.ensure_future(pub.publish("a", b"3"))
            await settle()
            assert payloads(connection) == [b"0", b"1", b"2"]
            answer(connection, published(connection)[1])
            await settle()
            assert payloads(connection) == [b"0", b"1", b"2", b"3"]
            assert [future.done() for future in futures] == [False, True, False]
            assert (await futures[1]).seq == 1
            ack_all(connection)
        assert (await fourth).done()
        assert (pub.published, pub.stored) == (4, 4)


class Crowd:
    """Tasks that publish, each its numbers. Records the calls, the calls that succeeded, and the cancelled tasks."""

    def __init__(self, pub, chance) -> None:
        self.pub, self.chance = pub, chance
        self.called = 0
        self.unfinished: set[int] = set()
        self.tasks: list[asyncio.Future] = []

    async def work(self) -> None:
        for _ in range(self.chance.randint(1, 10)):
            number = self.called
            self.called += 1
            self.unfinished.add(number)
            await self.pub.publish("a", b"%d" % number)
            self.unfinished.discard(number)

    async def come(self) -> None:
        for _ in range(12):
            self.tasks.append(asyncio.ensure_future(self.work()))
            await settle(self.chance.choice([0, 0, 1, 3]))

    @property
    def done(self) -> bool:
        return all(task.done() for task in self.tasks) and not self.pub.in_flight


async def serve(connection, crowd, chance) -> None:
    """Answer in pieces, cancel a task, lose the connection, until all tasks have ended."""
    answered = 0
    while not crowd.done:
        for sent in published(connection)[answered:][: chance.randint(0, 4)]:
            answer(connection, sent)
            answered += 1
        if chance.random() < 0.05:
            chance.choice(crowd.tasks).cancel()
        if not connection.is_connected:
            if chance.random() < 0.3:
                connection.reconnect()
        elif chance.random() < 0.02:
            # written messages are on their way when the connection breaks
            if connection.outbox is not None:
                connection.outbox.flush()
            connection.disconnect()
        await settle(chance.randint(1, 3))


@virtual
@both
async def test_nobody_overtakes(outbox):
    """Messages go out in the order of the calls, whatever is acked, cancelled, lost and reconnected."""
    for seed in range(200):
        chance = random.Random(seed)
        async with connected(timeout=1000.0) as (js, connection):
            if outbox:
                add_outbox(connection)
            pub = js.publisher(max_in_flight=chance.choice([1, 2, 5]))
            crowd = Crowd(pub, chance)
            await crowd.come()
            await serve(connection, crowd, chance)
            sent = [int(payload) for payload in payloads(connection)]
            assert sent == sorted(set(sent)), seed
            assert set(sent) == set(range(crowd.called)) - crowd.unfinished, "cancelled and sent, or lost"
            assert not pub.acks.admission.gate.busy
            await pub.close()


@virtual
@both
async def test_free_slot_passes_to_next(outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        async with js.publisher(max_in_flight=1) as pub:
            await pub.publish("a", b"0")
            tasks = [asyncio.ensure_future(pub.publish("a", b"%d" % n)) for n in (1, 2, 3)]
            await settle()
            answer(connection, published(connection)[0])
            tasks[0].cancel()  # it was let in, and has not run
            await settle()
            assert payloads(connection) == [b"0", b"2"]
            tasks[2].cancel()
            ack_all(connection)
        assert [task.cancelled() for task in tasks] == [True, False, True]
        assert payloads(connection) == [b"0", b"2"]


@virtual
@both
async def test_wait_for_full_window_ends(outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        async with js.publisher(max_in_flight=1, room_timeout=2.0, timeout=100) as pub:
            await pub.publish("a")
            started = now()
            results = await asyncio.gather(*(pub.publish("b") for _ in range(3)), return_exceptions=True)
            assert {type(error) for error in results} == {TooManyInFlightError}
            assert 2.0 <= now() - started < 2.1
            ack_all(connection)
        assert (pub.failed, pub.waiting) == (0, 0)
        assert connection.told(PublishFailed) == []


@virtual
@both
async def test_offline_wait_is_timeout(outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        async with js.publisher(room_timeout=0, timeout=3.0) as pub:
            future = await pub.publish("a")
            await settle()
            connection.disconnect()
            with pytest.raises(DisconnectedError):
                await future
            started = now()
            with pytest.raises(RequestTimeoutError, match="nothing was sent"):
                await pub.publish("a", b"never")
            assert 3.0 <= now() - started < 3.1
            short = asyncio.ensure_future(pub.publish("a", b"never", timeout=0.5))
            long = asyncio.ensure_future(pub.publish("a", b"sent"))
            await asyncio.sleep(1.0)
            assert isinstance(short.exception(), RequestTimeoutError)
            connection.reconnect()
            await long
            assert payloads(connection) == [b"", b"sent"]
            ack_all(connection)


@virtual
async def test_wire_slower_waited_for():
    async with connected(timeout=1000.0) as (js, connection):
        transport = add_outbox(connection)
        async with js.publisher(max_bytes=None) as pub:
            await pub.publish("a", bytes(1 << 20))
            transport.waiting = 10 << 20
            await settle()
            waiting = [asyncio.ensure_future(pub.publish("a", b"%d" % n)) for n in range(3)]
            await asyncio.sleep(5.0)
            assert pub.waiting == 3
            transport.waiting = 0
            transport.drained.set()
            await asyncio.gather(*waiting)
            await settle()
            assert payloads(connection)[1:] == [b"0", b"1", b"2"]
            ack_all(connection)


@virtual
async def test_slow_wire_is_error_without_waiting():
    async with connected(timeout=1000.0) as (js, connection):
        transport = add_outbox(connection)
        async with js.publisher(max_bytes=None, room_timeout=0) as pub:
            await pub.publish("a", bytes(1 << 20))
            transport.waiting = 10 << 20
            await settle()
            with pytest.raises(TooManyInFlightError):
                await pub.publish("a", b"1")
            transport.waiting = 0
            transport.drained.set()
            await settle()
            await pub.publish("a", b"2")
            await settle()
            ack_all(connection)


# --- what it does not cost ---------------------------------------------------------------------------------------


def counted(monkeypatch, loop, *names) -> list[str]:
    """From now on the names of these methods of the loop, each time that they are called."""
    calls: list[str] = []

    def counting(name, original):
        def call(*args, **more):
            calls.append(name)
            return original(*args, **more)

        return call

    for name in names:
        monkeypatch.setattr(loop, name, counting(name, getattr(loop, name)))
    return calls


@virtual
async def test_thousand_cost_one_timer(monkeypatch):
    async with connected() as (js, connection):
        transport = add_outbox(connection)
        async with js.publisher() as pub:
            await pub.publish("a")
            loop = asyncio.get_running_loop()
            created = counted(monkeypatch, loop, "call_at", "call_later", "create_task")
            await settle()
            transport.writes = 0
            for n in range(1000):
                await pub.publish("a", b"%d" % n, timeout=5 + n % 7, msg_id=f"{n}")
            await settle()
            ack_all(connection)
            await settle()
            assert created.count("call_at") <= 1
            assert "create_task" not in created
            assert transport.writes <= 3
            assert pub.in_flight == 0


@virtual
async def test_thousands_few_timers(monkeypatch):
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            timers = counted(monkeypatch, asyncio.get_running_loop(), "call_at")
            futures = [await pub.publish("a", timeout=1 + n / 10_000) for n in range(3000)]
            started = now()
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert {type(error) for error in results} == {RequestTimeoutError}
            assert now() - started < 1.3 + 0.05
            assert len(timers) < 40


@virtual
async def test_publishing_gives_way_to_loop(monkeypatch):
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            await pub.publish("a")
            await settle()
            loop, turns = asyncio.get_running_loop(), 0

            async def count() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            counting = asyncio.ensure_future(count())
            for n in range(100):
                loop.advance(0.004)  # what the user computes
                await pub.publish("a", b"%d" % n)
            counting.cancel()
            assert 20 <= turns <= 100
            await settle()
            assert payloads(connection)[1:] == [b"%d" % n for n in range(100)]
            ack_all(connection)
