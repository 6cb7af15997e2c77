"""Silence is reported, gaps are reported once, and a busy client does not count as silent (R6-R10)."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from integration.kit.clients.readers import FAST, PATIENT
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network.match import is_data, is_heartbeat, is_message
from integration.kit.network.wire import TO_CLIENT
from jsclient import (
    ConfigError,
    ConsumerConfig,
    ConsumerReset,
    Disconnected,
    DisconnectedError,
    GapDetected,
    HeartbeatError,
    HeartbeatMissed,
    Reconnected,
    RequestTimeoutError,
)

HEARTBEAT = 0.4
ALARM = 3 * HEARTBEAT + 0.25 + 10.0
SLOW_PING = {"reconnect_time_wait": 0.05, "connect_timeout": 20.0, "ping_interval": 600.0}
"""A connection whose PINGs find out nothing in the time of a test."""


@pytest.mark.core_cases(3)
@pytest.mark.row(42, 43)
@pytest.mark.covers("J82", "J84", "J85")
@pytest.mark.parametrize("ordered", [False, True], ids=["durable", "ordered"])
@pytest.mark.parametrize("fault", ["stall", "half-open", "freeze"])
async def test_silence_in_three_heartbeats(
    fault: str, ordered: bool, own_server: Any, oracle_for: Any, proxy: Any, connect: Any, events: list[Any]
) -> None:
    """R6: 6.3 s or never in nats-py."""
    own = await own_server()
    stream = await OwnStream.create(await oracle_for(own), "silent")
    tap = await proxy(own)
    js = await connect(tap, **SLOW_PING)
    config = ConsumerConfig(idle_heartbeat=HEARTBEAT, flow_control=True)
    if ordered:
        sub = await js.subscribe(stream.all, ordered=True, config=config)
    else:
        sub = await js.subscribe(stream.all, durable="d", config=config)
    await stream.publish(1)
    await take(sub, 1)
    await tap.wait_for(is_heartbeat, since=len(tap.frames))
    events.clear()  # a server without processor time may have been silent before
    started = time.monotonic()
    # Each fault stops the bytes at another place: in the proxy, in one direction, or in the server.
    if fault == "stall":
        tap.stall()
    elif fault == "half-open":
        tap.half_open()
    else:
        own.pause()
    try:
        missed = await wait_for_event(HeartbeatMissed, events, timeout=ALARM)
        took = time.monotonic() - started
    finally:
        if fault == "freeze":
            own.resume()
    print(f"{fault} {'ordered' if ordered else 'durable'}: told after {took:.2f} s of {3 * HEARTBEAT:.2f}")
    assert missed.stream == stream.name
    assert 2 * HEARTBEAT <= took <= ALARM
    if fault == "stall":
        tap.unstall()
    if fault != "half-open":
        await stream.publish(1, first=2)
        assert numbers(await take(sub, 1)) == [2]


async def test_pings_find_dead_connection(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """R10: at the latest after 3 ping intervals, and healed."""
    tap = await proxy()
    js = await connect(tap, **FAST)
    sub = await js.subscribe(stream.all)
    tap.half_open()
    started = time.monotonic()
    await wait_for_event(Reconnected, events)
    took = time.monotonic() - started
    print(f"found and healed after {took:.2f} s with PINGs every {FAST['ping_interval']} s")
    assert took < 3 * FAST["ping_interval"] + 10
    await stream.publish(1)
    assert numbers(await take(sub, 1)) == [1]


@pytest.mark.core_cases(1)
@pytest.mark.row(40, 106)
@pytest.mark.covers("J83")
@pytest.mark.parametrize("ordered", [False, True], ids=["durable", "ordered"])
async def test_blocked_or_idle_client_no_silence(
    ordered: bool, js: Any, stream: OwnStream, events: list[Any]
) -> None:
    """R7: the loop blocked 3 s (6 heartbeats), then idle: input is read before silence is judged."""
    config = ConsumerConfig(idle_heartbeat=0.5, flow_control=True)
    kind = {"ordered": True} if ordered else {"durable": "d"}
    sub = await js.subscribe(stream.all, config=config, **kind)
    await stream.publish(10)
    assert numbers(await take(sub, 5)) == [1, 2, 3, 4, 5]
    consumer = sub.consumer
    time.sleep(3)
    await asyncio.sleep(0.3)
    time.sleep(2)
    await never(lambda: of(HeartbeatMissed, events), 2.5, "a false alarm")
    assert [e for e in events if isinstance(e, HeartbeatMissed | GapDetected | ConsumerReset)] == []
    assert numbers(await take(sub, 5)) == [6, 7, 8, 9, 10]
    assert sub.consumer == consumer


@pytest.mark.covers("J90", "J91", "J92")
async def test_gap_reported_once_with_range(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """R8: one event an episode, with first, last and count. 18,987 alarms and no range in nats-py."""
    tap = await proxy()
    js = await connect(tap)
    # Dropped on the way, as no server does it.
    first = tap.drop_frames(is_message(*range(11, 41)))
    second = tap.drop_frames(is_message(*range(61, 66)))
    config = ConsumerConfig(idle_heartbeat=HEARTBEAT, flow_control=True, ack_wait=60)
    sub = await js.subscribe(stream.all, durable="d", config=config)
    await stream.publish(100)
    got = numbers(await take(sub, 65))
    assert got == [*range(1, 11), *range(41, 61), *range(66, 101)]
    assert (first.count, second.count) == (30, 5)
    # The messages may have arrived together, and events are reported in the next turn of the loop.
    await eventually(lambda: len(of(GapDetected, events)) >= 2, what="both gaps")
    gaps = of(GapDetected, events)
    assert [(g.last_stream_seq, g.stream_seq, g.missed) for g in gaps] == [(10, 41, 30), (60, 66, 5)]
    assert [gap.resume_stream_seq for gap in gaps] == [11, 61]
    await never(lambda: len(of(GapDetected, events)) > 2, 3 * HEARTBEAT, "the same gap told again")


@pytest.mark.covers("J89", "J90")
async def test_gap_at_end_reported_by_next_heartbeat(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """R8."""
    tap = await proxy()
    js = await connect(tap)
    rule = tap.drop_frames(is_message(4, 5))
    config = ConsumerConfig(idle_heartbeat=HEARTBEAT, flow_control=True, ack_wait=60)
    sub = await js.subscribe(stream.all, durable="d", config=config)
    await stream.publish(5)
    assert numbers(await take(sub, 3)) == [1, 2, 3]
    gap = await wait_for_event(GapDetected, events, timeout=ALARM)
    assert rule.count == 2
    assert (gap.last_stream_seq, gap.stream_seq, gap.missed) == (3, 5, 2)
    await never(lambda: len(of(GapDetected, events)) > 1, 3 * HEARTBEAT, "the same gap told again")


@pytest.mark.row(92, 109)
@pytest.mark.covers("J93")
async def test_ordered_reader_closes_gaps_itself(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """R4: dropped, doubled and overtaking deliveries come out once and in order."""
    tap = await proxy()
    js = await connect(tap)
    config = ConsumerConfig(idle_heartbeat=HEARTBEAT)
    sub = await js.subscribe(stream.all, ordered=True, config=config)
    got: list[int] = []
    rules = []
    for first, arm in (
        (1, lambda: tap.drop_frames(is_message(20, 21), count=2)),
        (41, lambda: tap.duplicate_frames(is_message(50), count=1)),
        (81, lambda: tap.hold_frames(is_message(90), count=1)),
    ):
        rules.append(arm())
        await stream.publish(40, first=first)
        got += numbers(await take(sub, 40))
        await eventually(lambda: len(of(ConsumerReset, events)) >= len(rules), what="a new consumer")
    rules[-1].release()
    await stream.publish(1, first=121)
    got += numbers(await take(sub, 1))
    assert [rule.count for rule in rules] == [2, 1, 1]
    assert got == list(range(1, 122))


@pytest.mark.core_cases(2)
@pytest.mark.row(50, 62)
@pytest.mark.parametrize("fault", ["cut", "half-open", "stall", "restart"])
async def test_fetch_ends_with_connection(
    fault: str, own_server: Any, oracle_for: Any, proxy: Any, connect: Any
) -> None:
    """R9: `DisconnectedError` when it is not back in 0.8 s, `HeartbeatError` in 2 pull heartbeats. 11.3 s before."""
    own = await own_server()
    oracle: Oracle = await oracle_for(own)
    stream = await OwnStream.create(oracle, "fetch", storage="file")
    tap = await proxy(own)
    js = await connect(tap, **SLOW_PING)
    psub = await js.pull_subscribe(stream.all, durable="d")
    heartbeat = 0.5 if fault in {"half-open", "stall"} else 10.0  # a lost connection needs none
    fetch = asyncio.create_task(psub.fetch(10, expires=60.0, idle_heartbeat=heartbeat))
    await oracle.wait_consumer(stream.name, "d", lambda info: info["num_waiting"])
    started = time.monotonic()
    # a lost connection is an error at once, a silent one after missed heartbeats
    if fault == "cut":
        tap.refuse()
        tap.cut()
    elif fault == "half-open":
        tap.half_open()
    elif fault == "stall":
        tap.stall(TO_CLIENT)
    else:
        await own.kill()
    expected = HeartbeatError if fault in {"half-open", "stall"} else DisconnectedError
    with pytest.raises(expected):
        await fetch
    took = time.monotonic() - started
    print(f"{fault}: {expected.__name__} after {took:.2f} s")
    assert took < 40.0, "long before its 60 s have passed"
    tap.heal()
    await tap.accept()
    if fault == "restart":
        await own.start()


@pytest.mark.row(62)
async def test_fetch_survives_short_interruption(
    proxy: Any,
    connect: Any,
    oracle: Oracle,
    stream: OwnStream,
    events: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R9, P23: the rest is asked for again at once."""
    # A busy machine may need longer for a reconnect than a fetch waits for one.
    monkeypatch.setattr("jsclient.consumers.pull.fetch._GRACE", 30.0)
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    psub = await js.pull_subscribe(stream.all, durable="d")
    fetch = asyncio.create_task(psub.fetch(3, expires=60.0))
    await oracle.wait_consumer(stream.name, "d", lambda info: info["num_waiting"])
    await stream.publish(1)
    await tap.wait_for(is_data)
    tap.cut()
    await wait_for_event(Reconnected, events)
    back = time.monotonic()
    await stream.publish(2, first=2)
    batch = await fetch
    print(f"{time.monotonic() - back:.3f} s after the reconnect")
    assert time.monotonic() - back < 40, "long before the 60 s of its request have passed"
    assert numbers(batch) == [1, 2, 3]
    assert of(Disconnected, events)
    await eventually(lambda: js.is_connected, what="the connection")


