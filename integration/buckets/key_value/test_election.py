"""Elections: one of several clients works at a time, and another client continues when it loses its connection."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from integration.kit.judge.waiting import eventually, within
from jsclient import ClosedError, ConfigError, LeaseLostError
from jsclient.events import ErrorRaised

pytestmark = pytest.mark.server(">=2.11")
TTL = 4.0


@pytest.mark.limit(120)
async def test_leader_cut_off(make: Any, connect: Any, proxy: Any, events: list[Any]) -> None:
    kv = await make(limit_marker_ttl=30)
    links = {name: await proxy() for name in (b"one", b"two", b"three")}
    working: list[bytes] = []
    history: list[tuple[int, bytes]] = []
    ended = asyncio.Event()

    async def run(name: bytes) -> bytes:
        js = await connect(links[name], ping_interval=2.0, reconnect_time_wait=0.1)
        own = await js.key_value(kv.bucket)

        async def work(lock: Any) -> bytes:
            assert working == []
            working.append(name)
            history.append((lock.token, name))
            try:
                await ended.wait()
            finally:
                working.remove(name)
            return name

        return await own.elect("leader", work, ttl=TTL, value=name)

    candidates = {name: asyncio.create_task(run(name)) for name in links}

    async def elected() -> bool:
        return bool(working)

    await eventually(elected, 30)
    first = working[0]
    assert (await kv.get("leader")).value == first
    links[first].blackhole()

    async def another() -> bool:
        return bool(working) and working[0] != first

    await eventually(another, 30)
    second = working[0]
    assert (await kv.get("leader", min_revision=1)).value == second
    links[first].heal()
    lost = [event.error for event in events if isinstance(event, ErrorRaised)]
    assert [error.token for error in lost if isinstance(error, LeaseLostError)] == [history[0][0]]
    ended.set()
    # Each of them is elected once more, and then it ends.
    results = await within(60, asyncio.gather(*candidates.values()), "the end of all")
    assert results == list(links)
    assert [token for token, _ in history] == sorted(token for token, _ in history)
    assert sorted(name for _, name in history[1:]) == sorted(links)


async def test_failure_of_the_work(make: Any) -> None:
    """Errors of the work are raised, including errors of other locks."""
    kv = await make(limit_marker_ttl=30)
    for error in (KeyError("x"), LeaseLostError(kv.bucket, "leader", 0, "of another lock")):

        async def work(_: Any, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await kv.elect("leader", work)
        assert caught.value is error
    async with kv.lock("leader", ttl=30, timeout=10):
        pass


async def test_plain_function_is_refused(make: Any, oracle: Any) -> None:
    """Before anything is sent."""
    kv = await make(limit_marker_ttl=30)
    for work in (lambda _: None, print, None, 3):
        with pytest.raises(ConfigError, match="work"):
            await kv.elect("leader", work)
    assert await oracle.messages(f"KV_{kv.bucket}") == []


async def test_partial_and_method_are_coroutine_functions(make: Any) -> None:
    kv = await make(limit_marker_ttl=30)

    async def work(name: str, lock: Any) -> str:
        return f"{name} {lock.key}"

    class Worker:
        async def __call__(self, lock: Any) -> str:
            return lock.key

    assert await kv.elect("leader", partial(work, "x")) == "x leader"
    assert await kv.elect("leader", Worker()) == "leader"


async def test_work_is_cancelled_with_the_caller(make: Any) -> None:
    kv = await make(limit_marker_ttl=30)
    begun, ended = asyncio.Event(), list[str]()

    async def work(lock: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(lock.key)

    electing = asyncio.create_task(kv.elect("leader", work))
    await within(10, begun.wait())
    electing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(5, electing)
    assert ended == ["leader"]
    async with kv.lock("leader", ttl=30, timeout=5):
        pass


async def test_cancelled_after_the_work_noticed_the_loss(make: Any) -> None:
    """The cancellation is not taken for the loss, after which the client would take part again."""
    kv = await make(limit_marker_ttl=30)
    noticed = asyncio.Event()

    async def work(lock: Any) -> None:
        await kv.purge("leader")
        with pytest.raises(LeaseLostError):
            await lock.put("x", b"1")
        noticed.set()
        await asyncio.sleep(60)

    electing = asyncio.create_task(kv.elect("leader", work))
    await within(30, noticed.wait(), "the loss")
    electing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(30, electing, "the end")


async def test_connection_is_closed(make: Any, connect: Any, server: Any) -> None:
    kv = await make(limit_marker_ttl=30)
    js = await connect(server)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work(_: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    electing = asyncio.create_task((await js.key_value(kv.bucket)).elect("leader", work))
    await within(10, begun.wait())
    await js.close()
    with pytest.raises(ClosedError):
        await within(5, electing, "the election")
    assert ended.is_set()
    async with kv.lock("leader", ttl=30, timeout=5):
        pass
