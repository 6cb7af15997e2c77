"""How the publishes in flight end when the publisher or its connection does."""

from __future__ import annotations

import asyncio

import pytest

from jsclient import ConfigError
from jsclient.errors import (
    ClosedError,
    DisconnectedError,
    MaxPayloadError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from jsclient.publishing.ack_window import AckWindow
from tests.publishing.kit import ack_all, add_outbox, answer, both, payloads, published
from tests.support.fake import connected
from tests.support.virtual import settle, virtual


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
            # leaving the block waits for acks, and is cancelled meanwhile
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
async def test_closed_while_inbox_being_created():
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
            saved = await pub.publish("a", b"2", msg_id="2")
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
            assert (await saved).seq == 1


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
async def test_a_denied_inbox_is_recreated():
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
