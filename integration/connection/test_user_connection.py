"""A connection that the user has opened with nats-py, on its public API."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.clients.foreign import client
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.recording import in_order
from integration.kit.network.wire import TO_CLIENT, TO_SERVER

pytestmark = pytest.mark.nats_py


async def test_ping_follows_what_was_sent_before(proxy: Any) -> None:
    """nats-py writes a PING at once, in front of commands that its flusher has yet to write."""
    tap = await proxy()
    async with client(tap) as nc, jsclient.JetStream(nc) as js:
        await js._connection.subscribe("late", lambda _: None)
        await js.ping()
        (sub,) = [frame for frame in tap.subs() if frame.subject == "late"]
        pings = tap.find(lambda frame: frame.op == "PING" and frame.direction == sub.direction)
        assert in_order(sub, pings[-1])


async def test_drain_without_pong_leaves_no_subscription(proxy: Any) -> None:
    """nats-py keeps a subscription whose drain has failed, and subscribes it again after a reconnect."""
    tap = await proxy()
    async with client(tap) as nc, jsclient.JetStream(nc) as js:
        connection = js._connection
        inbox = await connection.subscribe("drained", list)
        await js.ping()
        tap.stall(TO_CLIENT)
        await within(30, connection.drain(inbox, 0.5), "the drain")
        tap.unstall()
        assert await subjects_after_reconnect(tap, nc) == []


def pings(tap: Any) -> int:
    """How many PINGs the client has sent."""
    return len(tap.find(lambda frame: frame.op == "PING" and frame.direction is TO_SERVER))


async def test_ping_that_outlasts_its_handle_asks_no_more(proxy: Any) -> None:
    """A round trip has two PINGs. The second one had no one who ended its wait with the client."""
    tap = await proxy()
    async with client(tap) as nc:
        async with jsclient.JetStream(nc) as js:
            await js.ping()
            before = pings(tap)
            tap.stall(TO_CLIENT)
            with pytest.raises(jsclient.errors.RequestTimeoutError):
                await js.ping(0.1)
        tap.unstall()
        for _ in range(2):  # PONGs arrive in order, so the PONG of the first PING has arrived
            await nc.flush()
        assert pings(tap) == before + 1 + 2


async def test_drain_of_lost_connection_leaves_no_subscription(proxy: Any) -> None:
    tap = await proxy()
    async with client(tap) as nc, jsclient.JetStream(nc) as js:
        connection = js._connection
        inbox = await connection.subscribe("drained", list)
        await js.ping()
        # The first PONG comes, which the drain waits for before it begins.
        pings = len(tap.find(lambda frame: frame.op == "PING"))
        tap.stall(TO_CLIENT)
        draining = asyncio.create_task(connection.drain(inbox, 20.0))
        await eventually(lambda: len(tap.find(lambda frame: frame.op == "PING")) > pings, what="a PING")
        tap.cut()
        await within(10, draining, "the drain")
        tap.unstall()
        assert await subjects_after_reconnect(tap, nc) == []


async def subjects_after_reconnect(tap: Any, nc: Any) -> list[str]:
    """Cut the connection, and return the subjects that nats-py subscribes again."""
    await eventually(lambda: nc.is_connected, what="the connection")
    links = len(tap.links)
    tap.cut()
    await eventually(lambda: len(tap.links) > links and nc.is_connected, what="the reconnect")
    await nc.flush()
    return [frame.subject for frame in tap.subs() if frame.connection >= links and frame.subject == "drained"]
