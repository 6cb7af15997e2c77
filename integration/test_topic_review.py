"""Topics and readers where a server, a stream or a caller does what their own tests did not think of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from jsclient.topics.log_reader import open_reader
from jsclient.topics.stream_log import find_log

REPUBLISH = {"src": ">", "dest": "pushed.>"}
FEEDS = pytest.mark.parametrize("push", ["consumer", "republish", None])


def live(subjects: str) -> dict[str, str]:
    return {"src": subjects, "dest": f"live.{subjects}"}


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    """A stream that republishes."""
    stream: OwnStream = await make_stream(allow_direct=True)
    await oracle.update_stream(stream.name, republish=live(stream.all))
    return stream


async def publish(topic: Any, first: int, end: int) -> None:
    async with topic.publisher() as pub:
        for number in range(first, end):
            await pub.publish(b"%d" % number)


async def read(reader: Any, count: int) -> list[int]:
    async def some() -> list[int]:
        return [int((await reader.next()).data) for _ in range(count)]

    return await within(10, some(), f"{count} records")


async def has_push(reader: Any) -> None:
    await eventually(lambda: reader._reader.tracker.subscriptions.is_confirmed, 10, "it is pushed to")


async def is_empty(stream: OwnStream) -> bool:
    return bool((await stream.state())["messages"] == 0)


# --- the end -----------------------------------------------------------------------------------------------------


@FEEDS
async def test_the_end_of_one_subject_is_not_the_end_of_a_topic_with_wildcards(
    js: Any, oracle: Any, stream: OwnStream, push: Any
) -> None:
    async with js.topic(stream.subject("*")).each(push=push, quiet=0.2) as reader:
        for tail in "ab":
            async with js.topic(stream.subject(tail)).publisher() as pub:
                await pub.publish(b"1")
                await pub.finish(b"2")
        assert await read(reader, 4) == [1, 2, 1, 2]


async def test_all_who_read_are_told_of_the_failure(js: Any, oracle: Any, stream: OwnStream) -> None:
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


async def test_who_leaves_the_last_batch_is_told_of_the_end_by_the_next_read(
    js: Any, oracle: Any, stream: OwnStream
) -> None:
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


async def test_nothing_is_taken_while_the_topic_is_being_ended(
    js: Any, oracle: Any, stream: OwnStream
) -> None:
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


async def test_an_end_that_was_not_answered_is_made_sure_of_by_calling_again(
    connect: Any, proxy: Any, oracle: Any, stream: OwnStream
) -> None:
    near = await proxy()
    far = await connect(near, timeout=0.5)
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


# --- streams that change -----------------------------------------------------------------------------------------


@FEEDS
async def test_a_stream_made_anew_that_is_longer_already_is_another_one(
    js: Any, oracle: Any, stream: OwnStream, push: Any
) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 4)
    async with topic.each(push=push, quiet=0.5) as reader:
        assert await read(reader, 4) == [0, 1, 2, 3]
        await oracle.delete_stream(stream.name)
        await oracle.create_stream(
            stream.name,
            subjects=[stream.all],
            storage="memory",
            allow_direct=True,
            republish=live(stream.all),
        )
        await publish(topic, 10, 20)
        with pytest.raises(jsclient.PositionInvalidError):
            await within(15, reader.next(), "the next record")


async def test_direct_gets_that_are_switched_off_are_not_waited_for(
    js: Any, oracle: Any, stream: OwnStream
) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 4)
    async with topic.each(push=None, quiet=0.1, max_pending=2) as reader:
        assert await read(reader, 1) == [0]
        await oracle.update_stream(stream.name, allow_direct=False)
        assert await read(reader, 3) == [1, 2, 3]


@FEEDS
async def test_what_a_stream_stores_under_another_subject_is_read_by_that(
    js: Any, oracle: Any, make_stream: Any, push: Any
) -> None:
    stream = await make_stream(allow_direct=True)
    out = f"out.{stream.all}"
    await oracle.update_stream(
        stream.name, subject_transform={"src": stream.all, "dest": out}, republish=live(out)
    )
    with pytest.raises(jsclient.ConfigError, match="under another subject"):
        await js.topic(stream.subject("a")).publisher()
    await js.publish(stream.subject("a"), b"0")
    topic = js.topic(f"out.{stream.subject('a')}", stream=stream.name)
    async with topic.each(push=push, quiet=0.2) as reader:
        assert await read(reader, 1) == [0]
        await js.publish(stream.subject("a"), b"1")
        assert await read(reader, 1) == [1]


@pytest.mark.server(">=2.11")
async def test_a_mirror_that_has_less_and_answers_for_its_stream_makes_no_hole(
    js: Any, oracle: Any, make_stream: Any
) -> None:
    stream = await make_stream(allow_direct=True)
    await publish(js.topic(stream.subject("a")), 0, 100)
    mirror = f"{stream.name}_M"
    await oracle.create_stream(
        mirror,
        subjects=[],
        storage="memory",
        mirror={"name": stream.name},
        mirror_direct=True,
        max_msgs=10,
    )
    try:
        await eventually(lambda: has_last(oracle, mirror, 100), what="the mirror has caught up")
        await eventually(lambda: answers(oracle, stream.name, 404), what="the mirror answers")
        for _ in range(5):
            async with js.topic(stream.subject("a"), stream=stream.name).each(push=None) as reader:
                assert await read(reader, 100) == [*range(100)]
    finally:
        await oracle.delete_stream(mirror)


async def has_last(oracle: Any, stream: str, seq: int) -> bool:
    return bool((await oracle.state(stream))["last_seq"] == seq)


async def answers(oracle: Any, stream: str, status: int) -> bool:
    """Whether a direct get of the first message was answered with this status by whoever was asked."""
    answer = await oracle.nc.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":1}', timeout=2)
    return (answer.headers or {}).get("Status") == str(status)


# --- what was removed before it was read ---------------------------------------------------------------------------


@FEEDS
async def test_a_linked_topic_that_was_purged_before_it_was_read_has_a_hole_and_says_so(
    js: Any, oracle: Any, stream: OwnStream, push: Any
) -> None:
    subject = stream.subject("a")
    for number in range(5):
        await js.publish(subject, b"%d" % number, expected_last_subject_seq=number)
    async with js.topic(subject).each() as reader:
        await read(reader, 2)
        position = reader.position
    await stream.purge()
    await js.publish(subject, b"5", expected_last_subject_seq=0)
    async with js.topic(subject).since(position, push=push, quiet=0.2) as reader:
        with pytest.raises(jsclient.HistoryTruncatedError):
            await within(5, reader.next(), "the next record")


async def test_what_found_no_room_and_then_expired_is_told_though_the_next_push_names_no_predecessor(
    js: Any, oracle: Any, make_stream: Any
) -> None:
    stream = await make_stream(allow_direct=True, max_age=500_000_000)
    await oracle.update_stream(stream.name, republish=live(stream.all))
    topic = js.topic(stream.subject("a"))
    async with topic.each(max_pending=10) as reader:
        await has_push(reader)
        await publish(topic, 0, 20)
        await eventually(lambda: is_empty(stream), what="all has expired")
        assert await read(reader, 1) == [0], "there is room for one"
        held, discarded = reader.pending, reader._reader.tracker.discarded
        await publish(topic, 20, 21)
        tracker = reader._reader.tracker  # it was held, put aside, or thrown away
        await eventually(
            lambda: (reader.pending, tracker.discarded, len(tracker._aside._records)) != (held, discarded, 0)
        )
        assert await read(reader, 9) == [*range(1, 10)]
        with pytest.raises(jsclient.HistoryTruncatedError):
            await within(5, reader.next(), "what follows")


# --- requests that go wrong --------------------------------------------------------------------------------------


async def test_a_consumer_whose_creation_was_not_answered_is_made_anew(
    connect: Any, proxy: Any, js: Any, oracle: Any, stream: OwnStream
) -> None:
    near = await proxy()
    far = await connect(near, timeout=0.5)
    lost = near.drop_frames(lambda frame: b"consumer_create_response" in frame.payload, 1)
    async with far.topic(stream.subject("a")).each("now", push="consumer", quiet=600) as reader:
        await has_push(reader)
        assert lost.count == 1
        await publish(js.topic(stream.subject("a")), 1, 2)
        assert await read(reader, 1) == [1]

        async def one_is_there() -> bool:  # before 2.11 another one reads the history, and goes
            return len(await stream.consumer_names()) == 1

        await eventually(one_is_there, what="one consumer")


async def test_large_records_are_held_within_bounds_without_direct_gets_too(
    js: Any, oracle: Any, make_stream: Any
) -> None:
    stream = await make_stream()
    for number in range(40):
        await js.publish(stream.subject("a"), b"%d" % number + b" " * 200_000)
    log = await find_log(js._context, stream.subject("a"))
    sizes: list[int] = []
    history = log.history

    async def measured(since: int, limit: int, max_bytes: int) -> Any:
        page = await history(since, limit, max_bytes)
        sizes.append(sum(record.size for record in page.records))
        return page

    log.history = measured  # type: ignore[method-assign]
    async with await open_reader(log, push=None, max_pending_bytes=1_000_000) as reader:
        assert await read(reader, 40) == [*range(40)]
    assert max(sizes) < 1_500_000
    assert sum(sizes) < 12_000_000, "nothing is read twice"
    async with await open_reader(log, push=None, max_pending_bytes=1000) as reader:
        assert await read(reader, 3) == [0, 1, 2], "one at a time, whatever its size"


async def test_a_chain_waits_for_a_link_that_is_to_be_sent_again(
    js: Any, oracle: Any, stream: OwnStream
) -> None:
    async with js.topic(stream.subject("a")).publisher(chained=True) as pub:
        await (await pub.publish(b"0"))
        await oracle.update_stream(stream.name, subjects=[stream.subject("other")], republish=None)
        one = await pub.publish(b"1")  # nobody takes it, for now
        await eventually(lambda: pub._publisher.in_flight == 1)
        await oracle.update_stream(stream.name, subjects=[stream.all])
        two = await pub.publish(b"2")
        await within(10, asyncio.gather(one, two), "both are stored")
    assert [m.payload for m in await stream.messages()] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("seed", range(3))
async def test_a_chain_has_no_hole_and_no_repeat_where_its_connection_is_cut(
    connect: Any, proxy: Any, oracle: Any, stream: OwnStream, seed: int
) -> None:
    near = await proxy()
    topic = (await connect(near)).topic(stream.subject("a"))
    chance = random.Random(seed)
    async with topic.publisher(chained=True, max_in_flight=200) as pub:
        for number in range(1000):
            await pub.publish(b"%d" % number)
            if chance.random() < 0.005:
                near.cut()
            if chance.random() < 0.05:
                await asyncio.sleep(0.002)
        await within(20, pub.finish(b"end"), "the end")
    assert [m.payload for m in await stream.messages()] == [*(b"%d" % n for n in range(1000)), b"end"]


@pytest.mark.parametrize("foreign", [False, True])
async def test_a_chain_goes_on_after_publishes_that_were_cancelled(
    js: Any, foreign_js: Any, oracle: Any, stream: OwnStream, foreign: bool
) -> None:
    topic = (foreign_js if foreign else js).topic(stream.subject("a"))
    chance, sent = random.Random(1), []
    async with topic.publisher(chained=True, max_in_flight=3) as pub:
        for number in range(200):
            call = asyncio.ensure_future(pub.publish(b"%d" % number))
            for _ in range(chance.choice([0, 0, 1, 2, 5])):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                call.cancel()
            try:
                sent.append((b"%d" % number, await call))
            except asyncio.CancelledError:
                pass
        for _, future in sent:
            await future
    assert [m.payload for m in await stream.messages()] == [data for data, _ in sent]


# --- cancelled anywhere --------------------------------------------------------------------------------------------


async def cancelled_after(turns: int, call: Callable[[], Awaitable[Any]]) -> Any:
    """Its result if it was done by then; None if not."""
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
async def test_opening_and_reading_can_be_cancelled_anywhere_and_leave_nothing(
    js: Any, oracle: Any, stream: OwnStream, push: Any
) -> None:
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
async def test_waiting_for_the_latest_can_be_cancelled_anywhere_and_leaves_nothing(
    js: Any, oracle: Any, make_stream: Any, republishes: bool
) -> None:
    stream = await make_stream(allow_direct=True, **({"republish": REPUBLISH} if republishes else {}))
    await stream.publish(1)
    topic = js.topic(stream.subject("x"))
    # A consumer whose creation was cut off may outlive its delete, and goes by itself.
    looked_at = [stream.name] if republishes else []
    async with no_leaks(oracle=oracle, streams=looked_at, settle=8):
        before = set(js._context.open)
        for turns in [*range(30), *range(30, 300, 30)]:
            reader = topic.latest()
            await reader.next()
            await cancelled_after(turns, reader.next)
        await eventually(lambda: js._context.open == before, 8, "nothing is held")


async def test_ending_a_topic_can_be_cancelled_anywhere(js: Any, oracle: Any, stream: OwnStream) -> None:
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


@FEEDS
async def test_closing_the_connection_ends_whatever_is_being_opened_or_read(
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

    for turns in [*range(0, 30, 3), 60, 90]:
        mine = await connect(server)
        topic = mine.topic(stream.subject("a"))
        tasks = [asyncio.ensure_future(call(topic)) for call in (loop, one_by_one, newest, state)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await within(5, mine.close(), "closing")
        ends = await within(3, asyncio.gather(*tasks, return_exceptions=True), "all who read")
        expected = jsclient.ClosedError | jsclient.PublishesFailedError | None
        assert all(isinstance(end, expected) for end in ends), ends


# --- what is asked for ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"quiet": float("nan")},
        {"quiet": "5"},
        {"quiet": True},
        {"quiet": -1},
        {"max_pending": "10"},
        {"max_pending": float("nan")},
        {"max_pending": 1.5},
        {"max_pending": 0},
        {"push": []},
        {"push": ""},
    ],
    ids=repr,
)
async def test_options_that_cannot_be_are_refused(
    js: Any, oracle: Any, stream: OwnStream, options: dict[str, Any]
) -> None:
    with pytest.raises(jsclient.ConfigError):
        await js.topic(stream.subject("a")).each(**options)


@pytest.mark.parametrize("timeout", [float("nan"), "5", True], ids=repr)
async def test_a_timeout_is_seconds(js: Any, oracle: Any, stream: OwnStream, timeout: Any) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.each() as reader:
        with pytest.raises(jsclient.ConfigError):
            await within(2, reader.next(timeout), "the read")
        with pytest.raises(jsclient.ConfigError):
            await within(2, anext(reader.batches(0)), "the batch")
    with pytest.raises(jsclient.ConfigError):
        await within(2, topic.latest().next(timeout), "the read")
