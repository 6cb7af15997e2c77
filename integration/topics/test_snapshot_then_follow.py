"""A snapshot of many subjects, then every record after it. A topic with wildcards is one order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from integration.kit.clients.topics import FEEDS, has_push, publish, republishing
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within
from jsclient import ConfigError, HistoryTruncatedError, PositionInvalidError


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await republishing(oracle, make_stream)


async def seqs(reader: Any, count: int) -> list[int]:
    return [(await within(10, reader.next(), "a record")).seq for _ in range(count)]


@pytest.mark.parametrize("push", ["auto", "consumer", None])
async def test_each_after_a_sequence(js: Any, stream: OwnStream, push: Any) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 10)
    for after in (0, 4, 10):
        async with topic.each(after=after, push=push, quiet=0.3) as reader:
            assert reader.position.seq == after
            assert await seqs(reader, 10 - after) == [*range(after + 1, 11)]


async def test_sequence_is_checked(js: Any, stream: OwnStream) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 3)
    with pytest.raises(PositionInvalidError):
        await topic.each(after=4)
    for wrong in (-1, True, "1", 1.0):
        with pytest.raises(ConfigError, match="after"):
            topic.each(after=wrong)
    with pytest.raises(ConfigError, match="start and after"):
        topic.each("now", after=1)
    await (await js.stream(stream.name)).purge(seq=3)
    async with topic.each(after=0) as reader:
        with pytest.raises(HistoryTruncatedError):
            await within(10, reader.next(), "the error")


@FEEDS
@pytest.mark.parametrize("direct", [True, False])
async def test_position_of_a_record(
    js: Any, stream: OwnStream, oracle: Any, push: Any, *, direct: bool
) -> None:
    """Read from the history or pushed, it continues after the record."""
    await oracle.update_stream(stream.name, allow_direct=direct)
    topic = js.topic(stream.subject("a"))
    await publish(topic, 0, 5)
    async with topic.each(push=push, quiet=0.3) as reader:
        records = [await within(10, reader.next(), "a stored record") for _ in range(5)]
        if push is not None:
            await has_push(reader)
        await publish(topic, 5, 8)
        for _ in range(3):
            records.append(await within(10, reader.next(), "a new record"))
            assert records[-1].position == reader.position
    for record in records[:-1]:
        for start in (record.position, record.position.to_json()):
            async with topic.each(start, push=push, quiet=0.3) as reader:
                assert await seqs(reader, 1) == [record.seq + 1]
    newest = await within(10, topic.latest().next(), "the newest record")
    assert newest.position == records[-1].position
    assert newest.position.time_ns == newest.time_ns
    waiting = topic.latest(quiet=0.3)
    await waiting.current()
    await publish(topic, 8, 9)
    assert (await within(10, waiting.next(), "a newer record")).position > newest.position


@pytest.mark.server(">=2.11")  # before it, a history is read by another consumer
async def test_wildcards_are_one_order(js: Any, stream: OwnStream, oracle: Any) -> None:
    """By default, though the stream republishes: its pushes are in order within each subject only."""
    topic = js.topic(stream.all)
    async with topic.each("now") as reader:
        await has_push(reader)
        assert len(await stream.consumer_names()) == 1
        chance = random.Random(7)
        async with js.publisher() as pub:
            for number in range(500):
                await pub.publish(stream.subject(f"s{chance.randrange(20)}"), b"%d" % number)
        got = []
        for _ in range(500):
            record = await within(10, reader.next(), "a record")
            got.append(record.seq)
            assert reader.position.seq == record.seq, "nothing is repeated after resuming from here"
        assert got == [*range(1, 501)]
    async with js.topic(stream.subject("s1")).each("now") as reader:
        await has_push(reader)
        assert await stream.consumer_names() == []


@pytest.mark.server(">=2.11")
async def test_snapshot_then_follow(js: Any, stream: OwnStream) -> None:
    topic, handle = js.topic(stream.all), await js.stream(stream.name)
    for number in range(60):
        await js.publish(stream.subject(f"s{number % 20}"), b"%d" % number)
    snapshot = handle.get_last_messages(stream.all)
    table = {message.subject: message.data async for message in snapshot}
    assert len(table) == 20
    for number in range(60, 100):
        await js.publish(stream.subject(f"s{number % 20}"), b"%d" % number)
    async with topic.each(after=snapshot.up_to_seq) as reader:
        for _ in range(40):
            record = await within(10, reader.next(), "a change")
            table[record.subject] = record.data
    assert table == {stream.subject(f"s{number % 20}"): b"%d" % number for number in range(80, 100)}
