"""Watches with equal filters share one consumer: who creates it, who may leave, and who ends it."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from integration.buckets.following.kit import fill, share_a_change, until_consumers, until_current
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import within
from jsclient import BucketNotFoundError, ClosedError
from jsclient.buckets.following.source import SharedSource
from jsclient.events import StreamReset

pytestmark = pytest.mark.server(">=2.11")


def sources(js: Any) -> list[Any]:
    return [one for one in js._context.shared.values() if isinstance(one, SharedSource)]


@pytest.mark.covers("K54")
async def test_many_watches_use_one_consumer(js: Any, kv: Any, oracle: Any) -> None:
    await fill(kv, 20)
    async with AsyncExitStack() as stack:
        watches = [await stack.enter_async_context(kv.watch()) for _ in range(40)]
        for watch in watches:
            assert len(await until_current(watch)) == 20
        await share_a_change(kv, oracle, *watches)
        for watch in watches[:-1]:
            await watch.close()
        await kv.put("a", b"2")
        assert (await within(20, watches[-1].next(), "the change")).value == b"2"
        assert len(await oracle.consumer_names(kv.stream)) == 1
    await until_consumers(oracle, kv, 0)
    assert sources(js) == []


async def test_opened_at_the_same_time(js: Any, kv: Any, oracle: Any) -> None:
    await kv.put("a", b"1")
    watches = [kv.watch("a") for _ in range(20)]
    await asyncio.gather(*(watch.__aenter__() for watch in watches))
    for watch in watches:
        assert await until_current(watch) == {"a": b"1"}
    await share_a_change(kv, oracle, *watches)
    await asyncio.gather(*(watch.close() for watch in watches))
    await until_consumers(oracle, kv, 0)


async def test_other_filters_and_options(js: Any, kv: Any, oracle: Any) -> None:
    """Watches with other filters, or without values, have other consumers."""
    async with kv.watch(), kv.watch("a"), kv.watch(meta_only=True), kv.watch(ignore_deletes=True):
        assert len(sources(js)) == 3


@pytest.mark.covers("K59")
async def test_cancelled_at_any_step(js: Any, kv: Any, oracle: Any) -> None:
    await fill(kv, 50)

    async def use(watch: Any) -> None:
        async with watch:
            async for _ in watch:
                await asyncio.sleep(0)

    random.seed(5)
    stays = kv.watch()
    async with stays:
        await until_current(stays)
        for _ in range(60):
            users = [asyncio.create_task(use(kv.watch())) for _ in range(3)]
            for user in users:
                await asyncio.sleep(random.choice([0, 0, 0.0005, 0.002, 0.01]))
                user.cancel()
            await asyncio.wait(users)
            assert all(user.cancelled() for user in users)
        revision = await kv.put("a", b"2")
        assert (await within(20, stays.next(), "the change")).revision == revision
        await until_consumers(oracle, kv, 1)
    await until_consumers(oracle, kv, 0)
    assert sources(js) == []


async def test_closed_while_it_waits(kv: Any) -> None:
    """The watch that is closed ends at once, whichever of them it is, and the others read on."""
    async with kv.watch() as first, kv.watch() as second, kv.watch() as third:
        reading = [asyncio.create_task(watch.next()) for watch in (first, second, third)]
        await asyncio.sleep(0.05)
        for watch, task in ((first, reading[0]), (third, reading[2])):
            await watch.close()
            with pytest.raises(ClosedError):
                await within(10, task, "the end")
        await kv.put("a", b"1")
        assert (await within(10, reading[1], "the change")).value == b"1"


@pytest.mark.covers("K56")
async def test_recreated_and_deleted_bucket(js: Any, make: Any, name: str, events: list[Any]) -> None:
    kv = await make(history=3)
    await kv.put("a", b"1")
    await kv.put("b", b"1")
    async with kv.watch() as first, kv.watch() as second, kv.watch() as third:
        watches = first, second, third
        for watch in watches:
            assert await until_current(watch) == {"a": b"1", "b": b"1"}
        reading = [asyncio.create_task(watch.next()) for watch in watches]
        await asyncio.sleep(0.1)
        await js.delete_key_value(name)
        await make(history=3)
        await kv.put("c", b"2")
        entries = await within(60, asyncio.gather(*reading), "the entry of the new bucket")
        assert {(entry.key, entry.revision, entry.is_initial) for entry in entries} == {("c", 1, False)}
        assert len(of(StreamReset, events)) == 1
        for watch in watches:
            told = watch.events()
            while not isinstance(await within(10, anext(told), "the event"), StreamReset):
                pass
        reading = [asyncio.create_task(watch.next()) for watch in watches]
        await js.delete_key_value(name)
        for task in reading:
            with pytest.raises(BucketNotFoundError):
                await within(60, task, "the end")
    await make()
    await kv.put("d", b"1")
    async with kv.watch() as watch:
        assert await until_current(watch) == {"d": b"1"}


async def test_closed_connection(connect: Any, server: Any, kv: Any) -> None:
    js = await connect(server)
    other = await js.key_value(kv.bucket)
    async with other.watch() as first, other.watch() as second:
        reading = [asyncio.create_task(watch.next()) for watch in (first, second)]
        await asyncio.sleep(0.05)
        await js.close()
        for task in reading:
            with suppress(ClosedError):
                await within(10, task, "the end")
        assert [entry async for entry in first] == []


async def test_opened_again_after_a_failure(js: Any, make: Any, name: str) -> None:
    kv = await make()
    await js.delete_key_value(name)
    watch = kv.watch()
    with pytest.raises(BucketNotFoundError):
        await watch.__aenter__()
    await make()
    await kv.put("a", b"1")
    async with watch:
        assert await until_current(watch) == {"a": b"1"}
