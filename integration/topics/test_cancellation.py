"""Topics cancelled or closed at any moment: no call hangs, and no task or consumer remains."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.clients.topics import FEEDS, publish, read, republishing
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await republishing(oracle, make_stream)


async def cancelled_after(turns: int, call: Callable[[], Awaitable[Any]]) -> Any:
    """Its result if it was done by then. None if not."""
    task = asyncio.ensure_future(call())
    for _ in range(turns):
        await asyncio.sleep(0)
        if task.done():
            break
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


@FEEDS
async def test_cancelled_opening_and_reading(js: Any, oracle: Any, stream: OwnStream, push: Any) -> None:
    await stream.publish(5)
    topic = js.topic(stream.subject("x"))

    async def loop() -> None:
        async for _ in topic.each(push=push):
            pass

    async def opened() -> Any:
        return await topic.each(push=push)

    await (await opened()).close()
    async with no_leaks(oracle=oracle, streams=[stream.name], settle=8):
        before = set(js._context.open)
        for turns in [*range(30), *range(30, 300, 30)]:
            reader = await cancelled_after(turns, opened)
            if reader is not None:
                await reader.close()
            await cancelled_after(turns, loop)
        await eventually(lambda: js._context.open == before, what="no reader is held")


@pytest.mark.parametrize("republishes", [True, False])
async def test_cancelled_waiting_for_latest(
    js: Any, oracle: Any, make_stream: Any, republishes: bool
) -> None:
    stream = await make_stream(
        allow_direct=True, **({"republish": {"src": ">", "dest": "pushed.>"}} if republishes else {})
    )
    await stream.publish(1)
    topic = js.topic(stream.subject("x"))
    # A consumer whose creation was cut off may outlive its delete, and is removed by the server later.
    names = [stream.name] if republishes else []
    async with no_leaks(oracle=oracle, streams=names, settle=8):
        before = set(js._context.open)
        for turns in [*range(30), *range(30, 300, 30)]:
            reader = topic.latest()
            await reader.next()
            await cancelled_after(turns, reader.next)
        await eventually(lambda: js._context.open == before, 8, "nothing is held")


async def test_cancelled_finish(js: Any, oracle: Any, stream: OwnStream) -> None:
    async with no_leaks():
        for turns in range(0, 80, 4):
            topic = js.topic(stream.subject(turns))
            async with topic.publisher(chained=turns % 8 == 0) as pub:
                await pub.publish(b"1")
                await cancelled_after(turns, pub.finish)
                try:
                    await pub.finish()
                except jsclient.ClosedError:
                    pass  # it had come so far
            async with topic.each() as reader:
                assert await read(reader, 1) == [1]
                with pytest.raises(jsclient.ClosedError):
                    await within(5, reader.next(), "the end")


@pytest.mark.core_cases(1)
@FEEDS
async def test_close_while_opening_and_reading(
    connect: Any, server: Any, js: Any, oracle: Any, stream: OwnStream, push: Any
) -> None:
    await publish(js.topic(stream.subject("a")), 0, 5)

    async def loop(topic: Any) -> None:
        async for _ in topic.each(push=push, max_pending=2):
            pass

    async def one_by_one(topic: Any) -> None:
        async with topic.each(push=push) as reader:
            while True:
                await reader.next()

    async def newest(topic: Any) -> None:
        reader = topic.latest()
        while True:
            await reader.next()

    async def state(topic: Any) -> None:
        async with topic.publisher() as pub:
            while True:
                await pub.update_state(b"7")
                await asyncio.sleep(0)

    # Close after different numbers of loop iterations, so that each step of opening and reading is interrupted.
    for turns in [*range(0, 30, 3), 60, 90]:
        mine = await connect(server)
        topic = mine.topic(stream.subject("a"))
        tasks = [asyncio.ensure_future(call(topic)) for call in (loop, one_by_one, newest, state)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await within(30, mine.close(), "closing")
        ends = await within(30, asyncio.gather(*tasks, return_exceptions=True), "all who read")
        expected = jsclient.ClosedError | jsclient.PublishesFailedError | None
        assert all(isinstance(end, expected) for end in ends), ends
