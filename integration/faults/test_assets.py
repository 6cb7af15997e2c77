"""Consumers and streams that vanish, come back or are emptied under a reader."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from integration.kit.clients import readers
from integration.kit.clients.readers import ORDERED, all_readers, wait_for_all
from integration.kit.clients.traffic import Tally
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from jsclient import (
    ConsumerConfig,
    ConsumerDeleted,
    ConsumerDeletedError,
    ConsumerReset,
    Ending,
    GapDetected,
    HandlerFailed,
    HeartbeatMissed,
    JetStreamError,
    SlowConsumer,
    StreamReset,
)

HEARTBEAT = 0.3
ALARM = 3 * HEARTBEAT + 0.25 + 10.0
"""R6, and what a loaded machine adds."""


def durable(heartbeat: float = HEARTBEAT, **more: Any) -> ConsumerConfig:
    return ConsumerConfig(idle_heartbeat=heartbeat, flow_control=True, **more)


async def remake(oracle: Oracle, stream: OwnStream, count: int) -> None:
    """Delete the stream and create one of the same name with `count` messages."""
    await oracle.delete_stream(stream.name)
    await oracle.create_stream(stream.name, [stream.all], storage="memory")
    if count:
        await stream.publish(count, first=1001)


@pytest.mark.core_cases(1)
@pytest.mark.covers("J84", "J85")
@pytest.mark.parametrize("what", ["consumer", "stream", "stream made again"])
async def test_durable_deletion_named(
    what: str, js: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R6: reported within 3 heartbeats, by name. Silent for ever in nats-py."""
    await stream.publish(20)
    sub = await js.subscribe(stream.all, durable="d", config=durable())
    for message in await take(sub, 20):
        await message.ack_sync()
    started = time.monotonic()
    if what == "consumer":
        await stream.delete_consumer("d")
    elif what == "stream":
        await oracle.delete_stream(stream.name)
    else:
        await remake(oracle, stream, 5)
    missed = await wait_for_event(HeartbeatMissed, events, timeout=ALARM)
    missed_after = time.monotonic() - started
    missing = await wait_for_event(ConsumerDeleted, events, timeout=ALARM)
    deleted_after = time.monotonic() - started
    print(what, f"missed after {missed_after:.2f} s, gone after {deleted_after:.2f} s")
    assert (missed.stream, missed.consumer) == (missing.stream, missing.consumer) == (stream.name, "d")
    assert missed_after <= ALARM
    assert missed.silent_for >= 3 * HEARTBEAT
    # Once by name. The silence is reported again while it lasts.
    await asyncio.sleep(4 * HEARTBEAT)
    assert len(of(ConsumerDeleted, events)) == 1
    await sub.unsubscribe()


