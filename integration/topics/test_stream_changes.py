"""Readers of a topic while their stream is changed, mirrored, purged or created again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.clients.topics import FEEDS, has_push, live, publish, read, republishing
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.asking import api_requests


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await republishing(oracle, make_stream)


async def has_last(oracle: Any, stream: str, seq: int) -> bool:
    return bool((await oracle.state(stream))["last_seq"] == seq)


async def answers(oracle: Any, stream: str, status: int) -> bool:
    """Whether a direct get of the first message was answered with this status, by any replica."""
    answer = await oracle.nc.request(f"$JS.API.DIRECT.GET.{stream}", b'{"seq":1}', timeout=2)
    return (answer.headers or {}).get("Status") == str(status)


async def is_empty(stream: OwnStream) -> bool:
    return bool((await stream.state())["messages"] == 0)


@FEEDS
async def test_a_new_stream_that_is_longer(js: Any, oracle: Any, stream: OwnStream, push: Any) -> None:
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


async def test_direct_gets_switched_off(js: Any, oracle: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 4)
    async with topic.each(push=None, quiet=0.1, max_pending=2) as reader:
        assert await read(reader, 1) == [0]
        await oracle.update_stream(stream.name, allow_direct=False)
        assert await read(reader, 3) == [1, 2, 3]


@FEEDS
async def test_a_subject_transform(js: Any, oracle: Any, make_stream: Any, push: Any) -> None:
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
async def test_a_mirror_that_stores_less(js: Any, oracle: Any, make_stream: Any) -> None:
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


@FEEDS
async def test_purge_of_unread_linked_records(js: Any, oracle: Any, stream: OwnStream, push: Any) -> None:
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


async def test_records_expire_while_buffer_full(js: Any, oracle: Any, make_stream: Any) -> None:
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
            lambda: (
                (reader.pending, tracker.discarded, len(tracker._out_of_order._records))
                != (held, discarded, 0)
            )
        )
        assert await read(reader, 9) == [*range(1, 10)]
        with pytest.raises(jsclient.HistoryTruncatedError):
            await within(5, reader.next(), "what follows")


# --- the newest record, in a stream that is created again ------------------------------------------------------


@pytest.fixture(params=["direct pushed", "direct", "pushed", ""])
async def three(request: Any, js: Any, oracle: Any, make_stream: Any) -> str:
    """The subject of a stream with three records, with and without direct gets and pushes."""
    republish = {"republish": {"src": ">", "dest": "again.>"}} if "pushed" in request.param else {}
    stream = await make_stream(allow_direct="direct" in request.param, **republish)
    subject: str = stream.subject("a")
    for number in range(3):
        await js.publish(subject, b"old %d" % number)
    return subject


async def create_again(js: Any, subject: str) -> str:
    """Replace the stream of a subject by an empty one. Returns its name."""
    (name,) = [name async for name in js.stream_names(subject)]
    config = (await js.stream(name)).config
    await js.delete_stream(name)
    await js.create_stream(config)
    return str(name)


def assert_first_of_another(record: Any, old: Any) -> None:
    """The record is the first record of a stream that replaced the old stream."""
    assert (record.data, record.seq) == (b"new", 1)
    assert record.position.incarnation != old.position.incarnation


async def test_position_of_latest_in_a_recreated_stream(js: Any, three: str) -> None:
    """Other readers accept it: it names the stream that exists now."""
    topic = js.topic(three)
    reader = topic.latest(quiet=0.2)
    old = await within(10, reader.next(), "the newest record")
    await create_again(js, three)
    await js.publish(three, b"new")
    assert_first_of_another(await within(20, reader.next(), "the record of the new stream"), old)
    await js.publish(three, b"newer")
    record = await within(10, reader.next(), "the next record")
    await js.publish(three, b"newest")
    async with topic.since(record.position) as after:
        assert (await after.next(timeout=10)).data == b"newest"


async def test_position_of_latest_asked_while_the_new_stream_is_empty(
    js: Any, connect: Any, proxy: Any, three: str
) -> None:
    tap = await proxy()
    reader = (await connect(tap)).topic(three).latest(quiet=0.2)
    old = await within(10, reader.next(), "the newest record")
    leader = f"STREAM.MSG.GET.{await create_again(js, three)}"
    mark = len(tap.frames)
    reading = asyncio.ensure_future(reader.next())
    await eventually(lambda: len(api_requests(tap, leader, mark)) > 2, 20, "answers that no record exists")
    await js.publish(three, b"new")
    record = await within(20, reading, "the record of the new stream")
    assert_first_of_another(record, old)
    await js.publish(three, b"newer")
    async with js.topic(three).since(record.position) as after:
        assert (await after.next(timeout=10)).data == b"newer"


@pytest.mark.core_cases(3)
@pytest.mark.parametrize("waiting", [True, False])
async def test_latest_in_a_new_stream_of_the_same_length(js: Any, three: str, waiting: bool) -> None:
    """Its newest record is returned once, even to a read that another read overtakes."""
    reader = js.topic(three).latest(quiet=0.2)
    old = await within(10, reader.next(), "the newest record")
    await create_again(js, three)
    for number in range(3):
        await js.publish(three, b"new %d" % number)
    reading = asyncio.ensure_future(reader.next()) if waiting else None
    if waiting:
        assert (await within(10, reader.current(), "the newest record of the new stream")).data == b"new 2"
    record = await within(20, reading or reader.next(), "the record of the new stream")
    assert (record.data, record.seq) == (b"new 2", 3)
    assert record.position.incarnation != old.position.incarnation
    with pytest.raises(jsclient.RequestTimeoutError):
        await reader.next(timeout=0.5)
    await js.publish(three, b"newest")
    assert (await within(10, reader.next(), "the next record")).data == b"newest"
    reading = asyncio.ensure_future(reader.next())
    await js.publish(three, b"last")
    assert (await within(10, reading, "a record that is pushed")).data == b"last"
    with pytest.raises(jsclient.RequestTimeoutError):
        await reader.next(timeout=0.5)
    async with js.topic(three).since(record.position) as after:
        assert (await after.next(timeout=10)).data == b"newest"
