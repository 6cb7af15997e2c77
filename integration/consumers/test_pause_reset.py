"""Pausing and resetting a consumer, and what its readers see of it. Rows 90 and 91 of docs/conformance.md."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.asking import api_requests, body, traffic

LONG = timedelta(minutes=10)
RACES = 200
BEAT = 0.6  # seconds between heartbeats. A busy machine is silent for a moment


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


async def new_consumer(js: Any, stream: OwnStream, **fields: Any) -> Any:
    """The handle of a new durable consumer, with long waits."""
    handle = await js.stream(stream.name)
    return await handle.create_consumer(durable_name="c", **{"ack_wait": 60, "mem_storage": True, **fields})


# --- pausing -----------------------------------------------------------------------------------------------------


@pytest.mark.core_cases(2)
@pytest.mark.row(90)
@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("way", ["fetch", "next", "messages", "push"])
async def test_paused_until_resumed(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    fields = {"deliver_subject": f"d.{stream.prefix}", "idle_heartbeat": BEAT} if way == "push" else {}
    consumer = await new_consumer(near, stream, **fields)
    until = await consumer.pause(LONG)
    assert until is not None
    info = await consumer.info()
    assert info.paused
    assert 0 < info.pause_remaining <= LONG.total_seconds()
    assert abs((until - datetime.now(UTC)).total_seconds() - info.pause_remaining) < 60
    await stream.publish(2)
    if way == "push":
        sub = await near.subscribe(stream=stream.name, consumer="c")
        call = sub.next(timeout=60)
    elif way == "fetch":
        call = consumer.fetch(1, expires=60, idle_heartbeat=BEAT)
    elif way == "next":
        call = consumer.next(60)  # with the longest heartbeat, 2 s
    else:
        call = consumer.messages(idle_heartbeat=BEAT).next()
    waiting = asyncio.create_task(call)
    await eventually(
        lambda: len(tap.find(match.is_heartbeat)) >= (1 if way == "next" else 3), what="heartbeats"
    )
    assert not waiting.done()
    assert (await consumer.info()).num_pending == 2
    await consumer.resume()
    # The server looks at the requests that wait with its next heartbeat to them.
    got = await within(40, waiting, "the message")
    assert numbers(got if way == "fetch" else [got]) == [1]
    info = await consumer.info()
    assert (info.paused, info.pause_remaining) == (False, None)
    assert alarms(events) == []


@pytest.mark.row(90)
@pytest.mark.server(">=2.11")
@pytest.mark.parametrize(
    "until",
    [
        datetime(2100, 1, 31, 12, 30, 15, 123456, tzinfo=UTC),
        datetime(2100, 1, 31, 12, 30, 15, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        timedelta(hours=2),
        7200,
        7200.25,
    ],
    ids=["time", "time elsewhere", "timedelta", "int", "float"],
)
async def test_until_is_a_time_or_a_span(tap: Any, near: Any, stream: OwnStream, until: Any) -> None:
    consumer = await new_consumer(near, stream)
    before = datetime.now(UTC)
    actual = await consumer.pause(until)
    after = datetime.now(UTC)
    if isinstance(until, datetime):
        assert actual == until
    else:
        span = until if isinstance(until, timedelta) else timedelta(seconds=until)
        assert before + span <= actual <= after + span
    assert actual.tzinfo is UTC
    (request,) = tap.sent("$JS.API.CONSUMER.PAUSE.>")
    assert body(request)["pause_until"].endswith("Z")
    assert (await consumer.info()).config.pause_until is not None


@pytest.mark.row(90)
@pytest.mark.server(">=2.11")
async def test_pause_ends_automatically(near: Any, stream: OwnStream) -> None:
    await stream.publish(1)
    consumer = await new_consumer(near, stream)
    assert await consumer.pause(datetime.now(UTC) - timedelta(seconds=1)) is None
    assert not (await consumer.info()).paused
    assert await consumer.pause(2.0) is not None  # longer than the request takes
    assert numbers([await consumer.next(30)]) == [1]
    assert not (await consumer.info()).paused
    await consumer.resume()  # it is not paused: as wished


@pytest.mark.row(90)
@pytest.mark.parametrize(
    "until",
    [
        datetime(2100, 1, 1),  # noqa: DTZ001  the point of it
        0,
        -1.5,
        timedelta(seconds=-1),
        timedelta(),
        float("nan"),
        float("inf"),
        True,
        "2100-01-01T00:00:00Z",
        None,
        10.0**20,
    ],
)
async def test_no_usable_time_refused_before_wire(tap: Any, near: Any, stream: OwnStream, until: Any) -> None:
    consumer = await new_consumer(near, stream)
    before = len(tap.frames)
    with pytest.raises(jsclient.ConfigError):
        await consumer.pause(until)
    await near.ping()
    assert traffic(tap, before) == []


@pytest.mark.row(90)
@pytest.mark.server(">=2.11")
async def test_pausing_not_there_error_by_name(near: Any, stream: OwnStream) -> None:
    consumer = await new_consumer(near, stream)
    await consumer.delete()
    for call in (consumer.pause(1), consumer.resume()):
        with pytest.raises(jsclient.ConsumerNotFoundError):
            await call
    await stream.delete()
    for call in (consumer.pause(1), consumer.resume()):
        with pytest.raises(jsclient.StreamNotFoundError):
            await call


@pytest.mark.row(90)
@pytest.mark.server(">=2.11")
async def test_paused_fetch_ends_in_time(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """The server's heartbeats continue. Silence would be reported."""
    await stream.publish(3)
    consumer = await new_consumer(near, stream)
    await consumer.pause(LONG)
    batch = await within(30, consumer.fetch(3, expires=3.0, idle_heartbeat=BEAT), "the fetch")
    assert (len(batch), batch.ending, batch.error) == (0, jsclient.Ending.EXPIRED, None)
    assert len(tap.find(match.is_heartbeat)) >= 2
    with pytest.raises(jsclient.RequestTimeoutError):
        await consumer.next(0.3)
    none = await within(5, consumer.fetch(3, no_wait=True), "the fetch without waiting")
    assert (len(none), none.ending) == (0, jsclient.Ending.NO_MESSAGES)
    assert alarms(events) == []


