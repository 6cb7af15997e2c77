"""The buffer of a push subscription: what is read from it, and how the callback is called."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient.consumers.message import AckChannel
from jsclient.consumers.push.buffer import PushBuffer
from jsclient.errors import (
    ClosedError,
    ConfigError,
    RequestTimeoutError,
)
from jsclient.protocol.consumers.push import PushTracker
from jsclient.protocol.events import (
    ErrorRaised,
    HandlerFailed,
    SlowConsumer,
)
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.fake import connected
from tests.support.strategies import CONSUMER, STREAM, data, flow_control, status
from tests.support.virtual import noting, settle, virtual

BEATS = ConsumerConfig(idle_heartbeat=5.0)


FLOW = ConsumerConfig(idle_heartbeat=5.0, flow_control=True)


def now() -> float:
    return asyncio.get_running_loop().time()


def numbers(messages) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


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
                # the message may have reached the reader in the same turn of the loop
                if chance.random() < 0.5:
                    reader.cancel()
                    await asyncio.wait({reader})
                    reader = asyncio.ensure_future(read())
            await asyncio.sleep(2)
            reader.cancel()
            await asyncio.wait({reader})
            assert got == list(range(1, 40)), seed


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


def buffer(js, *, has_callback: bool = False, max_pending: int = 100) -> tuple[PushBuffer, list[str]]:
    """A buffer, and what it calls."""
    calls: list[str] = []
    context = js._context
    push = PushBuffer(
        context,
        PushTracker(STREAM, CONSUMER, max_pending, 10**6),
        AckChannel(context.connection, context.requests, 5.0, False),
        has_callback=has_callback,
        silent=lambda: calls.append("silent"),
        emptied=lambda: calls.append("emptied"),
    )
    return push, calls


@virtual
async def test_what_arrived_is_read_after_the_end():
    async with connected() as (js, _):
        push, calls = buffer(js)
        push.receive_frames([data(1), data(2)])
        assert (push.arrived, push.stream, push.consumer) == (2, STREAM, CONSUMER)
        push.end_buffer()
        assert [(await push.next(None)).metadata.stream_seq for _ in range(2)] == [1, 2]
        with pytest.raises(ClosedError):
            await push.next(None)
        assert calls == ["emptied"]


@virtual
async def test_hidden_messages_are_read_one_by_one():
    """Each read then goes through the tracker, as an ordered subscription needs it during a reset."""
    async with connected() as (js, _):
        push, _ = buffer(js)
        push.receive_frames([data(1), data(2)])
        assert len(push.ready) == 2
        push.hide()
        assert not push.ready
        assert (await push.next(None)).metadata.stream_seq == 1
        push.show()
        assert len(push.ready) == 1
        push.end_buffer()


@virtual
async def test_overflow_is_dropped_and_reported():
    async with connected() as (js, connection):
        push, _ = buffer(js, max_pending=2)
        push.receive_frames([data(number) for number in range(1, 6)])
        await settle()
        assert {type(event) for event in connection.events} == {SlowConsumer}
        assert numbers(await push.next_batch(10)) == [1, 2]
        push.end_buffer()


@virtual
async def test_callback_is_called_until_the_end():
    async with connected() as (js, connection):
        push, _ = buffer(js, has_callback=True)
        seen: list = []
        calling = asyncio.ensure_future(push.call(noting(seen), auto_ack=True))
        push.receive_frames([data(1), data(2)])
        await settle()
        with pytest.raises(ConfigError, match="callback"):
            await push.next(None)
        push.receive_frames([data(3)])
        push.end_buffer()
        await calling
        assert numbers(seen) == [1, 2, 3]
        assert connection.acks() == [b"+ACK"] * 3
