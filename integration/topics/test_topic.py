"""Topics: publish, read each record, continue after a position, share the work, end."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.asking import api_requests

FEEDS = pytest.mark.parametrize("push", ["consumer", "republish", None])


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    """A stream that republishes."""
    stream: OwnStream = await make_stream(allow_direct=True)
    await oracle.update_stream(stream.name, republish={"src": stream.all, "dest": f"live.{stream.all}"})
    return stream


async def collect(reader: Any, count: int | None = None) -> list[bytes]:
    got: list[bytes] = []
    async for record in reader:
        got.append(record.data)
        if len(got) == count:
            break
    return got


@pytest.mark.smoke
@FEEDS
async def test_each_sees_every_record_and_then_end(
    js: Any, oracle: Any, stream: OwnStream, push: Any
) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        for number in range(5):
            await pub.publish(b"%d" % number)
    async with topic.each(push=push, quiet=0.2) as reader:
        got = [(await reader.next(5)).data for _ in range(5)]
        assert got == [b"0", b"1", b"2", b"3", b"4"]
        async with topic.publisher() as pub:
            await pub.publish(b"5")
            end = await pub.finish(b"done")
        assert await within(10, collect(reader), "the rest") == [b"5"]
        assert reader.completion == b"done"
        assert reader.position == end


@pytest.mark.smoke
@FEEDS
async def test_since_after_position(js: Any, oracle: Any, stream: OwnStream, push: Any) -> None:
    topic = js.topic(stream.subject("a"), stream=stream.name)
    async with topic.publisher() as pub:
        for number in range(10):
            await pub.publish(b"%d" % number)
    async with topic.each() as reader:
        await within(5, collect(reader, 4), "the first records")
        token = reader.position.to_json()
    async with topic.since(token, push=push, quiet=0.2) as reader:
        assert await within(5, collect(reader, 6), "the rest") == [b"4", b"5", b"6", b"7", b"8", b"9"]
    with pytest.raises(jsclient.PositionInvalidError):
        topic.since("no position")
    beyond = jsclient.Position.from_json(token).at(1000)
    with pytest.raises(jsclient.PositionInvalidError):
        await topic.since(beyond)
    with pytest.raises(jsclient.ConfigError):
        topic.since(17)


async def test_since_asks_no_stream_name(
    connect: Any, proxy: Any, server: Any, oracle: Any, stream: OwnStream
) -> None:
    """The position names the stream. The stream has the whole subject, so no other stream can have a part of it."""
    tap = await proxy()
    topic = (await connect(tap)).topic(stream.subject("a"))
    await stream.publish(2, "a")
    async with topic.each() as reader:
        await reader.next(5)
        position = reader.position
    mark = len(tap.frames)
    async with topic.since(position) as reader:
        assert (await reader.next(5)).seq == 2
    first, *others = api_requests(tap, since=mark)
    assert first == f"STREAM.INFO.{stream.name}"
    assert others  # they read: direct gets, or before 2.11 a consumer
    assert not [call for call in others if call.startswith("STREAM.")]


async def test_since_other_stream(js: Any, oracle: Any, make_stream: Any, stream: OwnStream) -> None:
    """A position in a stream that has the subject not at all or only partly is compared with the stream that has it."""
    held = stream.subject("a")
    await stream.publish(1, "a")
    async with js.topic(held).each() as reader:
        position = (await reader.next(5)).position
    part = await make_stream(subjects=[f"{stream.prefix}_1.a.>"])
    other = await make_stream(subjects=[f"{stream.prefix}_1.b.>"])
    await oracle.publish_many(f"{stream.prefix}_1.a.x", 1)
    async with js.topic(f"{stream.prefix}_1.a.x").each() as reader:
        in_part = (await reader.next(5)).position
    with pytest.raises(jsclient.NoMatchingStreamError):  # the other stream has the remaining subjects
        await js.topic(f"{stream.prefix}_1.>").since(in_part)
    await other.delete()
    with pytest.raises(jsclient.ConfigError, match="does not hold"):
        await js.topic(stream.subject("a"), stream=part.name).since(position)
    unreadable = jsclient.Position("not a name", position.incarnation, 1)
    for wrong in (in_part, unreadable, jsclient.Position("NOT_THERE", position.incarnation, 1)):
        with pytest.raises(jsclient.PositionInvalidError):
            await js.topic(held).since(wrong)
    await part.delete()
    with pytest.raises(jsclient.PositionInvalidError):
        await js.topic(held).since(in_part)


async def test_since_a_stream_that_does_not_answer(
    connect: Any, proxy: Any, oracle: Any, make_stream: Any, stream: OwnStream
) -> None:
    """As without a leader. Another stream has the subject now, and the position is compared with it."""
    tap = await proxy()
    other = await make_stream()
    for one in (stream, other):
        await one.publish(1, "a")
    topic = (await connect(tap, timeout=2.0)).topic(stream.subject("a"))
    async with topic.each() as reader:
        position = (await reader.next(5)).position
    elsewhere = jsclient.Position(other.name, position.incarnation, 1)
    lost = tap.drop_frames(lambda frame: frame.subject == f"$JS.API.STREAM.INFO.{other.name}")
    with pytest.raises(jsclient.PositionInvalidError):
        await topic.since(elsewhere)
    assert lost.count == 1


async def test_since_while_nothing_answers_takes_one_timeout(
    connect: Any, proxy: Any, js: Any, stream: OwnStream
) -> None:
    """It took a quarter more: the stream of the position was asked first."""
    await stream.publish(1, "a")
    async with js.topic(stream.subject("a")).each() as reader:
        position = (await reader.next(5)).position
    tap = await proxy()
    topic = (await connect(tap, timeout=10.0)).topic(stream.subject("a"))
    lost = tap.drop_frames(lambda frame: (frame.subject or "").startswith("$JS.API.STREAM."))
    began = time.monotonic()
    with pytest.raises(jsclient.RequestTimeoutError, match="find the stream of"):
        await topic.since(position)
    assert time.monotonic() - began < 12.4
    assert lost.count >= 2


async def test_a_start_may_be_a_time(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        await (await pub.publish(b"before"))
    async with topic.each() as reader:
        first = await reader.next(5)
    moment = datetime.fromtimestamp(first.time_ns // 1000 / 1e6, UTC) + timedelta(microseconds=1)
    async with topic.publisher() as pub:
        await pub.publish(b"after")
    async with topic.each(moment) as reader:
        assert (await reader.next(5)).data == b"after"
    async with topic.each("now") as reader:
        with pytest.raises(jsclient.RequestTimeoutError):
            await reader.next(0.05)
        async with topic.publisher() as pub:
            await pub.publish(b"new")
        assert (await reader.next(5)).data == b"new"


async def test_loop_opens_and_closes(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        await pub.publish(b"1")
        await pub.fail("the mill stands still")
    async with no_leaks(oracle=oracle, streams=[stream.name]):
        got: list[bytes] = []

        async def loop() -> None:
            async for record in topic.each(push="consumer"):
                got.append(record.data)  # noqa: PERF401  what came before the failure counts

        with pytest.raises(jsclient.IterationFailed) as failed:
            await within(10, loop(), "the loop")
        assert got == [b"1"]
        assert failed.value.reason == "the mill stands still"


async def test_nothing_follows_the_end(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as one, topic.publisher() as two:
        await one.publish(b"1")
        await two.publish(b"2")
        await one.finish()
        with pytest.raises(jsclient.ClosedError):
            await one.publish(b"3")
        with pytest.raises(jsclient.ClosedError):
            await two.fail("late")
    with pytest.raises(jsclient.ClosedError):
        await topic.publisher()


async def test_group_outlives_workers(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        for number in range(4):
            await pub.publish(b"%d" % number)
    async with topic.work("crew", ack_wait=5) as work:
        first = [await work.next(timeout=5) for _ in range(2)]
        for message in first:
            await message.ack_sync()
    async with topic.work("crew", ack_wait=5) as work:
        remainder = [await work.next(timeout=5) for _ in range(2)]
        assert [m.data for m in first + remainder] == [b"0", b"1", b"2", b"3"]
        for message in remainder:
            await message.ack_sync()
    assert await stream.consumer_names() == ["crew"]


async def test_chained_publisher_fenced(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))

    async def with_a_rival() -> None:
        async with topic.publisher(chained=True) as pub:
            for number in range(100):
                await pub.publish(b"%d" % number)
            await pub.flush()
            await js.publish(stream.subject("a"), b"rival")
            for number in range(100, 200):
                await pub.publish(b"%d" % number)

    with pytest.raises(jsclient.ProducerFencedError):
        await with_a_rival()
    assert [m.payload for m in await stream.messages()] == [*(b"%d" % n for n in range(100)), b"rival"]
    async with topic.publisher(chained=True) as pub:
        for number in range(100, 120):
            await pub.publish(b"%d" % number)
        with pytest.raises(jsclient.ConfigError):
            await pub.publish(b"", msg_id="mine")
    assert len(await stream.messages()) == 121


async def test_cannot_work_refused_before_sent(js: Any, oracle: Any, stream: OwnStream) -> None:
    with pytest.raises(jsclient.InvalidNameError):
        js.topic("a..b")
    with pytest.raises(jsclient.InvalidNameError):
        js.topic(stream.all).publisher()
    with pytest.raises(jsclient.InvalidNameError):
        js.topic(stream.subject("a")).work("no.name")
    with pytest.raises(jsclient.NoMatchingStreamError):
        await js.topic("nobody.holds.this").each()
    with pytest.raises(jsclient.StreamNotFoundError):
        await js.topic("a", stream="NOT_THERE").each()
    with pytest.raises(jsclient.ConfigError):
        await js.topic("of.another", stream=stream.name).each()
    with pytest.raises(jsclient.ConfigError):
        await js.topic(stream.subject("a")).each("yesterday")
    with pytest.raises(jsclient.ConfigError):
        await js.topic(stream.subject("a")).each(push="pigeon")


async def test_readers_end_with_connection(connect: Any, server: Any, oracle: Any, stream: OwnStream) -> None:
    js = await connect(server)
    reader = await js.topic(stream.subject("a")).each(push="consumer")
    waiting = asyncio.ensure_future(reader.next())
    await eventually(stream.consumer_names, what="the reader's consumer")
    await js.close()
    with pytest.raises(jsclient.ClosedError):
        await waiting
    await eventually(lambda: stream_is_free(stream), what="the consumer is gone")


async def stream_is_free(stream: OwnStream) -> bool:
    return not await stream.consumer_names()
