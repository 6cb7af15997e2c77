"""A push subscription on a fake connection: taking, callbacks, events, the end."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import (
    ConsumerDeletedError,
    NoRespondersError,
    RequestTimeoutError,
    StatusError,
)
from jsclient.protocol.events import (
    ConsumerDeleted,
    FlowControlRefused,
    GapDetected,
    HeartbeatMissed,
    SlowConsumer,
)
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.consumers.push.test_buffer import BEATS, FLOW, now, numbers
from tests.support.fake import connected
from tests.support.strategies import FC, data, flow_control, foreign, heartbeat, status
from tests.support.virtual import settle, virtual

# --- next ----------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J81", "J95", "J96", "J97")
async def test_next_answers_flow_control():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", config=FLOW)
        connection.deliver(sub.subject, [data(1), flow_control(1), data(2), flow_control(2)])
        assert connection.to("$JS.FC.") == []
        await sub.next()
        assert connection.to("$JS.FC.") == []
        assert (await sub.next(timeout=0)).metadata.stream_seq == 2
        (answer,) = connection.to("$JS.FC.")
        assert (answer.subject.encode(), answer.payload, answer.reply) == (FC % 1, b"", "")
        started = now()
        asyncio.get_running_loop().call_later(3, connection.deliver, sub.subject, [flow_control(3)])
        with pytest.raises(RequestTimeoutError):
            await sub.next(timeout=10)
        assert now() - started == pytest.approx(10)
        assert [sent.subject.encode() for sent in connection.to("$JS.FC.")] == [FC % 1, FC % 2, FC % 3]


@virtual
@pytest.mark.covers("J100", "J101")
async def test_stalled_heartbeat_answered_once():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", config=FLOW)
        connection.deliver(sub.subject, [heartbeat(0, 0, FC % 9)])
        with pytest.raises(RequestTimeoutError):
            await sub.next(timeout=1)
        connection.deliver(sub.subject, [heartbeat(0, 0, FC % 9)])
        with pytest.raises(RequestTimeoutError):
            await sub.next(timeout=1)
        assert [sent.subject.encode() for sent in connection.to("$JS.FC.")] == [FC % 9]


@virtual
@pytest.mark.covers("J105", "J106", "J107")
async def test_error_statuses_raised_at_place():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        connection.deliver(
            sub.subject, [data(1), status(409, "Consumer Deleted"), data(2), status(503), status(777, "New")]
        )
        await sub.next()
        with pytest.raises(ConsumerDeletedError):
            await sub.next()
        assert numbers(await sub.next_batch()) == [2]
        with pytest.raises(NoRespondersError):
            await sub.next()
        with pytest.raises(StatusError, match="777"):
            await sub.next()


@virtual
async def test_batch_comes_before_error():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", config=FLOW)
        connection.deliver(sub.subject, [data(1), data(2), flow_control(1), status(503), data(3)])
        assert numbers(await sub.next_batch()) == [1, 2]
        with pytest.raises(NoRespondersError):
            await sub.next_batch()
        assert numbers(await sub.next_batch()) == [3]


@virtual
@pytest.mark.covers("J103", "J104")
async def test_statuses_stay_inside():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        connection.deliver(sub.subject, [status(404), status(408), heartbeat(0, 0), foreign(), data(1)])
        assert (await sub.next()).metadata.stream_seq == 1
        with pytest.raises(RequestTimeoutError):
            await sub.next(timeout=1)


# --- callbacks -----------------------------------------------------------------------------------------------


# --- watching ------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J82", "J84", "J85", "J87")
async def test_silence_after_three_intervals():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", config=BEATS)
        await asyncio.sleep(14.9)
        assert connection.told(HeartbeatMissed) == []
        await asyncio.sleep(0.5)
        (event,) = connection.told(HeartbeatMissed)
        assert event.silent_for == pytest.approx(15.1)
        connection.deliver(sub.subject, [data(1)])
        assert await sub.next()
        assert not sub.is_closed
        await sub.unsubscribe()
        before = len(connection.told(HeartbeatMissed))
        await asyncio.sleep(3600)
        assert len(connection.told(HeartbeatMissed)) == before, "the watch ends with the subscription"


@virtual
@pytest.mark.covers("J86")
async def test_missed_heartbeats_configurable():
    async with connected() as (js, connection):
        await js.subscribe("orders.new", config=BEATS, heartbeat_alarm=10)
        await asyncio.sleep(49)
        assert connection.told(HeartbeatMissed) == []
        await asyncio.sleep(2)
        assert len(connection.told(HeartbeatMissed)) == 1


@virtual
@pytest.mark.covers("J82", "J83")
async def test_found_heartbeat_is_watched():
    async with connected() as (js, connection):
        connection.api.has("d", deliver_subject="_INBOX.there", idle_heartbeat=5_000_000_000)
        sub = await js.subscribe("orders.new", durable="d")
        for frame in (data(1), heartbeat(1, 1), data(2), status(409, "x")):
            await asyncio.sleep(14)
            connection.deliver(sub.subject, [frame])
        assert connection.told(HeartbeatMissed) == []
        await asyncio.sleep(16)
        assert len(connection.told(HeartbeatMissed)) == 1


@virtual
@pytest.mark.parametrize("deleted_after", [0.1, 2.4, 2.6, 4.9])
async def test_without_heartbeats_told_in_5_s(deleted_after):
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", queue="crew", delete_on_close=True)
        await asyncio.sleep(deleted_after)
        connection.deliver(sub.subject, [data(1)])
        connection.api.consumers.clear()
        await asyncio.sleep(5.01)
        assert connection.told(ConsumerDeleted) == [ConsumerDeleted(stream="ORDERS", consumer="crew")]
        await asyncio.sleep(60)
        assert len(connection.told(ConsumerDeleted)) == 1


@virtual
async def test_looks_in_silence_only():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", queue="crew", delete_on_close=True)
        looks = len(connection.to("$JS.API.CONSUMER.INFO"))
        for number in range(1, 21):
            connection.deliver(sub.subject, [data(number)])
            await asyncio.sleep(1)
        assert len(connection.to("$JS.API.CONSUMER.INFO")) == looks
        await asyncio.sleep(10)
        assert len(connection.to("$JS.API.CONSUMER.INFO")) >= looks + 3
        await sub.unsubscribe()
        ended = len(connection.to("$JS.API.CONSUMER.INFO"))
        await asyncio.sleep(30)
        assert len(connection.to("$JS.API.CONSUMER.INFO")) == ended


@virtual
async def test_gone_consumer_named_once():
    async with connected() as (js, connection):
        await js.subscribe("orders.new", config=BEATS)
        connection.api.consumers.clear()
        await asyncio.sleep(120)
        assert len(connection.told(ConsumerDeleted)) == 1
        assert len(connection.told(HeartbeatMissed)) > 2


@virtual
@pytest.mark.covers("J88", "J90", "J91", "J92")
@pytest.mark.parametrize(
    ("how", "reported"), [({}, 1), ({"gap_alarm": False}, 0), ({"queue": "q"}, 0), ({"durable": "d"}, 1)]
)
async def test_gaps_reported_unless_off(how, reported):
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", **how)
        connection.deliver(sub.subject, [data(1), data(5)])
        await settle()
        assert len(connection.told(GapDetected)) == reported
        assert sub.pending == 2


@virtual
async def test_overflow_reported_twice():
    async with connected() as (js, connection):
        config = ConsumerConfig(ack_policy="none")
        sub = await js.subscribe("orders.new", max_pending=2, config=config)
        connection.deliver(
            sub.subject, [data(1), data(2), data(3), flow_control(subject=b"$JS.API.STREAM.DELETE.S")]
        )
        await sub.unsubscribe()
        assert [type(event) async for event in sub.events()] == [SlowConsumer, FlowControlRefused]
        assert len(connection.told(SlowConsumer)) == len(connection.told(FlowControlRefused)) == 1
        assert sub.dropped == 1
        assert not connection.to("$JS.API.STREAM.DELETE")
