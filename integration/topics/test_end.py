"""How a topic ends: which readers see the end, and what a publisher may still do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.clients.topics import FEEDS, read, republishing
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await republishing(oracle, make_stream)


@FEEDS
async def test_end_of_one_of_subjects(js: Any, oracle: Any, stream: OwnStream, push: Any) -> None:
    async with js.topic(stream.subject("*")).each(push=push, quiet=0.2) as reader:
        for tail in "ab":
            async with js.topic(stream.subject(tail)).publisher() as pub:
                await pub.publish(b"1")
                await pub.finish(b"2")
        assert await read(reader, 4) == [1, 2, 1, 2]


async def test_failure_reaches_every_task(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.each() as reader:
        reading = [asyncio.ensure_future(reader.next()) for _ in range(3)]
        await asyncio.sleep(0)
        async with topic.publisher() as pub:
            await pub.fail("no power")
        got = await within(5, asyncio.gather(*reading, return_exceptions=True))
        assert [type(one) for one in got] == [jsclient.IterationFailed] * 3
        with pytest.raises(jsclient.IterationFailed):
            await within(5, anext(reader.batches()))


async def test_end_after_unfinished_batch(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        await pub.publish(b"1")
        await pub.fail("no power")
    async with topic.each() as reader:
        await eventually(lambda: reader.pending == 2)
        async for records in reader.batches():
            assert len(records) == 1
            break
        with pytest.raises(jsclient.IterationFailed):
            await within(5, reader.next())


async def test_publish_during_finish_refused(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher(max_in_flight=2) as pub:
        publishing = [asyncio.ensure_future(pub.publish(b"%d" % number)) for number in range(10)]
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(pub.finish(b"end"))
        await asyncio.sleep(0)
        late = 0
        while not ending.done():
            with pytest.raises(jsclient.ClosedError):
                await pub.publish(b"late")
            late += 1
            await asyncio.sleep(0)
        await ending
        await asyncio.gather(*publishing)
    assert late
    assert [m.payload for m in await stream.messages()] == [*(b"%d" % n for n in range(10)), b"end"]


async def test_finish_again_after_lost_answer(
    connect: Any, proxy: Any, oracle: Any, stream: OwnStream
) -> None:
    near = await proxy()
    far = await connect(near, timeout=3.0)
    topic = far.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        await (await pub.publish(b"1"))
        acks = near.drop_frames(lambda frame: b'"seq":2' in frame.payload)
        with pytest.raises(jsclient.RequestTimeoutError):
            await pub.finish(b"end")
        assert acks.count
        acks.remove()
        with pytest.raises(jsclient.ClosedError):
            await pub.publish(b"2")
        assert (await pub.finish(b"end")).seq == 2
    assert [m.payload for m in await stream.messages()] == [b"1", b"end"]


async def test_closed_latest_reads_nothing(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        await (await pub.publish(b"1"))
    async with topic.latest() as reader:
        assert (await within(5, reader.next())).data == b"1"
    assert reader.is_closed
    with pytest.raises(jsclient.ClosedError):
        await within(5, reader.current())
    assert [record async for record in reader] == []
