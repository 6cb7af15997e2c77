"""Ordered pull consumers under faults: everything once, in order, whatever is lost. Source: ADR-17, ADR-37.

A case that is a race is run 200 times. The runs stand beside each other, so that waiting for heartbeats
costs their time once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match
from integration.kit.network.deletes import DELETES

CREATES = "$JS.API.CONSUMER.CREATE.>"
NEXT = "$JS.API.CONSUMER.MSG.NEXT.>"
BEAT = 0.5
QUICK = {"expires": 2.0, "idle_heartbeat": BEAT}
"""Of `messages`: silence is found soon."""
CHUNKS, CHUNK = 256, 4096
RACES, TOGETHER = 200, 40


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


async def races(one: Callable[[int], Awaitable[None]]) -> None:
    """Run a race 200 times, `TOGETHER` at a time."""
    for first in range(0, RACES, TOGETHER):
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + TOGETHER):
                group.create_task(one(number))


async def _consumers_are(stream: OwnStream, *names: str) -> bool:
    return await stream.consumer_names() == list(names)


# --- ways to read ----------------------------------------------------------------------------------------------


async def by_iteration(oc: Any, count: int) -> list[Any]:
    got = []
    async with oc.messages(**QUICK) as reader:
        async for message in reader:
            got.append(message)
            if len(got) == count:
                break
    return got


async def by_fetch(oc: Any, count: int) -> list[Any]:
    got: list[Any] = []
    while len(got) < count:
        # Its time may end while the connection is lost. It reports that, and loses no message.
        with contextlib.suppress(jsclient.DisconnectedError):
            got += await oc.fetch(min(100, count - len(got)), **QUICK)
    return got


WAYS = [by_iteration, by_fetch]


@contextlib.asynccontextmanager
async def reading(oc: Any, way: Any = by_iteration) -> AsyncIterator[list[Any]]:
    """Someone reads all the time. The messages so far."""
    got: list[Any] = []

    async def run() -> None:
        while True:
            got.extend(await way(oc, 1))

    task = asyncio.create_task(run())
    try:
        yield got
    finally:
        ended = task.done()
        task.cancel()
        await asyncio.wait({task})
        assert not ended, task


# --- losses ----------------------------------------------------------------------------------------------------


def _by_chance(share: float, seed: int) -> match.Predicate:
    chance = random.Random(seed)
    return lambda frame: match.is_data(frame) and chance.random() < share


def swap_some(tap: Any) -> Any:
    """Some deliveries come late, each in the place of the next late delivery: out of order and missing."""
    held: list[bytes] = []

    def late(frame: Any) -> bytes:
        held.append(frame.raw)
        return held.pop(0) if len(held) > 1 else b""

    return tap.modify_frames(lambda f: match.is_data(f) and match.stream_seq(f) % 60 in (0, 1), late, count=6)


FAULTS: dict[str, Callable[[Any], Any]] = {
    "none": lambda tap: None,
    "one lost": lambda tap: tap.drop_frames(match.is_message(100), count=1),
    "a tenth lost": lambda tap: tap.drop_frames(_by_chance(0.1, 10)),
    "the first lost": lambda tap: tap.drop_frames(match.is_message(1), count=2),
    "the last lost": lambda tap: tap.drop_frames(match.is_message(CHUNKS), count=2),
    "some twice": lambda tap: tap.duplicate_frames(_by_chance(0.02, 11)),
    "some late": swap_some,
}


@pytest.mark.core_cases(4)
@pytest.mark.row(92, 109)
@pytest.mark.covers("J93")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("fault", FAULTS)
async def test_object_of_one_mebibyte_comes_intact(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], fault: str, way: Any
) -> None:
    """Row 92: compared by SHA-256."""
    data = random.Random(17).randbytes(CHUNKS * CHUNK)
    for start in range(0, len(data), CHUNK):
        await stream.oracle.publish(stream.subject("chunk"), data[start : start + CHUNK])
    rule = FAULTS[fault](tap)
    async with near.ordered_consumer(stream.name) as oc:
        got = await within(60, way(oc, CHUNKS), "the object")
        assert [message.metadata.stream_seq for message in got] == list(range(1, CHUNKS + 1))
        assert hashlib.sha256(b"".join(m.data for m in got)).hexdigest() == hashlib.sha256(data).hexdigest()
        resets = of(jsclient.ConsumerReset, events)
        if rule is None:
            assert resets == []
            assert alarms(events) == []
        else:
            assert rule.count >= 1
            assert resets
            rule.remove()
        # Nothing comes a second time.
        await stream.publish(1)
        assert numbers(await way(oc, 1)) == [1]
        assert oc.pending == 0
    assert {type(event) for event in alarms(events)} <= {jsclient.ConsumerReset, jsclient.HeartbeatMissed}
    await eventually(lambda: _consumers_are(stream), what="no consumer")


@pytest.mark.full
@pytest.mark.row(92, 99, 109)
async def test_faults_keep_object_intact(tap: Any, near: Any, stream: OwnStream) -> None:
    """Row 92: each of 200 readers meets different faults, in data and heartbeats, then the end of the stream."""
    pieces = [random.Random(number).randbytes(64) for number in range(30)]
    for piece in pieces:
        await stream.oracle.publish(stream.subject("chunk"), piece)
    expected = hashlib.sha256(b"".join(pieces)).hexdigest()
    lost = tap.drop_frames(_by_chance(0.1, 1))
    doubled = tap.duplicate_frames(_by_chance(0.03, 2))
    late: list[bytes] = []

    def swap_with_next(frame: Any) -> bytes:
        late.append(frame.raw)
        return late.pop(0) if len(late) > 1 else b""

    swapped = tap.modify_frames(_by_chance(0.03, 3), swap_with_next)
    chance = random.Random(4)
    silenced = tap.drop_frames(lambda frame: match.is_heartbeat(frame) and chance.random() < 0.3)

    async def one(number: int) -> None:
        async with near.ordered_consumer(stream.name) as oc:
            got = await within(30, WAYS[number % 2](oc, len(pieces)), "the object")
            assert hashlib.sha256(b"".join(m.data for m in got)).hexdigest() == expected
            assert oc.pending == 0

    await races(one)
    assert min(lost.count, doubled.count, swapped.count) > RACES / 2
    assert silenced.count
    await eventually(lambda: _consumers_are(stream), what="no consumer")


@pytest.mark.row(92, 103)
async def test_lost_answer_to_request(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """Rows 92, 103: the server has served the request, and sends no further message."""
    await stream.publish(4)
    rule = tap.drop_frames(match.is_message(2, 4), count=2)
    async with near.ordered_consumer(stream.name) as oc:
        got: list[int] = []
        while len(got) < 4:
            got += numbers(await oc.fetch(1, expires=1.5))  # on a slow machine its answer may be late
        assert got == [1, 2, 3, 4]
    assert rule.count == 2
    assert len(of(jsclient.ConsumerReset, events)) == 2


@pytest.mark.row(94, 101)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_ten_wanted_ten_taken(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], way: Any
) -> None:
    """Rows 94, 101."""
    await stream.publish(30)
    losses = {1: 1, 4: 2, 10: 3}
    rules = [tap.drop_frames(match.is_message(seq), count=count) for seq, count in losses.items()]
    async with near.ordered_consumer(stream.name) as oc:
        assert numbers(await within(40, way(oc, 10), "ten")) == list(range(1, 11))
        assert [rule.count for rule in rules] == [1, 2, 3]
        assert numbers(await way(oc, 20)) == list(range(11, 31))


# --- its consumer is lost --------------------------------------------------------------------------------------


@pytest.mark.core_cases(4)
@pytest.mark.row(96, 99)
@pytest.mark.covers("J93", "J94")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("fault", ["deleted", "deleted unheard", "silence", "connection cut", "request lost"])
async def test_resumes_after_last_message(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], fault: str, way: Any
) -> None:
    """Rows 96, 99."""
    oc = await near.ordered_consumer(stream.name)
    await stream.publish(10)
    assert numbers(await way(oc, 10)) == list(range(1, 11))
    old, rule = oc.consumer, None
    waiting = asyncio.create_task(way(oc, 10))
    await stream.until_asked(old)
    if fault == "deleted":
        await stream.delete_consumer(old)
    elif fault == "deleted unheard":
        rule = tap.drop_frames(match.with_status("409"))
        await stream.delete_consumer(old)
    elif fault == "silence":
        sid = tap.subs()[-1].sid  # by its number: data comes on the subject that it was published to
        rule = tap.drop_frames(lambda frame: frame.op in ("MSG", "HMSG") and frame.sid == sid)
    elif fault == "connection cut":
        tap.cut()
    else:
        rule = tap.drop_frames(lambda frame: match.published(NEXT)(frame) or match.is_data(frame), count=2)
    await stream.publish(10, first=11)
    assert numbers(await within(40, waiting, "ten more")) == list(range(11, 21))
    reset = await wait_for_event(jsclient.ConsumerReset, events)
    assert rule is None or rule.count
    assert oc.consumer != old
    assert reset.stream == stream.name
    assert 11 <= reset.resume_stream_seq <= 21
    config = json.loads(tap.sent(CREATES)[-1].payload)["config"]
    assert config["deliver_policy"] == "by_start_sequence"
    await eventually(lambda: _consumers_are(stream, oc.consumer), what="the old consumer is deleted")
    await oc.stop()
    assert await _consumers_are(stream)


@pytest.mark.row(96)
async def test_loss_between_fetches(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """Row 96: many times, no one listens when it goes. The server says so, or nothing."""
    await stream.publish(4)

    async def one(number: int) -> None:
        async with js.ordered_consumer(stream.name) as oc:
            assert numbers(await oc.fetch(2)) == [1, 2]
            await stream.delete_consumer(oc.consumer)
            got: list[int] = []
            while len(got) < 2:
                got += numbers(await oc.fetch(2, expires=2.0, idle_heartbeat=0.2))
            assert got == [3, 4]

    await races(one)
    await eventually(lambda: _consumers_are(stream), what="no consumer")


@pytest.mark.full
@pytest.mark.row(95, 99, 109)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_reconnects_200_no_gap(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any], way: Any
) -> None:
    """Rows 95, 109."""
    tap = await proxy(record=False)
    near = await connect(tap, reconnect_time_wait=0.002)
    oc = await near.ordered_consumer(stream.name)
    async with reading(oc, way) as got:
        for cut in range(1, RACES + 1):
            await stream.publish(5, first=5 * cut - 4)
            tap.cut()
            await eventually(
                lambda n=cut: len(of(jsclient.Reconnected, events)) >= n, what="a reconnect", interval=0.001
            )
        for count in range(100, 5 * RACES + 1, 100):  # by fetch they come one by one
            await eventually(lambda n=count: len(got) >= n, 15, "every message")
    assert numbers(got) == list(range(1, 5 * RACES + 1))
    await eventually(lambda: _consumers_are(stream, oc.consumer), what="one consumer")
    await oc.stop()


@pytest.mark.row(99, 102)
@pytest.mark.parametrize("lost", ["deletion of the old consumer", "answer to the creation of the new one"])
async def test_orphan_deleted_on_reconnect(tap: Any, near: Any, stream: OwnStream, lost: str) -> None:
    """Row 102."""
    oc = await near.ordered_consumer(stream.name)
    await stream.publish(1)
    assert numbers(await take(oc, 1)) == [1]
    if lost.startswith("deletion"):
        rule = tap.drop_frames(match.published(DELETES), count=1)
    else:
        created = match.delivered("_INBOX.>")
        rule = tap.drop_frames(lambda f: created(f) and b"consumer_create" in f.payload, count=1)
    tap.cut()
    await rule.wait()
    tap.cut()
    await stream.publish(1, first=2)
    assert numbers(await take(oc, 1)) == [2]
    await eventually(lambda: _consumers_are(stream, oc.consumer), what="one consumer")
    await oc.stop()


# --- the server restarts, the stream goes ------------------------------------------------------------------------


@pytest.mark.core_cases(2)
@pytest.mark.row(95, 99, 105)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("end", ["restart", "kill"])
async def test_reader_survives_restart(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any], end: str, way: Any
) -> None:
    """Rows 95, 99, 105: its consumer is gone with the server's memory. Three times."""
    own = await own_server()
    stream = await make_stream(oracle=await oracle_for(own), storage="file")
    js = await connect(own, reconnect_time_wait=0.02)
    oc = await js.ordered_consumer(stream.name)
    async with reading(oc, way) as got:
        for turn in range(1, 4):
            await stream.publish(20, first=20 * turn - 19)
            await eventually(lambda n=turn: len(got) >= 20 * n - 10, what="some of them")
            old = oc.consumer
            if end == "kill":
                await own.kill()
                await own.start()
            else:
                await own.restart()
            await eventually(lambda: stream.oracle.nc.is_connected, 10, "the judge's connection")
            await eventually(lambda n=turn: len(got) >= 20 * n, what="the rest")
            await eventually(lambda name=old: oc.consumer != name, 10, "a new consumer")
    assert numbers(got) == list(range(1, 61))
    await oc.stop()


