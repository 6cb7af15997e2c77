"""Readers that wait: their cost to the server, and the cost of a record that all of them receive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import nats

import jsclient
from benchmarks.job import Job, WorkSkippedError
from benchmarks.topics.watched import Watched, watched

__all__ = ["waiting"]

Wait = Callable[[int], Any]

_IDLE = 5.0  # seconds, equal to the interval of the consumers' heartbeats
_RECORDS = 50
_SILENCE = 30.0  # seconds of silence until the work fails


async def waiting(job: Job) -> dict[str, float]:
    """Open as many readers as the job says, on one connection."""
    async with watched() as server, jsclient.connect(server.url) as js:
        await js.create_stream(
            "WAIT",
            subjects=["wait.x"],
            storage="memory",
            allow_direct=True,
            republish={"src": "wait.x", "dest": "pushed.wait.x"},
        )
        for _ in range(100):
            await js.publish("wait.x", b"x" * job.size)
        readers = _READERS[job.client]
        async with readers(server.url, max(1, job.count // 20)):
            pass  # allocate the server's buffers and tables, which remain
        await asyncio.sleep(idle_seconds(job) / 5)
        before, began = server.rss_kb, time.perf_counter()
        async with readers(server.url, job.count) as wait:
            figures = {"open_ms": (time.perf_counter() - began) * 1000}
            await asyncio.sleep(idle_seconds(job) / 5)
            figures["kb"] = (server.rss_kb - before) / job.count
            figures["consumers"] = await server.consumers()
            connection = await server.newest()
            figures |= await _idle(server, connection, job)
            figures |= await _told(server, connection, js, job, wait)
        return figures


def idle_seconds(job: Job) -> float:
    """Return how many seconds to observe idle readers."""
    return _IDLE * min(1.0, job.count / 1000)


async def _idle(server: Watched, connection: int, job: Job) -> dict[str, float]:
    """Return the number of messages in a minute to each idle reader."""
    sent, began = await server.sent_to(connection), time.perf_counter()
    await asyncio.sleep(idle_seconds(job))
    minutes = (time.perf_counter() - began) / 60
    return {"idle_messages": (await server.sent_to(connection) - sent) / job.count / minutes}


async def _told(
    server: Watched, connection: int, js: jsclient.JetStream, job: Job, wait: Wait
) -> dict[str, float]:
    """Return the server's cost to deliver one record to all readers."""
    sent, used = await server.sent_to(connection), server.cpu
    for _ in range(_RECORDS):
        await js.publish("wait.x", b"x" * job.size)
    async with asyncio.timeout(_SILENCE):
        await wait(_RECORDS)
    arguments = job.count * _RECORDS
    return {
        "messages": (await server.sent_to(connection) - sent) / arguments,
        "server_us": (server.cpu - used) / arguments * 1e6,
    }


@asynccontextmanager
async def _topic(url: str, count: int, push: Any) -> AsyncIterator[Wait]:
    async with jsclient.connect(url) as js, AsyncExitStack() as stack:
        topic = js.topic("wait.x")
        position = (await (await topic.log()).extent()).end
        openings = [stack.enter_async_context(topic.since(position, push=push)) for _ in range(count)]
        readers = [await opening for opening in openings]

        async def take(reader: jsclient.TopicReader, number: int) -> None:
            for _ in range(number):
                await reader.next()

        async def wait(number: int) -> None:
            await asyncio.gather(*(take(reader, number) for reader in readers))

        tries = 0
        while not all(reader._reader.tracker.is_subscribed for reader in readers):
            tries += 1
            if tries > 3000:
                raise WorkSkippedError("not all readers wait")
            await asyncio.sleep(0.01)
        yield wait


@asynccontextmanager
async def _natspy(url: str, count: int) -> AsyncIterator[Wait]:
    nc = await nats.connect(url)
    js = nc.jetstream()
    # Each consumer needs its own configuration, because the client modifies it.
    configs = [nats.js.api.ConsumerConfig(deliver_policy=nats.js.api.DeliverPolicy.NEW) for _ in range(count)]
    subs = [await js.subscribe("wait.x", ordered_consumer=True, config=config) for config in configs]

    async def take(sub: Any, number: int) -> None:
        for _ in range(number):
            await sub.next_msg(timeout=_SILENCE)

    async def wait(number: int) -> None:
        await asyncio.gather(*(take(sub, number) for sub in subs))

    yield wait
    for sub in subs:
        await js.delete_consumer("WAIT", (await sub.consumer_info()).name)
    await nc.close()


_READERS: dict[str, Callable[[str, int], Any]] = {
    "republish": lambda url, count: _topic(url, count, "republish"),
    "consumer": lambda url, count: _topic(url, count, "consumer"),
    "nats-py": _natspy,
}
