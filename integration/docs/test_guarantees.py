"""The guarantee table of README.md, row by row, for rows that no other test shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.servers.nats_server import OwnServer

WAIT = 30.0  # seconds for what happens in one or two


@pytest.mark.row(68, 95, 105)
@pytest.mark.limit(150)
async def test_readers_survive_restart(
    own_server: Callable[..., Awaitable[OwnServer]], connect: Callable[..., Awaitable[Any]]
) -> None:
    server = await own_server()
    js = await connect(server)
    await js.create_stream("S", subjects=["s"])
    readers = {
        "durable": await js.subscribe("s", durable="d"),
        "group": await js.subscribe("s", queue="crew"),
        "ordered": await js.subscribe("s", ordered=True),
        "pull": (await js.pull_subscribe("s", durable="p")).messages(),
    }
    await js.publish("s", b"1")
    for reader in readers.values():
        msg = await reader.next(timeout=WAIT)
        await msg.ack_sync()

    await server.restart()
    await js.publish("s", b"2", msg_id="2", timeout=WAIT)
    for name, reader in readers.items():
        msg = await reader.next(timeout=WAIT)
        assert (name, msg.data) == (name, b"2")
    await readers["pull"].stop()


async def test_dead_worker_had_goes_to_others(
    stream: OwnStream, connect: Callable[..., Awaitable[Any]], server: Any
) -> None:
    config = jsclient.ConsumerConfig(ack_wait=1.0)
    one, two = await connect(server), await connect(server)
    dying = await one.subscribe(stream.all, queue="crew", config=config)
    await stream.publish(20)
    # More if they are delivered again before this is seen.
    await eventually(lambda: dying.pending >= 20, WAIT, "all at the first member")

    staying = await two.subscribe(stream.all, queue="crew")
    await one._connection.close()  # no drain, no acks, no nak: as when the process dies
    seen = set()
    while len(seen) < 20:
        msg = await staying.next(timeout=WAIT)
        await msg.ack()
        seen.add(number_of(msg.data))
    assert seen == set(range(1, 21))


async def test_offline_deletion_reported(
    stream: OwnStream,
    oracle: Oracle,
    proxy: Callable[..., Awaitable[Any]],
    connect: Callable[..., Awaitable[Any]],
    events: list[Any],
) -> None:
    link = await proxy()
    js = await connect(link)
    subs = [await js.subscribe(stream.all, queue="crew"), await js.subscribe(stream.all)]  # no heartbeats
    link.refuse()
    link.cut()
    await eventually(lambda: not js.is_connected, WAIT, "the disconnect is noticed")
    for sub in subs:
        await oracle.delete_consumer(stream.name, sub.consumer)
    await link.accept()

    def reported() -> set[str]:
        return {event.consumer for event in events if isinstance(event, jsclient.ConsumerDeleted)}

    await eventually(lambda: reported() == {sub.consumer for sub in subs}, WAIT, "the events")


async def test_unacked_full_queue_drops(stream: OwnStream, js: Any, events: list[Any]) -> None:
    config = jsclient.ConsumerConfig(ack_policy="none")
    async with await js.subscribe(stream.all, config=config, max_pending=10) as sub:
        await stream.publish(30)
        await eventually(lambda: sub.pending + sub.dropped == 30, WAIT, "all arrived")
        assert (sub.pending, sub.dropped) == (10, 20)
        await js.ping()  # an event is reported in the iteration of the loop after its cause
        assert [event.dropped for event in events] == [1, 2, 4, 8, 16]


async def test_acked_small_queue_waits(stream: OwnStream, js: Any, events: list[Any]) -> None:
    async with await js.subscribe(stream.all, max_pending=10) as sub:
        await stream.publish(30)
        seen = []
        async with asyncio.timeout(WAIT):
            async for msg in sub:
                assert sub.pending < 10
                await msg.ack()
                seen.append(number_of(msg.data))
                if len(seen) == 30:
                    break
        assert seen == list(range(1, 31))
        assert (sub.dropped, events) == (0, [])


async def test_offline_messages_follow(
    stream: OwnStream,
    oracle: Oracle,
    proxy: Callable[..., Awaitable[Any]],
    connect: Callable[..., Awaitable[Any]],
) -> None:
    link = await proxy()
    js = await connect(link)
    config = jsclient.ConsumerConfig(ack_policy="none", inactive_threshold=60)
    async with await js.subscribe(stream.all, config=config) as sub:
        await stream.publish(1)
        assert number_of((await sub.next(timeout=WAIT)).data) == 1
        link.refuse()
        link.cut()
        await oracle.wait_consumer(stream.name, sub.consumer, lambda info: not info.get("push_bound"), WAIT)
        await stream.publish(5, first=2)
        await link.accept()
        assert [number_of((await sub.next(timeout=WAIT)).data) for _ in range(5)] == [2, 3, 4, 5, 6]
