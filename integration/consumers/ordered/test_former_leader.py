"""A leader that was cut off reports the end it knew until it hears of its successor: no reader restarts for that."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import TO_CLIENT, Frame

QUICK = jsclient.ConsumerConfig(idle_heartbeat=0.25)


class FormerLeader:
    """Answers requests for stream info: the stream has three replicas, and its last sequence is ``end``."""

    def __init__(self, proxy: Proxy) -> None:
        self.end: int | None = None
        self.answers = 0
        proxy.modify_frames(self._is_info, self._changed)

    @staticmethod
    def _is_info(frame: Frame) -> bool:
        return frame.direction == TO_CLIENT and b"stream_info_response" in frame.payload

    def _changed(self, frame: Frame) -> bytes:
        answer = json.loads(frame.payload)
        answer["config"]["num_replicas"] = 3
        if self.end is not None:
            self.answers += 1
            answer["state"]["last_seq"] = self.end
        return frame.but(payload=json.dumps(answer).encode()).raw


async def by_push(js: Any, stream: OwnStream) -> Any:
    return await js.subscribe(stream.all, ordered=True, config=QUICK)


async def by_pull(js: Any, stream: OwnStream) -> Any:
    return await js.ordered_consumer(stream.name)


async def taken(reader: Any, count: int) -> list[int]:
    if isinstance(reader, jsclient.OrderedConsumer):
        return [int((await within(20, reader.next(timeout=20), "a message")).data) for _ in range(count)]
    return numbers(await take(reader, count))


@pytest.fixture(params=[by_push, by_pull], ids=["push", "pull"])
async def at_twenty(request: Any, proxy: Any, connect: Any, stream: OwnStream) -> tuple[Any, FormerLeader]:
    """A reader that has read 20 messages, and reconnects to a former leader, which knows ten."""
    between = await proxy()
    former = FormerLeader(between)
    js = await connect(between)
    await stream.publish(20)
    reader = await request.param(js, stream)
    assert await taken(reader, 20) == list(range(1, 21))
    former.end = 10
    between.cut()
    await eventually(lambda: former.answers >= 2, 20, "the end of the stream is asked again")
    return reader, former


async def test_reads_on_without_doubles(
    at_twenty: tuple[Any, FormerLeader], stream: OwnStream, events: list[Any]
) -> None:
    reader, former = at_twenty
    await stream.publish(5, first=21)
    assert await taken(reader, 5) == [21, 22, 23, 24, 25]
    former.end = None
    await stream.publish(1, first=26)
    assert await taken(reader, 1) == [26]
    assert not of(jsclient.StreamReset, events)


@pytest.mark.full
async def test_restored_stream_read_again(
    at_twenty: tuple[Any, FormerLeader], stream: OwnStream, events: list[Any]
) -> None:
    """The answer is repeated for ten seconds: the stream has lost messages, and is read from its start."""
    reader, _ = at_twenty
    first = asyncio.create_task(taken(reader, 1))
    reset = await wait_for_event(jsclient.StreamReset, events, timeout=30)
    assert (reset.last_stream_seq, reset.stream_seq) == (20, 10)
    assert await within(20, first, "the first message") == [1]
