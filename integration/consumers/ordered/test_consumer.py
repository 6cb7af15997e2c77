"""Ordered pull consumers: their requests, their start positions, the ways to read them. Source: ADR-37, ADR-17."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match

CREATES = "$JS.API.CONSUMER.CREATE.>"
NEXT = "$JS.API.CONSUMER.MSG.NEXT.>"
BEAT = 0.6
QUICK = {"expires": 2.0, "idle_heartbeat": BEAT}
"""Of `messages`: silence is found soon."""


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


async def _consumers_are(stream: OwnStream, *names: str) -> bool:
    return await stream.consumer_names() == list(names)


# --- the consumer --------------------------------------------------------------------------------------------


@pytest.mark.row(104)
@pytest.mark.covers("J93")
async def test_consumer_follows_adr_17(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """Row 104."""
    oc = await near.ordered_consumer(stream.name, filter_subject=stream.subject("a"), name_prefix="audit")
    assert (oc.stream, oc.consumer) == (stream.name, "audit_1")
    [created] = tap.sent(CREATES)
    assert created.subject == f"$JS.API.CONSUMER.CREATE.{stream.name}.audit_1.{stream.subject('a')}"
    config = (await oc.info()).config
    assert (config.ack_policy, config.max_deliver, config.mem_storage) == ("none", 1, True)
    assert (config.num_replicas, config.inactive_threshold) == (1, 300.0)
    assert config.filter_subject == stream.subject("a")
    assert config.deliver_subject is None
    assert config.durable_name is None
    await stream.publish(1, "a")
    assert numbers(await take(oc, 1)) == [1]
    await stream.delete_consumer("audit_1")
    await wait_for_event(jsclient.ConsumerReset, events)
    await stream.publish(1, "a", first=2)
    assert numbers(await take(oc, 1)) == [2]
    assert oc.consumer == "audit_2"
    await oc.stop()


@pytest.mark.row(96, 110)
async def test_first_create_fails_at_once(
    server: Any, oracle: Any, js: Any, make_stream: Any, events: list[Any]
) -> None:
    """Row 110."""
    await js.account_info()
    full = await make_stream(max_consumers=1)
    await full.create_consumer("there")
    async with no_leaks(oracle=oracle, streams=[full.name], monitor=server.monitor):
        with pytest.raises(jsclient.StreamNotFoundError):
            await within(15, js.ordered_consumer("NOT_THERE"), "no stream of this name")
        with pytest.raises(jsclient.StreamNotFoundError):
            async with js.ordered_consumer("NOT_THERE"):
                pass
        with pytest.raises(jsclient.ApiError) as raised:
            await within(15, js.ordered_consumer(full.name), "too many consumers")
        assert raised.value.err_code == 10026
    assert alarms(events) == []


@pytest.mark.row(93)
@pytest.mark.parametrize(
    "fields",
    [
        {"durable_name": "d"},
        {"ack_policy": "explicit"},
        {"max_deliver": 5},
        {"deliver_subject": "to.me"},
        {"idle_heartbeat": 1.0},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_bad_options_refused(tap: Any, near: Any, stream: OwnStream, fields: dict[str, Any]) -> None:
    """Row 93."""
    with pytest.raises(jsclient.ConfigError):
        await near.ordered_consumer(stream.name, **fields)
    await near.ping()
    assert tap.sent(CREATES) == []


async def test_same_prefix_is_independent(
    js: Any, connect: Any, server: Any, stream: OwnStream, events: list[Any]
) -> None:
    other = await connect(server)
    readers = [await one.ordered_consumer(stream.name, name_prefix="audit") for one in (js, other, js, other)]
    assert sorted(reader.consumer for reader in readers) == ["audit_1", "audit_2", "audit_3", "audit_4"]
    await stream.publish(200)
    got = await asyncio.gather(*(take(reader, 200) for reader in readers))
    assert [numbers(one) for one in got] == [list(range(1, 201))] * 4
    await stream.delete_consumer(readers[0].consumer)
    await wait_for_event(jsclient.ConsumerReset, events)
    assert readers[0].consumer == "audit_5"
    assert len(of(jsclient.ConsumerReset, events)) == 1
    for reader in readers:
        await reader.stop()
    assert await stream.consumer_names() == []


# --- where it starts -----------------------------------------------------------------------------------------


async def between(stream: OwnStream, first: int, second: int) -> datetime:
    """Store `first` messages, then `second` more. A time between the two."""
    await stream.publish(first)
    answer = await stream.oracle.api(f"STREAM.MSG.GET.{stream.name}", {"seq": first})
    await stream.publish(second, first=first + 1)
    # A microsecond after the last excluded message, because the two time stamps are never equal.
    return datetime.fromisoformat(answer["message"]["time"][:26].rstrip("Z")).replace(tzinfo=UTC) + timedelta(
        microseconds=1
    )


@pytest.mark.row(97, 98)
@pytest.mark.parametrize("loss", ["none", "first message", "consumer before the first message"])
@pytest.mark.parametrize("policy", ["all", "last", "by_start_sequence", "by_start_time", "last_per_subject"])
async def test_start_policy_survives_loss(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], policy: str, loss: str
) -> None:
    """Rows 97, 98."""
    options: dict[str, Any] = {"deliver_policy": policy}
    if policy == "by_start_time":
        options = {"opt_start_time": await between(stream, 4, 6)}
        expected = [5, 6, 7, 8, 9, 10]
    else:
        for number in range(1, 11):
            await stream.publish(1, f"s{number % 3}", first=number)
        expected = {"all": list(range(1, 11)), "last": [10], "last_per_subject": [8, 9, 10]}.get(
            policy, [7, 8, 9, 10]
        )
    if policy == "by_start_sequence":
        options = {"opt_start_seq": 7}
    if loss == "first message":
        tap.drop_frames(match.is_message(expected[0]), count=1)
    elif loss != "none":
        rule = tap.drop_frames(match.is_data)
    async with near.ordered_consumer(stream.name, **options) as oc:
        reader = oc.messages(**QUICK)
        waiting = asyncio.create_task(reader.next(timeout=60))
        if loss.startswith("consumer"):
            await rule.wait(len(expected))
            await stream.delete_consumer(oc.consumer)
            rule.remove()
        assert numbers([await waiting, *await take(reader, len(expected) - 1)]) == expected
        await stream.publish(1, first=11)
        assert numbers(await take(reader, 1)) == [11]
        assert bool(of(jsclient.ConsumerReset, events)) == (loss != "none")
        assert of(jsclient.ErrorRaised, events) == []


@pytest.mark.row(97, 98)
async def test_new_survives_early_reset(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """Row 97."""
    await stream.publish(50)
    oc = await js.ordered_consumer(stream.name, deliver_policy="new")
    await stream.delete_consumer(oc.consumer)
    # Stored before the consumer exists, and still new.
    await stream.publish(2, first=51)
    async with oc.messages(**QUICK) as reader:
        assert numbers(await take(reader, 2)) == [51, 52]
    await wait_for_event(jsclient.ConsumerReset, events)
    await stream.publish(1, first=53)
    assert numbers(await oc.fetch(1)) == [53]
    await oc.stop()


@pytest.mark.row(107)
async def test_start_past_deleted_messages_no_gap(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """Row 107."""
    await stream.publish(10)
    for seq in (1, 2, 5, 9):
        await stream.oracle.delete_message(stream.name, seq)
    async with js.ordered_consumer(stream.name) as oc:
        async with oc.messages(**QUICK) as reader:
            assert numbers(await take(reader, 6)) == [3, 4, 6, 7, 8, 10]
            await stream.purge()
            await stream.publish(2, first=11)
            assert numbers(await take(reader, 2)) == [11, 12]
            await never(lambda: alarms(events), 4 * BEAT, "an alarm")
        assert list(await oc.fetch(5, no_wait=True)) == []
    assert alarms(events) == []


@pytest.mark.row(101, 104)
async def test_reset_keeps_options(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """Row 101."""
    oc = await near.ordered_consumer(
        stream.name, filter_subjects=[stream.subject("a"), stream.subject("b")], headers_only=True
    )
    fetching = asyncio.create_task(oc.fetch(6, expires=60.0, idle_heartbeat=BEAT))
    for number, name in enumerate("abcabc", start=1):
        await stream.publish(1, name, first=number)
    await tap.wait_for(match.is_message(5))
    await stream.delete_consumer(oc.consumer)
    await wait_for_event(jsclient.ConsumerReset, events)
    for number, name in enumerate("cabab", start=7):
        await stream.publish(1, name, first=number)
    batch = await within(30, fetching, "the fetch")
    assert [message.metadata.stream_seq for message in batch] == [1, 2, 4, 5, 8, 9]
    assert {message.data for message in batch} == {b""}
    assert {int(message.headers["Nats-Msg-Size"]) > 0 for message in batch} == {True}
    assert [json.loads(frame.payload)["batch"] for frame in tap.sent(NEXT)] == [6, 2]
    await oc.stop()


async def test_another_process_continues(js: Any, stream: OwnStream) -> None:
    await stream.publish(20)
    async with js.ordered_consumer(stream.name) as oc:
        assert oc.position == 0
        assert numbers(await take(oc, 7)) == list(range(1, 8))
        position = oc.position
    assert position == 7
    async with js.ordered_consumer(stream.name, opt_start_seq=position + 1) as oc:
        assert numbers(await oc.fetch(100, no_wait=True)) == list(range(8, 21))
        assert oc.position == 20


# --- how it is read ------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.row(104)
@pytest.mark.parametrize("connection", ["own", "foreign"])
async def test_mixed_reads_have_no_gap(
    js: Any, natspy_js: Any, connection: str, stream: OwnStream, events: list[Any]
) -> None:
    if connection == "foreign":
        js = natspy_js
    await stream.publish(3000)
    async with js.ordered_consumer(stream.name) as oc:
        consumer = oc.consumer
        got = numbers(await take(oc, 5))
        got += numbers(await oc.fetch(700))
        async for message in oc:
            got += numbers([message])
            if len(got) == 1500:
                break
        got += numbers(await oc.fetch(10))
        async with oc.messages(max_messages=20) as reader:
            got += numbers(await take(reader, 90))
            assert reader.pending <= 3000
        while len(got) < 3000:
            got += numbers(await oc.fetch(1000, no_wait=True))
        assert got == list(range(1, 3001))
        assert oc.consumer == consumer
    assert alarms(events) == []


@pytest.mark.row(100)
async def test_one_way_to_read_at_a_time(js: Any, stream: OwnStream, oracle: Any) -> None:
    """Row 100."""
    async with js.ordered_consumer(stream.name) as oc:
        fetching = asyncio.create_task(oc.fetch(2, expires=10.0))
        await stream.until_asked(oc.consumer)
        for use in (oc.fetch(1), oc.next(), anext(aiter(oc))):
            with pytest.raises(jsclient.ConcurrentReadError):
                await use
        await stream.publish(10)
        assert numbers(await fetching) == [1, 2]
        async for message in oc:
            for use in (oc.fetch(1), anext(oc.messages())):
                with pytest.raises(jsclient.ConcurrentReadError):
                    await use
            if numbers([message]) == [6]:
                break
        assert numbers(await oc.fetch(4)) == [7, 8, 9, 10]


@pytest.mark.row(100)
async def test_nexts_are_one_reader(js: Any, stream: OwnStream) -> None:
    """The error of a fetch during a `next` said to end a loop, although no loop ran."""
    async with js.ordered_consumer(stream.name) as oc:
        nexts = [asyncio.create_task(oc.next()) for _ in range(2)]
        await stream.until_asked(oc.consumer)
        with pytest.raises(jsclient.ConcurrentReadError, match=r"next\(\) of this ordered consumer waits"):
            await oc.fetch(1)
        await stream.publish(2)
        assert sorted(numbers([await one for one in nexts])) == [1, 2]
        reading = aiter(oc)
        await stream.publish(1, first=3)
        assert numbers([await anext(reading)]) == [3]
        with pytest.raises(jsclient.ConcurrentReadError, match="is being iterated: end that loop"):
            await oc.fetch(1)


async def test_fetch_ends_like_others(js: Any, stream: OwnStream) -> None:
    await stream.publish(10, size=1000)
    async with js.ordered_consumer(stream.name) as oc:
        first = await oc.fetch(2)
        assert (numbers(first), first.ending) == ([1, 2], jsclient.Ending.FULL)
        size = first[0].size
        some = await oc.fetch(100, max_bytes=3 * size + 10)
        assert (numbers(some), some.ending) == ([3, 4, 5], jsclient.Ending.MAX_BYTES)
        remainder = await oc.fetch(100, no_wait=True)
        assert (numbers(remainder), remainder.ending) == ([6, 7, 8, 9, 10], jsclient.Ending.NO_MESSAGES)
        none = await oc.fetch(100, expires=0.3)
        assert (list(none), none.ending) == ([], jsclient.Ending.EXPIRED)
        for _ in range(20):
            assert list(await oc.fetch(100, no_wait=True)) == []
        assert oc.consumer.endswith("_1")


@pytest.mark.row(103)
async def test_errors_keep_position(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """Row 103."""
    oc = await near.ordered_consumer(stream.name, max_batch=50)
    number = 0
    for turn in range(40):
        kind = turn % 4
        if kind == 0:
            with pytest.raises(jsclient.PullLimitError):
                await oc.fetch(60)
        elif kind == 1:
            with pytest.raises(jsclient.PullLimitError):
                await anext(aiter(oc))
        elif kind == 2:
            asking = asyncio.create_task(oc.fetch(5, expires=5.0))
            await asyncio.sleep(0.001 * turn)
            asking.cancel()
            await asyncio.wait({asking})
        else:
            async with oc.messages(max_messages=5) as reader:
                with pytest.raises(jsclient.RequestTimeoutError):
                    await reader.next(timeout=0.01)
        await stream.publish(2, first=number + 1)
        assert numbers(await oc.fetch(2)) == [number + 1, number + 2]
        number += 2
    assert alarms(events) == []
    assert oc.consumer.endswith("_1")
    await oc.stop()


async def test_cancelled_calls_lose_nothing(js: Any, stream: OwnStream) -> None:
    """Row 103: many times in each way of reading."""
    oc = await js.ordered_consumer(stream.name)
    got: list[int] = []

    async def by_next() -> None:
        while True:
            got.extend(numbers([await oc.next()]))

    async def by_fetch() -> None:
        while True:
            got.extend(numbers(await oc.fetch(7, expires=0.5)))

    stored = 0
    for turn in range(400):
        if turn % 4 == 0:
            stored = await stream.publish(3, first=stored + 1)
        task = asyncio.create_task(by_next() if turn % 2 else by_fetch())
        await asyncio.sleep(turn % 7 * 0.0005)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled(), task
    while len(got) < stored:
        got += numbers([await oc.next(timeout=5)])
    assert got == list(range(1, stored + 1))
    await oc.stop()


@pytest.mark.row(106)
async def test_long_pause_keeps_buffer(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """Row 106: no one takes anything for many heartbeats, with a full buffer and with room."""
    await stream.publish(100)
    full, roomy = await js.ordered_consumer(stream.name), await js.ordered_consumer(stream.name)
    readers = [full.messages(max_messages=20, **QUICK), roomy.messages(max_messages=500, **QUICK)]
    for reader in readers:
        assert numbers(await take(reader, 1)) == [1]
    consumers = [full.consumer, roomy.consumer]
    await eventually(lambda: [full.pending, roomy.pending] == [19, 99], what="full buffers")
    await never(lambda: alarms(events), 6 * BEAT, "a false alarm")
    for reader in readers:
        assert numbers(await take(reader, 99)) == list(range(2, 101))
    assert [full.consumer, roomy.consumer] == consumers
    await full.stop()
    await roomy.stop()


@pytest.mark.row(106)
async def test_long_pause_recreates(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """Row 106."""
    await stream.publish(50)
    oc = await js.ordered_consumer(stream.name, inactive_threshold=2.0)  # it is read before it ends
    reader = oc.messages(max_messages=10, expires=0.5)
    assert numbers(await take(reader, 1)) == [1]
    await eventually(lambda: _consumers_are(stream), 30, "the server has removed it")
    assert numbers(await take(reader, 49, 4)) == list(range(2, 51)), "before the heartbeat would tell"
    assert len(of(jsclient.ConsumerReset, events)) == 1
    assert of(jsclient.HeartbeatMissed, events) == []
    await reader.stop()
    await eventually(lambda: _consumers_are(stream), 30, "the server has removed it")
    await stream.publish(1, first=51)
    assert numbers(await oc.fetch(1)) == [51]
    await oc.stop()


# --- its end -------------------------------------------------------------------------------------------------


@pytest.mark.row(102)
@pytest.mark.parametrize("end", ["stop", "drain", "context"])
async def test_its_end_leaves_nothing(
    server: Any, oracle: Any, tap: Any, near: Any, stream: OwnStream, end: str
) -> None:
    """Row 102."""
    await near.account_info()
    await stream.publish(30)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        opening = near.ordered_consumer(stream.name)
        oc = await opening.__aenter__() if end == "context" else await opening
        reader = oc.messages(max_messages=10)
        assert numbers(await take(reader, 3)) == [1, 2, 3]
        await eventually(lambda: oc.pending >= 5, what="some wait")
        if end == "context":
            await opening.__aexit__(None, None, None)
        else:
            await getattr(oc, end)()
        waiting = oc.pending
        remainder = [message async for message in reader]
        assert numbers(remainder) == list(range(4, 4 + waiting)) if end == "drain" else remainder == []
        assert oc.is_closed
        assert await _consumers_are(stream)
        with pytest.raises(jsclient.ClosedError):
            await oc.next()
    created = len(tap.sent(CREATES))
    await never(lambda: len(tap.sent(CREATES)) > created, 1.0, "another consumer")


@pytest.mark.row(102)
async def test_client_close_deletes(server: Any, connect: Any, stream: OwnStream) -> None:
    js = await connect(server)
    oc = await js.ordered_consumer(stream.name)
    waiting = asyncio.create_task(oc.next())
    await stream.until_asked(oc.consumer)
    await within(5, js.close(), "closing")
    with pytest.raises(jsclient.ClosedError):
        await waiting
    assert await _consumers_are(stream)
