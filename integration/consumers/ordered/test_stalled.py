"""An ordered reader that receives nothing reports why, and not while it replaces its consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient.events import ConsumerResumed, ConsumerStalled

AFTER = 0.4  # seconds, in place of 25
READERS = ["next", "fetch", "iteration", "push"]


@pytest.fixture
async def quick(connect: Callable[..., Awaitable[Any]], server: ServerUnderTest) -> Any:
    return await connect(server, stall_after=AFTER)


async def opened(js: Any, stream: OwnStream, way: str) -> Any:
    if way == "push":
        return await js.subscribe(stream.all, ordered=True)
    return await js.ordered_consumer(stream.name)


async def read(reader: Any, way: str) -> Any:
    """Read until a message comes."""
    if way == "iteration":
        async for message in reader:
            return message
    while True:
        try:
            if way != "fetch":
                return await reader.next(timeout=0.3)
            if batch := await reader.fetch(1, expires=0.3):
                return batch[0]
        except jsclient.RequestTimeoutError:
            pass


@pytest.mark.core_cases(2)
@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("way", READERS)
async def test_paused_reported(quick: Any, stream: OwnStream, events: list[Any], way: str) -> None:
    reader = await opened(quick, stream, way)
    own = await (await quick.stream(stream.name)).consumer(reader.consumer)
    await own.pause(600)
    await stream.publish(2)
    reading = asyncio.create_task(read(reader, way))
    event = await wait_for_event(ConsumerStalled, events)
    assert (event.reason, event.consumer) == ("paused", reader.consumer)
    assert "2 messages wait" in event.evidence
    await own.resume()
    assert (await reading).metadata.stream_seq == 1
    assert (await wait_for_event(ConsumerResumed, events)).reason == "paused"
