"""The publisher on a fake connection, in virtual time: who waits, what ends, who is told, and what it does not cost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import re
import weakref
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jsclient import ConfigError, PublishesFailedError, PublishFailed
from jsclient._runtime.nats.wire import Outbox
from jsclient._runtime.publish import header_of_ids
from jsclient.errors import (
    ApiError,
    ClosedError,
    DisconnectedError,
    JetStreamError,
    MaxPayloadError,
    PermissionDeniedError,
    RequestTimeoutError,
    TooManyInFlightError,
)
from jsclient.protocol.wire.headers import encode_headers, publish_headers
from jsclient.publishing.ack_window import AckWindow
from jsclient.publishing.admission import Gate
from tests.support.fake import FakeConnection, Sent, connected
from tests.support.virtual import settle, virtual

COMMAND = re.compile(rb"(PUB|HPUB) (\S+) (\S+) (?:(\d+) )?(\d+)\r\n")


def now() -> float:
    return asyncio.get_running_loop().time()


class Transport:
    """What an outbox writes to: takes publishes apart."""

    def __init__(self, connection: FakeConnection) -> None:
        self.connection = connection
        self.writes = 0
        self.partial = b""  # the beginning of a command
        self.waiting = 0  # bytes that are not written
        self.drained = asyncio.Event()

    def backlog(self) -> int:
        return self.waiting

    @property
    def _transport(self) -> Transport | None:
        """Seen from the outbox: gone while there is no connection."""
        return self if self.connection.is_connected else None

    async def drain(self) -> None:
        while self.waiting:
            await self.drained.wait()

    def write(self, data: bytes) -> None:
        self.writes += 1
        data = self.partial + data
        position = 0
        while position < len(data):
            head = COMMAND.match(data, position)
            assert head is not None, data[position : position + 60]
            headers, total = int(head[4] or 0), int(head[5])
            end = head.end() + total + 2
            if end > len(data):
                break  # a large payload is written in a call of its own
            body = data[head.end() : end - 2]
            assert (head[1] == b"HPUB") == bool(headers)
            sent = Sent(head[2].decode(), body[headers:], head[3].decode(), body[:headers])
            self.connection.sent.append(sent)
            position = end
            assert data[position - 2 : position] == b"\r\n"
        self.partial = data[position:]


def add_outbox(connection: FakeConnection) -> Transport:
    """From now on the connection has an outbox, as one that jsclient opens."""
    transport = Transport(connection)
    outbox = Outbox(transport)
    connection.outbox = outbox

    async def wait_for_space() -> None:
        await outbox.drain()

    connection.wait_for_space = wait_for_space
    return transport


both = pytest.mark.parametrize("outbox", [False, True], ids=["publish", "outbox"])


def published(connection) -> list[Sent]:
    return [sent for sent in connection.sent if not sent.subject.startswith("$JS.")]


def payloads(connection) -> list[bytes]:
    return [sent.payload for sent in published(connection)]


def answer(connection, sent: Sent, body=None) -> None:
    """The server answers a publish, by default with an ack."""
    body = {"stream": "ORDERS", "seq": 1} if body is None else body
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.deliver(sent.reply, [(sent.reply.encode(), b"", b"", payload)])


def refuse(connection, sent: Sent, err_code: int = 10077) -> None:
    answer(connection, sent, {"error": {"code": 503, "err_code": err_code, "description": "no"}})


def ack_all(connection) -> None:
    for sent in published(connection):
        answer(connection, sent)


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
    """Tasks that publish, each its numbers; what was called, what went through, who was cancelled."""

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
    """Answer in pieces, cancel somebody, lose the connection, until all have gone home."""
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
            if connection.outbox is not None:
                connection.outbox.flush()
            connection.disconnect()
        await settle(chance.randint(1, 3))


@virtual
@both
async def test_nobody_overtakes(outbox):
    """Whatever is acked, cancelled, lost and reconnected: what goes out goes out in the order of the calls."""
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
async def test_place_passes_to_next(outbox):
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
async def test_patience_with_full_window_ends(outbox):
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
async def test_offline_patience_is_timeout(outbox):
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
async def test_with_no_patience_slow_wire_error():
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
            made = counted(monkeypatch, loop, "call_at", "call_later", "create_task")
            await settle()
            transport.writes = 0
            for n in range(1000):
                await pub.publish("a", b"%d" % n, timeout=5 + n % 7, msg_id=f"{n}")
            await settle()
            ack_all(connection)
            await settle()
            assert made.count("call_at") <= 1
            assert "create_task" not in made
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


# --- failures that nobody looks at ---------------------------------------------------------------------------------


@virtual
@both
async def test_failure_not_retrieved_in_time_event(outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        pub = js.publisher(max_in_flight=10)
        kept = [await pub.publish("kept", b"%d" % n) for n in range(2)]
        for n in range(3):
            await pub.publish("dropped", b"%d" % n)
        await settle()
        for sent in published(connection):
            refuse(connection, sent)
        assert kept[0].exception() is not None
        await asyncio.sleep(9.9)
        assert connection.told(PublishFailed) == []
        await asyncio.sleep(0.2)
        (event,) = connection.told(PublishFailed)
        assert (event.subject, type(event.error), event.count) == ("kept", ApiError, 4)
        await asyncio.sleep(60)
        assert len(connection.told(PublishFailed)) == 1
        # A failure that was retrieved, before or after the event, is not raised.
        assert kept[1].exception() is not None
        await pub.publish("late")
        await settle()
        refuse(connection, published(connection)[-1])
        with pytest.raises(PublishesFailedError) as caught:
            await pub.flush()
        assert [subject for subject, _ in caught.value.failures] == ["late"]
        assert caught.value.told == 3
        assert "4 publishes failed" in str(caught.value)
        await pub.flush()
        await pub.close()
        assert len(connection.told(PublishFailed)) == 1


@virtual
@pytest.mark.parametrize("how", ["await", "result", "exception", "gather", "wait_for", "in a task"])
async def test_each_way_to_retrieve_failure_counts(how):
    async def wait(future: asyncio.Future[Any]) -> None:
        await future

    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            future = await pub.publish("a")
            early = asyncio.ensure_future(wait(future)) if how == "in a task" else None
            await settle()
            refuse(connection, published(connection)[0])
            with contextlib.suppress(ApiError):
                if how == "await":
                    await future
                elif how == "result":
                    future.result()
                elif how == "exception":
                    future.exception()
                elif how == "gather":
                    await asyncio.gather(future)
                elif how == "wait_for":
                    await asyncio.wait_for(future, 1)
                elif early is not None:
                    await early
        assert connection.told(PublishFailed) == []


@virtual
async def test_cancelled_wait_keeps_failure():
    async with connected() as (js, connection):
        add_outbox(connection)
        pub = js.publisher()
        future = await pub.publish("a")
        waiting = asyncio.ensure_future(asyncio.wait([future]))
        await settle()
        waiting.cancel()
        refuse(connection, published(connection)[0])
        await settle()
        with pytest.raises(PublishesFailedError):
            await pub.flush()


@virtual
async def test_more_failures_than_kept_told():
    async with connected() as (js, connection):
        add_outbox(connection)
        with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
            async with js.publisher(max_in_flight=500) as pub:
                for n in range(2500):
                    await pub.publish("a", b"%d" % n)
                    if n % 500 == 499:
                        await settle()
                        connection.disconnect()
                        connection.reconnect()
        events = connection.told(PublishFailed)
        assert {type(event.error) for event in events} == {DisconnectedError}
        assert len(caught.value.failures) + sum(event.count for event in events) == 2500
        assert caught.value.told == sum(event.count for event in events) == 1500
        assert len(events) < 20


@virtual
async def test_retrieved_not_raised():
    async with connected() as (js, connection):
        add_outbox(connection)
        futures = []
        async with js.publisher(max_in_flight=500) as pub:
            for n in range(5000):
                futures.append(await pub.publish("a", b"%d" % n))
                if n % 500 == 499:
                    await asyncio.sleep(1)
                    connection.disconnect()
                    connection.reconnect()
            await asyncio.sleep(30)
            results = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(error) for error in results} == {DisconnectedError}
        assert sum(event.count for event in connection.told(PublishFailed)) == 5000


@virtual
async def test_like_failures_one_event():
    async with connected() as (js, connection):
        add_outbox(connection)
        pub = js.publisher()
        for _ in range(6):
            await pub.publish("a")
        await settle()
        first, second, third, *others = published(connection)
        refuse(connection, first, 10077)
        refuse(connection, second, 10071)
        refuse(connection, third, 10077)
        for sent in others:
            answer(connection, sent, b"nonsense")
        await pub.close()
        await settle()
        found = sorted((type(e.error).__name__, e.count) for e in connection.told(PublishFailed))
        assert found == [("ApiError", 2), ("ProtocolError", 3), ("WrongLastSequenceError", 1)]


@virtual
@both
async def test_nothing_said_of_failures_looked_at(outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        async with js.publisher() as pub:
            futures = [await pub.publish("a") for _ in range(4)]
            looking = asyncio.gather(*futures[:2], return_exceptions=True)
            waited = asyncio.ensure_future(asyncio.wait_for(futures[2], 50))
            futures[3].add_done_callback(lambda future: future.exception())
            await settle()
            for sent in published(connection):
                refuse(connection, sent)
        await asyncio.gather(looking, waited, return_exceptions=True)
        assert connection.told(PublishFailed) == []


@virtual
async def test_future_cancelled_and_fails_no_news():
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            future = await pub.publish("a")
            future.cancel()
            await settle()
            refuse(connection, published(connection)[0])
        assert pub.failed == 1
        assert connection.told(PublishFailed) == []


# --- the end -----------------------------------------------------------------------------------------------------


@virtual
@both
@pytest.mark.parametrize("how", ["close", "connection closed", "js.close", "leaving is cancelled"])
async def test_every_future_and_every_caller_ends(how, outbox):
    async with connected() as (js, connection):
        if outbox:
            add_outbox(connection)
        pub = js.publisher(max_in_flight=3, timeout=100)
        futures = [await pub.publish("a") for _ in range(3)]
        waiting = [asyncio.ensure_future(pub.publish("a")) for _ in range(3)]
        flushing = asyncio.ensure_future(pub.flush())
        await settle()
        if how == "close":
            await pub.close()
        elif how == "connection closed":
            await connection.close()
        elif how == "js.close":
            await js.close()
        else:

            async def leave() -> None:
                async with pub:
                    pass

            task = asyncio.ensure_future(leave())
            await settle()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        results = await asyncio.gather(*futures, *waiting, return_exceptions=True)
        assert {type(error) for error in results} == {ClosedError}
        await asyncio.wait([flushing])
        for call in (pub.publish("a"), pub.publish("a", timeout=0.1)):
            with pytest.raises(ClosedError):
                await call
        await pub.close()
        flushing.exception()
        assert pub.acks.window.in_flight == {}
        assert (pub.in_flight, pub.waiting, pub.is_closed) == (0, 0, True)
        assert js._context.open == set()
        assert connection.listening == []
        assert [
            inbox.subject
            for inbox in connection.inboxes
            if inbox.subject.startswith(pub.acks.prefix.decode())
        ] == []


@virtual
async def test_close_before_first():
    async with connected() as (js, connection):
        pub = js.publisher()
        assert (connection.inboxes, js._context.open, len(connection._listeners)) == ([], set(), 1)
        await pub.flush()
        await pub.close()
        with pytest.raises(ClosedError):
            await pub.publish("a")
        assert repr(pub) == "<Publisher closed: 0 in flight, 0 stored, 0 failed>"


@virtual
async def test_closed_while_inbox_being_made():
    async with connected() as (js, connection):
        gate = asyncio.Event()
        original = connection.subscribe

        async def subscribe(*args):
            await gate.wait()
            return await original(*args)

        connection.subscribe = subscribe
        pub = js.publisher()
        waiting = asyncio.ensure_future(pub.publish("a"))
        await settle()
        await pub.close()
        with pytest.raises(ClosedError):
            await waiting
        gate.set()
        await settle()
        assert connection.inboxes == []


@virtual
async def test_inbox_error_to_waiter():
    async with connected() as (js, connection):

        async def subscribe(*_):
            raise ClosedError("the connection is closed")

        original, connection.subscribe = connection.subscribe, subscribe
        pub = js.publisher()
        with pytest.raises(ClosedError):
            await pub.publish("a")
        connection.subscribe = original
        await pub.publish("a")
        assert payloads(connection) == [b""]
        await pub.close()


@virtual
async def test_connection_refuses_not_sent():
    async with connected() as (js, connection), js.publisher() as pub:
        with connection.broken(DisconnectedError("not now")), pytest.raises(DisconnectedError):
            await pub.publish("a", b"1")
        assert (pub.in_flight, pub.published) == (0, 0)
        await pub.publish("a", b"2")
        assert pub.published == 1
        ack_all(connection)


@virtual
async def test_cancelled_send_unknown():
    """Only over a connection of nats-py, which may have taken it."""
    async with connected() as (js, connection):
        async with js.publisher() as pub:
            await pub.publish("a", b"1")
            connection.stuck = True
            task = asyncio.ensure_future(pub.publish("a", b"2"))
            await settle()
            task.cancel()
            await asyncio.wait([task])
            connection.stuck = False
            assert pub.in_flight == 2
            ack_all(connection)
        assert pub.stored == 2


@virtual
async def test_smaller_limit_ends_it():
    """After a reconnect to a server with another ``max_payload``."""
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            lost = await pub.publish("a", bytes(2000), msg_id="1")
            kept = await pub.publish("a", b"2", msg_id="2")
            await settle()
            connection.disconnect()
            connection.limit = 1000
            connection.reconnect()
            with pytest.raises(RequestTimeoutError):  # the first try may have been stored
                await lost
            with pytest.raises(MaxPayloadError):
                await pub.publish("a", bytes(1001))
            await settle()
            answer(connection, published(connection)[-1])
            assert (await kept).seq == 1


@virtual
async def test_denials_looked_through_once_turn(monkeypatch):
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            futures = [await pub.publish(f"s.{n % 3}", msg_id=f"{n}") for n in range(9)]
            await settle()
            looks = []
            original = AckWindow._deny
            monkeypatch.setattr(AckWindow, "_deny", lambda self: (looks.append(1), original(self)))
            for n in range(9):
                if n % 3:
                    connection.deny("publish", f"s.{n % 3}")
            connection.deny("publish", "other")
            connection.deny("subscribe", "other")
            await settle()
            results = await asyncio.gather(
                *(f for n, f in enumerate(futures) if n % 3), return_exceptions=True
            )
            assert {type(error) for error in results} == {PermissionDeniedError}
            assert not futures[0].done()
            assert len(looks) == 1
            ack_all(connection)


@virtual
async def test_a_denied_inbox_is_made_anew():
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            future = await pub.publish("a")
            (inbox,) = connection.inboxes
            connection.deny("subscribe", inbox.subject)
            with pytest.raises(PermissionDeniedError):
                await future
            again = await pub.publish("a")
            await settle()
            (other,) = connection.inboxes
            assert other.subject != inbox.subject
            answer(connection, published(connection)[-1])
            assert (await again).seq == 1


def test_needs_running_loop():
    connection = None

    async def make() -> None:
        nonlocal connection
        connection = connected()
        js, _ = await connection.__aenter__()
        for options in ({"max_in_flight": "1"}, {"max_bytes": 1.5}, {"room_timeout": float("inf")}):
            with pytest.raises(ConfigError):
                js.publisher(**options)
        await js.close()

    asyncio.run(make())


# --- the queue -----------------------------------------------------------------------------------------------------


@virtual
async def test_gate_admits_in_order():
    room = 2
    in_flight: list[str] = []
    gate = Gate(lambda count, _: len(in_flight) + count <= room)

    async def enter(name: str) -> None:
        waiter = await gate.enter(name, 1, 1e9, 1e9)
        in_flight.append(name)
        gate.leave(waiter)
        gate.admit()

    tasks = [asyncio.ensure_future(enter(name)) for name in "abcdef"]
    await settle()
    assert in_flight == ["a", "b"]
    tasks[3].cancel()
    room = 4
    gate.admit()
    await settle()
    assert in_flight == ["a", "b", "c", "e"]
    assert (gate.busy, gate.waiting) == (True, 1)
    gate.refuse(lambda waiter: ClosedError(waiter.subject))
    await settle()
    assert [type(task.exception()) for task in tasks if not task.cancelled()] == [type(None)] * 4 + [
        ClosedError
    ]
    assert not gate.busy


@virtual
async def test_admitted_keeps_turn():
    open_ = True
    through: list[str] = []
    gate = Gate(lambda count, _: open_ and count <= 3)

    async def enter(name: str) -> None:
        waiter = await gate.enter(name, 1, 1e9, 1e9)
        through.append(name)
        gate.admit()
        gate.leave(waiter)

    open_ = False
    tasks = [asyncio.ensure_future(enter(name)) for name in "abcd"]
    await settle()
    open_ = True
    gate.admit()  # a, b and c are let in
    open_ = False  # but before they run the connection is lost
    late = asyncio.ensure_future(enter("e"))
    await settle()
    assert through == []
    open_ = True
    gate.admit()
    await asyncio.gather(*tasks, late)
    assert through == ["a", "b", "c", "d", "e"]


@virtual
async def test_failed_future_freed():
    """Its error holds no frame that holds it, so nothing waits for the garbage collector."""
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as pub:
            futures = [weakref.ref(await pub.publish("a")) for _ in range(3)]
            await settle()
            first, second, third = published(connection)
            gc.disable()
            try:
                refuse(connection, first)
                answer(connection, second, b"nonsense")
                answer(connection, third)
                assert [ref() is None for ref in futures] == [False, False, True]
                with pytest.raises(PublishesFailedError):
                    await pub.flush()
                assert [ref() is None for ref in futures] == [True, True, True]
            finally:
                gc.enable()


def test_error_for_each_and_one_for_all():
    error = PublishesFailedError([(f"s.{n}", JetStreamError(f"e{n}")) for n in range(5)], 2)
    assert str(PublishesFailedError([], 2)) == "2 publishes failed, which PublishFailed events have reported"
    assert str(error) == (
        "7 publishes failed: 's.0': e0; 's.1': e1; 's.2': e2; and 2 more; "
        "2 earlier ones were reported as PublishFailed events"
    )


@given(st.text(), st.none() | st.text())
@example("a b", "c:1")
@example("a\r\nX: 1", None)
@example("a", "b\r\n")
@example("a", "")
@example(" a", "b ")
def test_fast_id_headers_equal(msg_id: str, after: str | None):
    def made(make):
        try:
            return make()
        except ConfigError as error:
            return str(error)

    long = made(lambda: encode_headers(publish_headers(msg_id=msg_id, expected_last_msg_id=after)))
    assert made(lambda: header_of_ids(msg_id, after)) == long
