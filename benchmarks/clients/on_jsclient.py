"""The works with jsclient."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from itertools import repeat

import jsclient
from benchmarks.clients.slow import Slow
from benchmarks.job import HEADER, HEADERS, Job, Meter, Part, payload, shares
from benchmarks.pacer import flooded, paced, requested
from benchmarks.partner import BEGIN, CREDIT, ECHO, MORE
from jsclient import ConsumerConfig, Message, TooManyInFlightError

VERSION = jsclient.__version__


def connected(job: Job) -> AbstractAsyncContextManager[jsclient.JetStream]:
    """Connect to the server of a job."""
    return jsclient.connect(job.url, tls=job.tls())


def from_here(start: int) -> ConsumerConfig:
    """Return a consumer that begins at a sequence."""
    return ConsumerConfig(deliver_policy="by_start_sequence", opt_start_seq=start)


def pushed(start: int) -> ConsumerConfig:
    """Return a push consumer with flow control and heartbeats, so that no message is lost and memory is bounded."""
    return from_here(start).replace(ack_policy="none", flow_control=True, idle_heartbeat=5.0)


_NEW = ConsumerConfig(deliver_policy="new", ack_policy="none", flow_control=True, idle_heartbeat=5.0)


async def _ordered(job: Job, meter: Meter) -> None:
    headers = job.headers
    async with connected(job) as js:
        for part in meter.parts():
            async with await js.subscribe(job.subject, ordered=True, config=from_here(part.start)) as sub:
                seen, count = 0, part.count
                async for msg in sub:
                    if headers:
                        assert msg.headers[HEADER]
                    seen += 1
                    if seen == count:
                        break
                part.done(seen, msg.metadata.stream_seq)


async def _ordered_header(job: Job, meter: Meter) -> None:
    """Do the same with the method that reads one header."""
    async with connected(job) as js:
        for part in meter.parts():
            async with await js.subscribe(job.subject, ordered=True, config=from_here(part.start)) as sub:
                seen, count = 0, part.count
                async for msg in sub:
                    assert msg.header(HEADER)
                    seen += 1
                    if seen == count:
                        break
                part.done(seen, msg.metadata.stream_seq)


async def _callback(job: Job, meter: Meter) -> None:
    headers = job.headers
    async with connected(job) as js:
        for part in meter.parts():
            done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            seen, count = 0, part.count

            async def handle(msg: Message) -> None:
                nonlocal seen
                if headers:
                    assert msg.headers[HEADER]
                seen += 1
                if seen == count:  # noqa: B023 - used before the next part
                    done.set_result(msg)  # noqa: B023

            async with await js.subscribe(job.subject, config=pushed(part.start), callback=handle):
                last = await done
                part.done(seen, last.metadata.stream_seq)


async def _messages(job: Job, meter: Meter) -> None:
    headers = job.headers
    async with connected(job) as js:
        stream = await js.stream(job.stream)
        for part in meter.parts():
            consumer = await stream.consumer(part.consumer)
            async with consumer.messages(max_messages=job.window or None) as messages, requested(job, part):
                seen, count = 0, part.count
                async for msg in messages:
                    if headers:
                        assert msg.headers[HEADER]
                    await msg.ack()
                    seen += 1
                    # The reader does not end after the last message, so leave the loop.
                    if seen == count:
                        break
                part.done(seen, msg.metadata.stream_seq)


async def _run(job: Job, meter: Meter) -> None:
    pause = job.pause
    async with connected(job) as js:
        stream = await js.stream(job.stream)
        for part in meter.parts():
            done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            seen, count = 0, part.count

            async def handle(msg: Message) -> None:
                nonlocal seen
                seen += 1
                if seen == count:  # noqa: B023 - used before the next part
                    done.set_result(msg)  # noqa: B023
                if pause:
                    await asyncio.sleep(pause)

            consumer = await stream.consumer(part.consumer)
            async with consumer.run(handle, concurrency=job.handlers), requested(job, part):
                last = await done
                part.done(seen, last.metadata.stream_seq)


async def _fetch(job: Job, meter: Meter) -> None:
    size = job.batch
    async with connected(job) as js:
        stream = await js.stream(job.stream)
        for part in meter.parts():
            consumer = await stream.consumer(part.consumer)
            seen, count = 0, part.count
            while seen < count:
                for msg in await consumer.fetch(size):  # noqa: B007 - looked at below
                    seen += 1
            part.done(seen, msg.metadata.stream_seq)


async def _next(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        stream = await js.stream(job.stream)
        for part in meter.parts():
            consumer = await stream.consumer(part.consumer)
            for _ in range(part.count):
                began = time.perf_counter_ns()
                msg = await consumer.next()
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(len(part.latencies), msg.metadata.stream_seq)


async def _publisher(job: Job, meter: Meter) -> None:
    data, headers = payload(job), HEADERS if job.headers else None
    async with connected(job) as js:
        for part in meter.parts():
            async with js.publisher(max_in_flight=job.window) as pub:
                for _ in range(part.count):
                    future = await pub.publish(job.subject, data, headers=headers)
            # Leaving has waited for every ack, and would have raised for any that failed.
            part.done(part.count, (await future).seq)


async def _send(job: Job, meter: Meter) -> None:
    data, headers = payload(job), HEADERS if job.headers else None
    async with connected(job) as js:
        for part in meter.parts():
            async with js.publisher(max_in_flight=job.window) as pub:
                for _ in range(part.count):
                    try:
                        future = pub.send(job.subject, data, headers=headers)
                    except TooManyInFlightError:
                        future = await pub.publish(job.subject, data, headers=headers)
            part.done(part.count, (await future).seq)


async def _publish_many(job: Job, meter: Meter) -> None:
    data, headers = payload(job), HEADERS if job.headers else None
    async with connected(job) as js:
        for part in meter.parts():
            done = await js.publish_many(
                job.subject, repeat(data, part.count), headers=headers, max_in_flight=job.window
            )
            part.done(done.stored, done.last_seq)


async def _batches(job: Job, meter: Meter) -> None:
    data = payload(job)
    async with connected(job) as js:
        for part in meter.parts():
            for _ in range(part.count // job.batch):
                async with js.batch() as batch:
                    for _ in range(job.batch):
                        await batch.publish(job.subject, data)
            assert batch.ack is not None
            part.done(part.count, batch.ack.seq)


async def _publish(job: Job, meter: Meter) -> None:
    data, headers = payload(job), HEADERS if job.headers else None
    async with connected(job) as js:
        for part in meter.parts():
            for _ in range(part.count):
                began = time.perf_counter_ns()
                ack = await js.publish(job.subject, data, headers=headers)
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(len(part.latencies), ack.seq)


async def _since(js: jsclient.JetStream, job: Job, part: Part) -> jsclient.ReaderOpening:
    topic = js.topic(job.subject)
    return topic.since((await (await topic.log()).extent()).end.at(part.start - 1))


async def _topic(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        for part in meter.parts():
            seen, count = 0, part.count
            async with await _since(js, job, part) as reader:
                async for record in reader:  # noqa: B007 - looked at below
                    seen += 1
                    if seen == count:
                        break
            part.done(seen, record.seq)


async def _topic_batches(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        for part in meter.parts():
            seen, count = 0, part.count
            async with await _since(js, job, part) as reader:
                async for records in reader.batches():
                    seen += len(records)
                    if seen >= count:
                        break
            part.done(seen, records[-1].seq)


async def _end_to_end(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        for part in meter.parts():
            done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            latencies, count = part.latencies, part.count

            async def handle(msg: Message) -> None:
                latencies.append(time.monotonic_ns() - int(msg.data[:19]))  # noqa: B023
                if len(latencies) == count:  # noqa: B023
                    done.set_result(msg)  # noqa: B023

            async with await js.subscribe(job.subject, config=_NEW, callback=handle):
                with paced(job, part.count):
                    part.begin(0)
                    last = await done
                part.done(len(latencies), last.metadata.stream_seq)


async def _subscriptions(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        for part in meter.parts():
            await _read_at_once(js, job, part)


async def _read_at_once(js: jsclient.JetStream, job: Job, part: Part) -> None:
    done: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    seen, count = 0, part.count

    async def handle(msg: Message) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set_result(msg)

    subs = [await js.subscribe(job.subject, config=_NEW, callback=handle) for _ in range(job.subscriptions)]
    with flooded(job, count // job.subscriptions):
        part.begin(seen)
        last = await done
    part.done(seen, last.metadata.stream_seq)
    for sub in subs:
        await sub.unsubscribe()


# --- core messages ---------------------------------------------------------------------------------------------


async def _core_publish(job: Job, meter: Meter) -> None:
    data, subject = payload(job), job.subject
    async with connected(job) as js:
        core = js.core
        for part in meter.parts():
            for _ in range(part.count):
                await core.publish(subject, data)
            await core.flush()
            part.done(part.count, part.last)


async def _core_subscribe(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        core = js.core
        for part in meter.parts():
            async with await core.subscribe(job.subject) as sub:
                await core.publish(BEGIN, b"%d" % part.count)
                seen, count, data = 0, part.count, 0
                async for msg in sub:
                    data += len(msg.data)
                    seen += 1
                    if not seen % CREDIT:
                        await core.publish(MORE, b"")
                    if seen == count:
                        break
                assert data == count * job.size
                part.done(seen, part.last)


async def _core_request(job: Job, meter: Meter) -> None:
    data = payload(job)
    async with connected(job) as js:
        core = js.core
        for part in meter.parts():
            for _ in range(part.count):
                began = time.perf_counter_ns()
                await core.request(ECHO, data)
                part.latencies.append(time.perf_counter_ns() - began)
            part.done(part.count, part.last)


async def _core_requests(job: Job, meter: Meter) -> None:
    data = payload(job)
    async with connected(job) as js:
        core = js.core

        async def request(count: int) -> None:
            for _ in range(count):
                await core.request(ECHO, data, timeout=30.0)

        for part in meter.parts():
            await asyncio.gather(*map(request, shares(part.count)))
            part.done(part.count, part.last)


# --- a slow handler, and many messages that wait ---------------------------------------------------------------


async def _slow_callback(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        for part in meter.parts():
            slow = Slow(part)

            async def handle(msg: Message) -> None:
                await slow(msg.metadata.stream_seq)  # noqa: B023

            async with await js.subscribe(job.subject, config=pushed(part.start), callback=handle):
                await slow.done


async def _slow_ordered(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        for part in meter.parts():
            slow = Slow(part)
            async with await js.subscribe(job.subject, ordered=True, config=from_here(part.start)) as sub:
                while not slow.done.done():
                    await slow((await sub.next()).metadata.stream_seq)


async def _slow_messages(job: Job, meter: Meter) -> None:
    async with connected(job) as js:
        stream = await js.stream(job.stream)
        for part in meter.parts():
            slow = Slow(part)
            async with (await stream.consumer(part.consumer)).messages() as messages:
                while not slow.done.done():
                    msg = await messages.next()
                    await msg.ack()
                    await slow(msg.metadata.stream_seq)


WORKS = {
    "ordered": _ordered,
    "ordered-header": _ordered_header,
    "callback": _callback,
    "messages": _messages,
    "run": _run,
    "fetch": _fetch,
    "next": _next,
    "publish": _publish,
    "publisher": _publisher,
    "send": _send,
    "publish-many": _publish_many,
    "batches": _batches,
    "topic": _topic,
    "topic-batches": _topic_batches,
    "end-to-end": _end_to_end,
    "subscriptions": _subscriptions,
    "core-publish": _core_publish,
    "core-subscribe": _core_subscribe,
    "core-request": _core_request,
    "core-requests": _core_requests,
    "slow callback": _slow_callback,
    "slow ordered": _slow_ordered,
    "slow messages": _slow_messages,
}
