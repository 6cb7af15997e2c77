"""The works with core messages, for clients whose methods are those of nats-py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from benchmarks.job import Job, Meter, payload, shares
from benchmarks.partner import BEGIN, CREDIT, ECHO, MORE

__all__ = ["core_works"]


def core_works(
    connected: Callable[[Job], AbstractAsyncContextManager[Any]],
    messages: Callable[[Any], AsyncIterator[Any]],
) -> dict[str, Callable[..., Any]]:
    """Return the works by kind.

    ``connected`` opens a connection for a job, and ``messages`` iterates over a subscription.
    """
    works = _CoreWorks(connected, messages)
    return {
        "core-publish": works.publish,
        "core-subscribe": works.subscribe,
        "core-request": works.request_each,
        "core-requests": works.request_at_once,
    }


class _CoreWorks:
    def __init__(
        self,
        connected: Callable[[Job], AbstractAsyncContextManager[Any]],
        messages: Callable[[Any], AsyncIterator[Any]],
    ) -> None:
        self._connected = connected
        self._messages = messages

    async def publish(self, job: Job, meter: Meter) -> None:
        data, subject = payload(job), job.subject
        async with self._connected(job) as nc:
            for part in meter.parts():
                for _ in range(part.count):
                    await nc.publish(subject, data)
                await nc.flush()
                part.done(part.count, part.last)

    async def subscribe(self, job: Job, meter: Meter) -> None:
        async with self._connected(job) as nc:
            for part in meter.parts():
                sub = await nc.subscribe(job.subject)
                await nc.publish(BEGIN, b"%d" % part.count)
                seen, count, data = 0, part.count, 0
                async for msg in self._messages(sub):
                    data += len(msg.data)
                    seen += 1
                    if not seen % CREDIT:
                        await nc.publish(MORE, b"")
                    if seen == count:
                        break
                assert data == count * job.size
                await sub.unsubscribe()
                part.done(seen, part.last)

    async def request_each(self, job: Job, meter: Meter) -> None:
        data = payload(job)
        async with self._connected(job) as nc:
            for part in meter.parts():
                for _ in range(part.count):
                    began = time.perf_counter_ns()
                    await nc.request(ECHO, data, timeout=5.0)
                    part.latencies.append(time.perf_counter_ns() - began)
                part.done(part.count, part.last)

    async def request_at_once(self, job: Job, meter: Meter) -> None:
        data = payload(job)
        async with self._connected(job) as nc:

            async def request(count: int) -> None:
                for _ in range(count):
                    await nc.request(ECHO, data, timeout=30.0)

            for part in meter.parts():
                await asyncio.gather(*map(request, shares(part.count)))
                part.done(part.count, part.last)
