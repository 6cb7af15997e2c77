"""Queue groups: one message, one member, and what becomes of the consumer. Source: ADR-15 §Queue name, §Drain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, numbers, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never


@pytest.mark.covers("J112", "J113", "J114")
async def test_example_of_seed_holds_as_written(
    server: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    foo = stream.subject("foo")
    js, other_application = await connect(server), await connect(server)

    # No JS consumer exists.
    assert await stream.consumer_names() == []
    # Create a queue group on a durable named "shared".
    member1 = await js.subscribe(foo, queue="bar", durable="shared")
    assert member1.created
    assert await stream.consumer_names() == ["shared"]
    # From another application, a member is added, which does not create the consumer.
    member2 = await other_application.subscribe(foo, queue="bar", durable="shared")
    assert not member2.created
    await stream.publish(20, "foo")
    await eventually(lambda: member1.pending + member2.pending == 20, what="the group has all")
    for member in (member1, member2):
        while member.pending:
            await (await member.next(timeout=5)).ack_sync()
    # However, at this point, member1 goes away.
    await member1.drain()
    # The library has deleted the consumer "shared", because it created it.
    assert await stream.consumer_names() == []
    # This causes member2 to stop receiving messages.
    await stream.publish(5, "foo")
    await never(lambda: member2.pending, 0.5, "a message for member2")
    # Both ends get an event: the deletion, and at member2 the loss of its consumer.
    deleted = await wait_for_event(jsclient.ConsumerDeleted, events)
    assert (deleted.stream, deleted.consumer) == (stream.name, "shared")
    # member2 deletes no consumer that it did not create: no error about a consumer that is gone.
    await member2.drain()
    kinds = [type(event) for event in alarms(events)]
    assert kinds == [jsclient.ConsumerNotKept, jsclient.DurableDeleted, jsclient.ConsumerDeleted]


@pytest.mark.covers("J114")
async def test_leaving_keeps_consumer(server: Any, connect: Any, stream: OwnStream) -> None:
    first = await (await connect(server)).subscribe(stream.all, queue="bar", delete_on_close=False)
    second = await (await connect(server)).subscribe(stream.all, queue="bar", delete_on_close=False)
    assert (first.created, second.created) == (True, False)
    await first.drain()
    await stream.publish(10)
    await eventually(lambda: second.pending == 10, what="the other member gets all")
    await second.unsubscribe()
    assert await stream.consumer_names() == ["bar"]


@pytest.mark.covers("J112", "J114")
async def test_member_joined_leaves_without_harm(js: Any, stream: OwnStream) -> None:
    first = await js.subscribe(stream.all, queue="bar")
    second = await js.subscribe(stream.all, queue="bar")
    await second.drain()
    await stream.publish(5)
    await eventually(lambda: first.pending == 5, what="the first member gets all")
    assert await stream.consumer_names() == ["bar"]
    await first.drain()
    assert first.pending == 5
    got = [message async for message in first]
    assert numbers(got) == [1, 2, 3, 4, 5]


@pytest.mark.covers("J113")
async def test_drain_in_group_once(server: Any, connect: Any, stream: OwnStream) -> None:
    handled: dict[str, list[int]] = {"a": [], "b": []}

    async def join(name: str) -> Any:
        js = await connect(server)

        async def handle(message: Any) -> None:
            await asyncio.sleep(0)
            handled[name] += numbers([message])

        return await js.subscribe(stream.all, queue="work", callback=handle, delete_on_close=False)

    a, _ = await join("a"), await join("b")
    publishing = asyncio.create_task(stream.publish(3000))
    await eventually(lambda: len(handled["a"]) > 50, what="a works")
    await a.drain()
    done = len(handled["a"])
    await publishing
    await eventually(lambda: sum(map(len, handled.values())) >= 3000, 20, "all handled")
    assert sorted(handled["a"] + handled["b"]) == list(range(1, 3001))
    assert len(handled["a"]) == done
    await stream.oracle.wait_consumer(stream.name, "work", lambda i: i["ack_floor"]["stream_seq"] == 3000)


@pytest.mark.covers("J108", "J113")
async def test_leaver_returns_messages(server: Any, connect: Any, stream: OwnStream) -> None:
    config = jsclient.ConsumerConfig(ack_wait=60.0)
    slow = await (await connect(server)).subscribe(
        stream.all, queue="work", config=config, delete_on_close=False
    )
    await stream.publish(10)
    await eventually(lambda: slow.pending == 10, what="ten messages wait")
    quick = await (await connect(server)).subscribe(stream.all, queue="work", delete_on_close=False)
    await slow.unsubscribe()
    await eventually(lambda: quick.pending == 10, what="the other member has them, long before ack_wait")
    messages = [await quick.next(timeout=5) for _ in range(10)]
    assert sorted(numbers(messages)) == list(range(1, 11))
    assert {message.metadata.num_delivered for message in messages} == {2}
