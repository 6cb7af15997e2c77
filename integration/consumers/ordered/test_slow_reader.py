"""The queue of a slow ordered reader is bounded, and no message is lost. Source: ADR-17, ADR-15 §Flow Control."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never

BOUND = 12 * 1024 * 1024
SIZE, COUNT = 10_000, 4_000  # more than the server's window of 32 MiB


async def read_slowly(js: Any, sub: Any, count: int) -> tuple[list[int], int]:
    """Wait for an answer on the same connection after every 20 messages.

    Returns the numbers of the messages, and the most bytes that waited.
    """
    seen: list[int] = []
    most = 0
    while len(seen) < count:
        seen += numbers(await take(sub, 20))
        await js.ping()  # all earlier messages have arrived
        most = max(most, sub.pending_bytes)
    return seen, most


@pytest.mark.core_cases(1)
@pytest.mark.row(34, 108)
@pytest.mark.covers("J93")
@pytest.mark.parametrize("max_consumers", [-1, 1])
async def test_bounded_without_a_drop(
    oracle: Any,
    js: Any,
    make_stream: Callable[..., Awaitable[OwnStream]],
    events: list[Any],
    max_consumers: int,
) -> None:
    stream = await make_stream(max_consumers=max_consumers)
    await stream.publish(COUNT, size=SIZE)
    async with js.subscribe(stream.all, ordered=True) as sub:
        first = sub.consumer
        seen, most = await read_slowly(js, sub, COUNT)
        assert seen == list(range(1, COUNT + 1))
        assert 0 < most <= BOUND
        assert sub.dropped == 0
        assert sub.consumer != first
        resets = of(jsclient.ConsumerReset, events)
        assert resets
        assert all(reset.planned and reset.severity == "info" for reset in resets)
        assert len(alarms(events)) == len(resets)

        async def one_remains() -> bool:
            return await stream.consumer_names() == [sub.consumer]

        await eventually(one_remains, what="the old consumers are deleted")


@pytest.mark.full
@pytest.mark.covers("J93")
async def test_reader_becomes_slow(js: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.publish(2 * COUNT, size=SIZE)
    async with js.subscribe(stream.all, ordered=True) as sub:
        fast = numbers(await take(sub, COUNT, 60))  # the server's window has grown to all of its 32 MiB
        await eventually(lambda: sub.dropped, what="an overflow")
        await never(lambda: sub.pending_bytes > BOUND, 0.2, "more than the bound")
        seen, most = await read_slowly(js, sub, COUNT)
        assert fast + seen == list(range(1, 2 * COUNT + 1))
        assert most <= BOUND


@pytest.mark.covers("J93")
async def test_not_where_delivery_removes(
    oracle: Any, js: Any, make_stream: Callable[..., Awaitable[OwnStream]], events: list[Any]
) -> None:
    """A stream with interest retention removes what was delivered to a consumer without acks: the consumer stays."""
    stream = await make_stream(retention="interest")
    async with js.subscribe(stream.all, ordered=True) as sub:
        first = sub.consumer
        await stream.publish(COUNT, size=SIZE)
        seen, most = await read_slowly(js, sub, COUNT)
        assert seen == list(range(1, COUNT + 1))
        assert most > BOUND
        assert sub.consumer == first
        assert alarms(events) == []


@pytest.mark.covers("J93")
async def test_stream_replaced_meanwhile(js: Any, oracle: Any, stream: OwnStream, events: list[Any]) -> None:
    """The reader resumes before missed heartbeats could reveal that the stream was deleted and created again."""
    await stream.publish(400, size=SIZE)
    async with js.subscribe(stream.all, ordered=True, max_pending_bytes=1_000_000) as sub:
        await eventually(lambda: sub.dropped, what="an overflow")
        waiting = sub.pending
        await stream.delete()
        await oracle.create_stream(stream.name, [stream.all], storage="memory")
        await stream.publish(5, first=1001)
        assert numbers(await take(sub, waiting)) == list(range(1, waiting + 1))
        assert numbers(await take(sub, 5)) == [1001, 1002, 1003, 1004, 1005]
        assert (await wait_for_event(jsclient.StreamReset, events)).last_stream_seq == waiting
