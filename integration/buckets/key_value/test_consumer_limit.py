"""A bucket whose stream has as many consumers as it may have is watched by direct gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.buckets.kit import keys_of, names_of
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import within
from jsclient import BucketNotFoundError, ConsumerLimitError
from jsclient.events import ConsumerRefused, ConsumersNearLimit, StreamReset

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
async def full(js: Any, make: Any, oracle: Any, name: str) -> Any:
    """A bucket with a history of 3 that allows one consumer, which exists."""
    await make(history=3)
    await js.update_stream((await js.stream(f"KV_{name}")).config.replace(max_consumers=1))
    await oracle.create_consumer(f"KV_{name}", "first", ack_policy="none")
    return await js.key_value(name)


async def first_entries(watch: Any) -> list[tuple[str, bytes, bool]]:
    entries = []
    while not watch.is_current:
        entry = await within(5, watch.next(), "an entry")
        entries.append((entry.key, entry.value, entry.is_initial))
    return entries


async def test_watch_reads_what_it_hears_of(full: Any, oracle: Any, name: str, events: list[Any]) -> None:
    kv = full
    for key, value in (("a", b"1"), ("a", b"2"), ("b.x", b"3"), ("c", b"4")):
        await kv.put(key, value)
    await kv.delete("c")
    async with kv.watch() as watch:
        assert await first_entries(watch) == [("a", b"2", True), ("b.x", b"3", True), ("c", b"", True)]
        await watch.current()
        for number in range(20):
            revision = await kv.put(f"k{number % 3}", b"%d" % number)
            entry = await within(5, watch.next(), "the change")
            assert (entry.key, entry.value, entry.revision) == (f"k{number % 3}", b"%d" % number, revision)
            assert (entry.is_initial, entry.operation) == (False, "PUT")
        await kv.purge("a")
        entry = await within(5, watch.next(), "the purge")
        assert (entry.key, entry.operation) == ("a", "PURGE")
        report = await within(5, anext(watch.events()), "the report")
        assert isinstance(report, ConsumerRefused)
    refused = of(ConsumerRefused, events)
    assert refused
    assert isinstance(refused[0].error, ConsumerLimitError)
    assert await oracle.consumer_names(f"KV_{name}") == ["first"]


async def test_each_option(full: Any) -> None:
    kv = full
    revisions = [
        await kv.put(key, value) for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3"), ("a.z", b"4"))
    ]
    async with kv.watch(include_history=True) as watch:
        assert [value for _, value, _ in await first_entries(watch)] == [b"1", b"2", b"3", b"4"]
    async with kv.watch(after=revisions[1]) as watch:
        assert [value for _, value, _ in await first_entries(watch)] == [b"3", b"4"]
    async with kv.watch("a", "b") as watch:
        assert [key for key, _, _ in await first_entries(watch)] == ["b", "a"]
        await kv.put("a.z", b"5")
        await kv.put("b", b"6")
        assert (await within(5, watch.next(), "the change")).value == b"6"
    async with kv.watch(updates_only=True) as watch:
        assert watch.is_current
        await kv.put("b", b"7")
        assert (await within(5, watch.next(), "the change")).value == b"7"
    async with kv.watch("b", meta_only=True) as watch:
        entry = await watch.next()
        assert (entry.value, entry.size) == (b"", 1)
    async with kv.watch("none") as watch:
        assert watch.is_current
    assert await keys_of(kv) == ["a", "a.z", "b"]
    assert [entry.value async for entry in kv.history("a")] == [b"1", b"3"]


async def test_more_entries_than_a_page(js: Any, full: Any, name: str) -> None:
    kv = full
    async with js.publisher() as publisher:
        for number in range(3000):
            await publisher.publish(f"$KV.{name}.k{number}", b"%d" % number)
    async with kv.watch() as watch:
        entries = await first_entries(watch)
    assert [value for _, value, _ in entries] == [b"%d" % number for number in range(3000)]
    async with kv.watch(include_history=True) as watch:
        assert await first_entries(watch) == entries


async def test_a_cancelled_read_loses_nothing(full: Any) -> None:
    kv = full
    for number in range(5):
        await kv.put(f"k{number}", b"%d" % number)
    async with kv.watch() as watch:
        values = []
        for number in range(5, 25):
            reading = asyncio.create_task(watch.next())
            await asyncio.sleep(0)
            if number % 2:
                reading.cancel()
                await asyncio.wait([reading])
            await kv.put(f"k{number}", b"%d" % number)
            if not reading.cancelled():
                values.append((await within(5, reading, "an entry")).value)
        while len(values) < 25:
            values.append((await within(5, watch.next(), "an entry")).value)
    assert values == [b"%d" % number for number in range(25)]


async def test_deleted_bucket_ends_the_watch(js: Any, full: Any, name: str) -> None:
    async with full.watch() as watch:
        await js.delete_key_value(name)
        with pytest.raises(BucketNotFoundError):
            await within(60, watch.next(), "the end")


async def test_objects(js: Any, store: Any, oracle: Any, name: str) -> None:
    await js.update_stream((await js.stream(f"OBJ_{name}")).config.replace(max_consumers=1))
    await oracle.create_consumer(f"OBJ_{name}", "first", ack_policy="none")
    await store.put("a", b"x" * 300_000)
    async with store.watch() as watch:
        assert (await within(5, watch.next(), "the object")).size == 300_000
        await store.put("b", b"1")
        assert (await within(5, watch.next(), "the new object")).name == "b"
    assert await names_of(store) == ["a", "b"]


@pytest.mark.covers("K56")
async def test_recreated_bucket(js: Any, full: Any, make: Any, name: str) -> None:
    """The watch reads the new bucket from its start, as a watch with a consumer does."""
    for key in ("a", "b"):
        await full.put(key, b"1")
    async with full.watch() as watch:
        assert [key for key, _, _ in await first_entries(watch)] == ["a", "b"]
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0.1)
        await js.delete_key_value(name)
        await asyncio.sleep(0.5)
        await make(history=3)
        await full.put("c", b"2")
        entry = await within(60, waiting, "the entry of the new bucket")
        assert (entry.key, entry.revision, entry.is_initial) == ("c", 1, False)
        await full.put("a", b"3")
        assert (await within(30, watch.next(), "the change")).value == b"3"
        told = watch.events()
        while not isinstance(await within(10, anext(told), "the event"), StreamReset):
            pass


async def test_near_the_limit(js: Any, full: Any, oracle: Any, name: str, events: list[Any]) -> None:
    """A program that makes sure that its bucket exists is told before there is no consumer for it."""
    await js.ensure_key_value(name, history=3, storage="memory")
    await within(5, js.core.flush(), "the answer of the server")
    (near,) = of(ConsumersNearLimit, events)
    assert (near.stream, near.consumers, near.limit) == (f"KV_{name}", 1, 1)
    await oracle.delete_consumer(f"KV_{name}", "first")
    await js.ensure_key_value(name, history=3, storage="memory")
    assert len(of(ConsumersNearLimit, events)) == 1
