"""Fetch, next and messages as other clients are held to them. Rows 51 to 85 of docs/conformance.md.

A case that is a race is run 200 times, each time on a new consumer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.clients.foreign import client
from integration.kit.clients.traffic import Tally
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match

NEXT = "$JS.API.CONSUMER.MSG.NEXT.>"
RACES = 200


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


def pull_requests(tap: Any) -> list[dict[str, Any]]:
    """The bodies of the pull requests, in order."""
    return [json.loads(frame.payload) for frame in tap.sent(NEXT)]


# --- races ---------------------------------------------------------------------------------------------------


async def consumers(js: Any, stream: OwnStream) -> AsyncIterator[tuple[str, Any]]:
    """New pull consumers one after the other, each with a separate subject: (subject, subscription)."""
    for number in range(RACES):
        subject = stream.subject("race", number)
        config = jsclient.ConsumerConfig(ack_wait=60, mem_storage=True)
        sub = await js.pull_subscribe(subject, stream=stream.name, config=config)
        yield subject, sub
        await sub.unsubscribe()


async def store(stream: OwnStream, subject: str, count: int) -> None:
    """Store numbered messages one by one, so that readers run between them."""
    for number in range(1, count + 1):
        await stream.oracle.publish(subject, str(number).encode())


def assert_once(messages: list[Any], count: int) -> None:
    """Every number from 1 to `count` came, once, and none was delivered before."""
    assert sorted(numbers(messages)) == list(range(1, count + 1))
    assert {message.metadata.num_delivered for message in messages} == {1}


@pytest.mark.row(57)
async def test_racing_fetches_get_each_once(js: Any, stream: OwnStream) -> None:
    chance = random.Random(57)
    async for subject, sub in consumers(js, stream):
        sizes = [chance.randint(1, 4) for _ in range(3)]
        fetches = [asyncio.create_task(sub.fetch(size, expires=10)) for size in sizes]
        await store(stream, subject, sum(sizes))
        batches = await within(20, asyncio.gather(*fetches), "the fetches")
        assert [len(batch) for batch in batches] == sizes
        assert {batch.ending for batch in batches} == {jsclient.Ending.FULL}
        assert_once([message for batch in batches for message in batch], sum(sizes))


@pytest.mark.row(58)
async def test_expiry_ends_own_fetch_only(js: Any, stream: OwnStream) -> None:
    chance = random.Random(58)
    expired = 0
    async for subject, sub in consumers(js, stream):
        long = asyncio.create_task(sub.fetch(4, expires=10))
        short = [asyncio.create_task(sub.fetch(3, expires=chance.uniform(0.002, 0.006))) for _ in range(2)]
        await store(stream, subject, 4)
        batches = await within(5, asyncio.gather(*short), "those that expire")
        expired += [batch.ending for batch in batches].count(jsclient.Ending.EXPIRED)
        got = [message for batch in batches for message in batch]
        if got:
            # What the short ones took is stored again for the long one.
            await store(stream, subject, len(got))
        remainder = await within(5, long, "the one that does not")
        assert remainder.ending is jsclient.Ending.FULL
        assert len(remainder) == 4
        assert len({message.metadata.stream_seq for message in [*got, *remainder]}) == len(got) + 4
    assert expired > RACES / 4


@pytest.mark.row(59)
async def test_cancelled_fetch_loses_none(js: Any, stream: OwnStream) -> None:
    chance = random.Random(59)
    cancelled = partly = 0
    async for subject, sub in consumers(js, stream):
        fetch = asyncio.create_task(sub.fetch(5, expires=10))
        stored = chance.randint(0, 5)
        for number in range(1, 6):
            # cancel it before, between or after the messages arrive
            if number == stored:
                for _ in range(chance.randint(0, 4)):
                    await asyncio.sleep(0)
                fetch.cancel()
            await stream.oracle.publish(subject, str(number).encode())
        fetch.cancel()
        await asyncio.wait({fetch})
        got = [] if fetch.cancelled() else list(fetch.result())
        cancelled += fetch.cancelled()
        partly += fetch.cancelled() and sub.pending > 0
        if len(got) < 5:
            got += await within(5, sub.fetch(5 - len(got), expires=5), "the rest")
        assert_once(got, 5)
    assert cancelled > RACES / 2
    assert partly > RACES / 4


@pytest.mark.full
@pytest.mark.row(67, 69)
async def test_stop_drain_and_restart(js: Any, stream: OwnStream) -> None:
    """Each reader gets messages or the end. A message that no reader took comes again at once, to a new reader."""
    chance = random.Random(67)

    async def read(reader: Any) -> list[Any]:
        return [message async for message in reader]

    async for subject, sub in consumers(js, stream):
        reader = sub.messages(max_messages=3)
        reading = asyncio.create_task(read(reader))
        storing = asyncio.create_task(store(stream, subject, 6))
        await asyncio.sleep(chance.uniform(0, 0.006))
        ends = [reader.stop, reader.drain, reader.stop, reader.drain]
        chance.shuffle(ends)
        await within(5, asyncio.gather(*(end() for end in ends)), "the ends")
        got = await within(5, reading, "the reader")
        assert reader.is_closed
        await storing
        with pytest.raises(jsclient.ClosedError):
            await reader.next(timeout=1)
        again = sub.messages(max_messages=3)
        remainder = await take(again, 6 - len(got), 5)
        await again.stop()
        assert sorted(numbers([*got, *remainder])) == [1, 2, 3, 4, 5, 6]


@pytest.mark.full
@pytest.mark.row(67, 124)
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_end_returns_messages(js: Any, stream: OwnStream, end: str) -> None:
    """A fetch was cancelled. What the server still sends for it is for the next who binds to the consumer."""
    chance = random.Random(124)
    async for subject, again in consumers(js, stream):
        sub = await js.pull_subscribe(subject, stream=stream.name, consumer=again.consumer)
        leaving = asyncio.create_task(sub.fetch(6, expires=10))
        storing = asyncio.create_task(store(stream, subject, 6))
        await asyncio.sleep(chance.uniform(0, 0.003))
        leaving.cancel()
        await asyncio.wait({leaving})
        await getattr(sub, end)()
        got = [] if leaving.cancelled() else list(leaving.result())
        await storing
        if len(got) < 6:
            remainder = await within(6, again.fetch(6 - len(got), expires=5), "the rest")
            got += remainder
        assert sorted(numbers(got)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.row(77)
async def test_call_timeouts_keep_reader(js: Any, stream: OwnStream) -> None:
    sub = await js.pull_subscribe(stream.all, config=jsclient.ConsumerConfig(ack_wait=60))
    reader = sub.messages(max_messages=5)
    chance = random.Random(77)
    got: list[Any] = []
    timeouts = 0

    async def feed() -> None:
        for number in range(1, 201):
            await stream.publish(1, first=number)
            await asyncio.sleep(chance.uniform(0, 0.004))

    feeding = asyncio.create_task(feed())
    while len(got) < 200:
        try:
            got.append(await reader.next(timeout=chance.uniform(0, 0.003)))
        except jsclient.RequestTimeoutError:
            timeouts += 1
    await feeding
    assert numbers(got) == list(range(1, 201))
    assert timeouts >= RACES / 2
    await reader.stop()


@pytest.mark.full
@pytest.mark.row(62, 68, 79)
@pytest.mark.parametrize("way", ["messages", "fetch"])
async def test_reconnects_200_all_acked(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    tap = await proxy(record=False)
    near = await connect(tap, reconnect_time_wait=0.002)
    config = jsclient.ConsumerConfig(ack_wait=2.0)
    sub = await near.pull_subscribe(stream.all, durable="d", config=config, delete_on_close=False)
    tally = Tally(way)
    reader = sub.messages(max_messages=20)

    async def read() -> None:
        while True:
            try:
                batch = await sub.fetch(10, expires=5) if way == "fetch" else [await reader.next()]
                for message in batch:
                    tally.take(message)
                    await message.ack()
            # the call ends with the connection, and the next call continues
            except jsclient.DisconnectedError:
                await asyncio.sleep(0)

    reading = asyncio.create_task(read())
    for cut in range(1, RACES + 1):
        await stream.publish(5, first=5 * cut - 4)
        tap.cut()
        await eventually(
            lambda n=cut: len(of(jsclient.Reconnected, events)) >= n, what="a reconnect", interval=0.001
        )
    last = 5 * RACES
    await eventually(lambda: not tally.lost(last), 10, "every message")
    await stream.oracle.wait_consumer(
        stream.name, "d", lambda info: info["ack_floor"]["stream_seq"] == last, 10, "every ack"
    )
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert tally.untold == []
    await reader.stop()


# --- fetch and next --------------------------------------------------------------------------------------------


@pytest.mark.row(54, 56)
async def test_bytes_fetch_ends_in_time(near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    empty = await within(5, sub.fetch(100, max_bytes=10_000, expires=0.2), "an empty fetch")
    assert (len(empty), empty.ending, empty.error) == (0, jsclient.Ending.EXPIRED, None)
    await stream.publish(3, size=100)
    some = await within(20, sub.fetch(100, max_bytes=10_000, expires=2.0), "a fetch of three")
    assert (numbers(some), some.ending, some.error) == ([1, 2, 3], jsclient.Ending.EXPIRED, None)


@pytest.mark.row(52)
@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_messages_before_deletion(tap: Any, near: Any, stream: OwnStream, what: str) -> None:
    await stream.publish(3)
    sub = await near.pull_subscribe(stream.all)
    fetch = asyncio.create_task(sub.fetch(10, expires=30))
    await tap.wait_for(match.is_message(3))
    await (stream.delete_consumer(sub.consumer) if what == "consumer" else stream.delete())
    batch = await within(5, fetch, "the fetch")
    assert (numbers(batch), batch.ending) == ([1, 2, 3], jsclient.Ending.DELETED)
    assert isinstance(batch.error, jsclient.ConsumerDeletedError)


@pytest.mark.row(60)
async def test_expired_pulls_do_not_block(near: Any, stream: OwnStream) -> None:
    """The consumer takes at most two waiting pulls."""
    config = jsclient.ConsumerConfig(max_waiting=2)
    sub = await near.pull_subscribe(stream.all, config=config)
    for _ in range(6):
        assert len(await sub.fetch(1, expires=0.05)) == 0
    for _ in range(6):
        # The next caller takes over the pull of a cancelled caller.
        leaving = asyncio.create_task(sub.fetch(1, expires=20))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.wait({leaving})
    two = [asyncio.create_task(sub.fetch(1, expires=20)) for _ in range(2)]
    await stream.until_asked(sub.consumer, 2)
    await stream.publish(2)
    batches = await within(5, asyncio.gather(*two), "both")
    assert sorted(number for batch in batches for number in numbers(batch)) == [1, 2]


@pytest.mark.row(61)
@pytest.mark.parametrize("end", ["unsubscribe", "drain", "close"])
async def test_closed_reads_fail_at_once(tap: Any, near: Any, stream: OwnStream, end: str) -> None:
    await stream.publish(1)
    await stream.create_consumer("d")
    sub = await near.pull_subscribe(stream=stream.name, consumer="d")
    consumer = await (await near.stream(stream.name)).consumer("d")
    readers = [sub.messages(), consumer.messages()]
    await getattr(sub, "unsubscribe" if end == "close" else end)()
    await consumer.close()
    if end == "close":
        await near.close()
    calls = [sub.fetch(1), sub.next(), consumer.fetch(1), consumer.next(), *(r.next() for r in readers)]
    for call in calls:
        with pytest.raises(jsclient.ClosedError):
            await within(10, call, "the error")
    assert [message async for message in sub.messages()] == []
    assert pull_requests(tap) == []


@pytest.mark.row(77)
@pytest.mark.parametrize("what", ["consumer", "stream"])
@pytest.mark.parametrize("way", ["next", "handle", "messages", "async for"])
async def test_waiter_told_of_deletion(near: Any, stream: OwnStream, way: str, what: str) -> None:
    await stream.create_consumer("d")
    sub = await near.pull_subscribe(stream=stream.name, consumer="d")
    if way == "next":
        call = sub.next(timeout=30)
    elif way == "handle":
        call = (await (await near.stream(stream.name)).consumer("d")).next(timeout=30)
    elif way == "messages":
        call = sub.messages().next(timeout=30)
    else:
        call = anext(aiter(sub))
    waiting = asyncio.ensure_future(call)
    await stream.until_asked("d")
    await (stream.delete_consumer("d") if what == "consumer" else stream.delete())
    with pytest.raises(jsclient.ConsumerDeletedError):
        await within(5, waiting, "the error")


@pytest.mark.row(81)
async def test_calls_leave_nothing(server: Any, oracle: Any, js: Any, stream: OwnStream) -> None:
    await js.account_info()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        sub = await js.pull_subscribe(stream.all)
        for number in range(1, 51):
            await stream.publish(1, first=number)
            assert numbers([await sub.next(timeout=5)]) == [number]
            with pytest.raises(jsclient.RequestTimeoutError):
                await sub.next(timeout=0.005)
            async with sub.messages() as reader:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.next(), 0.005)
            await js.ping()
        await sub.unsubscribe()


@pytest.mark.row(85)
async def test_no_wait_ignores_timeout(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    assert len(await within(10, sub.fetch(3, no_wait=True, expires=30), "none")) == 0
    await stream.publish(2)
    assert numbers(await within(10, sub.fetch(3, no_wait=True, expires=30), "two")) == [1, 2]
    assert [(one["no_wait"], one.keys() & {"expires", "idle_heartbeat"}) for one in pull_requests(tap)] == [
        (True, set())
    ] * 2


# --- messages --------------------------------------------------------------------------------------------------


@pytest.mark.row(66)
@pytest.mark.parametrize("count", [1, 7, 10, 25])
async def test_early_leave_takes_exactly(near: Any, stream: OwnStream, count: int) -> None:
    """Messages that were requested beyond the limit are given back at once. None of them waits for `ack_wait`."""
    await stream.publish(30)
    sub = await near.pull_subscribe(stream.all, config=jsclient.ConsumerConfig(ack_wait=60))
    got: list[Any] = []
    async with sub.messages(max_messages=10) as reader:
        async for message in reader:
            await message.ack()
            got.append(message)
            if len(got) == count:
                break
    assert numbers(got) == list(range(1, count + 1))
    remainder = await sub.fetch(30 - count, expires=5)
    assert sorted(numbers(remainder)) == list(range(count + 1, 31))
    assert len(await sub.fetch(1, no_wait=True)) == 0


@pytest.mark.row(66)
async def test_parallel_fetches_stop(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(100)
    sub = await near.pull_subscribe(stream.all)
    batches = await asyncio.gather(*(sub.fetch(size, expires=5) for size in (5, 10, 15)))
    assert sorted(n for batch in batches for n in numbers(batch)) == list(range(1, 31))
    assert sorted(one["batch"] for one in pull_requests(tap)) == [5, 10, 15]
    info = await stream.consumer_info(sub.consumer)
    assert (info["delivered"]["stream_seq"], info["num_waiting"]) == (30, 0)


@pytest.mark.row(71)
async def test_both_limits_hold(tap: Any, near: Any, stream: OwnStream) -> None:
    await stream.publish(40, size=500)
    sub = await near.pull_subscribe(stream.all, config=jsclient.ConsumerConfig(ack_wait=60))
    size = (await sub.fetch(1))[0].size
    for messages, limit in ((4, 10 * size), (10, 3 * size + 10)):
        before = len(pull_requests(tap))
        reader = sub.messages(max_messages=messages, max_bytes=limit)
        for _ in range(15):
            await reader.next(timeout=5)
            await near.ping()
            await near.ping()  # the requested messages have come
            assert reader.pending <= messages
            assert reader.pending * size <= limit
        await reader.stop()
        await near.ping()
        bodies = pull_requests(tap)[before:]
        assert {one["batch"] <= messages and one["max_bytes"] <= limit for one in bodies} == {True}
        assert len(bodies) >= 3


@pytest.mark.row(74)
@pytest.mark.parametrize("how", ["no more reconnects", "closed by its owner"])
async def test_own_connection_close_reported(
    proxy: Any, stream: OwnStream, events: list[Any], how: str
) -> None:
    tap = await proxy()
    await stream.publish(2)
    async with client(tap, max_reconnect_attempts=1) as nc:
        js = jsclient.JetStream(nc, on_event=events.append)
        got: dict[str, list[int]] = {"pull": [], "push": [], "ordered": []}

        async def read(name: str, reader: Any) -> None:
            async for message in reader:
                got[name] += numbers([message])

        readers = {
            "pull": await js.pull_subscribe(stream.all),
            "push": await js.subscribe(stream.all),
            "ordered": await js.subscribe(stream.all, ordered=True),
        }
        loops = [asyncio.create_task(read(name, reader)) for name, reader in readers.items()]
        fetcher = await js.pull_subscribe(stream.all)
        fetch = asyncio.create_task(fetcher.fetch(5, expires=30))
        await eventually(lambda: [*got.values()] == [[1, 2]] * 3, what="two messages each")
        await eventually(lambda: len(tap.received(stream.all)) == 8, what="two messages for the fetch")
        await nc.flush()  # they were read
        if how.startswith("closed"):
            await nc.close()
        else:
            tap.refuse()
            tap.cut()
        await within(10, asyncio.gather(*loops), "the loops")
        batch = await within(5, fetch, "the fetch")
        assert numbers(batch) == [1, 2]
        assert isinstance(batch.error, jsclient.ClosedError | jsclient.DisconnectedError)
        await eventually(lambda: nc.is_closed, what="the end of the connection")
        calls = [fetcher.fetch(1), fetcher.next(), *(reader.next() for reader in readers.values())]
        for call in calls:
            with pytest.raises(jsclient.ClosedError):
                await within(10, call, "the error")
        await js.close()


ENDS: dict[str, Callable[[Any, Any, Any], Awaitable[None]]] = {
    "stop": lambda reader, sub, js: reader.stop(),
    "drain": lambda reader, sub, js: reader.drain(),
    "unsubscribe": lambda reader, sub, js: sub.unsubscribe(),
    "drain all": lambda reader, sub, js: sub.drain(),
    "close": lambda reader, sub, js: js.close(),
}


@pytest.mark.row(75)
@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize("plain", [True, False], ids=["function", "coroutine function"])
async def test_end_inside_event_handler(
    tap: Any, connect: Any, stream: OwnStream, what: str, plain: bool
) -> None:
    ends: list[asyncio.Future[None]] = []

    async def on_event_later(event: Any) -> None:
        if isinstance(event, jsclient.ErrorRaised):
            await ENDS[what](reader, sub, near)

    def on_event(event: Any) -> None:
        ends.append(asyncio.ensure_future(on_event_later(event)))

    near = await connect(tap, on_event=on_event if plain else on_event_later)
    await stream.create_consumer("d")
    sub = await near.pull_subscribe(stream=stream.name, consumer="d")
    reader = sub.messages()
    waiting = asyncio.create_task(reader.next())
    request = await tap.wait_for(match.published(NEXT))
    tap.inject_message(request.reply, status="409 Exceeded MaxWaiting")
    with pytest.raises(jsclient.ClosedError):
        await within(5, waiting, "the reader")
    if ends:
        await within(5, asyncio.gather(*ends), "the end")
    assert reader.is_closed


@pytest.mark.row(83)
@pytest.mark.parametrize("status", ["409 Exceeded MaxWaiting", "409 Message Size Exceeds MaxBytes", "503"])
async def test_refusal_backs_off(tap: Any, near: Any, stream: OwnStream, status: str) -> None:
    sub = await near.pull_subscribe(stream.all)
    options = {"max_bytes": 1000} if "MaxBytes" in status else {}
    reader = sub.messages(**options)
    refused = tap.hold_frames(match.published(NEXT))  # nothing reaches the server: the answer is ours
    answered: list[Any] = []

    async def refuse() -> None:
        while True:
            await refused.wait(len(answered) + 1, timeout=60)
            request = refused.frames[len(answered)]
            answered.append(request)
            tap.inject_message(request.reply, status=status)

    refusing = asyncio.create_task(refuse())
    reading = asyncio.create_task(reader.next())
    await eventually(lambda: len(answered) >= 5, what="five requests")
    reading.cancel()
    refusing.cancel()
    await asyncio.gather(reading, refusing, return_exceptions=True)
    pauses = [later.time - one.time for one, later in itertools.pairwise(answered[:5])]
    assert all(pause > 0.04 * 2**n for n, pause in enumerate(pauses)), "from 0.05 s on, doubled"
    await reader.stop()


@pytest.mark.row(83)
async def test_oversized_message_reported(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.publish(1, size=2000)
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_bytes=500)
    with pytest.raises(jsclient.RequestTimeoutError):
        await reader.next(timeout=0.8)
    raised = await wait_for_event(jsclient.ErrorRaised, events)
    assert "MaxBytes" in str(raised.error)
    assert len(pull_requests(tap)) <= 6
    assert len(alarms(events)) == 1
    await reader.stop()


@pytest.mark.row(69, 85)
@pytest.mark.parametrize("end", ["stop", "drain"])
async def test_empty_stream_stops_at_once(near: Any, stream: OwnStream, end: str) -> None:
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages()

    async def read() -> list[Any]:
        return [message async for message in reader]

    reading = asyncio.create_task(read())
    await stream.until_asked(sub.consumer)
    await within(10, getattr(reader, end)(), "the end")
    assert await within(10, reading, "the loop") == []
    assert reader.is_closed
    await getattr(reader, end)()
