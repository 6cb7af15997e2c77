"""The works with nats-jetstream on nats-core. It pulls only. Its ordered consumer pulls too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import nats.jetstream
from nats.client import Client, connect

from benchmarks.job import HEADER, HEADERS, Job, Meter, payload, shares
from benchmarks.partner import BEGIN, CREDIT, ECHO, MORE

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


async def _core_publish(job: Job, meter: Meter) -> None:
    data, subject = payload(job), job.subject
    async with _plain(job) as nc:
        for part in meter.parts():
            for _ in range(part.count):
                await nc.publish(subject, data)
            await nc.flush()
            part.done(part.count, part.last)


async def _core_subscribe(job: Job, meter: Meter) -> None:
    async with _plain(job) as nc:
        for part in meter.parts():
            sub = await nc.subscribe(job.subject)
            await nc.publish(BEGIN, b"%d" % part.count)
            seen, count, data = 0, part.count, 0
            async for msg in sub:
                data += len(msg.data)
                seen += 1
                if not seen % CREDIT:
                    await nc.publish(MORE, b"")
                if seen == count:
                    break
            assert data == count * job.size
            await sub.unsubscribe()
            part.done(seen, part.last)


async def _core_request(job: Job, meter: Meter) -> None:
    data = payload(job)
    async with _plain(job) as nc:
        for part in meter.parts():
            for _ in range(part.count):
                began = time.perf_counter_ns()
                await nc.request(ECHO, data, timeout=5.0)
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(part.count, part.last)


async def _core_requests(job: Job, meter: Meter) -> None:
    data = payload(job)
    async with _plain(job) as nc:

        async def request(count: int) -> None:
            for _ in range(count):
                await nc.request(ECHO, data, timeout=30.0)

        for part in meter.parts():
            await asyncio.gather(*map(request, shares(part.count)))
            part.done(part.count, part.last)


WORKS = {
    "ordered": _ordered,
    "messages": _messages,
    "fetch": _fetch,
    "next": _next,
    "publisher": _publisher,
    "publish": _publish,
    "core-publish": _core_publish,
    "core-subscribe": _core_subscribe,
    "core-request": _core_request,
    "core-requests": _core_requests,
}
