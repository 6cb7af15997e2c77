"""The works with natsrpy, which binds the Rust client. It has no ordered consumer and no callbacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from natsrpy import Nats
from natsrpy.js import AckPolicy, DeliverPolicy, JetStream, PushConsumerConfig, Stream

from benchmarks.job import HEADER, HEADERS, Job, Meter, payload

VERSION = version("natsrpy")


@asynccontextmanager
async def _connected(job: Job) -> AsyncIterator[tuple[JetStream, Stream]]:
    nats = Nats(addrs=[job.url])
    await nats.startup()
    try:
        js = await nats.jetstream()
        yield js, await js.streams.get(job.stream)
    finally:
        await nats.shutdown()


async def _ordered(job: Job, meter: Meter) -> None:
    """Read with a push consumer without acks. The client checks no sequence and repairs no gap."""
    headers = job.headers
    async with _connected(job) as (_, stream):
        for number, part in enumerate(meter.parts()):
            config = PushConsumerConfig(
                deliver_subject=f"natsrpy.{number}",
                name=f"natsrpy-{number}",
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                delivery_start_sequence=part.start,
                ack_policy=AckPolicy.NONE,
            )
            consumer = await stream.consumers.create(config)
            seen, count = 0, part.count
            async with consumer.consume() as messages:
                async for msg in messages:
                    if headers:
                        assert msg.headers[HEADER]
                    seen += 1
                    if seen == count:
                        break
            part.done(seen, msg.stream_sequence)
            await stream.consumers.delete(f"natsrpy-{number}")


async def _messages(job: Job, meter: Meter) -> None:
    headers = job.headers
    async with _connected(job) as (_, stream):
        for part in meter.parts():
            consumer = await stream.consumers.get_pull(part.consumer)
            seen, count = 0, part.count
            async with consumer.consume() as messages:
                async for msg in messages:
                    if headers:
                        assert msg.headers[HEADER]
                    await msg.ack()
                    seen += 1
                    if seen == count:
                        break
            part.done(seen, msg.stream_sequence)


async def _fetch(job: Job, meter: Meter) -> None:
    async with _connected(job) as (_, stream):
        for part in meter.parts():
            consumer = await stream.consumers.get_pull(part.consumer)
            seen, count = 0, part.count
            while seen < count:
                for msg in await consumer.fetch(max_messages=job.batch):  # noqa: B007 - looked at below
                    seen += 1
            part.done(seen, msg.stream_sequence)


async def _next(job: Job, meter: Meter) -> None:
    async with _connected(job) as (_, stream):
        for part in meter.parts():
            consumer = await stream.consumers.get_pull(part.consumer)
            for _ in range(part.count):
                began = time.perf_counter_ns()
                messages = await consumer.fetch(max_messages=1)
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(len(part.latencies), messages[0].stream_sequence)


async def _publisher(job: Job, meter: Meter) -> None:
    """Publish with a fixed number of concurrent calls, because the client has no window."""
    data = payload(job)
    fields: dict[str, Any] = {"headers": HEADERS} if job.headers else {}
    async with _connected(job) as (js, _):
        for part in meter.parts():
            remaining, last = part.count, 0
            while remaining:
                some = min(job.window, remaining)
                calls = [js.publish(job.subject, data, wait=True, **fields) for _ in range(some)]
                last = max(ack.sequence for ack in await asyncio.gather(*calls))
                remaining -= some
            part.done(part.count, last)


async def _publish(job: Job, meter: Meter) -> None:
    data = payload(job)
    fields: dict[str, Any] = {"headers": HEADERS} if job.headers else {}
    async with _connected(job) as (js, _):
        for part in meter.parts():
            for _ in range(part.count):
                began = time.perf_counter_ns()
                ack = await js.publish(job.subject, data, wait=True, **fields)
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(len(part.latencies), ack.sequence)


WORKS = {
    "ordered": _ordered,
    "messages": _messages,
    "fetch": _fetch,
    "next": _next,
    "publisher": _publisher,
    "publish": _publish,
}
