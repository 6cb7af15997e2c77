"""The ways to read, each with a tally, running while a fault acts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from integration.kit.clients.traffic import Tally
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from jsclient import ConsumerConfig, JetStreamError

HEARTBEAT = 0.5
ACK_WAIT = 3.0

FAST = {"reconnect_time_wait": 0.05, "connect_timeout": 1.0, "ping_interval": 0.5}
"""Options of a connection that finds out fast."""

PATIENT = {"reconnect_time_wait": 0.05, "connect_timeout": 20.0}
"""Options of a connection that reconnects fast when it is cut, and that no busy machine ends."""

Reader = Callable[[Any, OwnStream, Tally], contextlib.AbstractAsyncContextManager[Any]]


def _acking(tally: Tally) -> Callable[[Any], Awaitable[None]]:
    async def handle(message: Any) -> None:
        tally.take(message)
        await _ack(message, tally)

    return handle


async def _ack(message: Any, tally: Tally) -> None:
    try:
        await message.ack()
    except JetStreamError as error:
        tally.errors.append(error)


@contextlib.asynccontextmanager
async def push(js: Any, stream: OwnStream, tally: Tally) -> AsyncIterator[Any]:
    config = ConsumerConfig(
        idle_heartbeat=HEARTBEAT, flow_control=True, ack_wait=ACK_WAIT, max_ack_pending=1000
    )
    yield await js.subscribe(
        stream.all, durable="push", config=config, callback=_acking(tally), delete_on_close=False
    )


@contextlib.asynccontextmanager
async def queue(js: Any, stream: OwnStream, tally: Tally) -> AsyncIterator[Any]:
    config = ConsumerConfig(ack_wait=ACK_WAIT)
    yield [
        await js.subscribe(
            stream.all, queue="workers", config=config, callback=_acking(tally), delete_on_close=False
        )
        for _ in range(2)
    ]


@contextlib.asynccontextmanager
async def fetch(js: Any, stream: OwnStream, tally: Tally) -> AsyncIterator[Any]:
    config = ConsumerConfig(ack_wait=ACK_WAIT)
    psub = await js.pull_subscribe(stream.all, durable="fetch", config=config, delete_on_close=False)

    async def run() -> None:
        while True:
            try:
                batch = await psub.fetch(50, expires=20.0)
            except JetStreamError as error:
                tally.errors.append(error)
                await asyncio.sleep(0.02)
                continue
            for message in batch:
                tally.take(message)
                await _ack(message, tally)

    async with _running(run()):
        yield psub


@contextlib.asynccontextmanager
async def messages(js: Any, stream: OwnStream, tally: Tally) -> AsyncIterator[Any]:
    config = ConsumerConfig(ack_wait=ACK_WAIT)
    psub = await js.pull_subscribe(stream.all, durable="messages", config=config, delete_on_close=False)
    reader = psub.messages(max_messages=100, expires=10.0, idle_heartbeat=HEARTBEAT)

    async def run() -> None:
        async for message in reader:
            tally.take(message)
            await _ack(message, tally)

    async with reader, _running(run()):
        yield psub


@contextlib.asynccontextmanager
async def ordered(js: Any, stream: OwnStream, tally: Tally) -> AsyncIterator[Any]:
    sub = await js.subscribe(stream.all, ordered=True, config=ConsumerConfig(idle_heartbeat=HEARTBEAT))

    async def run() -> None:
        async for message in sub:
            tally.take(message)

    async with _running(run()):
        yield sub


@contextlib.asynccontextmanager
async def ordered_pull(js: Any, stream: OwnStream, tally: Tally) -> AsyncIterator[Any]:
    async with js.ordered_consumer(stream.name) as oc:
        reader = oc.messages(max_messages=100, expires=10.0, idle_heartbeat=HEARTBEAT)

        async def run() -> None:
            async for message in reader:
                tally.take(message)

        async with _running(run()):
            yield oc


@contextlib.asynccontextmanager
async def ordered_fetch(js: Any, stream: OwnStream, tally: Tally) -> AsyncIterator[Any]:
    async with js.ordered_consumer(stream.name) as oc:

        async def run() -> None:
            while True:
                try:
                    for message in await oc.fetch(50, expires=6 * HEARTBEAT, idle_heartbeat=HEARTBEAT):
                        tally.take(message)
                except JetStreamError as error:
                    tally.errors.append(error)
                    await asyncio.sleep(0.02)

        async with _running(run()):
            yield oc


READERS: dict[str, Reader] = {
    "push": push,
    "queue": queue,
    "fetch": fetch,
    "messages": messages,
    "ordered": ordered,
    "ordered pull": ordered_pull,
    "ordered fetch": ordered_fetch,
}

ORDERED = [name for name in READERS if name.startswith("ordered")]
"""They repeat nothing."""


@contextlib.asynccontextmanager
async def all_readers(js: Any, stream: OwnStream) -> AsyncIterator[dict[str, Tally]]:
    """Every way of reading at once, on one connection."""
    async with contextlib.AsyncExitStack() as stack:
        tallies = {}
        for name, reader in READERS.items():
            tallies[name] = Tally(name)
            await stack.enter_async_context(reader(js, stream, tallies[name]))
        yield tallies


@contextlib.asynccontextmanager
async def _running(coroutine: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    try:
        yield
        assert not task.done(), f"the reader ended: {task!r}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def wait_for_all(tallies: dict[str, Tally], last: int, timeout: float = 15.0) -> None:
    """Return when every reader has had everything up to stream sequence `last`."""

    def missing() -> dict[str, int]:
        return {name: len(tally.lost(last)) for name, tally in tallies.items() if tally.lost(last)}

    def nothing_missing() -> bool:
        assert not missing(), missing()
        return True

    await eventually(nothing_missing, timeout, "everything at every reader", interval=0.05)


def told(events: list[Any], *kinds: type) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]
