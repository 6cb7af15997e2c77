"""Publishing: the cost of records that name their predecessor."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats

import jsclient
from benchmarks.job import Job, Meter, payload

__all__ = ["publishing"]


async def publishing(job: Job) -> dict[str, float]:
    """Publish ``job.count`` records of ``job.size`` bytes to a new stream. Check with the server that it stored all."""
    meter = Meter(job)
    async with jsclient.connect(job.url) as js:
        await js.create_stream(job.stream, subjects=[job.subject], storage="memory", allow_direct=True)
        try:
            await _CLIENTS[job.client](js, job, meter)
            last = (await (await js.stream(job.stream)).info()).state.last_seq
        finally:
            await js.delete_stream(job.stream)
    if last != job.warm + job.count:
        raise RuntimeError(f"{last} records were stored, not {job.warm + job.count}")
    return meter.figures()


async def _topic(js: jsclient.JetStream, job: Job, meter: Meter, *, chained: bool) -> None:
    data = payload(job)
    async with js.topic(job.subject).publisher(chained=chained, max_in_flight=job.window) as publisher:
        for part in meter.parts():
            futures = [await publisher.publish(data) for _ in range(part.count)]
            await publisher.flush()
            part.done(part.count, futures[-1].result().seq)


async def _unchained(js: jsclient.JetStream, job: Job, meter: Meter) -> None:
    await _topic(js, job, meter, chained=False)


async def _chained(js: jsclient.JetStream, job: Job, meter: Meter) -> None:
    await _topic(js, job, meter, chained=True)


async def _kit(js: jsclient.JetStream, job: Job, meter: Meter) -> None:
    """Publish one record at a time with compare-and-set. Each names its predecessor."""
    publication, _ = await js.subscription_kit(job.subject, stream=job.stream)
    state = "x" * (job.size - len(json.dumps("")))
    for part in meter.parts():
        for _ in range(part.count):
            seq = await publication.update_state(state)
        part.done(part.count, seq)


async def _publisher(js: jsclient.JetStream, job: Job, meter: Meter) -> None:
    data, subject = payload(job), job.subject
    for part in meter.parts():
        async with js.publisher(max_in_flight=job.window) as publisher:
            futures = [await publisher.publish(subject, data) for _ in range(part.count)]
            await publisher.flush()
            part.done(part.count, futures[-1].result().seq)


async def _natspy(_: jsclient.JetStream, job: Job, meter: Meter) -> None:
    data = payload(job)
    async with _connected(job) as nc:
        for part in meter.parts():
            js = nc.jetstream(publish_async_max_pending=job.window)
            futures = [await js.publish_async(job.subject, data) for _ in range(part.count)]
            await js.publish_async_completed()
            last = 0
            for future in futures:
                last = future.result().seq
            part.done(part.count, last)


async def _natspy_linked(_: jsclient.JetStream, job: Job, meter: Meter) -> None:
    """Publish one record at a time. The work passes the sequence of the predecessor itself."""
    data, last = payload(job), 0
    async with _connected(job) as nc:
        js = nc.jetstream()
        for part in meter.parts():
            for _ in range(part.count):
                headers = {"Nats-Expected-Last-Subject-Sequence": str(last)}
                last = (await js.publish(job.subject, data, headers=headers)).seq
            part.done(part.count, last)


@asynccontextmanager
async def _connected(job: Job) -> AsyncIterator[nats.aio.client.Client]:
    nc = await nats.connect(job.url)
    try:
        yield nc
    finally:
        await nc.close()


_CLIENTS = {
    "topic": _unchained,
    "chained": _chained,
    "kit": _kit,
    "publisher": _publisher,
    "nats-py": _natspy,
    "nats-py, linked": _natspy_linked,
}
