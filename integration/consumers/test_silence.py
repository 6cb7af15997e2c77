"""What would be silent without an alarm: a deleted consumer, dropped messages, a durable deleted at the end."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kit.judge.reading import of, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient import ConsumerConfig, ConsumerDeleted, SlowConsumer
from jsclient.events import DurableDeleted


@pytest.mark.parametrize("arguments", [{}, {"durable": "d"}])
async def test_push_has_a_heartbeat_by_default(js: Any, stream: OwnStream, arguments: dict[str, Any]) -> None:
    sub = await js.subscribe(stream.all, **arguments)
    assert (await stream.consumer_info(sub.consumer))["config"]["idle_heartbeat"] == 5_000_000_000
    await sub.unsubscribe()
    without = await js.subscribe(stream.all, config=ConsumerConfig(idle_heartbeat=0.0), **arguments)
    assert "idle_heartbeat" not in (await stream.consumer_info(without.consumer))["config"]
    group = await js.subscribe(stream.all, queue="workers")
    assert "idle_heartbeat" not in (await stream.consumer_info(group.consumer))["config"]


async def test_deleted_consumer_noticed_by_default(js: Any, stream: OwnStream, events: list[Any]) -> None:
    """A subscription whose consumer was deleted waited for ever."""
    sub = await js.subscribe(stream.all, heartbeat_alarm=1.0)
    await stream.oracle.delete_consumer(stream.name, sub.consumer)
    await eventually(lambda: of(ConsumerDeleted, events), 15, "the event")


async def test_drops_reported_with_their_sum(js: Any, stream: OwnStream, events: list[Any]) -> None:
    config = ConsumerConfig(ack_policy="none")
    sub = await js.subscribe(stream.all, config=config, max_pending=10)
    for episode in (1, 2):
        await stream.publish(100)
        await eventually(lambda: sub.dropped == 90 * episode, what="the drops")  # noqa: B023
        await take(sub, 10)
        await stream.publish(1)
        await take(sub, 1)
        await eventually(lambda: len(of(SlowConsumer, events)) == 2 * episode, what="both events")  # noqa: B023
    reports = of(SlowConsumer, events)
    assert [(one.dropped, one.ended) for one in reports] == [(1, False), (90, True)] * 2
    assert [(one.first_stream_seq, one.last_stream_seq) for one in reports[1::2]] == [(11, 100), (112, 201)]


@pytest.mark.covers("J111", "J112")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@pytest.mark.parametrize("kind", ["pull_subscribe", "subscribe"])
async def test_durable_deleted_with_messages_reported(
    js: Any, stream: OwnStream, events: list[Any], kind: str, end: str
) -> None:
    """ADR-15 deletes what the subscription created, with the place of the reader."""
    config = ConsumerConfig(max_ack_pending=3)
    await stream.publish(10)
    sub = await getattr(js, kind)(stream.all, durable="d", config=config)
    if kind == "subscribe":
        await take(sub, 3)
    else:
        assert len(await sub.fetch(3)) == 3
    await getattr(sub, end)()
    await eventually(lambda: of(DurableDeleted, events), what="the event")
    [event] = of(DurableDeleted, events)
    assert (event.stream, event.consumer, event.pending, event.unacked) == (stream.name, "d", 7, 3)
    assert "delete_on_close=False" in str(event)
    assert await stream.consumer_names() == []


@pytest.mark.covers("J111")
async def test_other_ends_say_nothing(js: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.publish(3)
    for arguments in ({}, {"durable": "kept", "delete_on_close": False}):
        sub = await js.pull_subscribe(stream.all, **arguments)
        await sub.fetch(1)
        await sub.unsubscribe()
    done = await js.pull_subscribe(stream.all, durable="done")
    for message in await done.fetch(3):
        await message.ack_sync()
    await done.unsubscribe()
    await js.ping()
    assert of(DurableDeleted, events) == []
