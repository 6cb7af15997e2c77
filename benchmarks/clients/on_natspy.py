"""The works with nats-py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from benchmarks.clients.core_works import core_works
from benchmarks.clients.slow import Slow
from benchmarks.job import HEADER, HEADERS, Job, Meter, payload
from benchmarks.pacer import flooded, paced, requested

VERSION = version("nats-py")

_FETCH = 100  # messages that a worker fetches at a time


@asynccontextmanager
async def _connected(job: Job) -> AsyncIterator[Client]:
    nc = await nats.connect(job.url, tls=job.tls())
    try:
        yield nc
    finally:
        await nc.close()


def _from_here(start: int, **fields: Any) -> ConsumerConfig:
    return ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start, **fields)


def _new() -> ConsumerConfig:
    return ConsumerConfig(deliver_policy=DeliverPolicy.NEW, ack_policy=AckPolicy.NONE)


def _sequence(msg: Msg) -> int:
    return msg.metadata.sequence.stream


async def _ordered(job: Job, meter: Meter) -> None:
    headers = job.headers
    async with _connected(job) as nc:
        for part in meter.parts():
            config = _from_here(part.start)
            sub = await nc.jetstream().subscribe(job.subject, ordered_consumer=True, config=config)
            seen, count = 0, part.count
            async for msg in sub.messages:
                if headers:
                    assert msg.headers[HEADER]
                seen += 1
                if seen == count:
                    break
            part.done(seen, _sequence(msg))
            await sub.unsubscribe()


async def _callback(job: Job, meter: Meter) -> None:
    headers = job.headers
    async with _connected(job) as nc:
        for part in meter.parts():
            done: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
            seen, count = 0, part.count

            async def handle(msg: Msg) -> None:
                nonlocal seen
                if headers:
                    assert msg.headers[HEADER]
                seen += 1
                if seen == count:  # noqa: B023 - used before the next part
                    done.set_result(msg)  # noqa: B023

            config = _from_here(part.start, ack_policy=AckPolicy.NONE)
            sub = await nc.jetstream().subscribe(job.subject, cb=handle, config=config, manual_ack=True)
            last = await done
            part.done(seen, _sequence(last))
            await sub.unsubscribe()


async def _messages(job: Job, meter: Meter) -> None:
    """Read with consecutive fetches of that many messages, because the client has no continuous reader."""
    # A fetch waits until it is full, so requests that come one by one are fetched one by one.
    headers, size = job.headers, 1 if job.asks else job.window or 500
    async with _connected(job) as nc:
        for part in meter.parts():
            sub = await nc.jetstream().pull_subscribe_bind(part.consumer, job.stream)
            seen, count = 0, part.count
            async with requested(job, part):
                while seen < count:
                    for msg in await sub.fetch(min(size, count - seen)):
                        if headers:
                            assert msg.headers[HEADER]
                        await msg.ack()
                        seen += 1
                part.done(seen, _sequence(msg))
            await sub.unsubscribe()


async def _run(job: Job, meter: Meter) -> None:
    """Run a worker without help of the client: consecutive fetches, and a task for each of several handlers."""
    pause, size = job.pause, 1 if job.asks else _FETCH
    async with _connected(job) as nc:
        for part in meter.parts():
            done: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
            seen, count = 0, part.count

            async def handle(msg: Msg) -> None:
                nonlocal seen
                seen += 1
                if seen == count:  # noqa: B023 - used before the next part
                    done.set_result(msg)  # noqa: B023
                if pause:
                    await asyncio.sleep(pause)
                await msg.ack()

            sub = await nc.jetstream().pull_subscribe_bind(part.consumer, job.stream)
            async with requested(job, part), _handlers(job.handlers, handle) as accept:
                fetched = 0
                # Asking for more than what remains would make the last fetch wait for its timeout.
                while fetched < count:
                    messages = await sub.fetch(min(size, count - fetched))
                    fetched += len(messages)
                    for msg in messages:
                        await accept(msg)
                last = await done
                part.done(seen, _sequence(last))
            await sub.unsubscribe()


@asynccontextmanager
async def _handlers(
    number: int, handle: Callable[[Msg], Awaitable[None]]
) -> AsyncIterator[Callable[[Msg], Awaitable[None]]]:
    """Start this many tasks that call the handler. The result passes a message to one of them."""
    if number == 1:
        yield handle
        return
    queue: asyncio.Queue[Msg] = asyncio.Queue(maxsize=number)

    async def serve() -> None:
        while True:
            await handle(await queue.get())
            queue.task_done()

    tasks = [asyncio.create_task(serve()) for _ in range(number)]
    yield queue.put
    await queue.join()
    for task in tasks:
        task.cancel()


async def _fetch(job: Job, meter: Meter) -> None:
    size = job.batch
    async with _connected(job) as nc:
        for part in meter.parts():
            sub = await nc.jetstream().pull_subscribe_bind(part.consumer, job.stream)
            seen, count = 0, part.count
            while seen < count:
                for msg in await sub.fetch(size):  # noqa: B007 - looked at below
                    seen += 1
            part.done(seen, _sequence(msg))
            await sub.unsubscribe()


async def _next(job: Job, meter: Meter) -> None:
    async with _connected(job) as nc:
        for part in meter.parts():
            sub = await nc.jetstream().pull_subscribe_bind(part.consumer, job.stream)
            for _ in range(part.count):
                began = time.perf_counter_ns()
                messages = await sub.fetch(1)
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(len(part.latencies), _sequence(messages[0]))
            await sub.unsubscribe()


async def _publisher(job: Job, meter: Meter) -> None:
    data, headers = payload(job), HEADERS if job.headers else None
    async with _connected(job) as nc:
        for part in meter.parts():
            js = nc.jetstream(publish_async_max_pending=job.window)
            futures = [await js.publish_async(job.subject, data, headers=headers) for _ in range(part.count)]
            await js.publish_async_completed()
            # The client keeps no list of failed publishes, so check each future.
            last = 0
            for future in futures:
                last = future.result().seq
            part.done(part.count, last)


async def _publish(job: Job, meter: Meter) -> None:
    data, headers = payload(job), HEADERS if job.headers else None
    async with _connected(job) as nc:
        js = nc.jetstream()
        for part in meter.parts():
            for _ in range(part.count):
                began = time.perf_counter_ns()
                ack = await js.publish(job.subject, data, headers=headers)
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(len(part.latencies), ack.seq)


async def _end_to_end(job: Job, meter: Meter) -> None:
    async with _connected(job) as nc:
        for part in meter.parts():
            done: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
            latencies, count = part.latencies, part.count

            async def handle(msg: Msg) -> None:
                latencies.append(time.monotonic_ns() - int(msg.data[:19]))  # noqa: B023
                if len(latencies) == count:  # noqa: B023
                    done.set_result(msg)  # noqa: B023

            sub = await nc.jetstream().subscribe(job.subject, cb=handle, config=_new(), manual_ack=True)
            with paced(job, part.count):
                part.begin(0)
                last = await done
            part.done(len(latencies), _sequence(last))
            await sub.unsubscribe()


async def _subscriptions(job: Job, meter: Meter) -> None:
    async with _connected(job) as nc:
        js = nc.jetstream()
        for part in meter.parts():
            done: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
            seen, count = 0, part.count

            async def handle(msg: Msg) -> None:
                nonlocal seen
                seen += 1
                if seen == count:  # noqa: B023
                    done.set_result(msg)  # noqa: B023

            subs = [
                await js.subscribe(job.subject, cb=handle, config=_new(), manual_ack=True)
                for _ in range(job.subscriptions)
            ]
            with flooded(job, count // job.subscriptions):
                part.begin(seen)
                last = await done
            part.done(seen, _sequence(last))
            for sub in subs:
                await sub.unsubscribe()


async def _slow_callback(job: Job, meter: Meter) -> None:
    async with _connected(job) as nc:
        for part in meter.parts():
            slow = Slow(part)

            async def handle(msg: Msg) -> None:
                await slow(_sequence(msg))  # noqa: B023

            config = _from_here(part.start, ack_policy=AckPolicy.NONE)
            sub = await nc.jetstream().subscribe(job.subject, cb=handle, config=config, manual_ack=True)
            await slow.done
            await sub.unsubscribe()


async def _slow_ordered(job: Job, meter: Meter) -> None:
    async with _connected(job) as nc:
        for part in meter.parts():
            slow = Slow(part)
            config = _from_here(part.start)
            sub = await nc.jetstream().subscribe(job.subject, ordered_consumer=True, config=config)
            while not slow.done.done():
                await slow(_sequence(await sub.next_msg(timeout=10)))
            await sub.unsubscribe()


async def _slow_messages(job: Job, meter: Meter) -> None:
    async with _connected(job) as nc:
        for part in meter.parts():
            slow = Slow(part)
            sub = await nc.jetstream().pull_subscribe_bind(part.consumer, job.stream)
            while not slow.done.done():
                for msg in await sub.fetch(min(job.window or 500, part.last - slow.expected + 1)):
                    await msg.ack()
                    await slow(_sequence(msg))
            await sub.unsubscribe()


WORKS = {
    "ordered": _ordered,
    "callback": _callback,
    "messages": _messages,
    "run": _run,
    "fetch": _fetch,
    "next": _next,
    "publisher": _publisher,
    "publish": _publish,
    "end-to-end": _end_to_end,
    "subscriptions": _subscriptions,
    **core_works(_connected, lambda sub: sub.messages),
    "slow callback": _slow_callback,
    "slow ordered": _slow_ordered,
    "slow messages": _slow_messages,
}
