"""Buckets with codecs: each method takes and returns values of a type, and keys that a bucket could not have."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from integration.buckets.kit import keys_of
from integration.kit.judge.waiting import within
from jsclient import (
    ConfigError,
    InvalidNameError,
    JsonCodec,
    KeyExistsError,
    KeyNotFoundError,
    RevisionMismatchError,
    ValueInvalidError,
)
from jsclient.buckets import Base64Keys, ChainedKeys, PathKeys


class Limits(msgspec.Struct):
    users: int
    name: str = ""


@pytest.fixture
async def limits(js: Any, name: str) -> Any:
    return await js.create_key_value(name, codec=JsonCodec(Limits), storage="memory", history=5)


async def test_each_method_has_values_of_the_type(limits: Any, raw: Any) -> None:
    kv = limits
    assert await kv.put("a", Limits(1)) == 1
    assert await kv.create("b", Limits(2)) == 2
    assert await kv.update("b", Limits(3), 2) == 3
    assert (await kv.get("b")).value == Limits(3)
    assert (await kv.get("b", revision=2)).value == Limits(2)
    assert await kv.update_with("a", lambda value: Limits(value.users + 1)) == 4
    assert await kv.update_with("c", lambda value: Limits(0) if value is None else None) == 5
    assert [entry.value.users async for entry in kv.history("b")] == [2, 3]
    entry = await kv.get("a")
    assert (entry.value, entry.raw, entry.size) == (Limits(2), b'{"users":2,"name":""}', 21)
    assert (await raw())[0][1] == b'{"users":1,"name":""}'
    with pytest.raises(KeyExistsError):
        await kv.create("b", Limits(0))
    with pytest.raises(RevisionMismatchError):
        await kv.update("b", Limits(0), 1)


async def test_watches_and_caches(limits: Any) -> None:
    kv = limits
    await kv.put("a", Limits(1))
    async with kv.watch() as watch, kv.cache() as cache, kv.watch(meta_only=True) as sizes:
        assert (await watch.next()).value == cache["a"].value == Limits(1)
        size = await sizes.next()
        assert (size.value, size.raw, size.size) == (None, b"", 21)
        changes = cache.changes()
        await kv.put("a", Limits(2))
        assert (await within(5, watch.next(), "the change")).value == Limits(2)
        change = await within(5, changes.next(), "the change in the cache")
        assert change.entry.value == Limits(2)
        await kv.delete("a")
        entry = await within(5, watch.next(), "the deletion")
        assert (entry.is_deleted, entry.value, entry.raw) == (True, None, b"")
        assert (await within(5, changes.next(), "the deletion in the cache")).entry is None


@pytest.mark.server(">=2.12")
async def test_snapshots_locks_and_transactions(js: Any, name: str) -> None:
    kv = await js.create_key_value(
        name, codec=JsonCodec(Limits), storage="memory", allow_atomic=True, limit_marker_ttl=60
    )
    async with kv.transaction() as tx:
        tx.put("a", Limits(1))
        tx.create("b", Limits(2))
    snapshot = await kv.get_many(["a", "b"])
    assert [snapshot[key].value.users for key in "ab"] == [1, 2]
    async with kv.lock("lock", ttl=5, value=Limits(7)) as lock:
        assert (await kv.get("lock")).value == Limits(7)
        await lock.put("a", Limits(3))
        with pytest.raises(ConfigError):
            await lock.put("a", b"no")
    assert (await kv.get("a")).value == Limits(3)
    tx = kv.transaction()
    with pytest.raises(ConfigError):
        tx.put("c", b"no")
    assert len(tx) == 0


BAD = b'{"users":"many"}'


async def test_a_value_that_cannot_be_decoded_ends_nothing(js: Any, limits: Any, name: str) -> None:
    kv, plain = limits, await js.key_value(name)
    await kv.put("a", Limits(1))
    async with kv.watch() as watch, kv.cache() as cache:
        assert (await watch.next()).value == Limits(1)
        revision = await plain.put("bad", BAD)
        entry = await within(5, watch.next(), "the bad value")
        with pytest.raises(ValueInvalidError) as caught:
            _ = entry.value
        assert (caught.value.key, caught.value.revision, caught.value.entry.raw) == ("bad", revision, BAD)
        await within(5, cache.wait_for(revision), "the bad value in the cache")
        with pytest.raises(ValueInvalidError):
            _ = cache["bad"].value
        assert cache["bad"].raw == BAD
        assert cache["a"].value == Limits(1)
        for call in (
            kv.get("bad"),
            kv.get("bad", revision=revision),
            kv.update_with("bad", lambda _: Limits(0)),
        ):
            with pytest.raises(ValueInvalidError) as caught:
                await call
            assert caught.value.entry.raw == BAD
        await kv.put("bad", Limits(5))
        assert (await within(5, watch.next(), "the next value")).value == Limits(5)
    assert sorted(await keys_of(kv)) == ["a", "bad"]
    assert [entry.raw async for entry in kv.history("bad")] == [BAD, b'{"users":5,"name":""}']
    with pytest.raises(KeyNotFoundError):
        await kv.get("none")


async def test_nothing_is_sent_for_a_value_of_another_type(limits: Any, raw: Any) -> None:
    for value in (b"1", None, {"users": 1.5}, object(), Limits("many")):  # type: ignore[arg-type]
        for call in (limits.put("a", value), limits.create("a", value), limits.update("a", value, 0)):
            with pytest.raises(ConfigError):
                await call
    assert await raw() == []


async def test_bad_codecs(js: Any, name: str) -> None:
    for bad in (
        {"codec": JsonCodec},
        {"codec": "json"},
        {"key_codec": Base64Keys},
        {"key_codec": JsonCodec()},
    ):
        for open_bucket in (js.create_key_value, js.key_value, js.ensure_key_value, js.update_key_value):
            with pytest.raises(ConfigError, match="codec"):
                await open_bucket(name, **bad)
    with pytest.raises(ConfigError, match="JSON cannot represent"):
        JsonCodec(dict[bytes, Limits | list[int] | dict[str, int] | tuple[int, ...]])


# --- keys --------------------------------------------------------------------------------------------------

KEYS = ["Acme Inc.contact", "é:x", "a b", "x@y.$1", "*", "_kv"]


@pytest.mark.covers("K21")
async def test_keys_of_any_characters(js: Any, name: str, raw: Any) -> None:
    kv = await js.create_key_value(name, key_codec=Base64Keys(), storage="memory", history=3)
    async with kv.watch() as watch, kv.cache() as cache:
        for number, key in enumerate(KEYS):
            await kv.put(key, b"%d" % number)
            entry = await within(5, watch.next(), "the entry")
            assert (entry.key, entry.value) == (key, b"%d" % number)
            assert (await kv.get(key)).key == key
            await within(5, cache.wait_for(entry.revision), "the entry in the cache")
            assert cache[key].key == key
            assert key in cache
        assert sorted(cache) == sorted(KEYS)
        assert "none" not in cache
    assert sorted(await keys_of(kv)) == sorted(KEYS)
    assert await keys_of(kv, "Acme Inc.*") == ["Acme Inc.contact"]
    assert [entry.key async for entry in kv.history("a b")] == ["a b"]
    await kv.update("a b", b"x", (await kv.get("a b")).revision)
    await kv.delete("é:x")
    await kv.purge("*")
    assert await kv.purge_deletes(older_than=0) == 2
    stored = {key for key, _, _ in await raw()}
    assert stored == {".".join(base64.urlsafe_b64encode(token.encode()).decode() for token in key.split("."))
                      for key in KEYS if key not in ("é:x", "*")}  # fmt: skip


@pytest.mark.server(">=2.12")
async def test_codecs_of_keys_in_snapshots_and_transactions(js: Any, name: str) -> None:
    kv = await js.create_key_value(
        name, key_codec=PathKeys(), storage="memory", allow_atomic=True, limit_marker_ttl=60
    )
    async with kv.transaction() as tx:
        tx.put("/etc/a", b"1")
        tx.put("/etc/b", b"2")
    assert sorted(await kv.get_many(["/etc/*"])) == ["/etc/a", "/etc/b"]
    async with kv.transaction() as tx:
        tx.put("/etc/a", b"3")
        tx.guard("/etc/b", 2)
    async with kv.lock("/locks/a", ttl=5) as lock:
        await lock.put("/etc/b", b"4")
    assert (await kv.get("/etc/b")).value == b"4"


async def test_paths(js: Any, name: str, raw: Any) -> None:
    kv = await js.create_key_value(
        name, key_codec=ChainedKeys(PathKeys()), codec=JsonCodec(), storage="memory"
    )
    await kv.put("/config/app/debug", [True])
    assert (await raw())[0][0] == "_root_.config.app.debug"
    assert await keys_of(kv, "/config/>") == ["/config/app/debug"]
    for bad in ("/etc/app.yaml", "", "//", 7, "a b"):
        with pytest.raises(InvalidNameError):
            await kv.put(bad, [])


async def test_a_key_that_the_codec_cannot_decode(js: Any, name: str) -> None:
    """Another client has stored it. It is returned as it is stored, and can be cleaned up."""
    plain = await js.create_key_value(name, storage="memory")
    await plain.put("a", b"1")
    kv = await js.key_value(name, key_codec=Base64Keys())
    await kv.put("b", b"2")
    assert await keys_of(kv) == ["a", "b"]
    await plain.delete("a")
    assert await kv.purge_deletes(older_than=0) == 1


@pytest.mark.server(">=2.11")
async def test_foreign_keys_of_another_form(js: Any, make: Any) -> None:
    """A key that the codec would store under another name hides no key of ours, and a cache is a mapping of ours."""
    raw = await make()
    kv = await js.key_value(raw.bucket, key_codec=Base64Keys())
    await raw.put("YQ", b"without padding")
    await kv.put("a", b"1")
    await raw.delete("YQ")
    assert await keys_of(kv) == ["a"]
    await raw.put("YQ", b"again")
    assert sorted(await keys_of(kv)) == ["YQ", "a"]
    assert (await kv.get("a")).value == b"1"
    assert {key: entry.value for key, entry in (await kv.get_many(">")).items()}["a"] == b"1"
    async with kv.cache() as cache:
        assert {key: entry.value for key, entry in dict(cache).items()} == {"a": b"1"}
        assert len(cache) == 1
