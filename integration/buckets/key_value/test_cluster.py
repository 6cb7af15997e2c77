"""Replicated buckets over elections, and while servers are lost: caches, watches, locks and transactions."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from integration.kit.clients.readers import FAST
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.waiting import eventually, within
from integration.kit.servers.cluster import OwnCluster
from jsclient import JetStreamError, LeaseLostError, RevisionMismatchError

pytestmark = [pytest.mark.full, pytest.mark.limit(400), pytest.mark.server(">=2.12")]

STREAM = "KV_cfg"
TTL = 4.0


@pytest.fixture
async def judge(cluster: OwnCluster, oracle_for: Any) -> Oracle:
    return await oracle_for(cluster.servers["n1"])


@pytest.fixture
async def buckets(cluster: OwnCluster, connect: Any) -> list[Any]:
    """One replicated bucket, as a connection to each server has it."""
    handles = []
    for server in cluster.servers.values():
        urls = [server.url, *(url for url in cluster.urls if url != server.url)]
        js = await connect(urls, dont_randomize=True, **{**FAST, "timeout": 20.0})
        handles.append(
            await js.ensure_key_value(
                "cfg", num_replicas=3, history=1, allow_atomic=True, limit_marker_ttl=60, storage="file"
            )
        )
    return handles


@contextlib.asynccontextmanager
async def disturbed(cluster: OwnCluster, judge: Oracle) -> AsyncIterator[Callable[[], int]]:
    """The leader of the bucket steps down again and again, and each server but that of the judge is killed once."""
    over, elections = asyncio.Event(), 0

    async def disturb() -> None:
        nonlocal elections
        victims = [server for name, server in cluster.servers.items() if name != "n1"]
        for number in range(1, 1000):
            with contextlib.suppress(Exception):  # nobody leads just now
                await cluster.step_down(judge, STREAM)
                elections += 1
            if number % 4 == 0 and victims:
                server = victims.pop()
                await server.kill()
                await asyncio.sleep(1.0)
                await server.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await over.wait()
                    return

    disturbing = asyncio.create_task(disturb())
    try:
        yield lambda: elections
    finally:
        over.set()
        await disturbing
        await cluster.ready()


async def newest(judge: Oracle) -> dict[str, tuple[int, bytes]]:
    """The newest message of each key that has a value, by raw requests."""
    found = dict[str, tuple[int, bytes]]()
    for message in await judge.messages(STREAM):
        key = message.subject.removeprefix("$KV.cfg.")
        if b"KV-Operation" in message.headers:
            found.pop(key, None)
        else:
            found[key] = (message.seq, message.payload)
    return found


@pytest.mark.covers("K54", "K55")
async def test_cache_and_watch(cluster: OwnCluster, buckets: list[Any], judge: Oracle) -> None:
    """They equal the bucket at rest, and their revisions only grow."""
    writing, caching, watching = buckets
    chance = random.Random(3)
    revisions, seen = list[int](), dict[str, tuple[int, bytes]]()

    async def write() -> None:
        for number in range(600):
            key = f"k.{chance.randrange(40)}"
            with contextlib.suppress(JetStreamError):  # whose outcome is unknown, and which the recount shows
                if chance.random() < 0.2:
                    await writing.delete(key)
                else:
                    await writing.put(key, b"%d" % number)
            await asyncio.sleep(0.02)

    async def follow(watch: Any) -> None:
        async for entry in watch:
            revisions.append(entry.revision)
            if entry.operation == "PUT":
                seen[entry.key] = (entry.revision, entry.value)
            else:
                seen.pop(entry.key, None)

    async with caching.cache() as cache, watching.watch() as watch:
        following = asyncio.create_task(follow(watch))
        async with disturbed(cluster, judge) as elections:
            await write()
            assert elections()
        last = await within(60, writing.put("last", b"last"), "the last put")
        await cache.wait_for(last, timeout=60)
        await eventually(lambda: revisions and revisions[-1] == last, 60)
        expected = await newest(judge)
        assert {key: (entry.revision, entry.value) for key, entry in cache.items()} == expected
        assert seen == expected
        assert revisions == sorted(set(revisions))
        following.cancel()


@pytest.mark.covers("K37")
async def test_increments(cluster: OwnCluster, buckets: list[Any], judge: Oracle) -> None:
    """Three clients add to one value. What was acked is counted, and what is unknown once at most."""
    acked, unknown = [0, 0, 0], 0

    async def increment(number: int, elections: Callable[[], int]) -> None:
        nonlocal unknown
        while acked[number] < 30 or elections() < 3:
            try:
                await buckets[number].update_with(
                    "count", lambda value: b"%d" % (int(value or 0) + 1), attempts=1000
                )
                acked[number] += 1
            except JetStreamError:
                unknown += 1
            await asyncio.sleep(0.05)

    async with disturbed(cluster, judge) as elections:
        await asyncio.gather(*(increment(number, elections) for number in range(3)))
    _, value = (await newest(judge))["count"]
    assert sum(acked) <= int(value) <= sum(acked) + unknown


async def test_transactions(cluster: OwnCluster, buckets: list[Any], judge: Oracle) -> None:
    """Each moves one from an account to another: the sum stays, and no half of a transaction is stored."""
    accounts = [f"account.{number}" for number in range(4)]
    for key in accounts:
        await buckets[0].put(key, b"100")
    done, given_up = 0, 0

    async def move(kv: Any, chance: random.Random) -> None:
        nonlocal done, given_up
        for _ in range(40):
            one, other = chance.sample(accounts, 2)
            try:
                before = [await kv.get(key, min_revision=1) for key in (one, other)]
                async with kv.transaction() as tx:
                    tx.put(one, b"%d" % (int(before[0].value) - 1), last=before[0].revision)
                    tx.put(other, b"%d" % (int(before[1].value) + 1), last=before[1].revision)
                done += 1
            except RevisionMismatchError:
                given_up += 1
            except JetStreamError:
                pass  # its outcome is unknown: all of it is stored, or nothing
            await asyncio.sleep(0.05)

    async with disturbed(cluster, judge) as elections:
        await asyncio.gather(*(move(kv, random.Random(number)) for number, kv in enumerate(buckets)))
        assert elections()
    stored = await newest(judge)
    assert sum(int(stored[key][1]) for key in accounts) == 400
    assert done > 20


async def test_one_holder(cluster: OwnCluster, buckets: list[Any], judge: Oracle) -> None:
    """Three clients take turns. What they write under the lock has tokens that never fall, as the stream stored it."""
    locks = set[Any]()
    written, tokens = 0, set[int]()
    end = time.monotonic() + 30

    async def work(kv: Any) -> None:
        nonlocal written
        while time.monotonic() < end:
            with contextlib.suppress(JetStreamError):
                async with kv.lock("lock", ttl=TTL, timeout=10) as lock:
                    locks.add(lock)
                    try:
                        for _ in range(5):
                            assert [one for one in locks if one.is_held] in ([lock], [])
                            await lock.put(f"under.{lock.token}", b"x")
                            written += 1
                            tokens.add(lock.token)
                            await asyncio.sleep(0.05)
                    finally:
                        locks.discard(lock)
            await asyncio.sleep(0.01)

    async with disturbed(cluster, judge) as elections:
        await asyncio.gather(*map(work, buckets))
        assert elections()
    stored = [m for m in await judge.messages(STREAM) if m.subject.startswith("$KV.cfg.under.")]
    order = [int(message.subject.rpartition(".")[2]) for message in sorted(stored, key=lambda m: m.seq)]
    assert order == sorted(order)
    assert tokens <= set(order)
    assert written > 10
    assert len(tokens) > 2


@pytest.mark.parametrize("fault", ["cut off", "election"])
async def test_holder_cut_off(
    cluster: OwnCluster, buckets: list[Any], judge: Oracle, connect: Any, proxy: Any, fault: str
) -> None:
    """Its block ends before the next client has the lock, within the TTL and a second. Its token is refused."""
    between = await proxy(cluster.servers["n2"])
    kv = await (await connect(between, ignore_discovered=True, **FAST)).key_value("cfg")
    held, ended = asyncio.get_running_loop().create_future(), list[float]()

    async def hold() -> None:
        async with kv.lock("lock", ttl=TTL) as lock:
            held.set_result(lock)
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(time.monotonic())

    holding = asyncio.create_task(hold())
    old = await within(30, held, "the lock")
    between.blackhole()
    cut = time.monotonic()
    if fault == "election":
        await cluster.step_down(judge, STREAM)
    async with buckets[0].lock("lock", ttl=30) as lock:
        begun = time.monotonic()
        if fault == "cut off":
            assert begun - cut <= TTL + 1
        with pytest.raises(LeaseLostError):
            await holding
        assert ended[0] < begun
        assert lock.token > old.token
        await lock.put("written", b"by the new holder")
        between.heal()
        with pytest.raises(LeaseLostError):
            await old.put("written", b"by the old holder")
        assert not old.is_held
        assert lock.is_held
    assert (await newest(judge))["written"][1] == b"by the new holder"
