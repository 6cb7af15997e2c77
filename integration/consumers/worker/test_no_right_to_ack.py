"""A worker whose user may not ack: reported once with the permission that is needed, and counted as such."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually
from jsclient import ConsumerConfig, DeadLettered, PermissionDenied


@pytest.fixture
async def world(own_server: Any, connect: Any) -> Any:
    """`ann` may do anything but ack. 5 messages wait. Returns the connection and its consumer's subscription."""
    rights = {"publish": {"deny": ["$JS.ACK.>"]}}
    users = [{"user": "ann", "password": "x", "permissions": rights}]
    server = await own_server(config={"authorization": {"users": users}})
    js = await connect(server, user="ann", password="x")
    await js.create_stream("S", ["s"])
    await js.create_stream("DEAD", ["dead"])
    for number in range(5):
        await js.publish("s", b"%d" % number)

    async def subscribe(kind: str = "pull", **config: Any) -> Any:
        config = {"ack_wait": 0.5, **config}
        make = js.pull_subscribe if kind == "pull" else js.subscribe
        return await make("s", durable="C", config=ConsumerConfig(**config), delete_on_close=False)

    return js, subscribe


async def acks(msg: jsclient.Message) -> None:
    await msg.ack()


async def slow(msg: jsclient.Message) -> None:
    await asyncio.sleep(0.6)  # it is kept alive meanwhile


async def returns(msg: jsclient.Message) -> None: ...


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("ack_sync", [False, True], ids=["ack", "ack_sync"])
@pytest.mark.parametrize("handler", [returns, acks, slow])
@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_reported_once_and_counted_as_unsettled(
    world: Any, events: list[Any], kind: str, handler: Callable[..., Any], ack_sync: bool
) -> None:
    """They were handled repeatedly, and counted as handled each time."""
    js, subscribe = world
    sub = await subscribe(kind)
    ended: list[int] = []

    async def handle(msg: jsclient.Message) -> None:
        await handler(msg)
        ended.append(msg.metadata.stream_seq)

    async with sub.run(handle, concurrency=5, ack_sync=ack_sync) as worker:
        await eventually(lambda: len(ended) >= 15, what="three deliveries of each")
    counts = worker.counts
    assert (counts.handled, counts.failed, counts.running, counts.waiting) == (0, 0, 0, 0)
    assert counts.unsettled >= len(ended)  # and the messages that were interrupted and could not be returned
    (event,) = of(PermissionDenied, events)
    needed = {"$JS.ACK.S.C.>", "$JS.ACK.*.*.S.C.>"}  # the form of the server's acks decides
    assert event.needed in needed
    assert f"allow the user to publish to {event.needed!r}" in str(event)
    info = await (await (await js.stream("S")).consumer("C")).info()
    assert info.ack_floor.stream_seq == 0


async def test_refusals_of_the_last_acks_are_received(world: Any) -> None:
    """The worker is stopped right after its last acks: the counts are given after the server's refusals."""
    _, subscribe = world
    sub = await subscribe(ack_wait=60.0)
    gate, ended = asyncio.Event(), []

    async def handle(msg: jsclient.Message) -> None:
        if msg.metadata.stream_seq > 1:
            await gate.wait()
        ended.append(msg.metadata.stream_seq)

    async with sub.run(handle, concurrency=5) as worker:
        await eventually(lambda: worker.counts.unsettled, what="the first refusal")
        gate.set()
        while len(ended) < 5:
            await asyncio.sleep(0)
    assert (worker.counts.handled, worker.counts.unsettled) == (0, 5)


async def test_dead_letters_and_failures_are_not_settled_either(world: Any, events: list[Any]) -> None:
    _, subscribe = world
    sub = await subscribe(ack_wait=60.0)

    async def fail(msg: jsclient.Message) -> None:
        if msg.metadata.stream_seq == 1:
            raise jsclient.Reject("poison")
        raise ValueError

    async with sub.run(fail, dead_letter="dead", max_deliver=9, retry_delay=0.01) as worker:
        await eventually(lambda: worker.counts.failed == 5, what="the failures")
        await eventually(lambda: of(DeadLettered, events), what="the dead letter")
    counts = worker.counts
    assert (counts.handled, counts.dead_lettered, counts.failed, counts.unsettled) == (0, 0, 5, 5)
    assert len(of(PermissionDenied, events)) == 1
