"""Deliveries that are missing, and how that is reported. Source: ADR-15 §Messages Gaps."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, noting, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never
from integration.kit.network import match

HEARTBEAT = jsclient.ConsumerConfig(idle_heartbeat=0.6)


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


async def publish_alternating(stream: OwnStream, pairs: int) -> None:
    """Sequences 1, 3, 5 ... on `.wanted`, 2, 4, 6 ... on `.other`: the two kinds of sequences part."""
    for number in range(1, pairs + 1):
        await stream.publish(1, "wanted", first=number)
        await stream.publish(1, "other", first=number)


@pytest.mark.parametrize(
    "ack_v2", [False, pytest.param(True, marks=pytest.mark.server(">=2.14"))], ids=["v1", "v2"]
)
@pytest.mark.covers("J88", "J90")
async def test_lost_delivery_in_both_forms(
    own_server: Any,
    oracle_for: Any,
    make_stream: Any,
    proxy: Any,
    connect: Any,
    events: list[Any],
    ack_v2: bool,
) -> None:
    own = await own_server(ack_v2=ack_v2)
    stream = await make_stream(oracle=await oracle_for(own))
    tap = await proxy(own)
    js = await connect(tap)
    lost = tap.drop_frames(match.is_message(5, 7))
    sub = await js.subscribe(stream.subject("wanted"))
    await publish_alternating(stream, 6)
    assert numbers(await take(sub, 4)) == [1, 2, 5, 6]
    assert lost.count == 2
    gap = await wait_for_event(jsclient.GapDetected, events)
    assert gap == jsclient.GapDetected(
        stream=stream.name,
        consumer=sub.consumer,
        last_consumer_seq=2,
        consumer_seq=5,
        last_stream_seq=3,
        stream_seq=9,
        missed=2,
    )
    assert gap.resume_stream_seq == 4
    assert of(jsclient.GapDetected, events) == [gap]


@pytest.mark.covers("J89", "J90")
async def test_lost_last_by_heartbeat(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    tap.drop_frames(match.is_message(5))
    sub = await near.subscribe(stream.subject("wanted"), config=HEARTBEAT)
    await publish_alternating(stream, 3)
    assert numbers(await take(sub, 2)) == [1, 2]
    gap = await wait_for_event(jsclient.GapDetected, events)
    beat = tap.find(lambda f: match.is_heartbeat(f) and f.header("Nats-Last-Consumer") == "3")[0]
    assert (gap.last_consumer_seq, gap.consumer_seq, gap.missed) == (2, 3, 1)
    assert (gap.last_stream_seq, gap.resume_stream_seq) == (3, 4)
    assert gap.stream_seq == int(beat.header("Nats-Last-Stream"))
    # Once: the next heartbeats and the next message say nothing new.
    await stream.publish(1, "wanted", first=4)
    assert numbers(await take(sub, 1)) == [4]
    count = len(tap.find(match.is_heartbeat))
    await eventually(lambda: len(tap.find(match.is_heartbeat)) >= count + 2, what="two more heartbeats")
    assert of(jsclient.GapDetected, events) == [gap]


@pytest.mark.covers("J88", "J90")
async def test_lost_first_is_gap(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    tap.drop_frames(match.is_message(1))
    sub = await near.subscribe(stream.all)
    await stream.publish(2)
    assert numbers(await take(sub, 1)) == [2]
    gap = await wait_for_event(jsclient.GapDetected, events)
    assert (gap.last_consumer_seq, gap.consumer_seq, gap.missed, gap.resume_stream_seq) == (0, 2, 1, 1)


@pytest.mark.covers("J90")
async def test_each_gap_reported_and_nothing_else(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    tap.drop_frames(match.is_message(10, 20, 21, 30))
    got: list[Any] = []
    sub = await near.subscribe(stream.all, config=HEARTBEAT, callback=noting(got))
    await stream.publish(40)
    await eventually(lambda: len(got) == 36, what="36 messages")
    await eventually(lambda: len(of(jsclient.GapDetected, events)) == 3, what="three gaps")
    gaps = of(jsclient.GapDetected, events)
    assert [(gap.last_stream_seq, gap.stream_seq, gap.missed) for gap in gaps] == [
        (9, 11, 1),
        (19, 22, 2),
        (29, 31, 1),
    ]
    assert {gap.consumer for gap in gaps} == {sub.consumer}


@pytest.mark.covers("J88")
async def test_redelivery_is_no_gap(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.publish(10)
    for seq in (3, 4, 8):
        await stream.oracle.delete_message(stream.name, seq)
    sub = await near.subscribe(stream.all, config=HEARTBEAT)
    messages = await take(sub, 7)
    await messages[2].nak()
    [again] = await take(sub, 1)
    assert again.metadata.num_delivered == 2
    count = len(tap.find(match.is_heartbeat))
    await eventually(lambda: len(tap.find(match.is_heartbeat)) >= count + 2, what="two heartbeats")
    assert alarms(events) == []


@pytest.mark.covers("J88")
async def test_late_binding_is_no_gap(js: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.create_consumer("push", deliver_subject=f"deliver.{stream.prefix}", max_ack_pending=-1)
    await stream.publish(5)
    for _ in range(2):
        sub = await js.subscribe(stream=stream.name, consumer="push")
        await stream.publish(3)
        await take(sub, 3)
        await sub.unsubscribe()
        await stream.oracle.wait_consumer(stream.name, "push", lambda info: not info.get("push_bound"))
    assert of(jsclient.GapDetected, events) == []


@pytest.mark.covers("J91")
async def test_queue_members_see_no_gaps(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    lost = tap.drop_frames(match.is_message(10, 20))
    first = await near.subscribe(stream.all, queue="workers", delete_on_close=True)
    second = await near.subscribe(stream.all, queue="workers", delete_on_close=True)
    await stream.publish(60)
    await eventually(lambda: first.pending + second.pending == 58, what="58 messages")
    assert first.pending > 0
    assert second.pending > 0
    assert lost.count == 2
    await near.ping()
    assert alarms(events) == []


@pytest.mark.covers("J91")
async def test_group_consumer_no_checks(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.create_consumer("c", deliver_subject=f"deliver.{stream.prefix}", deliver_group="workers")
    lost = tap.drop_frames(match.is_message(2))
    sub = await near.subscribe(stream=stream.name, consumer="c", queue="workers")
    await stream.publish(3)
    assert numbers(await take(sub, 2)) == [1, 3]
    assert lost.count == 1
    await near.ping()
    assert alarms(events) == []


@pytest.mark.covers("J92")
async def test_gap_reporting_can_be_switched_off(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    lost = tap.drop_frames(match.is_message(2, 5))
    sub = await near.subscribe(stream.all, config=HEARTBEAT, gap_alarm=False)
    await stream.publish(5)
    assert numbers(await take(sub, 3)) == [1, 3, 4]
    assert lost.count == 2
    await tap.wait_for(lambda f: match.is_heartbeat(f) and f.header("Nats-Last-Consumer") == "5")
    await never(lambda: alarms(events), 0.2, "an event")


@pytest.mark.covers("J92")
async def test_ordered_handles_gaps(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    lost = tap.drop_frames(match.is_message(3), count=1)
    sub = await near.subscribe(stream.all, ordered=True)
    await stream.publish(5)
    assert numbers(await take(sub, 5)) == [1, 2, 3, 4, 5]
    assert lost.count == 1
    reset = await wait_for_event(jsclient.ConsumerReset, events)
    assert reset.resume_stream_seq == 3
    assert of(jsclient.GapDetected, events) == []
    await sub.unsubscribe()


@pytest.mark.covers("J90", "J92")
async def test_gaps_on_user_connection(proxy: Any, stream: OwnStream, events: list[Any]) -> None:
    from integration.kit.clients.foreign import client

    tap = await proxy()
    async with client(tap) as nc:
        js = jsclient.JetStream(nc, on_event=events.append)
        tap.drop_frames(match.is_message(2))
        sub = await js.subscribe(stream.all)
        await stream.publish(3)
        assert numbers(await take(sub, 2)) == [1, 3]
        gap = await wait_for_event(jsclient.GapDetected, events)
        assert (gap.last_stream_seq, gap.stream_seq) == (1, 3)
        await js.close()
