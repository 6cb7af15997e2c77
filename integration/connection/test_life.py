"""What a program can do with an open connection: connect again, give other servers, and read its counters."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.connection.test_identity import pair, users
from integration.kit.clients.foreign import client
from integration.kit.clients.readers import FAST as QUICK
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient import ClosedError, ConfigError, Disconnected, Reconnected, ServersChanged

FAST = {**QUICK, "connect_timeout": 20.0}

# --- reconnect -----------------------------------------------------------------------------------------------


async def test_reconnect_goes_to_another_server(own_server: Any, connect: Any, events: list[Any]) -> None:
    first, second = await pair(own_server, {})
    js = await connect(first, **FAST)
    sub = await js.core.subscribe("a")
    await js.reconnect()
    assert js.is_connected
    assert [event.url for event in of(Reconnected, events)] == [second.url]
    assert "reconnect()" in of(Disconnected, events)[0].reason
    await js.core.publish("a", b"x")
    assert (await sub.next(timeout=5)).data == b"x"


async def test_reconnect_loses_nothing_that_was_written(js: Any, oracle: Any, stream: OwnStream) -> None:
    """Messages, acks and publishes with an answer before it, in the middle of it, and after it."""
    # Messages that are on their way to this client are lost with the connection, and delivered again.
    sub = await js.subscribe(stream.all, durable="d", config=jsclient.ConsumerConfig(ack_wait=2.0))
    async with js.publisher(timeout=60) as publisher:
        for number in range(1000):
            await publisher.publish(stream.subject("x"), b"%d" % number, msg_id=str(number))
            if number % 250 == 249:
                await js.reconnect()
    assert len(await stream.messages()) == 1000
    numbers = set()
    while len(numbers) < 1000:
        message = await sub.next(timeout=60)
        numbers.add(int(message.data))
        await message.ack()
    await oracle.wait_consumer(stream.name, "d", lambda info: not info["num_ack_pending"])


async def test_reconnect_with_server_away(connect: Any, proxy: Any) -> None:
    tap = await proxy()
    js = await connect(tap, **FAST)
    tap.refuse()
    with pytest.raises(jsclient.DisconnectedError, match="reconnect"):
        await js.reconnect(timeout=0.5)
    await tap.accept()
    await js.reconnect()
    await js.account_info()


async def test_reconnect_ends_the_pause(connect: Any, proxy: Any, events: list[Any]) -> None:
    tap = await proxy()
    js = await connect(tap, reconnect_time_wait=60.0)
    tap.cut()
    await wait_for_event(Disconnected, events)
    await js.reconnect(timeout=20)
    await js.account_info()


async def test_reconnect_takes_new_credentials(own_server: Any, connect: Any) -> None:
    passwords = ["one"]
    tokens = {"authorization": {"token": "one"}}
    own = await own_server(config=tokens)
    js = await connect(own, token=lambda: passwords[-1], **FAST)
    passwords.append("two")
    own.reload({"authorization": {"token": "two"}})
    await eventually(lambda: js._connection.connects >= 1 and js.is_connected, what="the connection")
    await js.reconnect()
    await js.ping()


async def test_reconnect_of_closed_connection(connect: Any, server: Any) -> None:
    js = await connect(server)
    await js.close()
    with pytest.raises(ClosedError):
        await js.reconnect()


# --- servers -------------------------------------------------------------------------------------------------


async def test_set_servers(own_server: Any, connect: Any, events: list[Any]) -> None:
    """The connection stays open. The next connection goes only to the new servers."""
    first, second = await asyncio.gather(own_server(), own_server())
    js = await connect(first, **FAST)
    js.set_servers([second.url])
    event = await wait_for_event(ServersChanged, events)
    assert (event.added, event.removed) == ((second.url[7:],), (first.url[7:],))
    assert await js.ping() < 5
    await js.reconnect()
    assert of(Reconnected, events)[0].url == second.url


async def test_set_servers_while_away(own_server: Any, connect: Any, events: list[Any]) -> None:
    """The pause before the attempt at the earlier server ends, and there is no attempt at it."""
    first, second = await asyncio.gather(own_server(), own_server())
    js = await connect(first, reconnect_time_wait=3600.0)  # the attempt is made at a random time within it
    await first.kill()
    await wait_for_event(Disconnected, events)
    await first.start()
    js.set_servers([second.url])
    assert (await wait_for_event(Reconnected, events, timeout=20)).url == second.url


async def test_set_servers_with_user_info(own_server: Any, connect: Any, events: list[Any]) -> None:
    first, second = await asyncio.gather(own_server(config=users("ann")), own_server(config=users("bob")))
    js = await connect(first.url.replace("nats://", "nats://ann:secret-one@"), **FAST)
    js.set_servers(second.url.replace("nats://", "nats://bob:secret-one@"))
    await js.reconnect()
    assert of(Reconnected, events)[0].url == second.url
    assert "secret-one" not in str(events)


@pytest.mark.parametrize(
    ("servers", "text"),
    [
        ([], "servers is empty"),
        ("http://a", "unknown scheme"),
        (["ws://a"], "WebSocket"),
        (None, "servers is None"),
    ],
)
async def test_set_servers_refuses(servers: Any, text: str, js: Any) -> None:
    before = list(js._connection._connector.pool.servers)
    with pytest.raises(ConfigError, match=text):
        js.set_servers(servers)
    assert js._connection._connector.pool.servers == before


# --- counters ------------------------------------------------------------------------------------------------


async def test_stats(js: Any) -> None:
    sub = await js.core.subscribe("counted")
    before = js.stats()
    for _ in range(100):
        await js.core.publish("counted", b"x" * 1000)
    await js.ping()
    for _ in range(100):
        await sub.next(timeout=5)
    after = js.stats()
    assert after.messages_received - before.messages_received == 100
    assert 100_000 < after.bytes_received - before.bytes_received < 110_000
    assert 100_000 < after.bytes_sent - before.bytes_sent < 110_000
    assert (after.reconnects, after.bytes_waiting, after.unconfirmed_acks) == (0, 0, 0)
    assert after.subscriptions == before.subscriptions >= 1
    await js.reconnect()
    assert js.stats().reconnects == 1


async def test_waiting_bytes_are_counted(connect: Any, proxy: Any) -> None:
    tap = await proxy()
    js = await connect(tap)
    tap.stall()
    for _ in range(20):
        js._connection.send("nobody", b"x" * 1_000_000)
    assert js.stats().bytes_waiting > 5_000_000
    tap.unstall()
    await js.ping(30)
    assert js.stats().bytes_waiting == 0


# --- a connection of the user ----------------------------------------------------------------------------------


@pytest.mark.nats_py
async def test_user_connection_is_left_alone(server: Any) -> None:
    async with client(server) as nc, jsclient.JetStream(nc) as js:
        with pytest.raises(ConfigError, match="opened by the program"):
            await js.reconnect()
        with pytest.raises(ConfigError, match="opened by the program"):
            js.set_servers(server.url)
        before = js.stats()
        await js.core.publish("a", b"x" * 1000)
        await js.ping()
        assert js.stats().bytes_sent - before.bytes_sent >= 1000
        assert nc.is_connected


@pytest.mark.parametrize("timeout", [0, -1, None, "1"])
async def test_timeout_of_reconnect_is_checked(timeout: Any, js: Any) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        await js.reconnect(timeout=timeout)
    assert js.is_connected
