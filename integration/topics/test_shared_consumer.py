"""Readers of one connection with equal filters share a consumer."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient.consumers.pull.in_hand import InHand


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    source: OwnStream = await make_stream(allow_direct=True)
    return source


async def pushed(*readers: Any) -> None:
    await eventually(lambda: all(one._reader.tracker.is_subscribed for one in readers), 20, "they are pushed")


@pytest.mark.server(">=2.11")  # before it, a history is read by a consumer
async def test_one_consumer_for_all(js: Any, stream: OwnStream) -> None:
    """Each reader has its own position, and a slow reader does not delay the others."""
    await stream.publish(3, "a")
    topic = js.topic(stream.subject("a"))
    slow = await topic.each(max_pending=1)
    readers = [await topic.each() for _ in range(9)]
    await pushed(slow, *readers)
    assert len(await stream.consumer_names()) == 1
    await stream.publish(500, "a", first=4)
    for reader in readers:
        assert [(await reader.next(15)).seq for _ in range(503)] == [*range(1, 504)]
    late = await topic.each("now")
    await pushed(late)
    assert len(await stream.consumer_names()) == 1
    for reader in readers:
        await reader.close()
    assert len(await stream.consumer_names()) == 1
    await stream.publish(1, "a", first=504)
    assert (await late.next(15)).seq == 504
    assert [(await slow.next(15)).seq for _ in range(504)] == [*range(1, 505)]
    await slow.close()
    await late.close()
    assert await stream.consumer_names() == []


@pytest.mark.server(">=2.11")
async def test_other_filter_other_consumer(js: Any, stream: OwnStream) -> None:
    readers = [
        await js.topic(stream.subject("a")).each(),
        await js.topic(stream.subject("b")).each(),
        await js.topic(stream.all).each(),
        await js.topic(stream.subject("a")).each(heartbeat=2.0),
        await js.events(stream.subject("a")).subscribe("first", id="mine"),
    ]
    await eventually(lambda: stream_has(stream, 5), 20, "five consumers")
    await stream.publish(1, "a")
    for reader in (readers[0], readers[2], readers[3], readers[4]):
        assert (await reader.next(15)).seq == 1
    assert any(name.startswith("mine-") for name in await stream.consumer_names())
    for reader in readers:
        await reader.close()
    assert await stream.consumer_names() == []


async def stream_has(stream: OwnStream, count: int) -> bool:
    return len(await stream.consumer_names()) == count


@pytest.mark.server(">=2.11")
async def test_shared_consumer_is_replaced(js: Any, stream: OwnStream) -> None:
    """Someone deletes it, repeatedly: no reader misses a record, and they share the next consumer."""
    topic = js.topic(stream.subject("a"))
    readers = [await topic.each(heartbeat=0.3) for _ in range(5)]
    for number in range(1, 4):
        await pushed(*readers)
        (name,) = await stream.consumer_names()
        await stream.delete_consumer(name)
        await stream.publish(1, "a", first=number)
        for reader in readers:
            assert (await reader.next(15)).seq == number

        async def another(name: str = name) -> bool:
            names = await stream.consumer_names()
            return len(names) == 1 and names != [name]

        await eventually(another, 20, "one other consumer")
    for reader in readers:
        await reader.close()
    assert await stream.consumer_names() == []


@pytest.mark.server(">=2.11")
async def test_reader_that_distrusts_gets_another(js: Any, stream: OwnStream) -> None:
    """What is pushed to no one is found by the timer, then the reader takes another consumer."""
    topic = js.topic(stream.subject("a"))
    reader = await topic.each(quiet=0.5)
    other = await topic.each(quiet=600)
    await pushed(reader, other)
    (name,) = await stream.consumer_names()
    pushes = next(iter(js._context.shared.values()))
    pushes._deliveries._receive = lambda records: None  # the pushes get lost
    await stream.publish(1, "a")
    assert (await reader.next(15)).seq == 1
    await eventually(lambda: stream_has(stream, 2), 20, "a second consumer")
    await stream.publish(1, "a", first=2)
    assert (await reader.next(15)).seq == 2
    await reader.close()
    assert await stream.consumer_names() == [name]
    await other.close()
    assert await stream.consumer_names() == []


@pytest.mark.server(">=2.11")
async def test_readers_come_and_go(js: Any, stream: OwnStream) -> None:
    """At any moment of opening and closing: the reader that stays receives pushes, and no consumer remains after."""
    chance = random.Random(4)
    topic = js.topic(stream.subject("a"))

    async def come_and_go() -> None:
        for _ in range(8):
            reader = await topic.each("now")
            await asyncio.sleep(chance.choice([0, 0, 0.001, 0.005, 0.02]))
            await reader.close()

    await asyncio.gather(*(come_and_go() for _ in range(6)))
    await eventually(lambda: stream_has(stream, 0), 20, "no consumer")
    assert not [shared for shared in js._context.shared if shared is not InHand]
    staying = await topic.each(quiet=600)
    going = asyncio.gather(*(come_and_go() for _ in range(6)))
    for number in range(1, 40):
        await stream.publish(1, "a", first=number)
        assert (await staying.next(15)).seq == number
    await going
    await eventually(lambda: stream_has(stream, 1), 20, "one consumer")
    await staying.close()
    await eventually(lambda: stream_has(stream, 0), 20, "no consumer")
