"""One run, in a separate process: ``python -m benchmarks.objects.child WORK CLIENT URL BYTES COUNT``.

The process connects, does the work once with a small object, and then measures it. It prints the figures as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import nats
import nats.js.api

import jsclient

__all__ = ["CLIENTS", "WORKS"]

Transfer: TypeAlias = Callable[[str], Awaitable[int]]
"""Transfers the object of this name, and returns its bytes."""

BUCKET = "bench"


@contextlib.asynccontextmanager
async def by_jsclient(work: str, url: str, data: bytes) -> AsyncIterator[Transfer]:
    """The transfers of jsclient."""
    async with jsclient.connect(url) as js:
        store = await js.ensure_object_store(BUCKET, storage="memory", on_drift="ignore")

        async def put(name: str) -> int:
            return (await store.put(name, data)).size

        async def get(name: str) -> int:
            return len(await store.get(name))

        async def stream(name: str) -> int:
            async with store.open(name) as file:
                return sum([len(piece) async for piece in file])

        yield {"put": put, "get": get, "stream": stream}[work]


@contextlib.asynccontextmanager
async def by_nats_py(work: str, url: str, data: bytes) -> AsyncIterator[Transfer]:
    """The transfers of nats-py."""
    nc = await nats.connect(url)
    js = nc.jetstream()
    try:
        store = await js.object_store(BUCKET)
    except nats.js.errors.NotFoundError:
        config = nats.js.api.ObjectStoreConfig(storage=nats.js.api.StorageType.MEMORY)
        store = await js.create_object_store(BUCKET, config=config)

    async def put(name: str) -> int:
        return (await store.put(name, data)).size or 0

    async def get(name: str) -> int:
        return len((await store.get(name)).data or b"")

    try:
        yield {"put": put, "get": get}[work]
    finally:
        await nc.close()


CLIENTS = {"jsclient": by_jsclient, "nats-py": by_nats_py}
WORKS = ("put", "get", "stream")


async def measure(work: str, client: str, url: str, size: int, count: int) -> dict[str, Any]:
    """Transfer an object ``count`` times, and return the figures."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    if work != "put":
        async with by_jsclient("put", url, data) as put:
            await put("object")
        async with by_jsclient("put", url, data[:1000]) as put:
            await put("warm")
    async with CLIENTS[client](work, url, data if work != "put" else data[:1000]) as transfer:
        await transfer("warm")
    async with CLIENTS[client](work, url, data) as transfer:
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(count):
            if (moved := await transfer("object")) != size:
                raise SystemExit(f"{moved} of {size} bytes were transferred")
        after, seconds = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() - start
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "mb_s": size * count / seconds / 1e6,
        "cpu_ms_mb": 1000 * cpu / (size * count / 1e6),
        "us": 1e6 * seconds / count,
        "cpu_us": 1e6 * cpu / count,
        "rss_mb": after.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    work, client, url, size, count = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(work, client, url, int(size), int(count)))))
