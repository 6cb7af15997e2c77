"""The ordered consumer, push form, as other clients are held to it. Rows 92 to 110 of docs/conformance.md.

A case that is a race is run 200 times, each time on a new consumer. The runs stand beside each other, so
that waiting for heartbeats costs their time once.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, noting, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match
from integration.kit.network.deletes import DELETES

QUICK = jsclient.ConsumerConfig(idle_heartbeat=0.2)
STEADY = jsclient.ConsumerConfig(idle_heartbeat=0.6)  # no alarm because the server of a busy machine is late
CREATES = "$JS.API.CONSUMER.CREATE.>"
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


async def no_consumers(stream: OwnStream) -> bool:
    return await stream.consumer_names() == []


# --- intact ----------------------------------------------------------------------------------------------------


LOSSES: dict[str, Callable[[Any], Any]] = {
    "one": lambda tap: tap.drop_frames(match.is_message(150), count=1),
    "a tenth": lambda tap: tap.drop_frames(_by_chance(0.1, 92)),
    "the first": lambda tap: tap.drop_frames(match.is_message(51), count=2),
    "the last": lambda tap: tap.drop_frames(match.is_message(50 + CHUNKS), count=2),
}


def _by_chance(share: float, seed: int) -> match.Predicate:
    chance = random.Random(seed)
    return lambda frame: match.is_data(frame) and chance.random() < share


@pytest.mark.core_cases(3)
@pytest.mark.row(92)
@pytest.mark.parametrize("way", ["next", "callback"])
@pytest.mark.parametrize("loss", LOSSES)
async def test_object_after_start_time(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], loss: str, way: str
) -> None:
    """1 MiB after 50 messages that are not wanted. Compared by SHA-256."""
    await stream.publish(50)
    answer = await stream.oracle.api(f"STREAM.MSG.GET.{stream.name}", {"seq": 50})
    data = random.Random(17).randbytes(CHUNKS * CHUNK)
    for start in range(0, len(data), CHUNK):
        await stream.oracle.publish(stream.subject("chunk"), data[start : start + CHUNK])
    # A microsecond after the last excluded message, because the two time stamps are never equal.
    last = datetime.fromisoformat(f"{answer['message']['time'][:26].rstrip('Z')}").replace(tzinfo=UTC)
    start_time = last + timedelta(microseconds=1)
    rule = LOSSES[loss](tap)
    config = QUICK.replace(deliver_policy="by_start_time", opt_start_time=start_time)
    got: list[Any] = []
    callback = got.append if way == "callback" else None
    sub = await near.subscribe(stream.all, ordered=True, config=config, callback=callback)

    if way == "next":
        got += await take(sub, CHUNKS, 40)
    else:
        await eventually(lambda: len(got) >= CHUNKS, what="all chunks")
    assert hashlib.sha256(b"".join(m.data for m in got)).hexdigest() == hashlib.sha256(data).hexdigest()
    assert [message.metadata.stream_seq for message in got] == list(range(51, 51 + CHUNKS))
    assert rule.count >= 1
    assert of(jsclient.ConsumerReset, events)
    assert of(jsclient.ErrorRaised, events) == []
    await sub.unsubscribe()


@pytest.mark.full
@pytest.mark.row(92, 99, 109)
async def test_faults_keep_object_intact(tap: Any, near: Any, stream: OwnStream) -> None:
    """Each of 200 readers meets different faults: 10 % lost, some doubled, some late, then the end of the stream."""
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

    async def one(_: int) -> None:
        sub = await near.subscribe(stream.all, ordered=True, config=QUICK)
        got = await take(sub, len(pieces), 20)
        assert hashlib.sha256(b"".join(m.data for m in got)).hexdigest() == expected
        assert sub.pending == 0
        await sub.unsubscribe()

    await races(one)
    assert min(lost.count, doubled.count, swapped.count) > RACES / 2
    await eventually(lambda: no_consumers(stream), what="no consumer")


@pytest.mark.full
@pytest.mark.row(95, 99, 109)
@pytest.mark.parametrize("way", ["next", "callback"])
async def test_reconnects_200_no_gap(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    tap = await proxy(record=False)
    near = await connect(tap, reconnect_time_wait=0.002)
    got: list[int] = []

    def note(message: Any) -> None:
        got.extend(numbers([message]))

    callback = noting(got, lambda message: numbers([message])[0]) if way == "callback" else None
    # A consumer whose creation is not answered because of a cut has no name here: its threshold takes it away.
    config = QUICK.replace(inactive_threshold=0.5)
    sub = await near.subscribe(stream.all, ordered=True, config=config, callback=callback)

    async def read() -> None:
        async for message in sub:
            note(message)

    reading = None if callback else asyncio.create_task(read())
    for cut in range(1, RACES + 1):
        await stream.publish(5, first=5 * cut - 4)
        tap.cut()
        await eventually(
            lambda n=cut: len(of(jsclient.Reconnected, events)) >= n, what="a reconnect", interval=0.001
        )
    await eventually(lambda: len(got) >= 5 * RACES, 10, "every message")
    assert got == list(range(1, 5 * RACES + 1))
    await sub.unsubscribe()
    if reading:
        await within(5, reading, "the loop")
    await eventually(lambda: no_consumers(stream), what="no consumer")


@pytest.mark.row(99, 102)
@pytest.mark.parametrize("lost", ["deletion of the old consumer", "answer to the creation of the new one"])
async def test_orphans_removed_soon(tap: Any, near: Any, stream: OwnStream, lost: str) -> None:
    """It is deleted after the reconnect, or its threshold takes it away in half a minute at most."""
    sub = await near.subscribe(stream.all, ordered=True, config=QUICK)
    await stream.publish(1)
    assert numbers(await take(sub, 1)) == [1]
    if lost.startswith("deletion"):
        rule = tap.drop_frames(match.published(DELETES), count=1)
    else:
        rule = tap.drop_frames(
            lambda f: match.delivered("_INBOX.>")(f) and b"consumer_create" in f.payload, count=1
        )
    tap.cut()
    await rule.wait()
    tap.cut()
    await stream.publish(1, first=2)
    assert numbers(await take(sub, 1)) == [2]

    async def is_removed() -> bool:
        # One request: a consumer that is deleted between two has no info.
        orphans = [
            info for info in await stream.oracle.consumers(stream.name) if info["name"] != sub.consumer
        ]
        return all(info["config"]["inactive_threshold"] <= 30e9 for info in orphans)

    await eventually(is_removed, 20, "nothing that stays")
    await sub.unsubscribe()


@pytest.mark.row(95, 105)
async def test_idle_reader_survives_restart(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any]
) -> None:
    """Its consumer is gone with the server's memory. Buffered messages still wait."""
    own = await own_server()
    stream = await make_stream(oracle=await oracle_for(own), storage="file")
    js = await connect(own, reconnect_time_wait=0.02)
    sub = await js.subscribe(stream.all, ordered=True, config=QUICK)
    await stream.publish(10)
    assert numbers(await take(sub, 4)) == [1, 2, 3, 4]
    await eventually(lambda: sub.pending == 6, what="six wait")
    old = sub.consumer
    await own.restart()
    await wait_for_event(jsclient.Reconnected, events)
    await eventually(lambda: stream.oracle.nc.is_connected, what="the judge's connection")
    await stream.publish(5, first=11)
    await eventually(lambda: sub.pending == 11, what="all of it, though nobody asks")
    assert numbers(await take(sub, 11)) == list(range(5, 16))
    assert sub.consumer != old
    await never(lambda: sub.pending, 0.3, "a repeat")


