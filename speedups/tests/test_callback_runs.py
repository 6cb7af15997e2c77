"""The compiled loop calls a callback like Python, the specification, with the same calls, events, acks and end."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from random import Random
from types import CoroutineType

import pytest
from jsclient_speedups import CallbackRun

from jsclient._runtime.connection.speedups import chosen
from jsclient.consumers.message import AckChannel
from jsclient.consumers.push import subscription
from jsclient.errors import JetStreamError
from jsclient.protocol.events import HandlerFailed
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.support.fake import connected
from tests.support.strategies import data, flow_control
from tests.support.virtual import run, settle

NO_ACKS = ConsumerConfig(ack_policy="none", flow_control=True, idle_heartbeat=5.0)
STEPS = ("return",) * 12 + (
    "raise",
    "stop",
    "cancelled",
    "turn",
    "two turns",
    "sleep",
    "shielded",
    "cancelled future",
    "deliver",
    "unsubscribe",
    "drain",
    "cancel task",
    "finally",
)


class Script:
    """Random actions of a callback, and a log of what happens."""

    def __init__(self, seed: int, connection) -> None:
        self.random, self.connection = Random(seed), connection
        self.log: list[object] = []
        self.delivered = 0

    def deliver(self, count: int) -> None:
        first = self.delivered + 1
        self.delivered += count
        frames = [data(number) for number in range(first, first + count)]
        if self.random.random() < 0.3:
            frames.insert(self.random.randrange(count), flow_control(first))
        self.connection.deliver(self.sub.subject, frames)

    async def callback(self, message) -> None:
        step = self.random.choice(STEPS)
        self.log.append((message.metadata.stream_seq, step, self.sub.pending))
        try:
            await self.take_step(step)
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        self.log.append((message.metadata.stream_seq, self.sub.pending))

    async def take_step(self, step: str) -> None:
        match step:
            case "raise":
                raise ValueError("no")
            case "stop":
                raise StopAsyncIteration
            case "cancelled":
                raise asyncio.CancelledError
            case "turn":
                await asyncio.sleep(0)
            case "two turns":
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                raise KeyError(step)
            case "sleep":
                await asyncio.sleep(self.random.random())
            case "shielded":
                await asyncio.shield(asyncio.sleep(0.1))
            case "cancelled future":
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
            case _:
                await self.act(step)

    async def act(self, step: str) -> None:
        match step:
            case "deliver":
                self.deliver(self.random.randrange(1, 20))
            case "unsubscribe" if self.random.random() < 0.2:
                await self.sub.unsubscribe()
            case "drain" if self.random.random() < 0.2:
                await self.sub.drain()
            case "cancel task":
                asyncio.get_running_loop().call_soon(self.cancel_callback)
                await asyncio.sleep(0.1)
            case "finally":
                try:
                    await asyncio.sleep(0.1)
                finally:
                    await asyncio.sleep(0.1)

    def cancel_callback(self) -> None:
        if self.random.random() < 0.1:
            self.sub._runner.cancel()


async def play(seed: int) -> list[object]:
    async with connected() as (js, connection):
        script = Script(seed, connection)
        script.sub = await js.subscribe("orders.new", callback=script.callback, config=NO_ACKS)
        for _ in range(script.random.randrange(1, 6)):
            if script.sub._inbox is not None:
                script.deliver(script.random.randrange(1, 100))
            await settle()
            await asyncio.sleep(script.random.random())
        try:
            await script.sub.drain()
        except JetStreamError as error:
            script.log.append(repr(error))
        script.log += [
            (type(event), repr(event.error), event.stream_seq) for event in connection.told(HandlerFailed)
        ]
        script.log += [entry for entry in connection.log if "_INBOX" not in entry[1]]
        script.log.append(repr(script.sub))
        script.log.append(asyncio.get_running_loop().time())
        return script.log


def test_it_is_in_use():
    assert chosen().callback_run is CallbackRun


def test_same_as_python(block, monkeypatch):
    first, count = block
    pure = functools.partial(AckChannel, reader=chosen()._replace(callback_run=None))
    for seed in range(first, first + max(1, count // 250)):
        compiled = run(play(seed))
        with monkeypatch.context() as patch:
            patch.setattr(subscription, "AckChannel", pure)
            assert run(play(seed)) == compiled, seed


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_run_ends_with_messages(count):
    seen = []

    async def callback(message) -> None:
        seen.append(message)

    calls = CallbackRun(
        deque(range(5)), lambda frame, channel: (frame, channel), "c", callback, CoroutineType
    )
    assert calls.call_run(count) is None
    assert seen == [(number, "c") for number in range(min(count, 5))]
    assert calls.message == (seen[-1] if seen else None)


def test_other_awaitable_is_returned():
    one = object()
    calls = CallbackRun(deque([1, 2]), lambda frame, channel: frame, None, lambda message: one, CoroutineType)
    assert calls.call_run(5) == (one,)
    assert calls.message == 1
