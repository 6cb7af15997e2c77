"""Topics and readers where things go wrong in ways that their own tests did not think of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.streams import OwnStream
from integration.kit.waiting import eventually, within
from jsclient.reader import open_reader
from jsclient.stream_log import find_log


def live(stream: OwnStream) -> dict[str, str]:
    return {"src": stream.all, "dest": f"live.{stream.all}"}


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    """A stream that republishes."""
    stream: OwnStream = await make_stream(allow_direct=True)
    await oracle.update_stream(stream.name, republish=live(stream))
    return stream


async def numbers(reader: Any, count: int, timeout: float = 10.0) -> list[int]:
    async def some() -> list[int]:
        return [int((await reader.next()).data) for _ in range(count)]

    return await within(timeout, some(), f"{count} records")


# 1 wildcard: one subject ends
@pytest.mark.parametrize("push", ["consumer", "republish", None])
async def test_the_end_of_one_subject_is_not_the_end_of_a_wildcard_topic(
    js: Any, oracle: Any, stream: OwnStream, push: Any
) -> None:
    async with js.topic(stream.subject("*")).each(push=push, quiet=0.2) as reader:
        for tail in "ab":
            async with js.topic(stream.subject(tail)).publisher() as pub:
                await pub.publish(b"1")
                await pub.finish(b"2")
        assert await numbers(reader, 4) == [1, 2, 1, 2]


# 10 consumer create answer lost
async def test_a_consumer_whose_creation_was_not_answered(
    connect: Any, proxy: Any, js: Any, oracle: Any, stream: OwnStream, events: list[Any]
) -> None:
    near = await proxy()
    far = await connect(near)
    near.drop_frames(lambda f: b"consumer_create_response" in bytes(getattr(f, "payload", b"") or b""), 1)
    async with far.topic(stream.subject("a")).each("now", push="consumer", quiet=600) as reader:
        await eventually(lambda: reader._reader.tracker.subscriptions.is_confirmed, 20, "open")
        async with js.topic(stream.subject("a")).publisher() as pub:
            await pub.publish(b"1")
        assert await numbers(reader, 1, 15) == [1]


# 21 allow_direct off
async def test_direct_gets_that_are_switched_off(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        for number in range(4):
            await pub.publish(b"%d" % number)
    async with topic.each(push=None, quiet=0.1, max_pending=2) as reader:
        assert await numbers(reader, 1) == [0]
        await oracle.update_stream(stream.name, allow_direct=False)
        assert await numbers(reader, 3) == [1, 2, 3]


# 24 two tasks, fail
async def test_all_who_read_are_told_of_the_failure(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.each() as reader:
        tasks = [asyncio.ensure_future(reader.next()) for _ in range(3)]
        await asyncio.sleep(0)
        async with topic.publisher() as pub:
            await pub.fail("no power")
        got = await within(5, asyncio.gather(*tasks, return_exceptions=True))
        assert [type(one) for one in got] == [jsclient.IterationFailed] * 3
        with pytest.raises(jsclient.IterationFailed):
            async for _ in reader.batches():
                pass


# 26 publish during finish
async def test_nothing_is_taken_while_the_topic_is_being_ended(
    js: Any, oracle: Any, stream: OwnStream
) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        await pub.publish(b"0")
        ending = asyncio.ensure_future(pub.finish())
        taken = 0
        while not ending.done():
            try:
                await pub.publish(b"1")
                taken += 1
            except jsclient.ClosedError:
                pass
            await asyncio.sleep(0)
        await ending
    stored = await stream.messages()
    assert b"finish" in str(stored[-1]).encode(), stored[-3:]


# 31 transform
@pytest.mark.parametrize("push", ["consumer", "republish", None])
async def test_what_a_stream_stores_under_another_subject_is_read_by_that(
    js: Any, oracle: Any, make_stream: Any, push: Any
) -> None:
    stream = await make_stream(allow_direct=True)
    out = f"out.{stream.all}"
    await oracle.update_stream(
        stream.name,
        subject_transform={"src": stream.all, "dest": out},
        republish={"src": out, "dest": f"live.{out}"},
    )
    with pytest.raises(jsclient.ConfigError, match="under another subject"):
        await js.topic(stream.subject("a")).publisher()
    await js.publish(stream.subject("a"), b"0")
    topic = js.topic(f"out.{stream.subject('a')}", stream=stream.name)
    async with topic.each(push=push, quiet=0.2) as reader:
        assert await numbers(reader, 1) == [0]
        await js.publish(stream.subject("a"), b"1")
        assert await numbers(reader, 1) == [1]


# 38 remade
@pytest.mark.parametrize("push", ["consumer", "republish", None])
async def test_remade_longer(js: Any, oracle: Any, make_stream: Any, push: Any) -> None:
    stream = await make_stream(allow_direct=True)
    await oracle.update_stream(stream.name, republish=live(stream))
    topic = js.topic(stream.subject("a"))
    async with topic.publisher() as pub:
        for number in range(4):
            await pub.publish(b"%d" % number)
    async with topic.each(push=push, quiet=0.5) as reader:
        assert await numbers(reader, 4) == [0, 1, 2, 3]
        await oracle.delete_stream(stream.name)
        await oracle.create_stream(
            stream.name, subjects=[stream.all], storage="memory", allow_direct=True, republish=live(stream)
        )
        async with topic.publisher() as pub:
            for number in range(10, 20):
                await pub.publish(b"%d" % number)
        with pytest.raises(jsclient.PositionInvalidError):
            await within(15, reader.next())


# 69 linked, purged
@pytest.mark.parametrize("push", ["consumer", "republish", None])
async def test_linked_purged(js: Any, oracle: Any, stream: OwnStream, push: Any) -> None:
    for number in range(5):
        await js.publish(stream.subject("a"), b"%d" % number, expected_last_subject_seq=number)
    topic = js.topic(stream.subject("a"))
    async with topic.each() as reader:
        await numbers(reader, 2)
        token = reader.position
    await stream.purge()
    await js.publish(stream.subject("a"), b"5", expected_last_subject_seq=0)
    async with topic.since(token, push=push, quiet=0.2) as reader:
        with pytest.raises(jsclient.HistoryTruncatedError):
            await within(5, reader.next())


# 15 known missing, then expired
async def test_known_missing_then_expired(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True, max_age=500_000_000)
    await oracle.update_stream(stream.name, republish=live(stream))
    topic = js.topic(stream.subject("a"))
    async with topic.each(max_pending=10) as reader:
        await eventually(lambda: reader._reader.tracker.subscriptions.is_confirmed)
        async with topic.publisher() as pub:
            for number in range(20):
                await pub.publish(b"%d" % number)
        await eventually(lambda: is_empty(stream), 5)
        assert await numbers(reader, 1) == [0]
        async with topic.publisher() as pub:
            await (await pub.publish(b"20"))
        await asyncio.sleep(0.1)
        got = []
        with pytest.raises(jsclient.HistoryTruncatedError):
            while True:
                got.append(int((await within(5, reader.next())).data))
        assert got == [*range(1, 10)]


async def is_empty(stream: OwnStream) -> bool:
    return (await stream.state())["messages"] == 0


# 22 big records w/o direct
async def test_big_records_without_direct_gets(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream()
    for number in range(40):
        await js.publish(stream.subject("a"), b"%d" % number + b" " * 500_000)
    log = await find_log(js._context, stream.subject("a"))
    asked = []
    history = log.history

    async def counted(since: int, limit: int, max_bytes: int) -> Any:
        page = await history(since, limit, max_bytes)
        asked.append(sum(r.size for r in page.records))
        return page

    log.history = counted  # type: ignore[method-assign]
    async with await open_reader(log, push=None, max_pending_bytes=2_000_000) as reader:
        assert await numbers(reader, 40, 20) == [*range(40)]
    print(asked)
    assert max(asked) < 4_000_000
    assert sum(asked) < 60_000_000


# chained restarts
async def test_chained_idle_restart(connect: Any, own_server: Any, oracle_for: Any) -> None:
    own = await own_server()
    js = await connect(own)
    await js.create_stream("S", subjects=["a"], duplicate_window=0.2)
    async with js.topic("a").publisher(chained=True) as pub:
        await (await pub.publish(b"0"))
        await asyncio.sleep(0.5)
        await own.stop()
        await own.start()
        await within(10, js.topic("a").log())
        await (await pub.publish(b"1"))


async def test_chained_503(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.publisher(chained=True) as pub:
        await (await pub.publish(b"0"))
        await oracle.update_stream(stream.name, subjects=[stream.subject("other")], republish=None)
        one = await pub.publish(b"1")
        await asyncio.sleep(0.05)
        await oracle.update_stream(stream.name, subjects=[stream.all])
        two = await pub.publish(b"2")
        await within(10, asyncio.gather(one, two))


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.each(quiet=float("nan")),
        lambda t: t.each(quiet="5"),
        lambda t: t.each(quiet=-1),
        lambda t: t.each(quiet=True),
        lambda t: t.each(max_pending="x"),
        lambda t: t.each(max_pending=float("nan")),
        lambda t: t.each(max_pending=1.5),
        lambda t: t.each(max_pending=0),
        lambda t: t.each(push=[]),
        lambda t: t.each(push=""),
        lambda t: t.each(start=__import__("datetime").datetime(2024, 1, 1)),
        lambda t: t.each(start=7),
        lambda t: t.each(start=None),
        lambda t: t.publisher(max_in_flight="x"),
        lambda t: t.publisher(max_in_flight=0),
        lambda t: t.work("g", ack_wait=float("nan")),
        lambda t: t.latest(quiet=float("nan")),
        lambda t: t.latest(quiet="x"),
    ],
)
async def test_user_errors(js: Any, oracle: Any, stream: OwnStream, call: Any) -> None:
    with pytest.raises(jsclient.ConfigError) as info:
        await call(js.topic(stream.subject("a")))
    print(info.value)


@pytest.mark.parametrize("bad", [float("nan"), "5", -1, True])
async def test_bad_timeouts(js: Any, oracle: Any, stream: OwnStream, bad: Any) -> None:
    async with js.topic(stream.subject("a")).each() as reader:
        try:
            await within(1, reader.next(bad))
        except BaseException as e:
            print("each", bad, repr(e))
    try:
        await within(1, js.topic(stream.subject("a")).latest().next(bad))
    except BaseException as e:
        print("latest", bad, repr(e))
    await asyncio.sleep(0.01)


async def test_bad_batches(js: Any, oracle: Any, stream: OwnStream) -> None:
    async with js.topic(stream.subject("a")).publisher() as pub:
        await pub.publish(b"1")
    async with js.topic(stream.subject("a")).each() as reader:
        with pytest.raises(jsclient.ConfigError):
            await within(1, anext(reader.batches(0)))


# forged
@pytest.mark.parametrize(
    "headers",
    [
        {"Nats-Time-Stamp": "yesterday", "Nats-Sequence": "1", "Nats-Last-Sequence": "0"},
        {"Nats-Time-Stamp": "", "Nats-Sequence": "1", "Nats-Last-Sequence": "0"},
        {"Nats-Time-Stamp": "2024-01-01T00:00:00Z", "Nats-Sequence": "9" * 30, "Nats-Last-Sequence": "0"},
        {"Nats-Time-Stamp": "2024-13-01T00:00:00.5Z", "Nats-Sequence": "7", "Nats-Last-Sequence": "6"},
        {"Nats-Time-Stamp": "2024-01-01T00:00:00Z", "Nats-Sequence": "٣", "Nats-Last-Sequence": "0"},
        {},
    ],
)
async def test_forged(js: Any, oracle: Any, stream: OwnStream, headers: Any, events: list[Any]) -> None:
    topic = js.topic(stream.subject("a"))
    async with topic.each(quiet=0.5) as reader:
        await eventually(lambda: reader._reader.tracker.subscriptions.is_confirmed)
        full = {"Nats-Stream": stream.name, "Nats-Subject": stream.subject("a"), **headers}
        await oracle.nc.publish("live." + stream.subject("a"), b"x", headers=full)
        await oracle.nc.flush()
        await asyncio.sleep(0.05)
        async with topic.publisher() as pub:
            await pub.publish(b"1")
        try:
            r = await within(3, reader.next())
            print(r, reader.position)
        except BaseException as e:
            print(repr(e))
        print(events)


async def test_mirror_direct(js: Any, oracle: Any, make_stream: Any) -> None:
    stream = await make_stream(allow_direct=True)
    for number in range(100):
        await js.publish(stream.subject("a"), b"%d" % number)
    await oracle.create_stream(
        stream.name + "M", subjects=[], storage="memory", mirror={"name": stream.name}, max_msgs=10,
        mirror_direct=True, allow_direct=True,
    )
    await eventually(lambda: caught(oracle, stream.name + "M"))
    await asyncio.sleep(1)
    try:
        for _ in range(10):
            async with js.topic(stream.subject("a"), stream=stream.name).each(push=None) as reader:
                assert await numbers(reader, 100) == [*range(100)]
    finally:
        await oracle.delete_stream(stream.name + "M")


async def caught(oracle, name):
    return (await oracle.state(name))["last_seq"] == 100
