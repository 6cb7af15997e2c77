"""A watch of an object store returns what exists, says when it is current, and then each change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.buckets.kit import info_subject
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually
from jsclient import BucketNotFoundError, ConfigError, RecordSkipped


async def until_current(watch: Any) -> list[tuple[str, bool]]:
    """Read the descriptions that existed at the start."""
    infos = []
    while not watch.is_current:
        infos.append(await asyncio.wait_for(watch.next(), 30))
    return [(info.name, info.is_deleted) for info in infos]


@pytest.mark.covers("O35")
async def test_objects_then_changes(store: Any) -> None:
    for name in ("a", "b", "c", "a"):
        await store.put(name, name.encode())
    await store.delete("b")
    async with store.watch() as watch:
        assert await until_current(watch) == [("c", False), ("a", False), ("b", True)]
        await watch.current()
        info = await store.put("a", b"2")
        change = await watch.next()
        assert (change.name, change.revision, watch.revision) == ("a", info.revision, info.revision)
    async with store.watch(after=info.revision - 1) as watch:
        assert await until_current(watch) == [("a", False)]


@pytest.mark.covers("O35")
async def test_options(store: Any) -> None:
    await store.put("a", b"")
    await store.put("b", b"")
    await store.delete("a")
    await store.delete("b")
    async with store.watch(ignore_deletes=True) as watch:
        assert watch.is_current
        await store.put("c", b"")
        assert (await watch.next()).name == "c"
    async with store.watch(updates_only=True) as watch:
        assert watch.is_current
        await store.put("a", b"")
        assert (await watch.next()).name == "a"
    async with store.watch("b", "c", "c") as watch:
        assert await until_current(watch) == [("b", True), ("c", False)]
    async with store.watch(include_history=True) as watch:
        assert len(await until_current(watch)) == 3
    with pytest.raises(ConfigError):
        store.watch(updates_only=True, after=3)


@pytest.mark.covers("O34", "O35")
async def test_odd_infos_are_passed_over(store: Any, oracle: Any, events: list[Any]) -> None:
    await oracle.publish(info_subject(store.bucket, "odd"), b"{")
    await store.put("a", b"")
    await oracle.publish(info_subject(store.bucket, "last"), b"[1]")
    async with store.watch() as watch:
        assert await until_current(watch) == [("a", False)]
    assert [info.name async for info in store.list()] == ["a"]
    skipped = await eventually(lambda: of(RecordSkipped, events))
    assert "odd" in str(skipped[0])


@pytest.mark.covers("O35")
async def test_consumer_deleted_by_others(store: Any, oracle: Any) -> None:
    async with store.watch() as watch:
        for number in range(3):
            for name in await oracle.consumer_names(store.stream):
                await oracle.delete_consumer(store.stream, name)
            await store.put(f"n{number}", b"")
            assert (await watch.next()).name == f"n{number}"


@pytest.mark.covers("O35")
async def test_bucket_deleted(js: Any, store: Any) -> None:
    async with store.watch() as watch:
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        await js.delete_object_store(store.bucket)
        with pytest.raises(BucketNotFoundError):
            await asyncio.wait_for(waiting, 60)
