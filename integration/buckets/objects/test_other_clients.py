"""The object store of nats-py reads what jsclient writes, and jsclient reads what it writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from nats.js import api, errors

from integration.buckets.kit import digest, is_same, names_of
from integration.kit.clients.foreign import client
from jsclient import ObjectNotFoundError

SIZES = [0, 1, 131_071, 131_072, 131_073, 16 * 131_072, 16 * 131_072 + 1]


@pytest.fixture
async def server(server: Any, own_server: Any) -> Any:
    """The readers of nats-py do not know the second form of ack subjects, and wait without end."""
    return await own_server(ack_v2=False) if server.ack_v2 else server


@pytest.fixture
async def theirs(server: Any, store: Any) -> AsyncIterator[Any]:
    async with client(server) as nc:
        yield await nc.jetstream().object_store(store.bucket)


@pytest.mark.covers("O7", "O8", "O11")
@pytest.mark.parametrize("size", SIZES)
async def test_they_read_ours(store: Any, theirs: Any, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    info = await store.put("naïve/ü name+?.bin", data, headers={"h": "1"}, description="text")
    if size:  # for an empty object it creates a consumer, and waits
        result = await theirs.get("naïve/ü name+?.bin")
        assert is_same(result.data, data)
    found = await theirs.get_info("naïve/ü name+?.bin")
    assert (found.size, found.chunks, found.digest, found.nuid) == (
        size,
        info.chunks,
        digest(data),
        info.nuid,
    )
    assert (found.description, found.headers) == ("text", {"h": ["1"]})


@pytest.mark.covers("O7", "O8", "O10", "O11")
@pytest.mark.parametrize("size", SIZES)
async def test_we_read_theirs(store: Any, theirs: Any, size: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    meta = api.ObjectMeta(description="text", headers={"h": "1"})
    await theirs.put("naïve/ü name+?.bin", data, meta=meta)
    assert is_same(await store.get("naïve/ü name+?.bin"), data)
    info = await store.info("naïve/ü name+?.bin")
    assert (info.size, info.digest, info.description) == (size, digest(data), "text")
    assert info.headers == {"h": ["1"]}
    assert await names_of(store) == ["naïve/ü name+?.bin"]


@pytest.mark.covers("O23", "O29", "O31")
async def test_changes_of_both(store: Any, theirs: Any, chunks: Any) -> None:
    await store.put("a", b"1")
    await theirs.put("a", b"2")
    assert await store.get("a") == b"2"
    await store.put("a", b"3")
    assert (await theirs.get("a")).data == b"3"
    assert len(await chunks()) == 1
    await store.rename("a", "b")
    assert (await theirs.get("b")).data == b"3"
    with pytest.raises(errors.ObjectNotFoundError):
        await theirs.get("a")
    await theirs.delete("b")
    with pytest.raises(ObjectNotFoundError):
        await store.get("b")
    assert len(await chunks()) == 0
    await theirs.put("c", b"1")
    await store.delete("c")
    with pytest.raises(errors.NotFoundError):
        await theirs.get("c")
    assert len(await chunks()) == 0


@pytest.mark.covers("O1", "O2", "O36", "O37")
async def test_bucket_of_theirs(js: Any, server: Any, name: str) -> None:
    """Its options are read, and one that it has sealed is sealed."""
    async with client(server) as nc:
        theirs = await nc.jetstream().create_object_store(
            name, config=api.ObjectStoreConfig(description="text", ttl=60, storage=api.StorageType.MEMORY)
        )
        store = await js.object_store(name)
        status = await store.status()
        assert (status.description, status.ttl, status.storage) == ("text", 60, "memory")
        await store.put("a", b"1")
        assert (await theirs.get("a")).data == b"1"
        await theirs.seal()
        assert (await store.status()).is_sealed
        assert await store.get("a") == b"1"


@pytest.mark.covers("O35")
async def test_watches_of_both(store: Any, theirs: Any) -> None:
    await store.put("a", b"1")
    watcher = await theirs.watch()
    assert (await watcher.updates()).name == "a"
    assert await watcher.updates() is None
    await store.put("b", b"1")
    assert (await watcher.updates()).name == "b"
    await watcher.stop()
    async with store.watch() as watch:
        while not watch.is_current:
            await watch.next()
        await theirs.put("c", b"1")
        assert (await watch.next()).name == "c"
