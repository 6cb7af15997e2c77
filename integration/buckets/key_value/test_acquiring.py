"""Waiting for a lock: a wait that is cancelled leaves nothing behind, and ends in its time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually, within
from jsclient import ConfigError, KeyNotFoundError, RequestTimeoutError
from jsclient.buckets.key_value.acquiring import acquire

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
async def locks(make: Any) -> Any:
    return await make(limit_marker_ttl=30)


async def is_free(kv: Any) -> bool:
    try:
        await kv.get("a", min_revision=1)
    except KeyNotFoundError:
        return True
    return False


async def cancelled_after(work: Any, turns: int) -> None:
    """Cancel some work after so many turns of the loop, or wait until it ends."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        lock = await task
    except asyncio.CancelledError:
        return
    await lock.close()


@pytest.mark.core_cases(1)
@pytest.mark.limit(240)
@pytest.mark.parametrize("is_waiting", [False, True], ids=["free", "after-another"])
async def test_cancelled_at_any_moment(locks: Any, connect: Any, server: Any, is_waiting: bool) -> None:
    """The key is free soon, whatever the moment."""
    kv = await (await connect(server)).key_value(locks.bucket)
    for trial in range(120):
        earlier = await locks.lock("a", ttl=60) if is_waiting else None
        work = asyncio.ensure_future(kv.lock("a", ttl=60))
        if earlier is not None:
            await asyncio.sleep(0.03)  # the other one waits
            await earlier.close()
        await asyncio.sleep(trial * 0.00005)
        await within(10, cancelled_after(work, trial % 8), "the cancelled wait")

        async def free() -> bool:
            return await is_free(locks)

        await eventually(free, 15, f"trial {trial}: the key is free")
        # No value is stored later, either, by a message that was under way.
        if trial % 20 == 0:
            await asyncio.sleep(0.3)
            assert await is_free(locks)


@pytest.mark.limit(240)
async def test_cancelled_twice(locks: Any, connect: Any, server: Any) -> None:
    kv = await (await connect(server)).key_value(locks.bucket)
    for trial in range(60):
        task = asyncio.ensure_future(kv.lock("a", ttl=60))
        await asyncio.sleep(trial * 0.0001)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        if not task.cancelled():
            await task.result().close()

        async def free() -> bool:
            return await is_free(locks)

        await eventually(free, 15, f"trial {trial}: the key is free")


@pytest.mark.parametrize("is_known", [False, True], ids=["new-handle", "known-bucket"])
async def test_timeout_on_a_frozen_server(own_server: Any, connect: Any, is_known: bool) -> None:
    """The timeout limits all of it: the look at the bucket, the attempts and what is cleaned up."""
    own = await own_server()
    js = await connect(own, timeout=60.0)
    kv = await js.create_key_value("locks", limit_marker_ttl=30)
    if not is_known:
        kv = await js.key_value("locks")
    own.pause()
    try:
        began = time.monotonic()
        with pytest.raises(RequestTimeoutError, match="lock of key 'a'"):
            await kv.lock("a", timeout=0.5)
        assert 0.4 < time.monotonic() - began < 20  # 0.7 s on a quiet machine
    finally:
        own.resume()


async def test_timeout_while_another_waits(own_server: Any, connect: Any) -> None:
    """The server freezes while the key is watched. Nothing is left on it afterwards."""
    own = await own_server()
    js = await connect(own, timeout=60.0)
    kv = await js.create_key_value("locks", limit_marker_ttl=30)
    stream = await js.stream("KV_locks")
    lock = await kv.lock("a", ttl=60)
    waiting = asyncio.ensure_future(kv.lock("a", ttl=60, timeout=1.0))
    await asyncio.sleep(0.5)
    began = time.monotonic()
    own.pause()
    try:
        with pytest.raises(RequestTimeoutError):
            await waiting
        assert time.monotonic() - began < 20
    finally:
        own.resume()
    await lock.close()

    async def free() -> bool:
        return await is_free(kv) and (await stream.info()).state.consumer_count == 0

    await eventually(free, what="neither a value nor a consumer")


async def test_timeout_of_nothing(locks: Any) -> None:
    """One attempt is made with a timeout of 0."""
    async with locks.lock("a", ttl=30, timeout=0):
        with pytest.raises(RequestTimeoutError):
            await locks.lock("a", ttl=30, timeout=0)


async def test_bad_timeout(own_server: Any, connect: Any) -> None:
    """Refused before anything is sent."""
    own = await own_server()
    kv = await (await connect(own)).create_key_value("locks")
    own.pause()
    try:
        for timeout in ("1", float("nan"), True):
            with pytest.raises(ConfigError, match="timeout"):
                await within(1, acquire(kv, "a", ttl=15, value=b"", timeout=timeout))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="1 s or more"):
            await within(1, acquire(kv, "a", ttl=0.5, value=b"", timeout=None))
    finally:
        own.resume()