# --- where it starts ---------------------------------------------------------------------------------------------


STARTS = ["all", "last", "new", "by_start_sequence", "last_per_subject"]


@pytest.mark.row(97, 98, 107)
async def test_early_loss_changes_nothing(js: Any, stream: OwnStream) -> None:
    """Deleted in the moment after it was made: 40 times for each start policy."""
    for number in range(1, 11):
        await stream.publish(1, f"s{number % 3}", first=number)
    await stream.oracle.delete_message(stream.name, 8)
    expected = {
        "all": [1, 2, 3, 4, 5, 6, 7, 9, 10],
        "last": [10],
        "new": [],
        "by_start_sequence": [9, 10],  # 8 is not there: the start lies past what was deleted
        "last_per_subject": [5, 9, 10],
    }
    ready: list[int] = []
    missing: list[int] = []
    go = asyncio.Event()

    async def one(number: int) -> None:
        policy = STARTS[number % len(STARTS)]
        config = QUICK.replace(deliver_policy=policy)
        if policy == "by_start_sequence":
            config = config.replace(opt_start_seq=8)
        sub = await js.subscribe(stream.all, ordered=True, config=config)
        await stream.delete_consumer(sub.consumer)
        missing.append(sub.pending)
        ready.append(number)
        await go.wait()
        got = numbers(await take(sub, len(expected[policy]) + 1, 60))
        assert (policy, got) == (policy, [*expected[policy], 11])
        await sub.unsubscribe()

    async with asyncio.TaskGroup() as group:
        for number in range(RACES):
            group.create_task(one(number))
        await eventually(lambda: len(ready) == RACES, what="all readers")
        await stream.publish(1, first=11)
        go.set()
    assert missing