@pytest.mark.parametrize("requested", ["stream", "subjects", "consumer", "subscription", "pull", "ordered"])
async def test_info_within_its_timeout(proxy: Any, connect: Any, stream: OwnStream, requested: str) -> None:
    """A health probe ends when it says, although the requests of the connection may take longer."""
    tap = await proxy()
    js = await connect(tap, **SLOW_PING, timeout=30.0)
    handle = await js.stream(stream.name)
    info = {
        "stream": lambda: handle.info,
        "subjects": lambda: partial(handle.info, subjects_filter=">"),
        "consumer": lambda: consumer.info,
        "subscription": lambda: sub.consumer_info,
        "pull": lambda: psub.consumer_info,
        "ordered": lambda: ordered.info,
    }[requested]
    consumer = await handle.create_consumer(durable_name="d")
    async with (
        js.subscribe(stream.all) as sub,
        js.pull_subscribe(stream.all) as psub,
        js.ordered_consumer(stream.name) as ordered,
    ):
        with pytest.raises(ConfigError, match="timeout is 0"):
            await info()(timeout=0)
        tap.stall()
        started = time.monotonic()
        with pytest.raises(RequestTimeoutError, match=r"0\.3"):
            await within(15, info()(timeout=0.3), "the probe")
        assert time.monotonic() - started < 10
        tap.unstall()
        assert await within(20, info()(timeout=15.0), "the next probe")
