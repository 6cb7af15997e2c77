"""Defects that were found by reading: each once failed as described."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import jsclient
import jsclient.server
from integration.kit.judge.reading import alarms, numbers, of, take, told
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match

DENIED = """
accounts { A { jetstream: enabled, users: [
  { user: a, password: b, permissions: { publish: ">", subscribe: "nothing" } }
] } }
"""
FLOW = jsclient.ConsumerConfig(flow_control=True, idle_heartbeat=0.3, ack_policy="none")
CREATES = "$JS.API.CONSUMER.CREATE.>"


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap, reconnect_time_wait=0.1, timeout=2.0)


@pytest.mark.row(37)
@pytest.mark.covers("J100")
async def test_an_answer_to_flow_control_that_was_lost_is_given_again(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """The subject counted as answered, so the stalled heartbeats were ignored and the consumer stood still for ever."""
    await stream.publish(1000, size=10_000)
    lost = tap.drop_frames(match.is_flow_control_reply, count=1)
    sub = await near.subscribe(stream.all, config=FLOW)
    assert numbers(await take(sub, 1000)) == list(range(1, 1001))
    assert lost.count == 1
    assert (await told(jsclient.FlowControlStalled, events)).subject == lost.frames[0].subject


@pytest.mark.row(37)
@pytest.mark.covers("J100")
async def test_an_answer_to_flow_control_that_could_not_be_sent_is_given_after_the_reconnect(
    tap: Any, near: Any, stream: OwnStream
) -> None:
    await stream.publish(1000, size=10_000)
    sub = await near.subscribe(stream.all, durable="d", config=FLOW)
    await eventually(lambda: tap.find(match.is_flow_control), what="a request")
    await near.ping()
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected, what="the disconnect")
    waiting = sub.pending
    got = await take(sub, waiting)
    await tap.accept()
    got += await take(sub, 1000 - waiting)
    assert numbers(got) == list(range(1, 1001))


@pytest.mark.row(108)
@pytest.mark.covers("J93")
async def test_an_ordered_reader_takes_a_message_larger_than_its_queue(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """It made thousands of consumers a second, and never got further."""
    await stream.publish(3, size=5000)
    sub = await near.subscribe(stream.all, ordered=True, max_pending_bytes=1000)
    assert numbers(await take(sub, 3)) == [1, 2, 3]
    assert len(tap.sent(CREATES)) <= 3


@pytest.mark.row(106)
@pytest.mark.covers("J84", "J93")
async def test_a_slow_reader_of_an_ordered_subscription_is_no_silence(
    js: Any, stream: OwnStream, events: list[Any]
) -> None:
    """While it waited for room, what arrived did not count as a sign of life."""
    await stream.publish(300)
    config = jsclient.ConsumerConfig(idle_heartbeat=0.2)
    sub = await js.subscribe(stream.all, ordered=True, config=config, max_pending=100)
    await told(jsclient.SlowConsumer, events)
    await asyncio.sleep(1.5)
    assert of(jsclient.HeartbeatMissed, events) == []
    assert numbers(await take(sub, 300)) == list(range(1, 301))


async def test_an_error_that_is_raised_is_not_told_as_well(
    js: Any, stream: OwnStream, events: list[Any]
) -> None:
    with pytest.raises(jsclient.ApiError):
        await js.subscribe(stream.all, config=jsclient.ConsumerConfig(opt_start_seq=5))
    await js.ping()
    assert alarms(events) == []


async def test_closing_ends_requests_and_pings_under_way(tap: Any, near: Any, stream: OwnStream) -> None:
    """They waited their time out on a closed connection."""
    await near.publish(stream.subject("a"), b"x")
    tap.stall()
    waiting = [
        asyncio.create_task(near.publish(stream.subject("a"), b"x", timeout=30)),
        asyncio.create_task(near.ping(timeout=30)),
    ]
    await asyncio.sleep(0.1)
    await near.close()
    results = await within(5, asyncio.gather(*waiting, return_exceptions=True), "publish and ping")
    assert [type(result) for result in results] == [jsclient.ClosedError] * 2
    tap.unstall()


async def test_closing_with_a_server_that_does_not_answer_takes_one_timeout_not_one_for_each(
    tap: Any, near: Any, stream: OwnStream
) -> None:
    for _ in range(5):
        await near.subscribe(stream.all)
    tap.stall()
    started = time.monotonic()
    await near.close()
    assert time.monotonic() - started < 4.5
    tap.unstall()


@pytest.mark.row(67, 124)
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_the_end_of_a_pull_subscription_ends_its_readers(js: Any, stream: OwnStream, end: str) -> None:
    """The reader read on."""
    await stream.create_consumer("d")
    sub = await js.pull_subscribe(stream=stream.name, consumer="d")
    got: list[Any] = []

    async def read() -> None:
        got.extend([message async for message in sub.messages()])

    reading = asyncio.create_task(read())
    await eventually(lambda: _waiting(stream, 1), what="a pull")
    await getattr(sub, end)()
    await within(5, reading, "the reader")
    await stream.publish(1)
    await asyncio.sleep(0.2)
    assert got == []
    assert await _waiting(stream, 0)


async def _waiting(stream: OwnStream, count: int) -> bool:
    return bool((await stream.consumer_info("d"))["num_waiting"] == count)


@pytest.mark.row(67)
async def test_what_a_loop_that_was_left_had_waiting_the_next_loop_gets(js: Any, stream: OwnStream) -> None:
    """Each loop made a reader of its own, and the messages in those that were left were out of reach."""
    await stream.publish(20)
    sub = await js.pull_subscribe(stream.all)
    got: list[Any] = []

    async def read(count: int) -> None:
        async for message in sub:
            await message.ack()
            got.append(message)
            if len(got) == count:
                break

    await within(5, read(3), "three")
    await within(5, read(20), "the rest")
    assert numbers(got) == list(range(1, 21))


@pytest.mark.row(58)
async def test_the_late_last_word_of_one_fetch_does_not_end_the_next(
    tap: Any, near: Any, stream: OwnStream
) -> None:
    """With a round trip over half a second every fetch was ended by the 408 of the one before."""
    sub = await near.pull_subscribe(stream.all)
    tap.delay(0.4)
    assert len(await sub.fetch(5, expires=0.5)) == 0
    fetching = asyncio.create_task(sub.fetch(5, expires=4))
    await asyncio.sleep(1.2)
    assert not fetching.done()
    await stream.publish(5)
    assert numbers(await fetching) == [1, 2, 3, 4, 5]


@pytest.mark.row(82)
async def test_a_reader_whose_stream_went_while_it_was_away_ends(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """That the consumer is gone was seen, that the stream is gone was not: it asked on for ever."""
    sub = await near.pull_subscribe(stream.all, durable="d")
    reading = asyncio.create_task(sub.messages().next())
    await eventually(lambda: _waiting(stream, 1), what="a pull")
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected, what="the disconnect")
    await stream.delete()
    await tap.accept()
    with pytest.raises(jsclient.ConsumerDeletedError):
        await within(20, reading, "the reader")
    await told(jsclient.ConsumerDeleted, events)


@pytest.mark.covers("J110", "J113")
async def test_a_drain_whose_caller_was_cancelled_goes_on_and_a_second_call_waits_for_it(
    js: Any, stream: OwnStream
) -> None:
    """The consumer stayed, and a second call returned at once."""
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


async def test_a_handler_that_cannot_be_cancelled_does_not_hold_up_a_drain(
    js: Any, stream: OwnStream
) -> None:
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(message)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                pass

    sub = await js.subscribe(stream.all, callback=handle)
    await stream.publish(5)
    await eventually(lambda: seen, what="the first")
    with pytest.raises(jsclient.RequestTimeoutError):
        await within(2.5, sub.drain(timeout=0.2), "drain")
    await asyncio.sleep(2)
    assert len(seen) == 1


async def test_every_request_of_a_user_without_an_inbox_is_refused_by_name() -> None:
    """The first was; those after it waited their time out for answers that could not come."""
    async with jsclient.server.NatsServer(port=0, config=DENIED) as server:
        url = server.url.replace("nats://", "nats://a:b@")
        async with jsclient.connect(url, on_event=lambda _: None) as js:
            for _ in range(3):
                started = time.monotonic()
                with pytest.raises(jsclient.PermissionDeniedError):
                    await js.account_info()
                assert time.monotonic() - started < 2


@pytest.mark.row(63, 79)
async def test_a_reader_holds_no_more_than_it_may_after_many_reconnects(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """It kept its inbox, so the server went on serving the pulls from before each cut beside the new ones."""
    await stream.oracle.create_consumer(stream.name, "d", ack_policy="explicit")
    sub = await near.pull_subscribe(stream=stream.name, consumer="d")
    reader = sub.messages(max_messages=10)
    first = asyncio.create_task(reader.next())
    for cuts in range(1, 6):
        await eventually(lambda: near.is_connected, what="a connection")
        tap.cut()
        await eventually(lambda n=cuts: len(of(jsclient.Reconnected, events)) >= n, what="a reconnect")
    await stream.oracle.wait_consumer(stream.name, "d", lambda info: info["num_waiting"] == 1)
    await stream.publish(100)
    got = [await within(10, first, "the first message")]
    got += [await reader.next(timeout=10) for _ in range(99)]
    assert sorted(numbers(got)) == list(range(1, 101))
    await stream.publish(100)
    await eventually(lambda: reader.pending > 0, what="a message that waits")
    await near.ping()
    assert reader.pending <= 10
    await reader.stop()