@pytest.mark.row(105)
async def test_idle_reader_survives_restart(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any]
) -> None:
    """Row 105: buffered messages still wait."""
    own = await own_server()
    stream = await make_stream(oracle=await oracle_for(own), storage="file")
    js = await connect(own, reconnect_time_wait=0.02)
    oc = await js.ordered_consumer(stream.name)
    await stream.publish(10)
    assert numbers(await take(oc, 4)) == [1, 2, 3, 4]
    await eventually(lambda: oc.pending == 6, what="six wait")
    await own.restart()
    await wait_for_event(jsclient.Reconnected, events)
    await eventually(lambda: stream.oracle.nc.is_connected, what="the judge's connection")
    await stream.publish(5, first=11)
    await eventually(lambda: oc.pending == 11, what="all of it, though nobody asks")
    assert numbers(await take(oc, 11)) == list(range(5, 16))
    await never(lambda: oc.pending, 0.3, "a repeat")
    await oc.stop()


@pytest.mark.row(96, 110)
async def test_stream_deleted_error_in_end(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """Rows 96, 110: buffered messages come before the error, in each way of reading."""
    await stream.publish(3)
    readers = [(way, await js.ordered_consumer(stream.name)) for way in WAYS]
    for _, oc in readers:
        assert numbers(await take(oc, 1)) == [1]
        await eventually(lambda one=oc: one.pending == 2, what="two wait")
    await stream.delete()

    async def one(way: Any, oc: Any) -> None:
        assert numbers(await way(oc, 2)) == [2, 3]
        with pytest.raises(jsclient.StreamNotFoundError):
            await within(15, way(oc, 1), "the error")
        await eventually(lambda: oc.is_closed, 10, "the end")
        for _ in range(2):
            with pytest.raises(jsclient.StreamNotFoundError):
                await way(oc, 1)

    await asyncio.gather(*(one(way, oc) for way, oc in readers))
    lost = [e for e in of(jsclient.ErrorRaised, events) if isinstance(e.error, jsclient.StreamNotFoundError)]
    assert len(lost) == 2


@pytest.mark.row(110)
async def test_failed_creates_end_in_error(
    tap: Any, near: Any, oracle: Any, make_stream: Any, events: list[Any]
) -> None:
    """Row 110."""
    stream = await make_stream(max_consumers=1)
    oc = await near.ordered_consumer(stream.name, max_reset_attempts=4)
    await stream.publish(2)
    assert numbers(await take(oc, 1)) == [1]
    await eventually(lambda: oc.pending == 1, what="one waits")
    held = tap.hold_frames(match.published(CREATES), count=1)
    await stream.delete_consumer(oc.consumer)
    await held.wait()
    await stream.create_consumer("there")
    held.release()
    await eventually(lambda: oc.is_closed, 10, "it is given up")
    assert len(tap.sent(CREATES)) == 5
    assert numbers(await take(oc, 1)) == [2]
    with pytest.raises(jsclient.ApiError) as raised:
        await oc.next(timeout=5)
    assert raised.value.err_code == 10026
    assert await stream.consumer_names() == ["there"]


@pytest.mark.row(96)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_replaced_stream_from_start(
    js: Any, oracle: Any, stream: OwnStream, events: list[Any], way: Any
) -> None:
    """Row 96."""
    oc = await js.ordered_consumer(stream.name)
    await stream.publish(20)
    assert numbers(await way(oc, 20)) == list(range(1, 21))
    await stream.delete()
    await oracle.create_stream(stream.name, [stream.all], storage="memory")
    await stream.publish(5, first=101)
    assert numbers(await within(15, way(oc, 5), "the new ones")) == [101, 102, 103, 104, 105]
    again = await wait_for_event(jsclient.StreamReset, events)
    assert (again.stream, again.last_stream_seq) == (stream.name, 20)
    assert len(of(jsclient.StreamReset, events)) == 1
    await oc.stop()


@pytest.mark.row(99)
async def test_frozen_server_then_on(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any]
) -> None:
    """Row 99: missing heartbeats."""
    own = await own_server()
    stream = await make_stream(oracle=await oracle_for(own))
    js = await connect(own, timeout=3.0)
    oc = await js.ordered_consumer(stream.name)
    await stream.publish(5)
    async with reading(oc) as got:
        await eventually(lambda: len(got) == 5, what="five")
        await stream.until_asked(oc.consumer)
        own.pause()
        missed = await wait_for_event(jsclient.HeartbeatMissed, events)
        own.resume()
        assert missed.stream == stream.name
        await stream.publish(5, first=6)
        await eventually(lambda: len(got) == 10, what="the rest")
    assert numbers(got) == list(range(1, 11))
    await eventually(lambda: _consumers_are(stream, oc.consumer), 10, "one consumer")
    await oc.stop()


