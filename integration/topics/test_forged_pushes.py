"""Records forged by a client that may publish to the subject to which a stream republishes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.kit.clients.topics import has_push, publish, read, republishing
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import never, within
from jsclient.protocol.topics.record_codec import republished_subject

MAX = 2**64


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await republishing(oracle, make_stream)


async def forge(js: Any, stream: OwnStream, dest: str, seq: int, previous: int, data: bytes) -> None:
    subject = stream.subject("a")
    lines = (
        f"Nats-Stream: {stream.name}\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\n"
        f"Nats-Time-Stamp: 2026-01-31T12:00:00.5Z\r\nNats-Last-Sequence: {previous}\r\n"
    )
    await js._connection.publish(dest, data, header=f"NATS/1.0\r\n{lines}\r\n".encode())


async def destination(js: Any, stream: OwnStream) -> str:
    config = (await js.stream(stream.name)).config
    actual = republished_subject(config.republish, stream.subject("a"))
    assert actual is not None
    return actual


FORGED = [(MAX, 3), (MAX - 1, 3), (1_000_000, 3), (6, 3), (0, 0), (4, 4), (4, 9)]
"""Sequence and predecessor of a forged record; the third one is the last that is stored."""


@pytest.mark.parametrize(("seq", "previous"), FORGED)
async def test_forged_jump_hides_no_record(js: Any, stream: OwnStream, seq: int, previous: int) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 1, 4)
    dest = await destination(js, stream)
    async with topic.each(push="republish", quiet=600) as reader:
        assert await read(reader, 3) == [1, 2, 3]
        await has_push(reader)
        await forge(js, stream, dest, seq, previous, b"666")
        await js.ping()
        await asyncio.sleep(0.2)  # the reader has had the time to believe it
        await publish(topic, 4, 8)
        assert await within(5, read(reader, 4), "the stored records") == [4, 5, 6, 7]
        assert reader.position.seq == 7


@pytest.mark.parametrize(("seq", "previous"), FORGED)
async def test_forged_jump_is_never_the_newest(js: Any, stream: OwnStream, seq: int, previous: int) -> None:
    topic = js.topic(stream.subject("a"))
    await publish(topic, 1, 4)
    dest = await destination(js, stream)
    reader = topic.latest(quiet=600)
    assert (await reader.next(5)).data == b"3"
    waiting = asyncio.create_task(reader.next())
    await js.ping()
    await asyncio.sleep(0.2)
    await forge(js, stream, dest, seq, previous, b"666")
    await never(waiting.done, 0.2, "a forged record")
    await publish(topic, 4, 5)
    assert (await within(5, waiting, "the newest record")).data == b"4"
