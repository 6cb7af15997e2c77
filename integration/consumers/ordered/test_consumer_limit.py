"""An ordered reader whose consumer is gone, in a stream that has reached its limit of consumers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import numbers, of, take, wait_for_event
from integration.kit.judge.waiting import eventually
from integration.kit.network import match

CREATES = "$JS.API.CONSUMER.CREATE.>"


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy, whose requests time out soon."""
    return await connect(tap, timeout=3.0)


@pytest.mark.parametrize("way", ["push", "pull"])
async def test_refused_consumer_is_reported(
    tap: Any, near: Any, oracle: Any, make_stream: Any, events: list[Any], way: str
) -> None:
    """By the answer to the first attempt, once, with the limit. It reads on as soon as there is room."""
    stream = await make_stream(max_consumers=1)
    if way == "push":
        config = jsclient.ConsumerConfig(idle_heartbeat=0.2)
        reader = await near.subscribe(stream.all, ordered=True, config=config)
    else:
        reader = await near.ordered_consumer(stream.name)
    await stream.publish(2)
    assert numbers(await take(reader, 2)) == [1, 2]
    waiting = asyncio.ensure_future(reader.next(60))  # a pull request, which hears of the deletion
    name = reader.consumer
    if way == "pull":
        await stream.until_asked(name)
    held = tap.hold_frames(match.published(CREATES), count=1)
    await stream.delete_consumer(name)
    await held.wait()
    await stream.create_consumer("there")
    held.release()
    refused = await wait_for_event(jsclient.ConsumerRefused, events)
    assert isinstance(refused.error, jsclient.ConsumerLimitError)
    assert (refused.stream, refused.consumer, refused.error.limit) == (stream.name, name, 1)
    assert "its max_consumers is 1, and it has 1: raise it, or delete consumers" in str(refused)
    assert "gets nothing new" in str(refused)
    count = len(tap.sent(CREATES))
    await eventually(lambda: len(tap.sent(CREATES)) >= count + 3, what="further attempts")
    await stream.publish(1, first=3)
    await stream.delete_consumer("there")
    assert numbers([await waiting]) == [3]
    assert len(of(jsclient.ConsumerRefused, events)) == 1
    await reader.close()


async def test_refusal_after_other_trouble_is_reported(
    tap: Any, near: Any, oracle: Any, make_stream: Any, events: list[Any]
) -> None:
    """The first attempts fail for another reason, which is reported. The limit is reported, too."""
    stream = await make_stream(max_consumers=1)
    reader = await near.ordered_consumer(stream.name)
    waiting = asyncio.ensure_future(reader.next(60))
    await stream.until_asked(reader.consumer)
    lost = tap.hold_frames(match.published(CREATES), count=2)
    await stream.delete_consumer(reader.consumer)
    await lost.wait()
    await stream.create_consumer("there")
    await wait_for_event(
        jsclient.ErrorRaised, events, lambda e: isinstance(e.error, jsclient.RequestTimeoutError)
    )
    lost.release()
    await wait_for_event(jsclient.ConsumerRefused, events)
    await stream.delete_consumer("there")
    await stream.publish(1)
    assert numbers([await waiting]) == [1]
    await reader.close()
