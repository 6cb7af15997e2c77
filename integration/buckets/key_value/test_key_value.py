"""Values are read and written as ADR-8 says, and every conflict is seen."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from integration.buckets.kit import keys_of
from integration.kit.judge.waiting import eventually
from jsclient import (
    ApiError,
    BucketNotFoundError,
    ConfigError,
    InvalidNameError,
    KeyExistsError,
    KeyNotFoundError,
    MaxPayloadError,
    RequestTimeoutError,
    RevisionMismatchError,
)

KEYS = ["a", "a.b.c", "A-1", "x/y=z", "_a", "-", "0" * 200]
BAD_KEYS = ["", ".a", "a.", "a..b", "a b", "*", "a.>", "$a", "a:b", "a@b", "é", "a\n", None, b"a"]


@pytest.mark.covers("K18", "K22")
@pytest.mark.parametrize("key", KEYS)
async def test_keys(kv: Any, raw: Any, key: str) -> None:
    await kv.put(key, b"1")
    assert (await kv.get(key)).key == key
    assert [one for one, _, _ in await raw()] == [key]


@pytest.mark.covers("K18")
@pytest.mark.parametrize("key", BAD_KEYS)
async def test_bad_keys(kv: Any, raw: Any, key: Any) -> None:
    calls = [
        kv.get(key),
        kv.put(key, b""),
        kv.create(key, b""),
        kv.update(key, b"", 1),
        kv.delete(key),
        kv.purge(key),
    ]
    for call in calls:
        with pytest.raises(InvalidNameError, match="key"):
            await call
    assert await raw() == []


@pytest.mark.covers("K19")
@pytest.mark.parametrize("key", ["_kv", "_kv.a", "_kvx"])
async def test_internal_keys(js: Any, kv: Any, raw: Any, name: str, key: str) -> None:
    for call in (kv.put(key, b""), kv.create(key, b""), kv.get(key), kv.delete(key), kv.purge(key)):
        with pytest.raises(InvalidNameError, match="internal"):
            await call
    assert await raw() == []
    await kv.put("a._kv", b"1")
    other = await js.key_value(name, validate=False)
    await other.put(key, b"2")
    assert (await other.get(key)).value == b"2"
    assert await keys_of(kv) == ["a._kv", key]


@pytest.mark.covers("K20")
@pytest.mark.parametrize("bad", ["", "a*", "a.>.b", ">.a", "a b", "a.b*", None])
async def test_bad_filters(kv: Any, bad: Any) -> None:
    with pytest.raises(InvalidNameError):
        kv.watch(bad)
    with pytest.raises(InvalidNameError):
        await keys_of(kv, bad)


@pytest.mark.covers("K21")
async def test_keys_of_other_clients(js: Any, kv: Any, oracle: Any, name: str) -> None:
    await oracle.publish(f"$KV.{name}.é:x", b"1")
    free = await js.key_value(name, validate=False)
    assert (await free.get("é:x")).value == b"1"
    await free.put("é:x", b"2")
    assert await keys_of(kv) == ["é:x"]
    with pytest.raises(InvalidNameError):
        await free.put("a *", b"")


@pytest.mark.covers("K23", "K24", "K29", "K32")
async def test_put_and_get(js: Any, kv: Any, name: str) -> None:
    assert [await kv.put("a", value) for value in (b"1", b"22", b"")] == [1, 2, 3]
    entry = await kv.get("a")
    assert (entry.bucket, entry.key, entry.value, entry.revision) == (name, "a", b"", 3)
    assert (entry.operation, entry.is_deleted, entry.delta, entry.size) == ("PUT", False, 0, 0)
    stored = await (await js.stream(f"KV_{name}")).get_message(3)
    assert entry.created_ns == stored.time_ns
    assert abs(entry.created.timestamp() - time.time()) < 60


@pytest.mark.covers("K30")
async def test_get_revision(kv: Any) -> None:
    for value in (b"1", b"2"):
        await kv.put("a", value)
    await kv.put("b", b"3")
    assert (await kv.get("a", revision=1)).value == b"1"
    assert (await kv.get("a", revision=2)).value == b"2"
    for revision in (3, 4):
        with pytest.raises(KeyNotFoundError):
            await kv.get("a", revision=revision)
    await kv.delete("a")
    with pytest.raises(KeyNotFoundError) as caught:
        await kv.get("a", revision=4)
    assert caught.value.deleted.operation == "DEL"
    await kv.purge("a")
    with pytest.raises(KeyNotFoundError):
        await kv.get("a", revision=1)
    for bad in ({"revision": 0}, {"min_revision": -1}, {"revision": 1, "min_revision": 1}):
        with pytest.raises(ConfigError):
            await kv.get("a", **bad)


@pytest.mark.covers("K31")
async def test_min_revision(own_server: Any, proxy: Any, connect: Any) -> None:
    """An answer of a replica that is behind is not returned: the leader is asked."""
    own = await own_server()
    link = await proxy(own)
    js = await connect(link)
    kv = await js.create_key_value("cfg")
    await kv.put("a", b"old")
    second = await kv.put("a", b"new")

    def older(frame: Any) -> bytes:
        return frame.raw.replace(b"Nats-Sequence: 2", b"Nats-Sequence: 1").replace(b"new\r\n", b"old\r\n")

    link.modify_frames(lambda frame: b"Nats-Sequence: 2" in frame.headers, older)
    assert (await kv.get("a")).value == b"old"
    assert (await kv.get("a", min_revision=second)).value == b"new"


@pytest.mark.covers("K25", "K38", "K39")
@pytest.mark.parametrize(("operation", "remaining"), [("DEL", 3), ("PURGE", 1)])
async def test_delete_and_purge(kv: Any, raw: Any, operation: str, remaining: int) -> None:
    await kv.put("a", b"1")
    await kv.put("a", b"2")
    revision = await (kv.delete("a") if operation == "DEL" else kv.purge("a"))
    with pytest.raises(KeyNotFoundError) as caught:
        await kv.get("a")
    deleted = caught.value.deleted
    assert (deleted.operation, deleted.revision, deleted.value) == (operation, revision, b"")
    messages = await raw()
    assert len(messages) == remaining
    assert messages[-1][1] == b""
    assert messages[-1][2]["KV-Operation"] == operation
    assert (messages[-1][2].get("Nats-Rollup") == "sub") == (operation == "PURGE")
    assert await kv.delete("never") > revision, "a missing key may be deleted"


@pytest.mark.covers("K25", "K26")
@pytest.mark.parametrize(
    ("headers", "operation"),
    [
        ({"KV-Operation": "new"}, "DEL"),
        ({"Nats-Marker-Reason": "MaxAge"}, "PURGE"),
        ({"Nats-Marker-Reason": "Purge"}, "PURGE"),
        ({"Nats-Marker-Reason": "Remove"}, "DEL"),
        ({"Nats-Marker-Reason": "new"}, "DEL"),
        ({"KV-Operation": "DEL", "Nats-Marker-Reason": "MaxAge"}, "DEL"),
    ],
)
async def test_what_is_no_value(kv: Any, oracle: Any, name: str, headers: Any, operation: str) -> None:
    await oracle.publish(f"$KV.{name}.a", b"", headers)
    with pytest.raises(KeyNotFoundError) as caught:
        await kv.get("a")
    assert caught.value.deleted.operation == operation
    assert [entry.operation async for entry in kv.history()] == [operation]
    assert await keys_of(kv) == []
    await kv.create("a", b"1")


@pytest.mark.covers("K27", "K28", "K34", "K35")
@pytest.mark.server(">=2.11")
async def test_expired_value(make: Any) -> None:
    kv = await make(limit_marker_ttl=60)
    async with kv.watch() as watch:
        await kv.create("a", b"1", ttl=1)
        assert (await watch.next()).value == b"1"
        expired = await watch.next()
        assert (expired.key, expired.operation, expired.value) == ("a", "PURGE", b"")
    with pytest.raises(KeyNotFoundError) as caught:
        await kv.get("a")
    assert caught.value.deleted.operation == "PURGE"
    await kv.create("a", b"2", ttl=3)
    assert (await kv.get("a")).value == b"2"

    async def is_gone() -> bool:
        try:
            await kv.get("a")
        except KeyNotFoundError:
            return True
        return False

    await eventually(is_gone)


@pytest.mark.covers("K32", "K41", "K42")
@pytest.mark.server(">=2.11")
async def test_ttl_of_keys(make: Any, js: Any, name: str) -> None:
    kv = await make(limit_marker_ttl=60)
    revision = await kv.put("a", b"1", ttl=600)
    await kv.update("a", b"2", revision, ttl=600)
    await kv.purge("a", ttl=1)

    async def is_empty() -> bool:
        return (await kv.status()).values == 0

    await eventually(is_empty)
    with pytest.raises(ConfigError):
        await kv.put("a", b"1", ttl=0.5)
    await js.update_key_value(name, history=3, limit_marker_ttl=60, storage="memory")
    kept = await js.key_value(name)
    for call in (kept.put("a", b"1", ttl=5), kept.update("a", b"1", 1, ttl=5)):
        with pytest.raises(ConfigError, match="would come back"):
            await call
    await kept.create("b", b"1", ttl=5)


@pytest.mark.covers("K43")
@pytest.mark.server(">=2.11")
async def test_ttl_below_that_of_markers(make: Any, raw: Any) -> None:
    """With a longer history the server raises it. With a history of 1 it stays."""
    kv = await make(history=2, limit_marker_ttl=30)
    await kv.create("a", b"1", ttl=1)
    await kv.create("b", b"1", ttl=50)
    assert [headers["Nats-TTL"] for _, _, headers in await raw()] == ["30", "50"]


@pytest.mark.covers("K42")
@pytest.mark.server(">=2.11")
async def test_ttl_not_enabled(make: Any) -> None:
    kv = await make()
    with pytest.raises(ApiError, match="ttl"):
        await kv.put("a", b"1", ttl=5)


@pytest.mark.covers("K33")
async def test_create(kv: Any) -> None:
    revision = await kv.create("a", b"1")
    with pytest.raises(KeyExistsError) as caught:
        await kv.create("a", b"2")
    assert (caught.value.bucket, caught.value.key, caught.value.revision) == (kv.bucket, "a", revision)
    for delete in (kv.delete, kv.purge):
        await delete("a")
        await kv.create("a", b"3")
    assert (await kv.get("a")).value == b"3"


@pytest.mark.covers("K36")
async def test_create_race(kv: Any) -> None:
    for number in range(100):
        key = f"k{number}"
        if number % 2:
            await kv.delete(key)
        results = await asyncio.gather(*(kv.create(key, b"%d" % n) for n in range(4)), return_exceptions=True)
        stored = [n for n, result in enumerate(results) if isinstance(result, int)]
        assert len(stored) == 1, results
        assert all(isinstance(result, int | KeyExistsError) for result in results)
        assert (await kv.get(key)).value == b"%d" % stored[0]


@pytest.mark.covers("K37", "K40")
async def test_expected_revision(kv: Any) -> None:
    first = await kv.put("a", b"1")
    second = await kv.update("a", b"2", first)
    for call in (
        kv.update("a", b"3", first),
        kv.delete("a", last=first),
        kv.purge("a", last=first),
        kv.update("a", b"3", 0),
        kv.delete("a", last=0),
    ):
        with pytest.raises(RevisionMismatchError) as caught:
            await call
        assert (caught.value.key, caught.value.expected in (first, 0)) == ("a", True)
    assert (await kv.get("a")).revision == second
    third = await kv.delete("a", last=second)
    await kv.purge("a", last=third)
    await kv.update("new", b"1", 0)
    for bad in (-1, True, "1", None):
        with pytest.raises(ConfigError):
            await kv.update("a", b"", bad)


@pytest.mark.covers("K44")
async def test_limits(make: Any) -> None:
    kv = await make(max_bytes=1000, max_value_size=500)
    with pytest.raises(ApiError, match="max_msg_size"):
        await kv.put("a", bytes(600))
    await kv.put("a", bytes(400))
    await kv.put("b", bytes(400))
    with pytest.raises(ApiError, match="max_bytes"):
        await kv.put("c", bytes(400))
    await kv.put("a", bytes(400)), "the value before it goes"
    with pytest.raises(MaxPayloadError):
        await kv.put("a", bytes(2**20 + 1))
    with pytest.raises(ConfigError, match="bytes"):
        await kv.put("a", "text")


@pytest.mark.covers("K45")
async def test_lost_answers(own_server: Any, proxy: Any, connect: Any, oracle_for: Any) -> None:
    """With an id the value is sent again and stored once, and an update does not conflict with itself."""
    own = await own_server()
    link = await proxy(own)
    js = await connect(link, timeout=3)
    kv = await js.create_key_value("cfg", history=5)
    oracle = await oracle_for(own)

    def drop_next() -> None:
        link.drop_frames(lambda frame: b'"stream":"KV_cfg"' in frame.raw and b'"seq"' in frame.raw, count=1)

    drop_next()
    first = await kv.put("a", b"1", msg_id="1")
    drop_next()
    second = await kv.update("a", b"2", first, msg_id="2")
    drop_next()
    await kv.create("b", b"3", msg_id="3")
    assert second == first + 1
    assert [message.payload for message in await oracle.messages("KV_cfg")] == [b"1", b"2", b"3"]
    drop_next()
    with pytest.raises(RequestTimeoutError):
        await kv.put("a", b"4")


async def test_bucket_deleted(js: Any, kv: Any) -> None:
    await js.delete_key_value(kv.bucket)
    with pytest.raises(BucketNotFoundError):
        await kv.get("a")
    with pytest.raises(BucketNotFoundError):
        await kv.status()
    with pytest.raises(BucketNotFoundError):
        await keys_of(kv)


@pytest.mark.limit(240)
async def test_random_operations(kv: Any, oracle: Any, name: str) -> None:
    """At rest the bucket has what a dict has after the same operations."""
    random.seed(7)
    model: dict[str, bytes] = {}
    for number in range(400):
        key, value = f"k{random.randrange(12)}", b"%d" % number
        operation = random.choice(["put", "put", "create", "update", "delete", "purge"])
        try:
            if operation == "put":
                await kv.put(key, value)
            elif operation == "create":
                await kv.create(key, value)
                assert key not in model
            elif operation == "update":
                await kv.update(key, value, (await kv.get(key)).revision)
            elif operation == "delete":
                await kv.delete(key)
            else:
                await kv.purge(key)
        except KeyExistsError:  # the bucket refuses exactly what the dict says it must
            assert key in model
            continue
        except KeyNotFoundError:
            assert key not in model
            continue
        if operation in ("delete", "purge"):
            model.pop(key, None)
        else:
            model[key] = value
    assert {key: (await kv.get(key)).value for key in await keys_of(kv)} == model
