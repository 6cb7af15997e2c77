"""A cache of a bucket: a mapping that follows it, its revision, its changes, and when it is stale."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

import jsclient
from integration.buckets.kit import keys_of
from integration.kit.clients.readers import FAST
from integration.kit.judge.leaks import running_tasks
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.wire import TO_CLIENT, TO_SERVER
from jsclient import BucketNotFoundError, ClosedError, ConfigError, InvalidNameError, RequestTimeoutError


def values_of(cache: Any) -> dict[str, bytes]:
    return {key: entry.value for key, entry in cache.items()}


async def bucket_at_rest(kv: Any) -> dict[str, bytes]:
    """What the bucket has, key by key."""
    return {key: (await kv.get(key)).value for key in await keys_of(kv)}


async def test_snapshot_then_changes(kv: Any) -> None:
    for key, value in (("a", b"1"), ("b", b"2"), ("gone", b"3")):
        await kv.put(key, value)
    await kv.delete("gone")
    async with kv.cache() as cache:
        assert values_of(cache) == {"a": b"1", "b": b"2"}
        assert (len(cache), "a" in cache, "gone" in cache, cache.get("none")) == (2, True, False, None)
        assert cache.revision == 4
        entry = cache["a"]
        assert (entry.bucket, entry.key, entry.value, entry.revision) == (kv.bucket, "a", b"1", 1)
        assert entry.created_ns == (await kv.get("a")).created_ns
        with pytest.raises(KeyError):
            cache["none"]
        await cache.wait_for(await kv.put("a", b"new"), timeout=10)
        assert cache["a"].value == b"new"
        await cache.wait_for(await kv.purge("b"), timeout=10)
        assert values_of(cache) == {"a": b"new"}
        assert cache.revision == 6


async def test_empty_bucket(kv: Any) -> None:
    async with kv.cache() as cache:
        assert dict(cache) == {}
        await cache.wait_for(await kv.put("a", b""), timeout=10)
        assert cache["a"].value == b""


async def test_filters(kv: Any) -> None:
    """The cache also waits for a revision of a key that does not match, so no record in the cache is older."""
    await kv.put("a.1", b"1")
    await kv.put("b", b"2")
    await kv.put("c", b"3")
    async with kv.cache("a.*", "b") as cache:
        assert values_of(cache) == {"a.1": b"1", "b": b"2"}
        await kv.put("a.2", b"4")
        await kv.delete("b")
        last = await kv.put("c", b"5")
        await cache.wait_for(last, timeout=10)
        assert cache.revision >= last
        assert values_of(cache) == {"a.1": b"1", "a.2": b"4"}
    with pytest.raises(InvalidNameError):
        kv.cache("a*")
    with pytest.raises(ConfigError):
        kv.cache("a.*", "*.b")


async def test_wait_for_later_revision(kv: Any) -> None:
    async with kv.cache() as cache:
        with pytest.raises(RequestTimeoutError):
            await cache.wait_for(1, timeout=0.3)
        waiting = asyncio.create_task(cache.wait_for(1, timeout=20))
        await kv.put("a", b"1")
        await within(20, waiting, "the revision")
        assert cache["a"].revision == 1


async def test_changes(kv: Any) -> None:
    await kv.put("a", b"1")
    async with kv.cache("a", "b.*") as cache:
        changes = cache.changes("first")
        change = await changes.next(10)
        assert (change.key, change.entry.value) == ("a", b"1")
        await kv.put("b.1", b"2")
        change = await changes.next(10)
        assert (change.key, change.entry.value) == ("b.1", b"2")
        await kv.delete("a")
        assert await changes.next(10) == ("a", None)
        with pytest.raises(RequestTimeoutError):
            await changes.next(0.2)
        cancelled = asyncio.create_task(changes.next())
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await kv.put("b.2", b"3")
        assert (await changes.next(10)).key == "b.2"
        with pytest.raises(ConfigError):
            cache.changes("last")
    assert [change async for change in changes] == []


async def test_entry_that_looks_like_an_end(kv: Any, js: Any) -> None:
    """Headers that end a topic mean nothing in a bucket."""
    async with kv.cache("a") as cache:
        await js.publish(f"$KV.{kv.bucket}.a", b"1", headers={"Jsc-Kind": "finish"})
        await js.publish(f"$KV.{kv.bucket}.a", b"1", headers={"KV-Operation": "ROLL"})
        await cache.wait_for(2, timeout=10)
        assert "a" not in cache
        await cache.wait_for(await kv.put("a", b"2"), timeout=10)
        assert cache["a"].value == b"2"


async def test_stale_without_connection(kv: Any, proxy: Any, connect: Any) -> None:
    between = await proxy()
    follower = await (await connect(between, **FAST)).key_value(kv.bucket)
    await kv.put("a", b"1")
    async with follower.cache() as cache:
        assert (cache.is_stale, cache.stale_for) == (False, 0.0)
        between.refuse()
        between.cut()

        async def is_stale() -> bool:
            return cache.is_stale

        await eventually(is_stale, 10)
        last = await kv.put("a", b"2")
        await asyncio.sleep(0.2)
        assert cache.stale_for >= 0.2
        assert cache["a"].value == b"1"
        await between.accept()

        async def is_current() -> bool:
            return not cache.is_stale

        await eventually(is_current, 30)
        assert cache["a"].revision == last
        assert cache.revision >= last
    assert cache.is_closed
    assert cache.is_stale


def one_of(task: asyncio.Task[Any], number: int) -> Callable[[Any], bool]:
    """The frame with this number, counted from now on, if the task still runs then."""
    seen = itertools.count(1)
    return lambda _: next(seen) == number and not task.done()


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("direction", [TO_SERVER, TO_CLIENT])
async def test_opened_during_a_reconnect(kv: Any, proxy: Any, connect: Any, direction: Any) -> None:
    """The connection is lost at each request, or at each answer, of opening a cache of three filters."""
    between = await proxy()
    near = await connect(between, **FAST)
    follower = await near.key_value(kv.bucket)
    filters = ("a.*", "b.*", "c.*")
    for number, kind in enumerate("abc"):
        await kv.put(f"{kind}.1", b"%d" % number)
    for lost_at in itertools.count(1):
        opening = asyncio.create_task(follower.cache(*filters))
        rule = between.cut_inside_frame(direction, predicate=one_of(opening, lost_at))
        lost = asyncio.create_task(rule.wait(timeout=20))
        await asyncio.wait({opening, lost}, return_when="FIRST_COMPLETED")
        lost.cancel()
        if not rule.count:
            break
        between.refuse()
        await eventually(lambda: not near.is_connected, 10, what="the loss")
        was_open = opening.done()  # it needed nothing of the frame that was cut
        for kind in "abc":
            await kv.put(f"{kind}.1", b"new %d" % lost_at)
        await kv.put("a.2", b"later")
        await between.accept()
        cache = await within(20, opening, "opening")
        if was_open:
            await eventually(lambda cache=cache: not cache.is_stale, 20, what="a current cache")
        assert not cache.is_stale
        assert values_of(cache) == await bucket_at_rest(kv)
        await cache.wait_for(await kv.put("b.2", b"%d" % lost_at), timeout=10)
        assert cache["b.2"].value == b"%d" % lost_at
        assert not cache.is_stale
        await cache.close()
    rule.remove()
    await (await opening).close()
    assert lost_at > 3


async def test_closed_cache_says_so(kv: Any) -> None:
    await kv.put("a", b"1")
    cache = await kv.cache()
    changes = cache.changes()
    waiting = asyncio.create_task(changes.next())
    await asyncio.sleep(0)
    await cache.close()
    for call in (waiting, changes.next(), cache.wait_for(7)):
        with pytest.raises(ClosedError, match="the cache is closed"):
            await within(10, call, "the error")
    assert values_of(cache) == {"a": b"1"}


async def test_bucket_deleted(js: Any, kv: Any) -> None:
    await kv.put("a", b"1")
    async with kv.cache() as cache:
        changes = cache.changes()
        await js.delete_key_value(kv.bucket)
        with pytest.raises(BucketNotFoundError):
            await changes.next(60)
        for access in (lambda: cache["a"], lambda: len(cache), lambda: list(cache), cache.changes):
            with pytest.raises(BucketNotFoundError):
                access()
        with pytest.raises(BucketNotFoundError):
            await cache.wait_for(1)


async def test_no_such_bucket(js: Any, name: str) -> None:
    kv = await js.key_value(name, check=False)
    with pytest.raises(BucketNotFoundError):
        await kv.cache()


async def test_closed(kv: Any) -> None:
    cache = await kv.cache()
    await kv.put("a", b"1")
    await cache.wait_for(1)
    await cache.close()
    await cache.close()
    assert values_of(cache) == {"a": b"1"}
    with pytest.raises(ClosedError):
        await cache.wait_for(2)


@pytest.mark.limit(240)
async def test_restarts(own_server: Any, connect: Any) -> None:
    """After random operations and restarts the cache is equal to the bucket at rest."""
    own = await own_server()
    js, writer = await connect(own, **FAST), await connect(own, **FAST)
    kv = await writer.create_key_value("cfg")
    random.seed(11)
    async with (await js.key_value("cfg")).cache(check=0.5) as cache:
        seen = [cache.revision]
        for _ in range(4):
            for number in range(100):
                key = f"k{random.randrange(20)}"
                try:
                    await (kv.delete(key) if random.random() < 0.3 else kv.put(key, b"%d" % number))
                except jsclient.JetStreamError:
                    continue  # the server starts, so that the operation may have failed, or have been stored
                seen.append(cache.revision)
            await own.kill()
            await own.start()
        last = 0
        while not last:
            try:
                last = await kv.put("last", b"")
            except jsclient.JetStreamError:
                continue
        await cache.wait_for(last, timeout=60)
        assert values_of(cache) == await bucket_at_rest(kv)
        assert seen == sorted(seen)


async def test_cancelled_twice(kv: Any) -> None:
    """The end of the block is cancelled, too. The cache closes nevertheless."""
    before, opened = running_tasks(), asyncio.Event()

    async def follow() -> None:
        async with kv.cache("a.*", "b.*"):
            opened.set()
            await asyncio.sleep(60)

    following = asyncio.create_task(follow())
    await opened.wait()
    following.cancel()
    await asyncio.sleep(0)
    following.cancel()
    await asyncio.wait([following])
    assert following.cancelled()
    await eventually(lambda: not set(running_tasks()) - set(before), what="the end of the tasks of the cache")