@pytest.mark.row(90)
@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("way", ["messages", "push"])
async def test_readers_wait_out_pause(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    """Neither silence nor a gap is reported."""
    fields = {"deliver_subject": f"d.{stream.prefix}", "idle_heartbeat": 0.8} if way == "push" else {}
    consumer = await new_consumer(near, stream, **fields)
    if way == "push":
        reader = await near.subscribe(stream=stream.name, consumer="c")
    else:
        reader = consumer.messages(max_messages=10, expires=2.0, idle_heartbeat=0.8)
    await stream.publish(5)
    assert numbers(await take(reader, 5)) == [1, 2, 3, 4, 5]
    await consumer.pause(LONG)
    beats = len(tap.find(match.is_heartbeat))
    await stream.publish(5, first=6)
    await eventually(lambda: len(tap.find(match.is_heartbeat)) >= beats + 4, what="heartbeats")
    assert reader.pending == 0
    await consumer.resume()
    assert numbers(await take(reader, 5)) == [6, 7, 8, 9, 10]
    assert alarms(events) == []


@pytest.mark.row(90)
@pytest.mark.server(">=2.11")
async def test_created_paused_stays(near: Any, stream: OwnStream) -> None:
    until = datetime(2100, 1, 1, tzinfo=UTC)
    consumer = await new_consumer(near, stream, pause_until=until)
    assert (await consumer.info()).paused
    handle = await near.stream(stream.name)
    changed = await handle.ensure_consumer(durable_name="c", max_deliver=7, on_drift="update")
    info = await changed.info()
    assert (info.paused, info.config.max_deliver) == (True, 7)


# --- resetting ---------------------------------------------------------------------------------------------------


async def half_acked(consumer: Any, count: int = 6) -> None:
    """Take `count` messages and ack the first half."""
    for number, message in enumerate(await consumer.fetch(count), 1):
        if number <= count // 2:
            await message.ack_sync()


@pytest.mark.row(91)
@pytest.mark.server(">=2.14")
async def test_reset_begins_again_behind_ack_floor(near: Any, stream: OwnStream) -> None:
    await stream.publish(8)
    consumer = await new_consumer(near, stream)
    await half_acked(consumer)
    assert await consumer.reset() == 4
    info = consumer.cached_info
    assert (info.num_ack_pending, info.delivered.consumer_seq, info.ack_floor.stream_seq) == (0, 0, 3)
    assert info == (await consumer.info()).replace(ts=info.ts)
    batch = await consumer.fetch(10, expires=0.3)
    assert numbers(batch) == [4, 5, 6, 7, 8]
    assert [message.metadata.consumer_seq for message in batch] == [1, 2, 3, 4, 5]
    assert {message.metadata.num_delivered for message in batch} == {1}


@pytest.mark.row(91)
@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("seq", [1, 2, 4, 7, 9])
async def test_reset_to_any_sequence(near: Any, stream: OwnStream, seq: int) -> None:
    await stream.publish(8)
    consumer = await new_consumer(near, stream)
    await half_acked(consumer)
    assert await consumer.reset(seq=seq) == seq
    assert consumer.cached_info.ack_floor.stream_seq == seq - 1
    batch = await consumer.fetch(10, no_wait=True)
    assert numbers(batch) == list(range(seq, 9))


@pytest.mark.row(91)
@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("policy", ["last", "new", "last_per_subject", "by_start_sequence", "by_start_time"])
async def test_reset_limited_by_policy(near: Any, stream: OwnStream, policy: str) -> None:
    await stream.publish(4)
    fields: dict[str, Any] = {}
    if policy == "by_start_sequence":
        fields = {"opt_start_seq": 3}
    elif policy == "last_per_subject":
        fields = {"filter_subject": stream.all}
    elif policy == "by_start_time":
        third = await (await near.stream(stream.name)).get_message(3)
        fields = {"opt_start_time": third.time}
    consumer = await new_consumer(near, stream, deliver_policy=policy, **fields)
    starts = policy.startswith("by_start")
    refused = (2,) if starts else (1, 4)
    for seq in refused:
        with pytest.raises(jsclient.ApiError) as caught:
            await consumer.reset(seq)
        assert (caught.value.code, caught.value.err_code) == (400, 10204)
    if starts:
        assert await consumer.reset(4) == 4
        assert numbers(await consumer.fetch(5, no_wait=True)) == [4]
    await consumer.reset()  # always after the ack floor


@pytest.mark.row(91)
@pytest.mark.parametrize("seq", [0, -1, True, 1.5, "1", 2**64])
async def test_no_sequence_refused_before_wire(tap: Any, near: Any, stream: OwnStream, seq: Any) -> None:
    consumer = await new_consumer(near, stream)
    before = len(tap.frames)
    with pytest.raises(jsclient.ConfigError):
        await consumer.reset(seq)
    await near.ping()
    assert traffic(tap, before) == []


@pytest.mark.row(91)
@pytest.mark.server(">=2.14")
async def test_resetting_not_there_error_at_once(connect: Any, server: Any, stream: OwnStream) -> None:
    """The server answers nothing: it must be found out, long before the timeout of a request."""
    consumer = await new_consumer(await connect(server, timeout=60.0), stream)
    await consumer.delete()
    with pytest.raises(jsclient.ConsumerNotFoundError):
        await within(20, consumer.reset(), "the error")
    await stream.delete()
    with pytest.raises(jsclient.StreamNotFoundError):
        await within(20, consumer.reset(), "the error")


@pytest.mark.row(91)
@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("way", ["fetch", "next", "messages", "push", "flow control"])
async def test_readers_go_on_over_a_reset(near: Any, stream: OwnStream, events: list[Any], way: str) -> None:
    """Messages that were not acked come again, and no gap is reported."""
    fields: dict[str, Any] = {}
    if way in ("push", "flow control"):
        fields = {"deliver_subject": f"d.{stream.prefix}", "idle_heartbeat": BEAT}
        fields["flow_control"] = way == "flow control"
    consumer = await new_consumer(near, stream, **fields)
    if fields:
        reader: Any = await near.subscribe(stream=stream.name, consumer="c")
    elif way == "messages":
        reader = consumer.messages(max_messages=10)
    else:
        reader = consumer
    await stream.publish(4)
    first = await take(reader, 4)
    # two of four are acked, so the reset restarts at the third
    for message in first[:2]:
        await message.ack_sync()
    waiting = asyncio.create_task(consumer.fetch(3, expires=20) if way == "fetch" else take(reader, 3))
    if not fields:
        await stream.until_asked("c")
    assert await consumer.reset() == 3
    await stream.publish(1, first=5)
    again = await within(30, waiting, "what comes again")
    assert numbers(again) == [3, 4, 5]
    assert [message.metadata.consumer_seq for message in again] == [1, 2, 3]
    if fields:
        reset = await wait_for_event(jsclient.ConsumerReset, events)
        assert (reset.stream, reset.consumer) == (stream.name, "c")
        assert "from 4 to" in reset.reason
    for message in again:
        await message.ack_sync()
    assert (await consumer.info()).ack_floor.stream_seq == 5
    assert len(alarms(events)) == (1 if fields else 0)


@pytest.mark.full
@pytest.mark.row(91)
@pytest.mark.server(">=2.14")
@pytest.mark.parametrize("way", ["messages", "push"])
async def test_resets_200_lose_nothing(near: Any, stream: OwnStream, events: list[Any], way: str) -> None:
    """A race. Resets fall between messages, acks and heartbeats."""
    fields = {"deliver_subject": f"d.{stream.prefix}", "idle_heartbeat": 0.1} if way == "push" else {}
    consumer = await new_consumer(near, stream, **fields)
    reader = (
        await near.subscribe(stream=stream.name, consumer="c")
        if way == "push"
        else consumer.messages(max_messages=7)
    )
    chance = random.Random(91)
    got: list[int] = []
    seen: set[int] = set()

    async def read() -> None:
        async for message in reader:
            got.extend(numbers([message]))
            seen.update(got[-1:])
            if chance.random() < 0.7:
                await message.ack()

    reading = asyncio.create_task(read())
    last = 0
    for _ in range(RACES):
        count = chance.randint(1, 5)
        await stream.publish(count, first=last + 1)
        last += count
        if chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0, 0.002))
        # Anything later would skip what was not delivered yet.
        first_missing = next(number for number in range(1, last + 2) if number not in seen)
        await consumer.reset(chance.choice([None, None, max(1, first_missing - 2)]))
    await eventually(lambda: seen == set(range(1, last + 1)), 20, "every message")
    await consumer.reset(last)
    await eventually(lambda: got[-1] == last, what="the last message")
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    reported_kinds = {type(event) for event in alarms(events)}
    assert reported_kinds == ({jsclient.ConsumerReset} if way == "push" else set())
    assert of(jsclient.GapDetected, events) == []