@pytest.mark.row(96, 99)
@pytest.mark.covers("J93", "J94")
async def test_ordered_survives_deletion(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """R4: a new consumer within 3 heartbeats, nothing lost, nothing twice."""
    await stream.publish(50)
    sub = await js.subscribe(stream.all, ordered=True, config=ConsumerConfig(idle_heartbeat=HEARTBEAT))
    got = numbers(await take(sub, 30))
    old = sub.consumer
    await stream.delete_consumer(old)
    await stream.publish(50, first=51)
    got += numbers(await take(sub, 70))
    assert got == list(range(1, 101))
    reset = await wait_for_event(ConsumerReset, events)
    assert sub.consumer != old
    assert reset.resume_stream_seq in (0, 51)
    await eventually(stream.consumer_names, what="one consumer")
    assert await stream.consumer_names() == [sub.consumer]


@pytest.mark.covers("J93")
async def test_ordered_follows_new_stream(
    js: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R6, reliability 2.1.4: 0 of 100 new messages in nats-py, and no word."""
    await stream.publish(30)
    sub = await js.subscribe(stream.all, ordered=True, config=ConsumerConfig(idle_heartbeat=HEARTBEAT))
    assert numbers(await take(sub, 30)) == list(range(1, 31))
    started = time.monotonic()
    await remake(oracle, stream, 10)
    reset = await wait_for_event(StreamReset, events)
    print(f"stream reset told after {time.monotonic() - started:.2f} s")
    assert (reset.stream, reset.last_stream_seq) == (stream.name, 30)
    assert numbers(await take(sub, 10)) == list(range(1001, 1011))
    assert len(of(StreamReset, events)) == 1


@pytest.mark.row(96)
async def test_ordered_ends_with_stream(
    js: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R6, reliability 2.1.5: believed only when it is repeated for 5 s."""
    sub = await js.subscribe(stream.all, ordered=True, config=ConsumerConfig(idle_heartbeat=HEARTBEAT))
    started = time.monotonic()
    await oracle.delete_stream(stream.name)
    await wait_for_event(HeartbeatMissed, events, timeout=ALARM)
    with pytest.raises(JetStreamError, match=r"stream .* not found"):
        await sub.next(timeout=60)
    took = time.monotonic() - started
    print(f"ended after {took:.2f} s")
    assert 5 <= took < 50
    assert sub.is_closed


@pytest.mark.covers("J105")
@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_fetch_ends_on_deletion(
    what: str, batch: int, js: Any, oracle: Oracle, stream: OwnStream
) -> None:
    """R9: a named error within 1 s. 11 s and `[]` in nats-py."""
    psub = await js.pull_subscribe(stream.all, durable="d")
    fetch = asyncio.create_task(psub.fetch(batch, expires=60.0))
    await oracle.wait_consumer(stream.name, "d", lambda info: info["num_waiting"])
    started = time.monotonic()
    if what == "consumer":
        await stream.delete_consumer("d")
    else:
        await oracle.delete_stream(stream.name)
    with pytest.raises(ConsumerDeletedError):
        await fetch
    took = time.monotonic() - started
    print(f"{what} {batch}: {took:.3f} s")
    assert took < 40.0, "before its 60 s have passed"
    await psub.drain()


@pytest.mark.covers("J105")
async def test_fetch_gives_earlier(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    """R9: received messages are always returned, with the error beside them."""
    psub = await js.pull_subscribe(stream.all, durable="d")
    await stream.publish(3)
    fetch = asyncio.create_task(psub.fetch(10, expires=60.0))
    await oracle.wait_consumer(stream.name, "d", lambda info: info["num_ack_pending"] == 3)
    await stream.delete_consumer("d")
    batch = await fetch
    assert numbers(batch) == [1, 2, 3]
    assert batch.ending is Ending.DELETED
    assert isinstance(batch.error, ConsumerDeletedError)
    await psub.drain()


@pytest.mark.row(65)
async def test_pull_ends_by_name(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    """R6, R9: messages() of a deleted consumer."""
    psub = await js.pull_subscribe(stream.all, durable="d")
    reader = psub.messages(expires=10.0)
    await stream.publish(3)
    assert numbers(await take(reader, 3)) == [1, 2, 3]
    await stream.delete_consumer("d")
    with pytest.raises(ConsumerDeletedError):
        await reader.next(timeout=30)
    await psub.drain()


@pytest.mark.covers("J90")
async def test_a_purge_alarms_nobody(
    js: Any, stream: OwnStream, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: no alarm and no stop, every way of reading."""
    # All readers share a connection, so a heartbeat waits until the messages before it have been read. This takes
    # seconds on a busy machine.
    monkeypatch.setattr(readers, "HEARTBEAT", 2.0)
    await stream.publish(200)
    async with all_readers(js, stream) as tallies:
        await wait_for_all(tallies, 200, 60)
        await stream.publish(2000, first=201, size=500)
        purged = await stream.purge()
        state = await stream.state()
        await stream.publish(100, first=90_001)
        last = (await stream.state())["last_seq"]
        print("purged", purged, {name: len(tally.seqs) for name, tally in tallies.items()})

        def all_new() -> bool:
            return not any(tally.lost(last, state["last_seq"] + 1) for tally in tallies.values())

        await eventually(all_new, what="the messages after the purge")
        await never(lambda: of(HeartbeatMissed, events), 6.5, "a false alarm")
    alarms = [e for e in events if isinstance(e, GapDetected | StreamReset | ConsumerDeleted | ConsumerReset)]
    assert alarms == []
    for name in ORDERED:
        assert tallies[name].repeated == tallies[name].disordered == []


@pytest.mark.covers("J80")
async def test_handler_raises_stops_nothing(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """R16: every failure is reported with its sequence, the message comes again, the others are handled."""
    tally = Tally()

    async def handle(message: Any) -> None:
        tally.take(message)
        if message.metadata.stream_seq % 10 == 0 and message.metadata.num_delivered == 1:
            raise ValueError("odd one")

    config = durable(ack_wait=5.0)  # nothing else may be repeated, so a machine may stand still for so long
    await js.subscribe(stream.all, durable="d", config=config, callback=handle)
    await stream.publish(100)
    await eventually(lambda: len(tally.again) == 10, 60, "the repeats of those that failed")
    assert tally.lost(100) == []
    assert tally.repeated == list(range(10, 101, 10))
    failures = of(HandlerFailed, events)
    assert sorted(failure.stream_seq for failure in failures) == list(range(10, 101, 10))
    assert {str(failure.error) for failure in failures} == {"odd one"}


async def test_stuck_handler_is_isolated(
    js: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R16, R19: other subscriptions continue, heartbeats raise no alarm, drain ends by its own deadline."""
    heartbeat = 1.0  # a server without processor time for three of them would be reported, too
    config = durable(heartbeat)
    stuck = await js.subscribe(
        stream.all, durable="stuck", config=config, callback=lambda _: asyncio.Event().wait()
    )
    tally = Tally()
    await js.subscribe(stream.all, durable="other", config=config, callback=tally.take)
    await stream.publish(500)
    await eventually(lambda: not tally.lost(500), 60, "the other subscription's messages")
    await never(lambda: of(HeartbeatMissed, events), 3.5 * heartbeat, "a false alarm")
    with pytest.raises(JetStreamError, match="drain"):
        await within(30, stuck.drain(timeout=0.5), "a drain of half a second")
    assert await stream.consumer_names() == ["other"]


@pytest.mark.core_cases(1)
@pytest.mark.row(108)
@pytest.mark.parametrize("kind", ["ordered", "explicit"])
async def test_a_full_buffer_loses_nothing(kind: str, js: Any, stream: OwnStream, events: list[Any]) -> None:
    """R4, R8, R11: up to 20,000 waiting for a queue of 1,000. 18,987 lost for good from nats-py's ordered consumer."""
    count = 20_000 if kind == "ordered" else 5000
    await stream.publish(count)
    tally = Tally()
    config = ConsumerConfig(idle_heartbeat=HEARTBEAT, flow_control=True)
    if kind == "ordered":
        sub = await js.subscribe(stream.all, ordered=True, config=config, max_pending=1000)
    else:
        config = config.replace(ack_wait=2.0, max_ack_pending=3000)
        sub = await js.subscribe(stream.all, durable="d", config=config, max_pending=1000)
    # No one takes anything yet: the queue must fill, and no further.
    await eventually(lambda: sub.pending == 1000, what="a full queue")
    await wait_for_event(SlowConsumer, events)
    highest = 0
    distinct: set[int] = set()
    while len(distinct) < count:
        message = await sub.next(timeout=30)
        highest = max(highest, sub.pending)
        tally.take(message)
        distinct.add(tally.seqs[-1])
        await message.ack()
    counts = tally.counts(count)
    episodes = [event for event in of(SlowConsumer, events) if event.ended]
    print(kind, counts, f"{len(episodes)} episodes, {sub.dropped} dropped, highest {highest}")
    assert counts["lost"] == 0
    assert counts["untold"] == 0
    assert highest <= 1000
    assert len(episodes) < count / 200
    if kind == "ordered":
        assert counts == {"lost": 0, "repeated": 0, "disordered": 0, "untold": 0}
    await sub.unsubscribe()
