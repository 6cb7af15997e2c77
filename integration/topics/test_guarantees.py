"""The promises of each reader of a topic: a test for each cell of docs/guarantee-table.md."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from jsclient.topics.consumer_feed import ConsumerFeed
from jsclient.topics.feeds import RepublishFeed

FEEDS = pytest.mark.parametrize("push", ["consumer", "republish", None])
COUNT = 400


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    """A stream that republishes."""
    stream: OwnStream = await make_stream(allow_direct=True)
    await oracle.update_stream(stream.name, republish={"src": stream.all, "dest": f"live.{stream.all}"})
    return stream


async def publish(topic: Any, first: int, end: int, **options: Any) -> None:
    async with topic.publisher(**options) as pub:
        for number in range(first, end):
            await pub.publish(b"%d" % number)


async def read(reader: Any, count: int) -> list[int]:
    async def some() -> list[int]:
        return [int((await reader.next()).data) for _ in range(count)]

    return await within(25, some(), f"{count} records")


@FEEDS
@pytest.mark.guarantee("each.sees", "since.sees")
async def test_every_record_in_order_once(js: Any, oracle: Any, stream: OwnStream, push: Any) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, COUNT)
    async with topic.each(push=push, quiet=0.2) as all_of_it:
        assert await read(all_of_it, COUNT // 2) == [*range(COUNT // 2)]
        async with topic.since(all_of_it.position, push=push, quiet=0.2) as after:
            await publish(topic, COUNT, 2 * COUNT)
            assert await read(after, COUNT + COUNT // 2) == [*range(COUNT // 2, 2 * COUNT)]
            assert await read(all_of_it, COUNT + COUNT // 2) == [*range(COUNT // 2, 2 * COUNT)]
            with pytest.raises(jsclient.RequestTimeoutError):
                await after.next(0.3)


@FEEDS
@pytest.mark.guarantee("each.slow", "since.slow")
async def test_slow_reader_misses_nothing(js: Any, oracle: Any, stream: OwnStream, push: Any) -> None:
    topic = js.topic(stream.subject("a"))
    options = {"push": push, "quiet": 0.2}
    async with (
        topic.each("now", max_pending=10, **options) as slow,
        topic.each("now", **options) as quick,
    ):
        await publish(topic, 0, COUNT)
        assert await read(quick, COUNT) == [*range(COUNT)]
        assert slow.pending <= 10, "what it has not asked for waits on the server"
        assert await read(slow, COUNT) == [*range(COUNT)]


@FEEDS
@pytest.mark.guarantee("each.lost", "since.lost")
async def test_connection_lost_loses_nothing(
    connect: Any, proxy: Any, js: Any, oracle: Any, stream: OwnStream, push: Any
) -> None:
    near = await proxy()
    topic, far = js.topic(stream.subject("a")), (await connect(near)).topic(stream.subject("a"))
    async with far.each(push=push, quiet=0.2) as reader:
        await publish(topic, 0, 10)
        assert await read(reader, 10) == [*range(10)]
        for start in (10, 20, 30):
            near.cut()
            await publish(topic, start, start + 10)
            assert await read(reader, 10) == [*range(start, start + 10)]


@pytest.mark.guarantee("each.resumes", "since.resumes")
async def test_position_all_must_be_kept(
    js: Any, connect: Any, server: Any, oracle: Any, stream: OwnStream
) -> None:
    await publish(js.topic(stream.subject("a")), 0, 100)
    got: list[int] = []
    token = None
    for _ in range(5):
        mine = await connect(server)
        topic = mine.topic(stream.subject("a"))
        async with topic.each() if token is None else topic.since(token) as reader:
            got += await read(reader, 20)
            token = reader.position.to_json()
        await mine.close()
    assert got == [*range(100)]


@FEEDS
@pytest.mark.guarantee("each.gone", "since.gone")
async def test_history_gone_error_with_first_there(
    js: Any, oracle: Any, stream: OwnStream, events: list[Any], push: Any
) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 20)
    async with topic.each() as reader:
        await read(reader, 5)
        token = reader.position.to_json()
    held = await js.stream(stream.name)
    await held.purge(seq=11)
    async with topic.since(token, push=push) as reader:
        with pytest.raises(jsclient.HistoryTruncatedError) as caught:
            await read(reader, 1)
        assert caught.value.first_available == 11
    async with topic.since(token, push=push, allow_truncated=True) as reader:
        assert await read(reader, 10) == [*range(10, 20)]
    await eventually(
        lambda: [e for e in events if isinstance(e, jsclient.HistoryTruncated)], what="the event"
    )


@FEEDS
@pytest.mark.parametrize("how", ["finish", "fail"])
@pytest.mark.guarantee("each.ends", "since.ends")
async def test_loop_ends_as_producer_says(
    js: Any, oracle: Any, stream: OwnStream, push: Any, how: str
) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.each("now", push=push, quiet=0.2) as reader:
        async with topic.publisher() as pub:
            await pub.publish(b"1")
            if how == "finish":
                await pub.finish(b"all done")
            else:
                await pub.fail("no more power")
        assert await read(reader, 1) == [1]
        if how == "finish":
            with pytest.raises(StopAsyncIteration):
                await within(10, anext(reader), "the end")
            assert reader.completion == b"all done"
        else:
            with pytest.raises(jsclient.IterationFailed, match="no more power"):
                await within(10, anext(reader), "the end")


@pytest.mark.guarantee("each.state", "since.state")
async def test_server_keeps_of_reader(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 1)
    async with (
        topic.each(push="republish") as one,
        topic.each() as two,
        topic.since(one.position, push="republish"),
    ):
        await read(one, 1)
        await read(two, 1)
        # Servers before 2.11 have no direct get of many: a consumer reads them, and goes at once.
        await eventually(lambda: no_consumers(stream), what="no consumer")
    async with topic.each(push="consumer") as reader:
        await read(reader, 1)
        names = await eventually(stream.consumer_names, what="its consumer")
        info = await stream.consumer_info(names[0])
        assert info["config"]["ack_policy"] == "none"
        assert info["config"]["mem_storage"] is True
        assert info["config"]["inactive_threshold"] > 0
    await eventually(lambda: no_consumers(stream), what="its consumer is gone")


async def no_consumers(stream: OwnStream) -> bool:
    return not await stream.consumer_names()


# --- work ------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("work.sees", "work.slow", "work.state")
async def test_one_worker_until_acked(
    js: Any, connect: Any, server: Any, oracle: Any, stream: OwnStream
) -> None:
    await publish(js.topic(stream.subject("a")), 0, 60)
    handled: list[tuple[str, int]] = []
    slow_may_go = asyncio.Event()

    async def worker(name: str) -> None:
        mine = await connect(server)

        async def handle(message: Any) -> None:
            if name == "slow":
                await slow_may_go.wait()
            handled.append((name, int(message.data)))
            if len(handled) == 58:  # two are the slow one's: in its hands, and next
                slow_may_go.set()

        async with mine.topic(stream.subject("a")).work("crew") as work:
            running = work.run(handle, prefetch=1)
            await eventually(lambda: len(handled) == 60, what="all messages are handled")
            running.stop()
            await running

    slow = asyncio.ensure_future(worker("slow"))
    await eventually(stream.consumer_names, what="the slow one is there")
    await eventually(lambda: is_delivered(stream), what="the slow one has a message")
    await within(90, asyncio.gather(slow, worker("quick")), "the work")
    assert sorted(number for _, number in handled) == [*range(60)]
    assert [name for name, _ in handled].count("slow") == 2
    assert await stream.consumer_names() == ["crew"]


async def is_delivered(stream: OwnStream) -> bool:
    return bool((await stream.consumer_info("crew"))["delivered"]["consumer_seq"] > 0)


@pytest.mark.guarantee("work.lost", "work.resumes", "work.ends")
async def test_worker_left_without_ack_comes_again(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 3)
    async with topic.work("crew", ack_wait=4) as work:
        taken = [await work.next(timeout=5) for _ in range(3)]
        await taken[0].ack_sync()
    async with topic.work("crew", ack_wait=4) as work:
        again = [await work.next(timeout=30) for _ in range(2)]
        assert sorted(int(m.data) for m in again) == [1, 2]
        assert {m.metadata.num_delivered for m in again} == {2}


@pytest.mark.guarantee("work.gone")
async def test_group_begins_with_there(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 10)
    await (await js.stream(stream.name)).purge(seq=6)
    async with topic.work("crew") as work:
        assert (await work.next(timeout=5)).data == b"5"


# --- latest ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["republish", "plain"])
async def newest(request: pytest.FixtureRequest, oracle: Any, make_stream: Any) -> OwnStream:
    """A stream of states, which republishes or not."""
    stream: OwnStream = await make_stream(allow_direct=True, max_msgs_per_subject=1)
    if request.param == "republish":
        await oracle.update_stream(stream.name, republish={"src": stream.all, "dest": f"live.{stream.all}"})
    return stream


@pytest.mark.guarantee("latest.sees", "latest.slow", "latest.gone", "latest.resumes")
async def test_newest_when_looking(js: Any, oracle: Any, newest: OwnStream) -> None:
    topic = js.topic(newest.subject("a"))
    await publish(topic, 0, 100)
    async with topic.latest() as reader:
        assert int((await reader.next(5)).data) == 99
        waiting = asyncio.ensure_future(reader.next(10))
        await publish(topic, 100, 101)
        assert int((await waiting).data) == 100
        await publish(topic, 101, 200)
        assert int((await reader.next(5)).data) == 199
        assert int((await reader.current()).data) == 199
        with pytest.raises(jsclient.RequestTimeoutError):
            await reader.next(0.1)
    async with topic.latest() as another:
        assert int((await another.next(5)).data) == 199


@pytest.mark.guarantee("latest.lost")
async def test_state_came_while_away_seen(
    connect: Any, proxy: Any, js: Any, oracle: Any, newest: OwnStream
) -> None:
    near = await proxy()
    topic, far = js.topic(newest.subject("a")), (await connect(near)).topic(newest.subject("a"))
    await publish(topic, 0, 1)
    reader = far.latest()
    assert int((await reader.next(5)).data) == 0
    for number in range(1, 4):
        waiting = asyncio.ensure_future(reader.next(20))
        await asyncio.sleep(0)
        near.refuse()
        near.cut()
        await publish(topic, number, number + 1)
        await near.accept()
        assert int((await waiting).data) == number


@pytest.mark.parametrize("how", ["finish", "fail"])
@pytest.mark.guarantee("latest.ends")
async def test_end_always_seen_by_who_wants_latest(js: Any, oracle: Any, newest: OwnStream, how: str) -> None:
    topic = js.topic(newest.subject("a"))
    await publish(topic, 0, 3)
    reader = topic.latest()
    await reader.next(5)
    async with topic.publisher() as pub:
        await pub.update_state(b"7")
        await (pub.finish(b"closed") if how == "finish" else pub.fail("no light"))
    for _ in range(2):  # and it stays
        if how == "finish":
            with pytest.raises(StopAsyncIteration):
                await within(10, anext(reader), "the end")
            assert reader.completion == b"closed"
        else:
            with pytest.raises(jsclient.IterationFailed, match="no light"):
                await within(10, anext(reader), "the end")


@pytest.mark.guarantee("latest.state")
async def test_latest_costs_little(js: Any, oracle: Any, newest: OwnStream) -> None:
    topic = js.topic(newest.subject("a"))
    await publish(topic, 0, 1)
    reader = topic.latest()
    await reader.next(5)
    republishes = (await js.stream(newest.name)).config.republish is not None
    waiting = asyncio.ensure_future(reader.next(20))
    if republishes:
        await never(newest.consumer_names, 0.1, "a consumer")
    else:
        names = await eventually(newest.consumer_names, what="one consumer")
        assert len(names) == 1
    await publish(topic, 1, 2)
    assert int((await waiting).data) == 1


async def test_topic_makes_stream_if_there_none(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(f"made.{stream.prefix}.>")
    try:
        log = await topic.create(storage="memory", max_age=3600)
        assert log.config.allow_direct
        assert isinstance(log.feed("auto"), ConsumerFeed)
        assert (await topic.create()).stream == log.stream
        one = js.topic(f"made.{stream.prefix}.a")
        assert isinstance((await one.log()).feed("auto"), RepublishFeed)
        await publish(one, 0, 3)
        async with topic.each() as reader:
            assert await read(reader, 3) == [0, 1, 2]
    finally:
        await js.delete_stream(log.stream)
    with pytest.raises(jsclient.ConfigError):
        js.topic("a").latest(quiet=0)
