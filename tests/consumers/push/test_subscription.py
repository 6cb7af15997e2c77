"""A push subscription on a fake connection: taking, callbacks, events, the end."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient.errors import (
    ConfigError,
    ConsumerDeletedError,
    NoRespondersError,
    RequestTimeoutError,
    StatusError,
)
from jsclient.protocol.events import (
    ConsumerDeleted,
    ErrorRaised,
    FlowControlRefused,
    GapDetected,
    HandlerFailed,
    HeartbeatMissed,
    SlowConsumer,
)
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.fake import connected
from tests.support.strategies import FC, data, flow_control, foreign, heartbeat, status
from tests.support.virtual import noting, settle, virtual

BEATS = ConsumerConfig(idle_heartbeat=5.0)
FLOW = ConsumerConfig(idle_heartbeat=5.0, flow_control=True)


def now() -> float:
    return asyncio.get_running_loop().time()


def numbers(messages) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


# --- next ----------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J1")
async def test_next_batches_and_iteration():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        connection.deliver(sub.subject, [data(number) for number in range(1, 8)])
        assert (await sub.next()).metadata.stream_seq == 1
        assert sub.pending == 6
        async for message in sub:
            assert message.metadata.stream_seq == 2
            break
        assert numbers(await anext(sub.batches(2))) == [3, 4]
        assert numbers(await anext(sub.batches())) == [5, 6, 7]


@virtual
async def test_next_waits_as_long_as_reported():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        started = now()
        with pytest.raises(RequestTimeoutError, match="within 7200 s"):
            await sub.next(timeout=7200)
        assert now() - started == pytest.approx(7200)
        for timeout in (0, -1):
            with pytest.raises(RequestTimeoutError):
                await sub.next(timeout=timeout)
        connection.deliver(sub.subject, [data(1)])
        assert await sub.next(timeout=0)


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


@virtual
async def test_cancelled_next_loses_nothing():
    for seed in range(60):
        chance = random.Random(seed)
        async with connected() as (js, connection):
            sub = await js.subscribe("orders.new")
            got: list[int] = []

            async def read(*, sub=sub, got=got, chance=chance):
                while True:
                    try:
                        message = await sub.next(timeout=chance.choice([None, 0.01, 1.0]))
                    except RequestTimeoutError:
                        continue
                    got.append(message.metadata.stream_seq)

            reader = asyncio.ensure_future(read())
            for number in range(1, 40):
                connection.deliver(sub.subject, [data(number)])
                await asyncio.sleep(chance.choice([0, 0, 0.01, 0.5]))
                if chance.random() < 0.5:
                    reader.cancel()
                    await asyncio.wait({reader})
                    reader = asyncio.ensure_future(read())
            await asyncio.sleep(2)
            reader.cancel()
            await asyncio.wait({reader})
            assert got == list(range(1, 40)), seed


# --- callbacks -----------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J1")
async def test_callback_acks_each_in_turn():
    async with connected() as (js, connection):
        got, inside = [], 0

        async def handle(message):
            nonlocal inside
            inside += 1
            assert inside == 1
            await asyncio.sleep(60)
            got.append(message.metadata.stream_seq)
            inside -= 1

        sub = await js.subscribe("orders.new", callback=handle)
        connection.deliver(sub.subject, [data(1), data(2), data(3)])
        await asyncio.sleep(1000)
        assert got == [1, 2, 3]
        assert connection.acks() == [b"+ACK"] * 3
        with pytest.raises(ConfigError):
            await sub.next()


@pytest.mark.row(117)
@virtual
async def test_callback_own_ack_and_error():
    async with connected() as (js, connection):

        async def handle(message):
            if message.metadata.stream_seq == 2:
                raise ValueError("mine")
            if message.metadata.stream_seq == 1:
                await message.nak()

        sub = await js.subscribe("orders.new", callback=handle)
        connection.deliver(sub.subject, [data(1), data(2), data(3)])
        await settle()
        assert connection.acks() == [b"-NAK", b"+ACK"]
        (failed,) = connection.told(HandlerFailed)
        assert (failed.stream_seq, str(failed.error)) == (2, "mine")


@virtual
@pytest.mark.covers("J79")
@pytest.mark.parametrize("how", [{"auto_ack": False}, {"config": ConsumerConfig(ack_policy="none")}])
async def test_automatic_ack_can_be_off(how):
    async with connected() as (js, connection):
        got = []
        sub = await js.subscribe("orders.new", callback=noting(got), **how)
        connection.deliver(sub.subject, [data(1), data(2)])
        await settle()
        assert len(got) == 2
        assert connection.acks() == []


@virtual
@pytest.mark.covers("J95", "J105", "J107")
async def test_callback_flow_control_in_order():
    async with connected() as (js, connection):
        seen = []

        async def handle(message):
            seen.append((message.metadata.stream_seq, len(connection.to("$JS.FC."))))
            await asyncio.sleep(1)

        sub = await js.subscribe("orders.new", callback=handle, config=FLOW)
        connection.deliver(
            sub.subject, [data(1), data(2), flow_control(1), data(3), status(409, "x"), status(777)]
        )
        await asyncio.sleep(5)
        assert seen == [(1, 0), (2, 0), (3, 1)]
        assert [event.error.code for event in connection.told(ErrorRaised)] == [409, 777]


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
    ("how", "told"), [({}, 1), ({"gap_alarm": False}, 0), ({"queue": "q"}, 0), ({"durable": "d"}, 1)]
)
async def test_gaps_reported_unless_off(how, told):
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", **how)
        connection.deliver(sub.subject, [data(1), data(5)])
        await settle()
        assert len(connection.told(GapDetected)) == told
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
