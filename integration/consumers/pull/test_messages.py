"""Reading on and on with `messages()`: a bounded buffer that is kept filled. Source: ADR-37 §Consume, ADR-13."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match
from integration.kit.network.wire import TO_CLIENT

NEXT = "$JS.API.CONSUMER.MSG.NEXT.>"


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap, reconnect_time_wait=0.1)


def pull_requests(tap: Any) -> list[dict[str, Any]]:
    """The bodies of the pull requests, in order."""
    return [json.loads(frame.payload) for frame in tap.sent(NEXT)]


@pytest.mark.row(78)
async def test_first_read_sends_request(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(1)
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages()
    iterator = aiter(sub.messages())
    await near.ping()
    assert pull_requests(tap) == []
    await reader.stop()
    assert numbers([await anext(iterator)]) == [1]
    assert len(pull_requests(tap)) == 1


@pytest.mark.row(63, 64, 80)
@pytest.mark.covers("J103", "J104")
@pytest.mark.parametrize(("size", "threshold"), [(10, 5), (10, 1), (7, 0), (10, None), (1, None)])
async def test_threshold_and_limit_hold(
    tap: Any, near: Any, stream: OwnStream, size: int, threshold: int | None
) -> None:
    await stream.publish(60)
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=size, threshold_messages=threshold)
    most = 0
    for number in range(1, 61):
        assert numbers([await reader.next(timeout=5)]) == [number]
        most = max(most, reader.pending)
        # Asked for, less what was taken: never more than may be held.
        assert sum(one["batch"] for one in pull_requests(tap)) - number <= size
    assert most <= size
    bodies = pull_requests(tap)
    assert bodies[0]["batch"] == size
    at = size // 2 if threshold is None else threshold
    assert {one["batch"] for one in bodies[1:]} <= set(range(max(1, size - at), size + 1))
    assert len(bodies) <= 2 + 60 // max(1, size - at)
    await reader.stop()


@pytest.mark.row(63, 80)
@pytest.mark.parametrize("spare", [10, 0], ids=["some left over", "filled to the byte"])
async def test_its_bytes_are_bounded(tap: Any, near: Any, stream: OwnStream, spare: int) -> None:
    await stream.publish(60, size=1000)
    sub = await near.pull_subscribe(stream.all)
    size = (await sub.fetch(1))[0].size
    limit = 5 * size + spare
    reader = sub.messages(max_bytes=limit)
    for number in range(2, 61):
        assert numbers([await reader.next(timeout=5)]) == [number]
        assert reader.pending * size <= limit
    assert {one["max_bytes"] <= limit for one in pull_requests(tap)[1:]} == {True}
    await reader.stop()


@pytest.mark.row(64, 84)
async def test_buffer_of_one_flows(near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=1)
    for number in range(1, 31):
        waiting = asyncio.create_task(reader.next(timeout=5))
        await stream.publish(1, first=number)
        assert numbers([await waiting]) == [number]
    await reader.stop()


@pytest.mark.row(45, 77)
@pytest.mark.covers("J103", "J104", "J81")
async def test_request_ends_are_hidden(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=10, expires=0.5)
    with pytest.raises(jsclient.RequestTimeoutError):
        await reader.next(timeout=1.3)
    await tap.wait_for(match.with_status("408"))
    waiting = asyncio.create_task(reader.next(timeout=60))
    await eventually(lambda: len(pull_requests(tap)) >= 3, what="further requests")
    await stream.publish(3)
    assert numbers([await waiting, *await take(reader, 2)]) == [1, 2, 3]
    assert alarms(events) == []
    await reader.stop()


@pytest.mark.row(70)
@pytest.mark.covers("J81")
async def test_batch_completed_does_not_stall(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=4)
    waiting = asyncio.create_task(reader.next(timeout=10))
    request = await tap.wait_for(match.published(NEXT))
    headers = {"Nats-Pending-Messages": "4", "Nats-Pending-Bytes": "0"}
    tap.inject_message(request.reply, status="409 Batch Completed", headers=headers)
    await eventually(lambda: len(pull_requests(tap)) == 2, what="another request")
    await stream.publish(6)
    assert numbers([await waiting, *await take(reader, 5)]) == [1, 2, 3, 4, 5, 6]
    await reader.stop()


@pytest.mark.row(65)
@pytest.mark.covers("J105")
@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_deletion_after_messages(tap: Any, near: Any, stream: OwnStream, what: str) -> None:
    await stream.publish(3)
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages()
    assert numbers([await reader.next(timeout=5)]) == [1]
    await eventually(lambda: reader.pending == 2, what="two wait")
    await (stream.delete_consumer(sub.consumer) if what == "consumer" else stream.delete())
    await tap.wait_for(match.with_status("409"))
    assert numbers(await take(reader, 2)) == [2, 3]
    with pytest.raises(jsclient.ConsumerDeletedError):
        await within(5, reader.next(), "the error")
    with pytest.raises((jsclient.ConsumerDeletedError, jsclient.ClosedError)):
        await reader.next(timeout=1)


@pytest.mark.row(47)
@pytest.mark.covers("J105")
async def test_limit_of_consumer_ends_with_error(near: Any, stream: OwnStream) -> None:
    await stream.publish(1)
    await stream.create_consumer("limited", max_batch=5)
    sub = await near.pull_subscribe(stream=stream.name, consumer="limited")
    with pytest.raises(jsclient.PullLimitError):
        await within(5, sub.messages(max_messages=6).next(), "the error")
    assert numbers([await sub.messages(max_messages=5).next(timeout=5)]) == [1]


@pytest.mark.row(82)
@pytest.mark.server(">=2.12")
@pytest.mark.covers("J106")
async def test_no_responders_backs_off(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await near.pull_subscribe(stream=stream.name, consumer="later")
    reader = sub.messages()
    waiting = asyncio.create_task(reader.next(timeout=60))
    raised = await wait_for_event(jsclient.ErrorRaised, events)
    assert isinstance(raised.error, jsclient.ConsumerNotFoundError)
    requests = await eventually(lambda: (sent := tap.sent(NEXT))[4:] and sent, what="five requests")
    pauses = [later.time - one.time for one, later in itertools.pairwise(requests[:5])]
    assert all(pause > 0.04 * 2**n for n, pause in enumerate(pauses)), "from 0.05 s on, doubled"
    await stream.create_consumer("later")
    await stream.publish(1)
    assert numbers([await waiting]) == [1]
    assert len(of(jsclient.ErrorRaised, events)) == 1
    await reader.stop()


@pytest.mark.full
@pytest.mark.row(82)
@pytest.mark.server(">=2.12")
async def test_missing_consumer_ends_reader(near: Any, stream: OwnStream, events: list[Any]) -> None:
    """Its end said that the consumer was deleted, which never existed."""
    sub = await near.pull_subscribe(stream=stream.name, consumer="gone")
    with pytest.raises(jsclient.ConsumerNotFoundError, match=r"'gone' of stream .* not found") as raised:
        await within(20, sub.messages().next(), "the end")
    assert [str(event.error) for event in of(jsclient.ErrorRaised, events)] == [str(raised.value)]
    assert of(jsclient.ConsumerDeleted, events) == []


@pytest.mark.row(67)
async def test_stop_returns_messages(near: Any, stream: OwnStream) -> None:
    await stream.publish(10)
    sub = await near.pull_subscribe(stream.all, config=jsclient.ConsumerConfig(ack_wait=60))
    reader = sub.messages()
    first = await reader.next(timeout=5)
    await first.ack()
    await eventually(lambda: reader.pending == 9, what="nine wait")
    await reader.stop()
    await reader.stop()
    with pytest.raises(jsclient.ClosedError):
        await reader.next(timeout=1)
    again = sub.messages()
    assert sorted(numbers(await take(again, 9, 5))) == list(range(2, 11))
    await again.stop()


@pytest.mark.core_cases(3)
@pytest.mark.row(67)
@pytest.mark.parametrize("how", ["stop", "cancelled stop", "unsubscribe", "stop while it drains"])
@pytest.mark.parametrize("policy", ["explicit", "none"])
async def test_in_flight_at_stop_not_lost(
    tap: Any, near: Any, stream: OwnStream, how: str, policy: str
) -> None:
    await stream.create_consumer("d", ack_policy=policy, ack_wait=60 * 10**9)
    consumer = await (await near.stream(stream.name)).consumer("d")
    reader = consumer.messages()
    waiting = asyncio.create_task(reader.next())
    await stream.until_asked("d")
    await stream.publish(1)
    assert numbers([await waiting]) == [1]
    await waiting.result().ack()
    under_way = tap.hold_frames(lambda frame: frame.direction == "to_client")
    await stream.publish(3, first=2)
    await under_way.wait(3)
    drain = asyncio.create_task(reader.drain()) if "drains" in how else None
    await asyncio.sleep(0)
    stop = asyncio.create_task(consumer.close() if how == "unsubscribe" else reader.stop())
    await tap.wait_for(lambda frame: frame.op == "UNSUB")
    if how.startswith("cancelled"):
        stop.cancel()
        await asyncio.wait({stop})
    under_way.release()
    if not how.startswith("cancelled"):
        await within(5, stop, "the stop")
    if drain is not None:
        await within(5, drain, "the drain")
    if policy == "explicit":
        again = await near.pull_subscribe(stream=stream.name, consumer="d")
        assert sorted(numbers(await within(5, again.fetch(3), "the rest"))) == [2, 3, 4]
    elif how != "unsubscribe":
        # The server sends them once: they stay with the handle.
        assert numbers(await within(5, consumer.fetch(3), "the rest")) == [2, 3, 4]


@pytest.mark.row(69)
async def test_drain_ends_iteration_after_arrived(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(20)
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=10)
    got = numbers([await reader.next(timeout=5)])
    await eventually(lambda: reader.pending == 9, what="nine wait")
    await reader.drain()
    count = len(pull_requests(tap))
    got += numbers([message async for message in reader])
    assert got == list(range(1, len(got) + 1))
    assert len(got) >= 10
    assert len(pull_requests(tap)) == count


@pytest.mark.smoke
@pytest.mark.row(73)
async def test_two_readers_share(near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    got: list[int] = []

    async def read(reader: Any) -> None:
        async for message in reader:
            got.extend(numbers([message]))
            await message.ack()

    readers = [sub.messages(max_messages=5) for _ in range(2)]
    tasks = [asyncio.create_task(read(reader)) for reader in readers]
    await stream.publish(200)
    await eventually(lambda: len(got) == 200, what="all messages")
    for reader in readers:
        await reader.stop()
    await within(5, asyncio.gather(*tasks), "the end of both")
    assert sorted(got) == list(range(1, 201))


@pytest.mark.row(50, 72)
@pytest.mark.covers("J82", "J84")
async def test_silence_renews_request(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=10, expires=10, idle_heartbeat=0.3)
    waiting = asyncio.create_task(reader.next(timeout=20))
    await tap.wait_for(match.is_heartbeat)
    rule = tap.drop_frames(match.is_heartbeat)
    missed = await wait_for_event(jsclient.HeartbeatMissed, events)
    assert missed.silent_for >= 2 * 0.3
    rule.remove()
    await eventually(lambda: len(pull_requests(tap)) >= 2, what="another request")
    await stream.publish(1)
    assert numbers([await waiting]) == [1]
    await reader.stop()


async def test_cancelled_next_loses_nothing(near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=3)
    publishing = asyncio.create_task(stream.publish(200))
    got: list[int] = []
    while len(got) < 200:
        reading = asyncio.create_task(reader.next(timeout=10))
        await asyncio.sleep(0.0005 * (len(got) % 3))
        reading.cancel()
        await asyncio.wait({reading})
        if not reading.cancelled():
            got += numbers([reading.result()])
    assert got == list(range(1, 201))
    await publishing
    await reader.stop()


@pytest.mark.row(81)
async def test_leaving_leaves_nothing(server: Any, oracle: Any, js: Any, stream: OwnStream) -> None:
    await js.stream_names(stream.all).__anext__()
    await stream.publish(50)
    async with (
        no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor),
        await js.pull_subscribe(stream.all) as sub,
    ):
        for _ in range(5):
            async with sub.messages(max_messages=5) as reader:
                async for _ in reader:
                    break
    await never(stream.consumer_names, 0.1, "a consumer")


async def _waiting(stream: OwnStream, count: int) -> bool:
    return bool((await stream.consumer_info("d"))["num_waiting"] == count)


@pytest.mark.row(67, 124)
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_subscription_ends_readers(js: Any, stream: OwnStream, end: str) -> None:
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
    await never(lambda: got, 0.2, "a message after the end")
    assert await _waiting(stream, 0)


@pytest.mark.row(67)
async def test_next_loop_gets_waits(js: Any, stream: OwnStream) -> None:
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


@pytest.mark.row(82)
async def test_stream_deleted_during_disconnect(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
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
    await wait_for_event(jsclient.ConsumerDeleted, events)


@pytest.mark.row(63, 79)
async def test_limits_hold_after_many_reconnects(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """Pulls from before a disconnect are not served beside the new ones."""
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


async def test_close_takes_no_other_message(tap: Any, near: Any, stream: OwnStream) -> None:
    """The messages that no fetch has asked for keep their only delivery."""
    await stream.publish(3)
    config = jsclient.ConsumerConfig(max_deliver=1)
    sub = await near.pull_subscribe(stream.all, durable="once", delete_on_close=False, config=config)
    tap.stall(TO_CLIENT)
    fetching = asyncio.create_task(sub.fetch(1, expires=20))
    await eventually(lambda: tap.sent(NEXT), 10, "the request")
    fetching.cancel()
    await asyncio.wait({fetching})
    closing = asyncio.create_task(sub.unsubscribe())
    await asyncio.sleep(0.05)
    tap.unstall(TO_CLIENT)
    await closing
    again = await near.pull_subscribe(stream.all, durable="once")
    assert numbers(await again.fetch(3, no_wait=True)) == [2, 3]
