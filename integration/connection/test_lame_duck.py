"""A server that is about to stop says so: the event `LameDuck`, once, with where the client can go."""

from __future__ import annotations

import os
import signal
from typing import Any

from integration.connection.test_identity import pair
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.servers.fake_server import FakeServer
from jsclient import Disconnected, LameDuck, Reconnected

SOON = {
    "lame_duck_grace_period": "1s",
    "lame_duck_duration": "30s",
}  # 30 s is the least that the server takes


async def test_server_that_stops_reported(own_server: Any, connect: Any, events: list[Any]) -> None:
    """A single server: told before the connection is lost, with what to do."""
    own = await own_server(config=SOON)
    js = await connect(own, **FAST)
    await js.ping()
    os.kill(own.pid, signal.SIGUSR2)
    event = await wait_for_event(LameDuck, events)
    assert (event.url, event.others, event.severity) == (own.url, 0, "warning")
    assert "no other server is known" in str(event)
    lost = await wait_for_event(Disconnected, events)
    assert events.index(event) < events.index(lost)
    assert len(of(LameDuck, events)) == 1


async def test_other_servers_are_counted(own_server: Any, connect: Any, events: list[Any]) -> None:
    """In a cluster: the client names where it can go, and goes there."""
    first, second = await pair(own_server, {}, SOON)
    await connect(first, **FAST)
    os.kill(first.pid, signal.SIGUSR2)
    event = await wait_for_event(LameDuck, events)
    assert (event.url, event.others, event.severity) == (first.url, 1, "info")
    assert "the other server" in str(event)
    assert (await wait_for_event(Reconnected, events)).url == second.url
    assert len(of(LameDuck, events)) == 1


async def test_reported_once_for_each_connection(connect: Any, events: list[Any]) -> None:
    """However often the server says it, and again after a reconnect. An INFO without it is none."""
    async with FakeServer() as fake:
        js = await connect(fake.url, **FAST)
        fake.send_info()
        fake.send_info(connect_urls=["127.0.0.1:2"])
        await js.ping()
        assert of(LameDuck, events) == []
        for _ in range(3):
            fake.send_info(ldm=True)
        await wait_for_event(LameDuck, events)
        await js.ping()
        fake.drop()
        await wait_for_event(Reconnected, events)
        assert [event.others for event in of(LameDuck, events)] == [1]
        fake.send_info(ldm=True, connect_urls=["127.0.0.1:2", "127.0.0.1:3"])
        await wait_for_event(LameDuck, events, lambda event: event.others == 2)
        assert str(of(LameDuck, events)[-1]).endswith("connects to one of 2 others")