# --- slow, and at its end --------------------------------------------------------------------------------------


@pytest.mark.row(108)
async def test_slow_reader_just_stops_asking(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """Row 108: not longer than the allowed waits, no message is lost, no consumer is recreated."""
    count = 3000
    await stream.publish(count)
    oc = await near.ordered_consumer(stream.name)
    got: list[int] = []
    most, beat = 0, 1.0
    async with oc.messages(max_messages=100, expires=4.0, idle_heartbeat=beat) as reader:
        async for message in reader:
            most = max(most, reader.pending)
            got += numbers([message])
            if len(got) == 500:
                await eventually(lambda: reader.pending >= 50, what="as much waits as makes it stop asking")
                before = len(tap.sent(NEXT))
                await asyncio.sleep(2.5 * beat)  # a heartbeat that is owed would be missed
                assert len(tap.sent(NEXT)) <= before + 1, "it has stopped, but for a request that had begun"
                most = max(most, reader.pending)
            if len(got) == count:
                break
    assert got == list(range(1, count + 1))
    assert 50 <= most <= 100
    batches = [json.loads(frame.payload)["batch"] for frame in tap.sent(NEXT)]
    assert all(sum(batches[at : at + 3]) <= 300 for at in range(len(batches))), "never more than was allowed"
    assert alarms(events) == []
    await oc.stop()


@pytest.mark.full
@pytest.mark.row(102)
async def test_close_in_reset_is_clean(
    server: Any, oracle: Any, tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """Row 102: 200 times."""
    await stream.publish(5)
    await near.account_info()
    chance = random.Random(102)

    async def one(number: int) -> None:
        oc = await near.ordered_consumer(stream.name)
        assert numbers(await take(oc, 1)) == [1]
        # Its end is reported: the reset begins with the next iteration of the event loop.
        waiting = asyncio.create_task(oc.next())
        requests = next(f for f in reversed(tap.sent(NEXT)) if f.subject.endswith(f".{oc.consumer}"))
        tap.inject_message(requests.reply, status="409 Consumer Deleted")
        for _ in range(chance.randint(0, 30)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 0.01))
        ends = [oc.stop] if number % 2 else [oc.drain, oc.stop]
        await within(5, asyncio.gather(*(end() for end in ends)), "the end")
        await asyncio.wait({waiting})
        assert waiting.exception() is None or isinstance(waiting.exception(), jsclient.ClosedError)
        assert [message async for message in oc] == []
        assert oc.is_closed

    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        await races(one)
    started = len(tap.sent(CREATES)) - RACES
    ended_on_the_way = started - len(of(jsclient.ConsumerReset, events))
    print(f"{started} resets begun, {ended_on_the_way} ended on the way")
    assert ended_on_the_way > 5
    assert near._context.open == set()


async def test_removed_after_the_creation(tap: Any, near: Any, stream: OwnStream) -> None:
    """If the message that is due was removed, server 2.10 keeps a request without a wait. Newer servers end it."""
    for subject in ("a", "b", "c"):
        await stream.publish(1, subject)
    async with near.ordered_consumer(stream.name, deliver_policy="last_per_subject") as oc:
        got: list[str] = []

        async def read() -> None:
            while len(got) < 2:
                got.extend([message.subject for message in await oc.fetch(10, no_wait=True)])

        held = tap.hold_frames(match.published(NEXT), count=1)
        reading = asyncio.create_task(read())
        await held.wait()
        await (await near.stream(stream.name)).purge(subject=stream.subject("a"))
        held.release()
        await within(20, reading, "the rest")
        assert got == [stream.subject("b"), stream.subject("c")]
