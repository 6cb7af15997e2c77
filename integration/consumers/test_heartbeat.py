"""The alarm when a push consumer falls silent. Source: ADR-15 §Heartbeats."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import EventReader, alarms, noting, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match

BEAT = 0.5
CONFIG = jsclient.ConsumerConfig(idle_heartbeat=BEAT)


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.mark.row(40, 42)
@pytest.mark.covers("J82", "J84", "J85", "J87")
async def test_frozen_server_alarms(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any]
) -> None:
    own = await own_server()
    stream = await make_stream(oracle=await oracle_for(own))
    js = await connect(own)
    sub = await js.subscribe(stream.all, config=CONFIG)
    reader = EventReader(sub)
    await stream.publish(1)
    await take(sub, 1)
    own.pause()
    await eventually(lambda: len(of(jsclient.HeartbeatMissed, events)) >= 3, what="three alarms")
    own.resume()
    first, second, third = of(jsclient.HeartbeatMissed, events)[:3]
    assert (first.stream, first.consumer) == (stream.name, sub.consumer)
    assert 3 * BEAT <= first.silent_for < 6 * BEAT + 8
    assert first.silent_for + 2 * BEAT < second.silent_for < third.silent_for - 2 * BEAT
    assert of(jsclient.HeartbeatMissed, reader.events)[:3] == [first, second, third]

    await stream.publish(1, first=2)
    assert [message.data for message in await take(sub, 1)] == [b"2"]
    count = len(of(jsclient.HeartbeatMissed, events))
    await never(lambda: len(of(jsclient.HeartbeatMissed, events)) > count, 4 * BEAT, "an alarm once more")
    assert of(jsclient.ConsumerDeleted, events) == []
    await sub.unsubscribe()
    await within(5, reader.task, "the end of sub.events()")


@pytest.mark.row(40)
@pytest.mark.covers("J82", "J85", "J86")
@pytest.mark.parametrize("factor", [None, 1.5, 6.0], ids=["default", "shorter", "longer"])
async def test_alarm_after_three_intervals(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], factor: float | None
) -> None:
    options = {} if factor is None else {"heartbeat_alarm": factor}
    sub = await near.subscribe(stream.all, config=CONFIG, **options)
    await tap.wait_for(match.is_heartbeat)
    tap.drop_frames(match.is_heartbeat)
    alarm = await wait_for_event(jsclient.HeartbeatMissed, events)
    allowed = (factor or 3.0) * BEAT
    assert allowed <= alarm.silent_for < allowed + 5.0
    await sub.unsubscribe()


@pytest.mark.row(40)
@pytest.mark.covers("J83")
async def test_messages_alone_hold_off_alarm(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    tap.drop_frames(match.is_heartbeat)
    sub = await near.subscribe(stream.all, config=CONFIG.replace(idle_heartbeat=2 * BEAT))
    for number in range(1, 18):  # longer than three heartbeats, and each pause much shorter
        await stream.publish(1, first=number)
        await asyncio.sleep(0.2)
    assert sub.pending == 17
    assert of(jsclient.HeartbeatMissed, events) == []
    # They were what held it off: without them it comes.
    await wait_for_event(jsclient.HeartbeatMissed, events)


@pytest.mark.core_cases(1)
@pytest.mark.row(40)
@pytest.mark.covers("J83")
@pytest.mark.parametrize("status", ["100 Idle Heartbeat", "408 Request Timeout"])
async def test_statuses_alone_hold_off_alarm(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], status: str
) -> None:
    tap.drop_frames(match.is_heartbeat)
    sub = await near.subscribe(stream.all, config=CONFIG.replace(idle_heartbeat=2 * BEAT))
    for _ in range(17):
        tap.inject_message(sub.subject, status=status)
        await asyncio.sleep(0.2)
    assert of(jsclient.HeartbeatMissed, events) == []
    await wait_for_event(jsclient.HeartbeatMissed, events)


@pytest.mark.row(34)
@pytest.mark.covers("J81", "J82")
async def test_idle_heartbeats_no_alarm(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    got: list[Any] = []
    config = CONFIG.replace(flow_control=True)
    called = await near.subscribe(stream.all, config=config, callback=noting(got))
    requests = await near.subscribe(stream.all, config=config)
    await eventually(lambda: len(tap.find(match.is_heartbeat)) >= 8, what="heartbeats")
    assert got == []
    assert (called.pending, requests.pending) == (0, 0)
    with pytest.raises(jsclient.RequestTimeoutError):
        await requests.next(timeout=2 * BEAT)
    assert alarms(events) == []


@pytest.mark.covers("J82")
async def test_found_heartbeat_watched(js: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.create_consumer("push", deliver_subject="deliver.here", idle_heartbeat=int(BEAT * 1e9))
    await js.subscribe(stream=stream.name, consumer="push")
    await asyncio.sleep(4 * BEAT)
    assert alarms(events) == []
    await stream.delete_consumer("push")
    alarm = await wait_for_event(jsclient.HeartbeatMissed, events)
    assert alarm.consumer == "push"


@pytest.mark.covers("J87")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_watch_ends_with_subscription(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], end: str
) -> None:
    sub = await near.subscribe(stream.all, durable="d", config=CONFIG, delete_on_close=False)
    other = await near.subscribe(stream.all, durable="o", config=CONFIG)
    await tap.wait_for(match.is_heartbeat)
    await getattr(sub, end)()
    tap.stall()
    # The other one is the proof that there was something to raise an alarm about.
    await wait_for_event(jsclient.HeartbeatMissed, events, lambda e: e.consumer == other.consumer)
    tap.unstall()
    assert [e for e in events if e.consumer == "d"] == []


@pytest.mark.row(41, 42, 43)
@pytest.mark.covers("J82", "J84")
@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_p8_deletion_named(js: Any, stream: OwnStream, events: list[Any], what: str) -> None:
    """P8: push with a heartbeat, consumer or stream deleted, and never a word."""
    sub = await js.subscribe(stream.all, config=CONFIG)
    reader = EventReader(sub)
    if what == "consumer":
        await stream.delete_consumer(sub.consumer)
    else:
        await stream.delete()
    await wait_for_event(jsclient.ConsumerDeleted, events, lambda e: e.consumer == sub.consumer)
    kinds = [type(event) for event in events if event.consumer == sub.consumer]
    assert kinds.count(jsclient.ConsumerDeleted) == 1
    await eventually(lambda: len(of(jsclient.HeartbeatMissed, events)) >= 3, what="the alarm goes on")
    assert len(of(jsclient.ConsumerDeleted, reader.events)) == 1
    await sub.unsubscribe()
    await within(5, reader.task, "the end of sub.events()")


@pytest.mark.row(41)
@pytest.mark.covers("J84")
async def test_callback_gets_alarm_event(js: Any, stream: OwnStream, events: list[Any]) -> None:
    got: list[Any] = []
    sub = await js.subscribe(stream.all, config=CONFIG, callback=noting(got))
    await stream.delete_consumer(sub.consumer)
    await wait_for_event(jsclient.HeartbeatMissed, events)
    assert got == []


@pytest.mark.covers("J82", "J87")
async def test_blocked_loop_is_no_silence(js: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await js.subscribe(stream.all, config=CONFIG)
    await asyncio.sleep(2 * BEAT)
    time.sleep(5 * BEAT)  # heartbeats arrive meanwhile and are read first
    await asyncio.sleep(2 * BEAT)
    assert of(jsclient.HeartbeatMissed, events) == []
    await sub.unsubscribe()


@pytest.mark.covers("J82", "J84")
async def test_alarm_on_user_connection(natspy_js: Any, stream: OwnStream, events: list[Any]) -> None:
    sub = await natspy_js.subscribe(stream.all, config=CONFIG)
    await asyncio.sleep(5 * BEAT)
    assert alarms(events) == []
    await stream.delete_consumer(sub.consumer)
    await wait_for_event(jsclient.ConsumerDeleted, events)
    await wait_for_event(jsclient.HeartbeatMissed, events)


@pytest.mark.covers("J84")
async def test_deletion_is_told_long_before_the_alarm(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """A heartbeat is missing, and the consumer does not exist: three of them need not be awaited."""
    sub = await js.subscribe(stream.all, config=CONFIG, heartbeat_alarm=10_000)
    other = await js.subscribe(stream.all, config=CONFIG, heartbeat_alarm=10_000)
    await stream.delete_consumer(sub.consumer)
    assert (await wait_for_event(jsclient.ConsumerDeleted, events)).consumer == sub.consumer
    assert of(jsclient.HeartbeatMissed, events) == []
    await asyncio.sleep(5 * BEAT)
    assert [event.consumer for event in of(jsclient.ConsumerDeleted, events)] == [sub.consumer]
    await other.unsubscribe()


@pytest.mark.server(">=2.14")
@pytest.mark.covers("J64", "J82", "J89")
async def test_p2_heartbeats_with_ack_v2(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any]
) -> None:
    """P2: with the second ack form on, the first heartbeat ended the reader without an event."""
    own = await own_server(ack_v2=True)
    stream = await make_stream(oracle=await oracle_for(own))
    js = await connect(own)
    sub = await js.subscribe(stream.all, config=CONFIG)
    await stream.publish(1)
    assert [message.data for message in await take(sub, 1)] == [b"1"]
    await asyncio.sleep(4 * BEAT)
    await stream.publish(1, first=2)
    [message] = await take(sub, 1)
    assert message.metadata.stream_seq == 2
    await message.ack_sync(timeout=5)
    assert alarms(events) == []