@pytest.mark.row(91)
@pytest.mark.server(">=2.14")
async def test_foreign_reset_of_ordered(near: Any, stream: OwnStream, events: list[Any]) -> None:
    """ADR-60 has it make its consumer again."""
    sub = await near.subscribe(stream.all, ordered=True)
    await stream.publish(5)
    assert numbers(await take(sub, 3)) == [1, 2, 3]
    await stream.oracle.api(f"CONSUMER.RESET.{stream.name}.{sub.consumer}")
    await stream.publish(5, first=6)
    assert numbers(await take(sub, 7)) == list(range(4, 11))
    await sub.unsubscribe()


# --- old servers -------------------------------------------------------------------------------------------------


@pytest.mark.row(91)
@pytest.mark.server("<2.14")
async def test_server_knows_no_reset_not_asked(tap: Any, near: Any, stream: OwnStream) -> None:
    """Version gate. Such a server answers nothing at all."""
    consumer = await new_consumer(near, stream)
    for seq in (None, 1):
        with pytest.raises(jsclient.ConfigError, match=r"2\.14"):
            await consumer.reset(seq)
    await near.ping()
    assert tap.sent("$JS.API.CONSUMER.RESET.>") == []


@pytest.mark.row(88, 90)
@pytest.mark.server("<2.11")
async def test_old_server_refused(tap: Any, near: Any, stream: OwnStream) -> None:
    """Version gate. Such a server answers nothing, and overlooks the fields."""
    consumer = await new_consumer(near, stream)
    before = len(tap.frames)
    calls = [consumer.pause(1), consumer.pause(LONG), consumer.resume(), consumer.unpin("g")]
    until = datetime(2100, 1, 1, tzinfo=UTC)
    handle = await near.stream(stream.name)
    for fields in (
        {"pause_until": until},
        {"priority_groups": ["g"], "priority_policy": "overflow"},
        {"priority_timeout": 5},
    ):
        config = jsclient.ConsumerConfig(**fields)
        calls += [
            handle.create_consumer(durable_name="d", **fields),
            handle.create_or_update_consumer(durable_name="c", **fields),
            handle.ensure_consumer(durable_name="d", **fields),
            near.pull_subscribe(stream.all, config=config),
        ]
    for call in calls:
        with pytest.raises(jsclient.ConfigError, match=r"2\.11"):
            await call
    await near.ping()
    lookups = ("STREAM.INFO.", "CONSUMER.INFO.", "STREAM.NAMES")
    assert [subject for subject in api_requests(tap, since=before) if not subject.startswith(lookups)] == []
    sub = await near.pull_subscribe(stream=stream.name, consumer="c")
    with pytest.raises(jsclient.ConfigError, match="no priority groups"):
        await sub.fetch(1, group="g")
