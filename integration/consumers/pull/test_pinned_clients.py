"""A pinned client: it receives the messages until the server pins another client."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import jsclient
from integration.kit.calls.priority_groups import (
    GROUP,
    RACES,
    WAYS,
    asks,
    grouped,
    pinned_id,
    pins,
    pull_requests,
    two,
    unknown,
)
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import EventReader, alarms, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


# --- a pinned client ---------------------------------------------------------------------------------------------


@pytest.mark.row(87)
@WAYS
async def test_pinned_client_gets_all(connect: Any, proxy: Any, stream: OwnStream, way: str) -> None:
    """J7: a reader that forgets its pin stalls after the first batch."""
    (one, tap, events), (other, *_) = await two(connect, proxy, stream, "pinned_client")
    await stream.publish(1)
    first = await one.next(group=GROUP)
    pin = first.headers["Nats-Pin-Id"]
    waits = asyncio.create_task(other.fetch(1, expires=30, group=GROUP))
    await stream.until_asked("c")
    await stream.publish(400, first=2)
    if way == "messages":
        async with one.messages(max_messages=50, group=GROUP) as reader:
            got = await take(reader, 400)
    else:
        size = 40 if way == "fetch" else 1
        got = [message for _ in range(400 // size) for message in await asks(way, one, size, group=GROUP)]
    assert numbers(got) == list(range(2, 402))
    assert {message.headers["Nats-Pin-Id"] for message in got} == {pin}
    assert set(pins(tap)[1:]) == {pin}
    assert not waits.done()
    assert await pinned_id(stream) == pin
    (state,) = (await one.info()).priority_groups
    assert (state.group, state.pinned_client_id) == (GROUP, pin)
    assert state.pinned_ts is not None
    (event,) = alarms(events)
    assert event == jsclient.Pinned(stream=stream.name, consumer="c", group=GROUP, pin_id=pin)
    waits.cancel()
    await asyncio.wait({waits})


@pytest.mark.row(87)
async def test_nobody_is_pinned_at_first(near: Any, stream: OwnStream) -> None:
    consumer = await grouped(near, stream, "pinned_client", priority_timeout=7.5)
    assert (consumer.config.priority_policy, consumer.config.priority_timeout) == ("pinned_client", 7.5)
    (state,) = (await consumer.info()).priority_groups
    assert (state.group, state.pinned_client_id, state.pinned_ts) == (GROUP, None, None)


@pytest.mark.row(87)
@WAYS
async def test_silent_pin_moves_on(connect: Any, proxy: Any, stream: OwnStream, way: str) -> None:
    """The first comes back, is refused its old pin, and waits its turn."""
    (one, tap, events), (other, _, others) = await two(
        connect, proxy, stream, "pinned_client", priority_timeout=0.3
    )
    await stream.publish(1)
    assert numbers([await one.next(group=GROUP)]) == [1]
    (old,) = of(jsclient.Pinned, events)
    takes_over = asyncio.create_task(asks(way, other, 2, group=GROUP))
    await stream.until_asked("c")
    await stream.publish(2, first=2)
    assert numbers(await within(10, takes_over, "the other")) == [2, 3]
    (new,) = of(jsclient.Pinned, others)
    assert new.pin_id != old.pin_id
    since = len(tap.frames)
    await stream.publish(1, first=4)
    back = await within(20, asks(way, one, 1, group=GROUP), "the first, when its turn has come again")
    assert numbers(back) == [4]
    assert pins(tap, since)[:2] == [old.pin_id, None]
    assert (tap.received(since=since)[0].status or "").startswith("423")
    assert [type(event) for event in alarms(events)] == [
        jsclient.Pinned,
        jsclient.Unpinned,
        jsclient.Pinned,
    ]
    assert of(jsclient.Unpinned, events) == [
        jsclient.Unpinned(stream=stream.name, consumer="c", group=GROUP, pin_id=old.pin_id)
    ]


@pytest.mark.row(87)
@WAYS
@pytest.mark.parametrize("status", ["423 Nats-Wrong-Pin-Id", "423 Nats-Pin-Id mismatch"])
async def test_refused_pin_forgotten(
    connect: Any, proxy: Any, stream: OwnStream, way: str, status: str
) -> None:
    """The one status comes to a request that waits, the other when it comes."""
    (one, tap, events), (other, *_) = await two(connect, proxy, stream, "pinned_client")
    await stream.publish(1)
    assert numbers([await one.next(group=GROUP)]) == [1]
    if "Wrong" in status:
        since = len(tap.frames)
        waiting = asyncio.create_task(asks(way, one, 1, group=GROUP))
        await stream.until_asked("c")
        await other.unpin(GROUP)
        await stream.publish(1, first=2)
    else:
        await other.unpin(GROUP)
        await stream.publish(1, first=2)
        assert numbers([await other.next(group=GROUP)]) == [2]
        since = len(tap.frames)
        waiting = asyncio.create_task(asks(way, one, 1, group=GROUP))
        await stream.until_asked("c")
        await other.unpin(GROUP)
        await stream.publish(1, first=3)
    expected = 2 if "Wrong" in status else 3
    assert numbers(await within(5, waiting, "the message")) == [expected]
    assert [frame.status for frame in tap.received(since=since) if frame.status] == [status]
    assert [pin is None for pin in pins(tap, since)][:2] == [False, True]
    first, second, *_ = pull_requests(tap, since)
    assert first["batch"] == second["batch"]
    assert [type(event) for event in alarms(events)] == [
        jsclient.Pinned,
        jsclient.Unpinned,
        jsclient.Pinned,
    ]


@pytest.mark.row(87)
@pytest.mark.parametrize("kind", ["known", "not known"])
async def test_only_pin_server_put_there_counts(tap: Any, near: Any, stream: OwnStream, kind: str) -> None:
    """Messages stored with such a header, as by a worker that passes on what it got, change nothing."""

    async def publish(first: int, last: int) -> None:
        for number in range(first, last + 1):
            await stream.oracle.publish(stream.subject(), b"%d" % number, {"Nats-Pin-Id": f"old{number}"})

    await publish(1, 20)
    handle = await grouped(near, stream, "pinned_client")
    if kind == "not known":
        handle = await unknown(tap, near, stream)
    async with handle.messages(max_messages=10, group=GROUP) as reader:
        assert numbers(await take(reader, 20)) == list(range(1, 21))
    await publish(21, 40)
    for first in (21, 31):
        assert numbers(await handle.fetch(10, group=GROUP)) == list(range(first, first + 10))
    assert set(pins(tap)[1:]) == {await pinned_id(stream)}
    assert tap.find(match.with_status("4")) == []


@pytest.mark.row(86)
@pytest.mark.parametrize("way", ["fetch", "messages"])
async def test_publisher_pins_ignored(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    """The server refuses the first of them (400), and a second is never sent."""
    for number in range(1, 41):
        await stream.oracle.publish(stream.subject(), b"%d" % number, {"Nats-Pin-Id": f"old{number}"})
    await grouped(near, stream, "overflow")
    sub = await unknown(tap, near, stream)
    if way == "messages":
        async with sub.messages(max_messages=10, group=GROUP) as reader:
            assert sorted(numbers(await take(reader, 40))) == list(range(1, 41))
    else:
        for first in (1, 11, 21, 31):
            assert numbers(await sub.fetch(10, group=GROUP)) == list(range(first, first + 10))
    refused = tap.find(match.with_status("400 Bad Request - Not a Pinned Client"))
    # A reader has two requests in flight at most.
    assert 1 <= len(refused) <= (2 if way == "messages" else 1)
    assert len([pin for pin in pins(tap) if pin]) == len(refused)
    assert of(jsclient.ErrorRaised, events) == []


@pytest.mark.row(87)
async def test_pin_on_user_connection(natspy_js: Any, stream: OwnStream) -> None:
    async def publish(first: int, last: int) -> None:
        for number in range(first, last + 1):
            await stream.oracle.publish(stream.subject(), b"%d" % number, {"Nats-Pin-Id": "old"})

    await publish(1, 20)
    consumer = await grouped(natspy_js, stream, "pinned_client")
    async with consumer.messages(max_messages=10, group=GROUP) as reader:
        assert numbers(await take(reader, 20)) == list(range(1, 21))
    # Only now: a reader asks ahead, and what it gives back when it stops comes again in no certain order. The server
    # ends its request when it has processed the UNSUB, which nats-py may send after the first of these PINGs.
    for _ in range(2):
        await natspy_js.ping()
    await publish(21, 40)
    assert numbers(await consumer.fetch(10, group=GROUP)) == list(range(21, 31))
    await consumer.unpin(GROUP)
    assert numbers(await consumer.fetch(10, group=GROUP)) == list(range(31, 41))


@pytest.mark.row(87)
async def test_pin_events_delivered(near: Any, stream: OwnStream) -> None:
    await stream.publish(1)
    consumer = await grouped(near, stream, "pinned_client")
    sub = await near.pull_subscribe(stream=stream.name, consumer="c")
    reported_here = EventReader(sub)
    await sub.next(group=GROUP)
    await consumer.unpin(GROUP)
    await stream.publish(1, first=2)
    await sub.next(group=GROUP)
    await sub.unsubscribe()
    await within(5, reported_here.task, "the events")
    kinds = [type(event) for event in reported_here.events]
    assert kinds == [jsclient.Pinned, jsclient.Unpinned, jsclient.Pinned]


@pytest.mark.row(87)
async def test_readers_of_one_handle_share_pin(tap: Any, near: Any, stream: OwnStream) -> None:
    """The pin is the client's, not the request's."""
    await stream.publish(1)
    consumer = await grouped(near, stream, "pinned_client")
    assert numbers([await consumer.next(group=GROUP)]) == [1]
    readers = [consumer.messages(max_messages=5, group=GROUP) for _ in range(2)]
    tasks = [asyncio.create_task(take(reader, 10)) for reader in readers]
    await stream.until_asked("c", 2)
    await stream.publish(40, first=2)  # each may have five more in its buffer when the other still waits
    got = await within(10, asyncio.gather(*tasks), "both")
    assert [len(messages) for messages in got] == [10, 10]
    assert len({number for messages in got for number in numbers(messages)}) == 20
    assert len(set(pins(tap)[1:])) == 1
    for reader in readers:
        await reader.stop()


@pytest.mark.row(87)
async def test_a_pin_survives_a_reconnect(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """To the server the client is who shows the pin."""
    await stream.publish(1)
    consumer = await grouped(near, stream, "pinned_client")
    reader = consumer.messages(group=GROUP)
    assert numbers(await take(reader, 1)) == [1]
    (pinned,) = of(jsclient.Pinned, events)
    since = len(tap.frames)
    tap.cut()
    await wait_for_event(jsclient.Reconnected, events)
    await stream.publish(3, first=2)
    assert numbers(await take(reader, 3)) == [2, 3, 4]
    assert set(pins(tap, since)) == {pinned.pin_id}
    assert of(jsclient.Unpinned, events) == []
    await reader.stop()


@pytest.mark.row(87)
async def test_restart_gives_new_pin(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any]
) -> None:
    server = await own_server()
    oracle = await oracle_for(server)
    stream = await make_stream(oracle=oracle, storage="file")
    js = await connect(server, reconnect_time_wait=0.05)
    await stream.publish(1)
    consumer = await grouped(js, stream, "pinned_client", mem_storage=None)
    reader = consumer.messages(group=GROUP)
    for message in await take(reader, 1):
        await message.ack_sync()
    await server.stop()
    await server.start()
    await wait_for_event(jsclient.Reconnected, events)
    await eventually(lambda: stream.publish(1, first=2), 10, "the stream")
    assert 2 in numbers(await take(reader, 1))
    await wait_for_event(jsclient.Unpinned, events)
    await eventually(lambda: len(of(jsclient.Pinned, events)) == 2, what="the new pin")
    await reader.stop()


@pytest.mark.row(87, 88)
async def test_one_pinned_at_a_time(connect: Any, proxy: Any, stream: OwnStream) -> None:
    """A race, run 200 times."""
    clients = await two(connect, proxy, stream, "pinned_client")
    chance = random.Random(88)
    got: list[list[int]] = [[], []]

    async def read(mine: list[int], reader: Any) -> None:
        async for message in reader:
            mine.extend(numbers([message]))
            await message.ack()

    readers = [handle.messages(max_messages=4, group=GROUP) for handle, *_ in clients]
    tasks = [asyncio.create_task(read(mine, reader)) for mine, reader in zip(got, readers, strict=True)]
    last = 0
    for _ in range(RACES):
        count = chance.randint(1, 6)
        await stream.publish(count, first=last + 1)
        last += count
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 0.003))
        await clients[chance.randint(0, 1)][0].unpin(GROUP)
    await eventually(lambda: sum(map(len, got)) >= last, 20, "every message")
    assert sorted(got[0] + got[1]) == list(range(1, last + 1))
    assert min(map(len, got)) > 0
    for _, tap, events in clients:
        assert {type(event) for event in alarms(events)} == {jsclient.Pinned, jsclient.Unpinned}
        # No one asks in a hot loop: beside what it takes, a request for each pin that was lost.
        assert len(pull_requests(tap)) <= 2 * last + 2 * RACES
        assert all(0 < one["batch"] <= 4 for one in pull_requests(tap))
    for reader, task in zip(readers, tasks, strict=True):
        await reader.stop()
        await within(5, task, "the loop")


@pytest.mark.row(87)
@pytest.mark.server(">=2.12")
async def test_no_wait_standby_reported(connect: Any, proxy: Any, stream: OwnStream) -> None:
    (one, *_), (other, _, events) = await two(connect, proxy, stream, "pinned_client")
    await stream.publish(3)
    assert numbers([await one.next(group=GROUP)]) == [1]
    batch = await within(5, other.fetch(3, no_wait=True, group=GROUP), "the empty batch")
    assert (len(batch), batch.ending) == (0, jsclient.Ending.NO_MESSAGES)
    assert numbers(await one.fetch(3, no_wait=True, group=GROUP)) == [2, 3]
    assert alarms(events) == []


@pytest.mark.row(81)
async def test_group_readers_clean_up(server: Any, oracle: Any, js: Any, stream: OwnStream) -> None:
    await js.account_info()
    consumer = await grouped(js, stream, "pinned_client")
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        sub = await js.pull_subscribe(stream=stream.name, consumer="c")
        for number in range(1, 21):
            await stream.publish(1, first=number)
            async with sub.messages(group=GROUP) as reader:
                assert numbers(await take(reader, 1)) == [number]
            await consumer.unpin(GROUP)
            with pytest.raises(jsclient.RequestTimeoutError):
                await sub.next(timeout=0.005, group=GROUP)
        await sub.unsubscribe()


# --- unpinning ---------------------------------------------------------------------------------------------------


@pytest.mark.row(88)
@pytest.mark.server(">=2.12")
async def test_unpinning_moves_pin_to_who_waits(connect: Any, proxy: Any, stream: OwnStream) -> None:
    (one, *_), (other, *_) = await two(connect, proxy, stream, "pinned_client")
    await stream.publish(1)
    assert numbers([await one.next(group=GROUP)]) == [1]
    old = await pinned_id(stream)
    waiting = asyncio.create_task(other.next(30, group=GROUP))
    await stream.until_asked("c")
    await stream.publish(1, first=2)
    await one.unpin(GROUP)
    assert numbers([await within(5, waiting, "the other")]) == [2]
    assert await pinned_id(stream) not in ("", old)


@pytest.mark.row(88)
async def test_unpinning_not_there_error(near: Any, stream: OwnStream) -> None:
    """Unknown consumer, unknown group."""
    consumer = await grouped(near, stream, "pinned_client")
    with pytest.raises(jsclient.ApiError) as refused:
        await consumer.unpin("other")
    assert (refused.value.code, refused.value.err_code) == (400, 10160)
    for bad in ("", "a b", "x" * 17, 5):
        with pytest.raises(jsclient.InvalidNameError):
            await consumer.unpin(bad)
    await consumer.unpin(GROUP)
    await consumer.delete()
    with pytest.raises(jsclient.ConsumerNotFoundError):
        await consumer.unpin(GROUP)
    await stream.delete()
    with pytest.raises(jsclient.StreamNotFoundError):
        await consumer.unpin(GROUP)
