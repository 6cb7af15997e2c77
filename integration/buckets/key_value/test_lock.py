"""Locks: one holder at a time, whatever happens to it, and an old token is refused."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually, within
from integration.kit.network.match import is_publish_ack
from jsclient import ConfigError, KeyNotFoundError, LeaseLostError, ReadOnlyError, RequestTimeoutError

pytestmark = pytest.mark.server(">=2.11")
TTL = 4.0
SOON = 5.0  # seconds. One suffices on a quiet machine

HOLDER = """
import asyncio, sys, time, jsclient
async def main(url, bucket, ttl):
    async with jsclient.connect(url) as js:
        kv = await js.key_value(bucket)
        async with kv.lock("a", ttl=float(ttl)) as lock:
            print("held", lock.token, flush=True)
            try:
                while True:
                    await lock.put("written", b"by the old holder")
                    await asyncio.sleep(0.05)
            finally:
                print("ended", time.monotonic(), flush=True)
try:
    asyncio.run(main(*sys.argv[1:]))
except jsclient.LeaseLostError as error:
    print("lost", error.token, flush=True)
"""


@pytest.fixture
async def locks(make: Any) -> Any:
    return await make(limit_marker_ttl=30)


@pytest.fixture
async def holder(server: Any, locks: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process, which has the lock of key a."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, server.url, locks.bucket, str(TTL), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await within(60, process.stdout.readline(), "the other holder")).startswith(b"held")
    yield process
    if process.returncode is None:
        process.kill()
        await process.wait()


async def test_one_holder_at_a_time(locks: Any, connect: Any, server: Any) -> None:
    others = [await (await connect(server)).key_value(locks.bucket) for _ in range(4)]
    held: list[int] = []
    tokens: list[int] = []

    async def work(kv: Any) -> None:
        for _ in range(5):
            async with kv.lock("a", ttl=30) as lock:
                held.append(1)
                assert len(held) == 1
                assert lock.is_held
                tokens.append(lock.token)
                await asyncio.sleep(0.01)
                held.pop()
            assert not lock.is_held

    await within(100, asyncio.gather(*map(work, others)), "twenty locks")
    assert len(tokens) == 20
    assert tokens == sorted(set(tokens))
    with pytest.raises(KeyNotFoundError):
        await locks.get("a", min_revision=1)


async def test_is_renewed(locks: Any) -> None:
    async with locks.lock("a", ttl=TTL, value=b"me") as lock:
        first = (await locks.get("a")).revision
        assert first == lock.token
        await asyncio.sleep(TTL * 1.5)
        entry = await locks.get("a")
        assert entry.value == b"me"
        assert entry.revision > first
        assert lock.is_held
        assert lock.token == first
        await lock.put("x", b"1")
    assert (await locks.get("x")).value == b"1"
    with pytest.raises(LeaseLostError):
        lock.check()
    with pytest.raises(LeaseLostError):
        await lock.put("x", b"2")


async def test_timeout(locks: Any) -> None:
    async with locks.lock("a", ttl=30):
        with pytest.raises(RequestTimeoutError, match="lock of key 'a'"):
            await locks.lock("a", ttl=30, timeout=0.5)
        waiting = asyncio.ensure_future(locks.lock("a", ttl=30))
        await asyncio.sleep(0.3)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with locks.lock("a", ttl=30, timeout=10):
        pass


@pytest.mark.core_cases(1)
@pytest.mark.limit(120)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_holder_dies(locks: Any, holder: Any, how: signal.Signals) -> None:
    """The next client acquires the lock soon after the TTL. A holder that wakes up is refused."""
    holder.send_signal(how)
    died = time.monotonic()
    old = (await locks.get("a", min_revision=1)).revision
    async with locks.lock("a", ttl=30) as lock:
        assert time.monotonic() - died <= TTL + SOON
        assert lock.token > old
        await lock.put("written", b"by the new holder")
        if how is signal.SIGSTOP:
            holder.send_signal(signal.SIGCONT)
            lines = (await within(60, holder.stdout.read(), "the end of the old holder")).decode()
            assert "lost" in lines
        assert (await locks.get("written", min_revision=1)).value == b"by the new holder"
        assert lock.is_held


@pytest.mark.limit(120)
async def test_holder_cut_off(locks: Any, connect: Any, proxy: Any) -> None:
    """Its block ends before anyone else has the lock."""
    between = await proxy()
    kv = await (await connect(between)).key_value(locks.bucket)
    ended: list[float] = []

    async def hold() -> None:
        async with kv.lock("a", ttl=TTL):
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(time.monotonic())

    holding = asyncio.create_task(hold())

    async def is_locked() -> bool:
        try:
            return bool(await locks.get("a"))
        except KeyNotFoundError:
            return False

    await eventually(is_locked, 30)
    between.blackhole()
    cut = time.monotonic()
    async with locks.lock("a", ttl=30):
        begun = time.monotonic()
        assert begun - cut <= TTL + SOON
        with pytest.raises(LeaseLostError, match="renewed in time"):
            await holding
        assert ended[0] < begun
    between.heal()


async def test_taken_by_administrator(locks: Any) -> None:
    """Someone removes the key, and locks it: a put of the old holder is refused."""
    tokens: list[int] = []

    async def hold() -> None:
        async with locks.lock("a", ttl=TTL) as lock:
            tokens.append(lock.token)
            await locks.purge("a")
            async with locks.lock("a", ttl=30) as other:
                with pytest.raises(LeaseLostError):
                    await lock.put("x", b"1")
                assert other.token > lock.token
                await other.put("x", b"2")

    with pytest.raises(LeaseLostError, match="another client") as caught:
        await hold()
    assert [caught.value.token] == tokens
    assert (await locks.get("x")).value == b"2"


async def test_removed_by_administrator(locks: Any) -> None:
    """The block is cancelled at the next renewal."""

    async def hold() -> None:
        async with locks.lock("a", ttl=TTL):
            await locks.purge("a")
            await asyncio.sleep(30)

    with pytest.raises(LeaseLostError):
        await within(20, hold(), "the loss")


async def test_cancelled_from_outside(locks: Any) -> None:
    """A cancellation by others stays one, and the lock is released."""

    async def hold() -> None:
        async with locks.lock("a", ttl=30):
            await asyncio.sleep(100)

    holding = asyncio.create_task(hold())
    await asyncio.sleep(0.5)
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding
    async with locks.lock("a", ttl=30, timeout=10):
        pass


@pytest.mark.limit(120)
async def test_lost_answer(locks: Any, connect: Any, proxy: Any) -> None:
    """A lock that was stored, though its answer was lost, is held and not waited for."""
    between = await proxy()
    kv = await (await connect(between, timeout=3)).key_value(locks.bucket)
    between.drop_frames(is_publish_ack, 1)
    began = time.monotonic()
    async with kv.lock("a", ttl=60, timeout=30) as lock:
        assert time.monotonic() - began < 20
        assert lock.is_held
        between.drop_frames(is_publish_ack, 1)
        with pytest.raises(RequestTimeoutError):
            await lock.put("x", b"1")
        assert await lock.put("x", b"2")


async def test_buckets_without_locks(make: Any, js: Any, name: str) -> None:
    kv = await make()
    with pytest.raises(ConfigError, match="limit_marker_ttl"):
        await kv.lock("a")
    kv = await js.update_key_value(name, limit_marker_ttl=30, history=2, storage="memory")
    with pytest.raises(ConfigError, match="history of 1"):
        await kv.lock("a")
    with pytest.raises(ConfigError, match="1 s or more"):
        await kv.lock("a", ttl=0.5)
    with pytest.raises(ConfigError):
        kv.lock("a", ttl=0)
    with pytest.raises(ReadOnlyError):
        (await js.key_value(name, writable=False)).lock("a")


async def test_older_server(own_server: Any, connect: Any) -> None:
    own = await own_server(version="2.10.25")
    kv = await (await connect(own)).create_key_value("locks")
    with pytest.raises(ConfigError, match=r"a lock needs nats-server 2\.11"):
        await kv.lock("a")