# --- what it refuses, and how it ends ----------------------------------------------------------------------------


@pytest.mark.row(100)
async def test_callback_owns_messages(js: Any, stream: OwnStream) -> None:
    got: list[Any] = []
    sub = await js.subscribe(stream.all, ordered=True, config=QUICK, callback=noting(got))
    await stream.publish(3)
    await eventually(lambda: len(got) == 3, what="three messages")
    with pytest.raises(jsclient.ConfigError):
        await sub.next(timeout=1)
    with pytest.raises(jsclient.ConfigError):
        await anext(aiter(sub))
    with pytest.raises(jsclient.ConfigError):
        await anext(sub.batches())
    await stream.publish(1, first=4)
    await eventually(lambda: len(got) == 4, what="it goes on")
    await sub.unsubscribe()


@pytest.mark.row(100)
async def test_concurrent_reads_share(js: Any, stream: OwnStream) -> None:
    await stream.publish(60)
    sub = await js.subscribe(stream.all, ordered=True, config=QUICK)
    asking = [asyncio.create_task(sub.next(timeout=5)) for _ in range(60)]
    got = await within(5, asyncio.gather(*asking), "all of them")
    assert sorted(numbers(got)) == list(range(1, 61))
    await sub.unsubscribe()


@pytest.mark.row(94, 101)
async def test_ten_taken_then_left(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.publish(30)
    # Each next consumer loses a later one: the first loses them all.
    losses = {1: 1, 4: 2, 10: 3}
    rules = [tap.drop_frames(match.is_message(seq), count=count) for seq, count in losses.items()]
    got: list[int] = []
    async with await near.subscribe(stream.all, ordered=True, config=QUICK) as sub:
        async for message in sub:
            got += numbers([message])
            if len(got) == 10:
                break
    assert got == list(range(1, 11))
    assert [rule.count for rule in rules] == [1, 2, 3]
    assert sub.pending == 0
    await eventually(lambda: len(of(jsclient.ConsumerReset, events)) >= 3, what="the resets are told")
    await eventually(lambda: no_consumers(stream), what="no consumer")
    count = len(tap.sent(CREATES))
    await never(lambda: len(tap.sent(CREATES)) > count, 0.8, "another consumer")


@pytest.mark.row(102)
async def test_close_in_reset_is_clean(
    server: Any, oracle: Any, tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    await stream.publish(5)
    await near.account_info()
    chance = random.Random(102)

    async def one(number: int) -> None:
        sub = await near.subscribe(stream.all, ordered=True, config=QUICK)
        assert numbers(await take(sub, 1)) == [1]
        # A delivery that jumps: the reset begins with the next turn of the event loop.
        jsack = f"$JS.ACK.{stream.name}.{sub.consumer}.1.9.9.1700000000123456789.0"
        tap.inject_message(sub.subject, b"9", reply=jsack)
        for _ in range(chance.randint(0, 30)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 0.01))
        ends = [sub.unsubscribe] if number % 2 else [sub.drain, sub.unsubscribe]
        await within(30, asyncio.gather(*(end() for end in ends)), "the end")
        assert [message async for message in sub] == []
        assert sub.is_closed

    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        await races(one)
    started = len(tap.sent(CREATES)) - RACES
    ended_on_the_way = started - len(of(jsclient.ConsumerReset, events))
    print(f"{started} resets begun, {ended_on_the_way} ended on the way")
    assert ended_on_the_way > 5
    assert near._context.open == set()


@pytest.mark.row(103)
async def test_errors_keep_position(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await near.subscribe(stream.all, ordered=True, config=STEADY)
    for number in range(1, 13):
        kind = number % 4
        if kind == 0:
            tap.inject_message(sub.subject, status="409 Something New")
            with pytest.raises(jsclient.StatusError):
                await sub.next(timeout=5)
        elif kind == 1:
            with pytest.raises(jsclient.RequestTimeoutError):
                await sub.next(timeout=0.01)
        elif kind == 2:
            asking = asyncio.create_task(sub.next())
            await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
        else:
            tap.drop_frames(match.is_message(number), count=2)
        await stream.publish(1, first=number)
        assert numbers(await take(sub, 1)) == [number]
    assert len(of(jsclient.ConsumerReset, events)) == 6
    await sub.unsubscribe()


@pytest.mark.row(96, 110)
async def test_first_create_fails_at_once(
    server: Any, oracle: Any, js: Any, stream: OwnStream, make_stream: Any, events: list[Any]
) -> None:
    await js.account_info()
    full = await make_stream(max_consumers=1)
    await full.create_consumer("there")
    async with no_leaks(oracle=oracle, streams=[stream.name, full.name], monitor=server.monitor):
        with pytest.raises(jsclient.StreamNotFoundError):
            await within(15, js.subscribe(stream="NOT_THERE", ordered=True), "no stream of this name")
        with pytest.raises(jsclient.NoMatchingStreamError):
            await within(15, js.subscribe("no.such.subject", ordered=True), "no stream with this subject")
        with pytest.raises(jsclient.ApiError) as raised:
            await within(15, js.subscribe(full.all, ordered=True), "too many consumers")
        assert raised.value.err_code == 10026
        config = QUICK.replace(deliver_policy="by_start_sequence")
        with pytest.raises(jsclient.ApiError):
            await within(15, js.subscribe(stream.all, ordered=True, config=config), "a start that is none")
    assert alarms(events) == []


@pytest.mark.row(110)
async def test_later_create_retried(
    tap: Any, near: Any, oracle: Any, make_stream: Any, events: list[Any]
) -> None:
    stream = await make_stream(max_consumers=1)
    sub = await near.subscribe(stream.all, ordered=True, config=QUICK)
    await stream.publish(2)
    assert numbers(await take(sub, 2)) == [1, 2]
    held = tap.hold_frames(match.published(CREATES), count=1)
    await stream.delete_consumer(sub.consumer)
    await held.wait()
    await stream.create_consumer("there")  # before the reader has another consumer
    held.release()
    raised = await wait_for_event(jsclient.ErrorRaised, events)
    assert isinstance(raised.error, jsclient.ApiError)
    requests = await eventually(lambda: (sent := tap.sent(CREATES))[6:] and sent, what="five more attempts")
    pauses = [later.time - one.time for one, later in itertools.pairwise(requests[1:6])]
    assert all(pause > 0.03 * 2**n for n, pause in enumerate(pauses)), "from 0.05 s on, doubled"
    assert json.loads(requests[-1].payload)["config"]["opt_start_seq"] == 3
    await stream.delete_consumer("there")
    await stream.publish(1, first=3)
    assert numbers(await take(sub, 1)) == [3]
    assert len(of(jsclient.ErrorRaised, events)) == 1
    await sub.unsubscribe()


@pytest.mark.row(106, 108)
async def test_long_pause_keeps_buffer(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """No one takes anything for many heartbeats, with room and without."""
    await stream.publish(100)
    roomy = await js.subscribe(stream.all, ordered=True, config=STEADY)
    small = await js.subscribe(stream.all, ordered=True, config=STEADY, max_pending=20)
    await wait_for_event(jsclient.SlowConsumer, events, lambda e: e.consumer == small.consumer)
    consumer = roomy.consumer
    await never(lambda: of(jsclient.HeartbeatMissed, events), 6 * 0.6, "an alarm")
    assert (roomy.pending, small.pending, roomy.consumer) == (100, 20, consumer)
    for sub in (roomy, small):
        assert numbers(await take(sub, 100)) == list(range(1, 101))
        await sub.unsubscribe()
