"""Object stores are created, found, changed, listed and deleted, with the streams that all clients expect."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient
from integration.buckets.kit import names_of
from integration.kit.judge.waiting import eventually
from integration.kit.servers.ports import HOST, free_port
from jsclient import (
    BucketExistsError,
    BucketNotFoundError,
    ConfigError,
    ConfigMismatchError,
    InvalidNameError,
    NotABucketError,
    StreamConfig,
)


@pytest.mark.covers("O1")
async def test_stream_of_store(js: Any, oracle: Any, name: str) -> None:
    store = await js.create_object_store(name)
    config = (await oracle.stream_info(f"OBJ_{name}"))["config"]
    expected = {
        "subjects": [f"$O.{name}.C.>", f"$O.{name}.M.>"],
        "discard": "new",
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "max_bytes": -1,
        "max_age": 0,
        "storage": "file",
        "num_replicas": 1,
    }
    assert {field: config[field] for field in expected} == expected
    assert (store.bucket, store.stream) == (name, f"OBJ_{name}")


@pytest.mark.covers("O1")
@pytest.mark.parametrize("bad", ["", "a.b", "a b", "ä", "*", "a\n", None, 1])
async def test_bad_names(js: Any, bad: Any) -> None:
    for call in (
        js.create_object_store,
        js.object_store,
        js.ensure_object_store,
        js.update_object_store,
        js.create_or_update_object_store,
        js.delete_object_store,
    ):
        with pytest.raises(InvalidNameError):
            await call(bad)
    with pytest.raises(InvalidNameError):
        await js.object_store(bad, check=False)


async def test_bad_options(js: Any, oracle: Any, name: str) -> None:
    with pytest.raises(ConfigError):
        await js.create_object_store(name, ttl=-1)
    with pytest.raises(TypeError, match="did you mean 'max_bytes'"):
        await js.create_object_store(name, max_byte=5)
    assert f"OBJ_{name}" not in await oracle.stream_names()


@pytest.mark.covers("O1", "O37")
async def test_options_in_status(js: Any, name: str) -> None:
    store = await js.create_object_store(
        name,
        ttl=60,
        max_bytes=10**6,
        compression=True,
        description="models",
        metadata={"team": "a"},
        storage="file",
    )
    await store.put("a", bytes(1000))
    status = await store.status()
    assert (status.bucket, status.description, status.ttl, status.storage) == (name, "models", 60.0, "file")
    assert (status.num_replicas, status.is_sealed, status.is_compressed) == (1, False, True)
    assert status.metadata == {"team": "a"}
    assert status.size > 1000
    assert status.config.max_bytes == 10**6


@pytest.mark.covers("O2")
async def test_create_again(js: Any, name: str) -> None:
    await js.create_object_store(name, max_bytes=10**6)
    await (await js.create_object_store(name, max_bytes=10**6)).put("a", b"1")
    with pytest.raises(BucketExistsError, match="ensure_object_store") as caught:
        await js.create_object_store(name, max_bytes=10**7)
    assert isinstance(caught.value, jsclient.ApiError)


@pytest.mark.covers("O2")
async def test_update_and_ensure(js: Any, name: str) -> None:
    with pytest.raises(BucketNotFoundError, match="create_object_store"):
        await js.update_object_store(name)
    store = await js.create_or_update_object_store(name, description="a")
    await store.put("a", b"1")
    store = await js.update_object_store(name, description="b", ttl=60)
    status = await store.status()
    assert (status.description, status.ttl) == ("b", 60)
    assert await store.get("a") == b"1"
    with pytest.raises(ConfigMismatchError):
        await js.ensure_object_store(name, description="c")
    assert (await (await js.ensure_object_store(name, description="c", on_drift="ignore")).status()).ttl == 60
    store = await js.ensure_object_store(name, description="c", on_drift="update")
    assert (await store.status()).description == "c"


@pytest.mark.covers("O2")
async def test_bind_and_delete(js: Any, name: str) -> None:
    with pytest.raises(BucketNotFoundError, match=name):
        await js.object_store(name)
    await (await js.create_object_store(name)).put("a", b"1")
    assert await (await js.object_store(name)).get("a") == b"1"
    assert await (await js.object_store(name, check=False)).get("a") == b"1"
    assert name in [one async for one in js.object_store_names()]
    await js.delete_object_store(name)
    with pytest.raises(BucketNotFoundError):
        await js.delete_object_store(name)
    with pytest.raises(BucketNotFoundError):
        await (await js.object_store(name, check=False)).get("a")
    with pytest.raises(BucketNotFoundError):
        await (await js.object_store(name, check=False)).put("a", b"1")


@pytest.mark.covers("O2")
async def test_not_a_store(js: Any, name: str) -> None:
    await js.create_stream(StreamConfig(name=f"OBJ_{name}", subjects=[name]))
    with pytest.raises(NotABucketError, match=r"\$O\."):
        await js.object_store(name)


@pytest.mark.covers("O40")
async def test_mirror(js: Any, name: str) -> None:
    """It has the subjects of its origin, and is only read."""
    store = await js.create_object_store(name)
    data = bytes(300_000)
    await store.put("a", data)
    try:
        await js.create_object_store(f"{name}-copy", mirror=name)
        copy = await js.object_store(f"{name}-copy")

        async def copied() -> bool:
            return await names_of(copy) == ["a"]

        await eventually(copied)
        assert await copy.get("a") == data
        assert f"{name}-copy" in [one async for one in js.object_store_names()]
        for write in (
            copy.put("b", b""),
            copy.delete("a"),
            copy.rename("a", "b"),
            copy.add_link("b", "a"),
            copy.update_info("a"),
        ):
            with pytest.raises(ConfigError, match="mirror"):
                await write
        assert await names_of(store) == ["a"]
    finally:
        await js.delete_object_store(f"{name}-copy")


@pytest.mark.covers("O39")
async def test_domain(own_server: Any, connect: Any) -> None:
    """The domain of the connection itself: there is only one bucket, by both prefixes."""
    own = await own_server(config={"jetstream": {"domain": "hub"}})
    js = await connect(own, domain="hub")
    store = await js.create_object_store("blobs")
    data = bytes(300_000)
    await store.put("a", data)
    assert await store.get("a") == data
    await store.delete("a")
    assert await names_of(store) == []


@pytest.mark.covers("O39")
async def test_domain_behind_leaf_node(own_server: Any, connect: Any, oracle_for: Any) -> None:
    """Objects are published without a prefix. A bucket of the same name beside it would store them, too."""
    port = free_port()
    leaves = {"host": HOST, "port": port}
    hub = await own_server(config={"jetstream": {"domain": "hub"}, "server_name": "hub", "leafnodes": leaves})
    leaf = await own_server(
        config={
            "jetstream": {"domain": "leaf"},
            "server_name": "leaf",
            "leafnodes": {"remotes": [{"url": f"nats://{HOST}:{port}"}]},
        }
    )
    there = await connect(leaf, domain="hub")
    store = await eventually(lambda: create(there))
    data = bytes(300_000)
    await store.put("a", data)
    assert await store.get("a") == data
    judge = await oracle_for(hub)
    assert (await judge.state("OBJ_blobs"))["messages"] == 4
    here = await connect(leaf)
    await here.create_object_store("blobs")
    with pytest.raises(ConfigError, match="both would store"):
        await (await there.object_store("blobs")).put("a", data)
    assert (await judge.state("OBJ_blobs"))["messages"] == 4


async def create(js: Any) -> Any:
    """Create a store, as soon as the leaf node is connected."""
    try:
        return await js.create_object_store("blobs")
    except jsclient.JetStreamError:
        return None
