"""The works with nats-jetstream on nats-core. It pulls only. Its ordered consumer pulls too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import nats.jetstream
from nats.client import Client, connect

from benchmarks.clients.core_works import core_works
from benchmarks.job import HEADER, HEADERS, Job, Meter, payload

VERSION = version("nats-jetstream")

# The client checks ten times a second whether to request more. With its default of 100 messages, it reads 1,000 a
# second.
ASKED = 20_000


@asynccontextmanager
async def _plain(job: Job) -> AsyncIterator[Client]:
    client = await connect(job.url)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def _connected(job: Job) -> AsyncIterator[nats.jetstream.JetStream]:
    async with _plain(job) as client:
        yield nats.jetstream.new(client)


async def _ordered(job: Job, meter: Meter) -> None:
    headers = job.headers
    async with _connected(job) as js:
        stream = await js.get_stream(job.stream)
        for part in meter.parts():
            consumer = await stream.ordered_consumer(
                deliver_policy="by_start_sequence", opt_start_seq=part.start
            )
            messages = await consumer.messages(max_messages=ASKED)
            seen, count = 0, part.count
            async for msg in messages:
                if headers:
                    assert msg.headers[HEADER]
                seen += 1
                if seen == count:
                    break
            part.done(seen, msg.metadata.sequence.stream)
            await messages.stop()


async def _messages(job: Job, meter: Meter) -> None:
    headers = job.headers
    async with _connected(job) as js:
        for part in meter.parts():
            consumer = await js.get_consumer(job.stream, part.consumer)
            messages = await consumer.messages(max_messages=ASKED)
            seen, count = 0, part.count
            async for msg in messages:
                if headers:
                    assert msg.headers[HEADER]
                await msg.ack()
                seen += 1
                if seen == count:
                    break
            part.done(seen, msg.metadata.sequence.stream)
            await messages.stop()


async def _fetch(job: Job, meter: Meter) -> None:
    async with _connected(job) as js:
        for part in meter.parts():
            consumer = await js.get_consumer(job.stream, part.consumer)
            seen, count = 0, part.count
            while seen < count:
                async for msg in await consumer.fetch(max_messages=job.batch):  # noqa: B007 - looked at below
                    seen += 1
            part.done(seen, msg.metadata.sequence.stream)


async def _next(job: Job, meter: Meter) -> None:
    async with _connected(job) as js:
        for part in meter.parts():
            consumer = await js.get_consumer(job.stream, part.consumer)
            for _ in range(part.count):
                began = time.perf_counter_ns()
                msg = await consumer.next()
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(len(part.latencies), msg.metadata.sequence.stream)


async def _publisher(job: Job, meter: Meter) -> None:
    """Publish with a fixed number of concurrent calls, because the client has no window."""
    data, headers = payload(job), HEADERS if job.headers else None
    async with _connected(job) as js:
        for part in meter.parts():
            remaining, last = part.count, 0
            while remaining:
                some = min(job.window, remaining)
                calls = [js.publish(job.subject, data, headers=headers) for _ in range(some)]
                last = max(ack.sequence for ack in await asyncio.gather(*calls))
                remaining -= some
            part.done(part.count, last)


async def _publish(job: Job, meter: Meter) -> None:
    data, headers = payload(job), HEADERS if job.headers else None
    async with _connected(job) as js:
        for part in meter.parts():
            for _ in range(part.count):
                began = time.perf_counter_ns()
                ack = await js.publish(job.subject, data, headers=headers)
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(len(part.latencies), ack.sequence)


WORKS = {
    "ordered": _ordered,
    "messages": _messages,
    "fetch": _fetch,
    "next": _next,
    "publisher": _publisher,
    "publish": _publish,
    **core_works(_plain, lambda sub: sub),
}
