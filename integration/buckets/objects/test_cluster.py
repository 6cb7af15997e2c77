"""Objects of a replicated bucket outlast elections and the loss of a server."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from integration.buckets.kit import digest, is_same
from integration.kit.clients.readers import FAST
from integration.kit.servers.cluster import OwnCluster

pytestmark = [pytest.mark.full, pytest.mark.limit(300)]

DATA = random.Random(5).randbytes(300 * 131_072 + 7)


@pytest.mark.covers("O20", "O26")
async def test_elections(cluster: OwnCluster, connect: Any, oracle_for: Any) -> None:
    """The leader steps down, and a server is killed, while an object is stored and read."""
    judge = await oracle_for(cluster.servers["n1"])
    js = await connect(cluster.urls, **{**FAST, "timeout": 20.0})
    store = await js.create_object_store("blobs", num_replicas=3)

    async def source() -> Any:
        for start in range(0, len(DATA), 1_000_000):
            yield DATA[start : start + 1_000_000]
            # Two elections in the middle of the upload, while chunks are in flight.
            if start in (5_000_000, 20_000_000):
                await cluster.step_down(judge, "OBJ_blobs")

    info = await store.put("a", source(), timeout=60)
    assert info.digest == digest(DATA)
    assert (await judge.state("OBJ_blobs"))["messages"] == info.chunks + 1
    leader, _ = await cluster.places(judge, "OBJ_blobs")
    received = bytearray()
    async with store.open("a") as file:
        async for piece in file:
            received += piece
            # The leader dies while the reader still needs most of the object.
            if len(received) == 20 * 131_072:
                await cluster.servers[leader].kill()
                await cluster.servers[leader].start()
            elif len(received) == 200 * 131_072:
                await cluster.ready()
    assert is_same(bytes(received), DATA)


@pytest.mark.covers("O27")
async def test_concurrent_puts(cluster: OwnCluster, connect: Any, oracle_for: Any) -> None:
    judge = await oracle_for(cluster.servers["n1"])
    stores = []
    for server in cluster.servers.values():
        js = await connect(server, timeout=20.0)
        stores.append(await js.ensure_object_store("blobs", num_replicas=3))
    for number in range(30):
        contents = [bytes([number, which]) * 100_000 for which in range(3)]
        infos = await asyncio.gather(
            *(store.put("a", content) for store, content in zip(stores, contents, strict=True))
        )
        newest = max(infos, key=lambda info: info.revision)
        subjects = Counter(message.subject for message in await judge.messages("OBJ_blobs"))
        assert {subject for subject in subjects if ".C." in subject} == {f"$O.blobs.C.{newest.nuid}"}
        for store in stores:
            assert digest(await store.get("a")) == newest.digest
