"""Draining: the messages that have arrived are handled, then the consumer goes. Source: ADR-15 §Drain."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import EventReader, alarms, numbers, of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match
from integration.kit.network.deletes import DELETES, NO_DELETE

DURABLES = {"ephemeral": {}, "durable": {"durable": "d"}, "queue": {"queue": "q"}}


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


async def is_removed(stream: OwnStream) -> bool:
    return await stream.consumer_names() == []


@pytest.mark.core_cases(1)
@pytest.mark.row(119, 123)
@pytest.mark.covers("J110", "J113")
@pytest.mark.parametrize("kind", DURABLES)
async def test_drain_handles_acks_deletes(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], kind: str
) -> None:
    handled: list[int] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.001)
        handled.extend(numbers([message]))

    sub = await near.subscribe(stream.all, callback=handle, delete_on_close=True, **DURABLES[kind])
    publishing = asyncio.create_task(stream.publish(800))
    await eventually(lambda: len(handled) > 20, what="some handled")
    await sub.drain()
    count = len(handled)
    deliveries, acks = tap.find(match.is_data), tap.find(match.is_ack)
    assert handled == [match.stream_seq(frame) for frame in deliveries]
    assert [frame.subject for frame in acks] == [frame.reply for frame in deliveries]
    assert {frame.payload for frame in acks} == {b"+ACK"}
    [ended], [deleted] = tap.unsubs(), tap.sent(DELETES)
    assert ended.number < deleted.number
    assert max(frame.number for frame in (*deliveries, *acks)) < deleted.number
    assert await is_removed(stream)
    assert sub.is_closed
    await publishing
    assert len(handled) == count
    assert [type(event) for event in alarms(events)] == (
        [] if kind == "ephemeral" else [jsclient.DurableDeleted]
    )


@pytest.mark.covers("J110", "J113")
@pytest.mark.parametrize("kind", DURABLES)
async def test_drain_without_callback(tap: Any, near: Any, stream: OwnStream, kind: str) -> None:
    sub = await near.subscribe(stream.all, **DURABLES[kind])
    await stream.publish(5)
    await eventually(lambda: sub.pending == 5, what="five wait")
    await within(5, sub.drain(), "drain")
    await near.ping()
    assert tap.sent(DELETES) == []
    await stream.publish(1, first=6)
    got = []
    async for message in sub:
        await message.ack_sync(timeout=5)
        got += numbers([message])
    assert got == [1, 2, 3, 4, 5]
    await eventually(lambda: is_removed(stream), what="the consumer is deleted")
    [deleted] = tap.sent(DELETES)
    assert max(frame.number for frame in tap.find(match.is_ack)) < deleted.number
    with pytest.raises(jsclient.ClosedError):
        await sub.next(timeout=1)


@pytest.mark.smoke
@pytest.mark.covers("J110")
async def test_drain_waits_in_flight(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.all)
    tap.stall("to_client")
    await stream.publish(3)
    await stream.oracle.wait_consumer(
        stream.name, sub.consumer, lambda info: info["delivered"]["consumer_seq"] == 3, what="the deliveries"
    )
    assert sub.pending == 0
    draining = asyncio.create_task(sub.drain())
    await eventually(tap.unsubs, what="the drain")
    tap.unstall()
    await draining
    assert sub.pending == 3
    assert numbers([message async for message in sub]) == [1, 2, 3]
    await eventually(lambda: is_removed(stream), what="the consumer is deleted")


@pytest.mark.row(126)
@pytest.mark.covers("J110", "J113")
async def test_idle_subscription_drained_at_once(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.all, config=jsclient.ConsumerConfig(idle_heartbeat=0.2))
    await tap.wait_for(match.is_heartbeat)
    await within(5, sub.drain(), "drain")
    assert await is_removed(stream)
    await sub.drain()
    await sub.unsubscribe()
    assert len(tap.sent(DELETES)) == 1


@pytest.mark.row(122)
@pytest.mark.covers("J111")
@pytest.mark.parametrize("kind", ["callback", "read after", "idle", "pull"])
async def test_deletion_failed_reported_and_not_raised(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any], kind: str
) -> None:
    own = await own_server(config=NO_DELETE)
    stream = await make_stream(oracle=await oracle_for(own, user="oracle", password="o"))
    js = await connect(own, user="u", password="p")
    if kind == "pull":
        sub = await js.pull_subscribe(stream.all)
    else:
        sub = await js.subscribe(stream.all, callback=(lambda _: None) if kind == "callback" else None)
    reader = EventReader(sub)
    if kind == "read after":
        await stream.publish(1)
        await eventually(lambda: sub.pending == 1, what="a message waits")
    await sub.drain()
    if kind == "read after":
        assert [message.data async for message in sub] == [b"1"]
    failed = await wait_for_event(jsclient.DeleteFailed, events)
    assert (failed.stream, failed.consumer) == (stream.name, sub.consumer)
    assert isinstance(failed.error, jsclient.PermissionDeniedError)
    assert sub.is_closed
    assert await stream.consumer_names() == [sub.consumer]
    await within(5, reader.task, "the end of sub.events()")
    assert of(jsclient.DeleteFailed, reader.events) == [failed]


@pytest.mark.covers("J110")
async def test_stuck_handler_ends_drain(near: Any, stream: OwnStream) -> None:
    started = asyncio.Event()

    async def handle(_: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    sub = await near.subscribe(stream.all, callback=handle)
    await stream.publish(2)
    await within(5, started.wait(), "the handler's start")
    beginning = time.monotonic()
    with pytest.raises(jsclient.RequestTimeoutError):
        await sub.drain(timeout=0.5)
    assert 0.5 <= time.monotonic() - beginning < 20
    assert sub.is_closed
    assert await is_removed(stream)


@pytest.mark.covers("J110", "J113")
async def test_drain_inside_handler(tap: Any, near: Any, stream: OwnStream) -> None:
    handled: list[int] = []

    async def handle(message: Any) -> None:
        handled.extend(numbers([message]))
        if handled == [1]:
            await eventually(lambda: sub.pending == 4, what="four more wait")
            await sub.drain()

    sub = await near.subscribe(stream.all, callback=handle)
    await stream.publish(5)
    await eventually(lambda: sub.is_closed, 10, "the end")
    assert handled == [1, 2, 3, 4, 5]
    await eventually(lambda: is_removed(stream), what="the consumer is deleted")
    acks, [deleted] = tap.find(match.is_ack), tap.sent(DELETES)
    assert len(acks) == 5
    assert max(frame.number for frame in acks) < deleted.number


@pytest.mark.covers("J108", "J110")
async def test_unsubscribe_inside_handler(near: Any, stream: OwnStream) -> None:
    handled: list[int] = []

    async def handle(message: Any) -> None:
        handled.extend(numbers([message]))
        await eventually(lambda: sub.pending == 4, what="four more wait")
        await sub.unsubscribe()

    sub = await near.subscribe(stream.all, callback=handle)
    await stream.publish(5)
    await eventually(lambda: is_removed(stream), what="the consumer is deleted")
    await near.ping()
    assert handled == [1]


@pytest.mark.row(126)
@pytest.mark.covers("J110", "J112")
async def test_drain_keeps_found_consumer(near: Any, stream: OwnStream) -> None:
    # Long enough that nothing is delivered again before the subscription has ended.
    await stream.create_consumer("there", deliver_subject=f"deliver.{stream.prefix}", ack_wait=4 * 10**9)
    sub = await near.subscribe(stream=stream.name, consumer="there")
    await stream.publish(3)
    await eventually(lambda: sub.pending == 3, what="three wait")
    await sub.drain()
    taken = [message async for message in sub]
    await taken[0].ack_sync(timeout=5)
    again = await near.subscribe(stream=stream.name, consumer="there")
    messages = [await again.next(timeout=30) for _ in range(2)]
    assert sorted(numbers(messages)) == [2, 3]
    assert {message.metadata.num_delivered for message in messages} == {2}


@pytest.mark.covers("J110")
async def test_p20_drain_after_empty_fetch(near: Any, stream: OwnStream, events: list[Any]) -> None:
    """P20: a 408 that stayed in the queue held drain until its timeout."""
    sub = await near.pull_subscribe(stream.all)
    for _ in range(3):
        batch = await sub.fetch(1, expires=0.1)
        assert (len(batch), batch.ending) == (0, jsclient.Ending.EXPIRED)
    await within(3, sub.drain(), "drain")
    await within(3, near.close(), "close")
    assert await is_removed(stream)
    assert alarms(events) == []


@pytest.mark.covers("J110", "J113")
async def test_a_cancelled_drain_continues(js: Any, stream: OwnStream) -> None:
    """A second call waits for its end, and the consumer is deleted."""
    handled: list[Any] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.2)
        handled.append(message)

    sub = await js.subscribe(stream.all, durable="d", callback=handle)
    await stream.publish(4)
    await eventually(lambda: sub.pending, what="some wait")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await sub.drain()
    await within(5, sub.drain(), "the second call")
    assert numbers(handled) == [1, 2, 3, 4]
    assert await stream.consumer_names() == []


async def test_drain_with_uncancellable_handler(js: Any, stream: OwnStream) -> None:
    seen: list[Any] = []
    may_end = asyncio.Event()

    async def handle(message: Any) -> None:
        seen.append(message)
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()

    sub = await js.subscribe(stream.all, callback=handle)
    await stream.publish(5)
    await eventually(lambda: seen, what="the first")
    with pytest.raises(jsclient.RequestTimeoutError):
        await within(30, sub.drain(timeout=0.2), "drain")
    may_end.set()
    await never(lambda: len(seen) > 1, 1.0, "a message after the drain")
