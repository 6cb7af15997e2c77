"""Another client reads the values that jsclient writes, and jsclient reads the values of the other client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.interop.other_client import KEY_VALUE_CLIENTS, ClientNamed, Entry, OtherClient
from integration.kit.judge.waiting import eventually
from jsclient import KeyExistsError, KeyNotFoundError, RevisionMismatchError

KEYS = ["a", "a.b", "a/b=c_d-e", "A.b.C"]


@pytest.fixture(params=KEY_VALUE_CLIENTS)
async def theirs(request: pytest.FixtureRequest, client_named: ClientNamed) -> AsyncIterator[OtherClient]:
    async with client_named(request.param) as client:
        yield client


@pytest.fixture(params=["ours", "theirs"])
async def kv(request: pytest.FixtureRequest, js: Any, theirs: Any, name: str) -> Any:
    """A bucket with a history of 5, created by one of the two clients."""
    if request.param == "ours":
        return await js.create_key_value(name, history=5)
    await theirs.create_bucket(name, history=5)
    return await js.key_value(name)


@pytest.fixture
async def expiring(js: Any, name: str) -> Any:
    """A bucket with a TTL for each key."""
    return await js.create_key_value(name, limit_marker_ttl=5)


async def history_of(kv: Any, key: str) -> list[Entry]:
    return [Entry(one.key, one.value, one.revision, one.operation) async for one in kv.history(key)]


async def keys_of(kv: Any, *filters: str) -> list[str]:
    return sorted([key async for key in kv.keys(*filters)])


@pytest.mark.covers("I1", "K24")
@pytest.mark.parametrize("key", KEYS)
async def test_values(kv: Any, theirs: Any, name: str, key: str) -> None:
    first = await kv.put(key, b"\x00 ours")
    assert await theirs.get(name, key) == Entry(key, b"\x00 ours", first, "PUT")
    second = await theirs.put(name, key, b"\xff theirs")
    assert second == first + 1
    entry = await kv.get(key)
    assert (entry.value, entry.revision, entry.operation) == (b"\xff theirs", second, "PUT")
    for revision, value in ((first, b"\x00 ours"), (second, b"\xff theirs")):
        assert await theirs.get(name, key, revision) == Entry(key, value, revision, "PUT")
        assert (await kv.get(key, revision=revision)).value == value
    assert await history_of(kv, key) == await theirs.history(name, key)


@pytest.mark.covers("I1", "K29")
async def test_empty_value(kv: Any, theirs: Any, name: str) -> None:
    await kv.put("a", b"")
    await theirs.put(name, "b", b"")
    assert (await theirs.get(name, "a")).value == (await kv.get("b")).value == b""


@pytest.mark.covers("I2", "K33", "K38")
async def test_delete_and_create_again(kv: Any, theirs: Any, name: str) -> None:
    await kv.put("a", b"1")
    await theirs.put(name, "b", b"1")
    await kv.delete("a")
    await theirs.delete(name, "b")
    assert await theirs.get(name, "a") is None
    with pytest.raises(KeyNotFoundError) as caught:
        await kv.get("b")
    assert caught.value.deleted.operation == "DEL"
    for key in ("a", "b"):
        ours = await history_of(kv, key)
        assert [one.operation for one in ours] == ["PUT", "DEL"]
        assert ours == await theirs.history(name, key)
    assert await kv.create("b", b"2") == await theirs.create(name, "a", b"2") - 1
    assert (await kv.get("a")).value == b"2"
    assert (await theirs.get(name, "b")).value == b"2"
    with pytest.raises(KeyExistsError):
        await kv.create("a", b"3")
    with pytest.raises(Exception, match=r"wrong last sequence|exists"):
        await theirs.create(name, "b", b"3")


@pytest.mark.covers("I2", "K39")
async def test_purge(kv: Any, theirs: Any, name: str) -> None:
    for key in ("a", "b"):
        await kv.put(key, b"1")
        await theirs.put(name, key, b"2")
    await kv.purge("a")
    await theirs.purge(name, "b")
    assert await theirs.get(name, "a") is None
    with pytest.raises(KeyNotFoundError) as caught:
        await kv.get("b")
    assert caught.value.deleted.operation == "PURGE"
    for key in ("a", "b"):
        ours = await history_of(kv, key)
        assert [one.operation for one in ours] == ["PURGE"]
        assert ours == await theirs.history(name, key)
    assert await keys_of(kv) == await theirs.keys(name) == []


@pytest.mark.covers("I4", "K60")
async def test_keys(kv: Any, theirs: Any, name: str) -> None:
    for number, key in enumerate(KEYS):
        await (kv.put(key, b"1") if number % 2 else theirs.put(name, key, b"1"))
    await kv.put("gone", b"1")
    await theirs.delete(name, "gone")
    assert await keys_of(kv) == sorted(await theirs.keys(name)) == sorted(KEYS)
    assert await keys_of(kv, "*.b") == ["a.b"]


@pytest.mark.covers("I4", "K46")
async def test_filters(js: Any, javascript: Any, name: str) -> None:
    kv = await js.create_key_value(name)
    for key in ("a.1.x", "a.2.x", "a.2.y", "b.2.x"):
        await kv.put(key, b"1")
    for filters in (("a.*.x",), ("a.>",), ("a.2.*", "b.>")):
        assert await keys_of(kv, *filters) == sorted(await javascript.keys(name, *filters))


@pytest.mark.covers("I5", "K47")
async def test_they_watch_ours(kv: Any, theirs: Any, name: str) -> None:
    first = await kv.put("a", b"1")
    watch = await theirs.watch(name)
    assert await watch.next() == Entry("a", b"1", first, "PUT")
    second = await kv.put("b", b"2")
    await kv.delete("a")
    await kv.purge("b")
    expected = [
        Entry("b", b"2", second, "PUT"), Entry("a", b"", second + 1, "DEL"), Entry("b", b"", second + 2, "PURGE"),
    ]  # fmt: skip
    assert [await watch.next() for _ in expected] == expected
    await watch.stop()


@pytest.mark.covers("I5", "K47", "K48")
async def test_we_watch_theirs(kv: Any, theirs: Any, name: str) -> None:
    await theirs.put(name, "a", b"1")
    async with kv.watch() as watch:
        entry = await watch.next()
        assert (entry.key, entry.value, entry.is_initial, watch.is_current) == ("a", b"1", True, True)
        await theirs.put(name, "b", b"2")
        await theirs.delete(name, "a")
        await theirs.purge(name, "b")
        seen = [await watch.next() for _ in range(3)]
    assert [(one.key, one.value, one.operation) for one in seen] == [
        ("b", b"2", "PUT"), ("a", b"", "DEL"), ("b", b"", "PURGE"),
    ]  # fmt: skip


@pytest.mark.covers("I6", "K37")
async def test_both_increment(kv: Any, theirs: Any, name: str) -> None:
    """Each adds 1 two hundred times, with the revision that it has read."""
    await kv.put("a", b"0")

    async def increment() -> None:
        for _ in range(200):
            await kv.update_with("a", lambda value: b"%d" % (int(value) + 1))

    await asyncio.gather(increment(), theirs.increment(name, "a", 200))
    assert int((await kv.get("a")).value) == 400


@pytest.mark.covers("I6", "K37")
async def test_revision_mismatch(kv: Any, theirs: Any, name: str) -> None:
    revision = await theirs.put(name, "a", b"1")
    newer = await kv.update("a", b"2", revision)
    with pytest.raises(Exception, match="wrong last sequence"):
        await theirs.update(name, "a", b"3", revision)
    newest = await theirs.update(name, "a", b"3", newer)
    with pytest.raises(RevisionMismatchError):
        await kv.update("a", b"4", newer)
    assert (await kv.get("a")).revision == newest


@pytest.mark.server(">=2.11")
@pytest.mark.covers("I3", "K28", "K34")
async def test_ttl_of_theirs(expiring: Any, theirs: Any, name: str) -> None:
    """The value of the other client expires for jsclient, as does the marker of a purge with a TTL."""
    await theirs.create(name, "a", b"1", 1)
    assert (await expiring.get("a")).value == b"1"
    async with expiring.watch("a", ignore_deletes=False) as watch:
        assert [(await watch.next()).operation for _ in range(2)] == ["PUT", "PURGE"]
    with pytest.raises(KeyNotFoundError) as caught:
        await expiring.get("a")
    assert caught.value.deleted.operation == "PURGE"
    await expiring.create("a", b"2")
    assert (await theirs.get(name, "a")).value == b"2"
    await theirs.purge(name, "a", 1)
    await eventually(lambda: nothing_of(expiring, "a"), 10)


@pytest.mark.server(">=2.11")
@pytest.mark.covers("I3", "K28", "K41")
async def test_ttl_of_ours(expiring: Any, theirs: Any, name: str) -> None:
    """A value of jsclient expires for the other client, whose watch sees a purge."""
    watch = await theirs.watch(name)
    await expiring.create("a", b"1", ttl=1)
    assert (await theirs.get(name, "a")).value == b"1"
    assert [(await watch.next()).operation for _ in range(2)] == ["PUT", "PURGE"]
    await watch.stop()
    if theirs.name == "js":
        # nats-py reads the marker as an empty value, and cannot create over it.
        assert await theirs.get(name, "a") is None
        await theirs.create(name, "a", b"2")
        assert (await expiring.get("a")).value == b"2"
    await expiring.purge("a", ttl=1)
    await eventually(lambda: nothing_of(expiring, "a"), 10)
    assert await theirs.get(name, "a") is None


async def nothing_of(kv: Any, key: str) -> bool:
    """Whether the bucket has forgotten the key, and that it was deleted."""
    return await history_of(kv, key) == []


@pytest.mark.covers("I7", "K66")
async def test_options_of_theirs(js: Any, theirs: Any, name: str) -> None:
    await theirs.create_bucket(name, history=3, ttl=3600, description="text")
    kv = await js.key_value(name)
    await theirs.put(name, "a", b"1")
    status = await kv.status()
    assert (status.history, status.ttl, status.config.description, status.values) == (3, 3600, "text", 1)


@pytest.mark.covers("I7", "K66")
async def test_options_of_ours(js: Any, theirs: Any, name: str) -> None:
    kv = await js.create_key_value(name, history=3, ttl=3600, description="text")
    await kv.put("a", b"1")
    expected = {"history": 3, "ttl": 3600, "description": "text", "values": 1}
    assert (await theirs.status(name)).items() >= expected.items()


@pytest.mark.server(">=2.11")
@pytest.mark.covers("I7", "K66")
async def test_marker_ttl(js: Any, theirs: Any, name: str) -> None:
    await theirs.create_bucket(name, limit_marker_ttl=60)
    status = await (await js.key_value(name)).status()
    assert (status.limit_marker_ttl, (await theirs.status(name))["limit_marker_ttl"]) == (60, 60)
    await js.delete_key_value(name)
    await js.create_key_value(name, limit_marker_ttl=90)
    assert (await theirs.status(name))["limit_marker_ttl"] == 90


@pytest.mark.covers("I7")
async def test_compression_and_metadata(js: Any, javascript: Any, name: str) -> None:
    await javascript.create_bucket(name, compression=True, metadata={"a": "b"})
    status = await (await js.key_value(name)).status()
    assert status.is_compressed
    assert status.metadata["a"] == "b"
    await js.delete_key_value(name)
    await js.create_key_value(name, compression=True, metadata={"c": "d"})
    theirs = await javascript.status(name)
    assert theirs["compression"] is True
    assert theirs["metadata"]["c"] == "d"
