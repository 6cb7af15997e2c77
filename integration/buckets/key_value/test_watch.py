"""A watch returns what exists, says when it is current, and misses no newest value, whatever happens."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from integration.buckets.kit import keys_of
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually
from integration.kit.network.asking import answers_to
from jsclient import BucketNotFoundError, ClosedError, ConfigError, DisconnectedError, RequestTimeoutError


async def take(watch: Any, count: int) -> list[tuple[str, bytes]]:
    entries = [await watch.next() for _ in range(count)]
    return [(entry.key, entry.value) for entry in entries]


@pytest.mark.covers("K46", "K47", "K48", "K49")
async def test_initial_entries_then_changes(kv: Any) -> None:
    for key in ("a", "b", "c", "a"):
        await kv.put(key, key.encode())
    await kv.delete("b")
    async with kv.watch() as watch:
        initial = [await watch.next() for _ in range(3)]
        assert [(entry.key, entry.operation, entry.is_initial) for entry in initial] == [
            ("c", "PUT", True),
            ("a", "PUT", True),
            ("b", "DEL", True),
        ]
        assert watch.is_current
        await watch.current()
        await kv.put("a", b"2")
        entry = await watch.next()
        assert (entry.value, entry.is_initial, watch.revision) == (b"2", False, entry.revision)


@pytest.mark.covers("K48")
async def test_current_of_empty_bucket(kv: Any) -> None:
    async with kv.watch() as watch:
        await asyncio.wait_for(watch.current(), 30)
        waiting = asyncio.create_task(watch.next())
        await kv.put("a", b"1")
        assert (await waiting).value == b"1"


@pytest.mark.covers("K48")
async def test_current_while_another_task_reads(kv: Any) -> None:
    for number in range(50):
        await kv.put(f"k{number}", b"")
    values: dict[str, bytes] = {}
    async with kv.watch() as watch:

        async def follow() -> None:
            async for entry in watch:
                values[entry.key] = entry.value

        task = asyncio.create_task(follow())
        await asyncio.wait_for(watch.current(), 30)
        assert len(values) in (49, 50), "the last one may be on its way to the loop"
        task.cancel()


@pytest.mark.covers("K46")
async def test_filters(kv: Any) -> None:
    for key in ("a.1", "a.2", "b.1", "c"):
        await kv.put(key, b"")
    for filters, keys in (
        (("a.*",), ["a.1", "a.2"]),
        (("a.1", "c"), ["a.1", "c"]),
        (("a.>", "a.1", "b.1"), ["a.1", "a.2", "b.1"]),
        ((">", "a.1"), ["a.1", "a.2", "b.1", "c"]),
    ):
        async with kv.watch(*filters) as watch:
            assert [key for key, _ in await take(watch, len(keys))] == keys
            assert watch.is_current
    with pytest.raises(ConfigError, match="same keys"):
        kv.watch("a.*.c", "a.b.*")


@pytest.mark.covers("K50")
async def test_history_or_updates(kv: Any) -> None:
    await kv.put("a", b"1")
    await kv.put("a", b"2")
    async with kv.watch(include_history=True) as watch:
        assert await take(watch, 2) == [("a", b"1"), ("a", b"2")]
        assert watch.is_current
    async with kv.watch(updates_only=True) as watch:
        assert watch.is_current
        await kv.put("a", b"3")
        assert await take(watch, 1) == [("a", b"3")]
    for options in (
        {"include_history": True, "updates_only": True},
        {"after": 1, "updates_only": True},
        {"after": -1},
        {"after": "1"},
    ):
        with pytest.raises(ConfigError):
            kv.watch(**options)


@pytest.mark.covers("K51")
async def test_without_deletes(kv: Any) -> None:
    await kv.put("a", b"1")
    await kv.delete("b")
    async with kv.watch(ignore_deletes=True) as watch:
        assert await take(watch, 1) == [("a", b"1")]
        await kv.purge("a")
        await kv.put("c", b"2")
        assert await take(watch, 1) == [("c", b"2")]
        assert watch.is_current


@pytest.mark.covers("K51")
async def test_current_without_deletes(kv: Any) -> None:
    """Only deletions exist: they count, although none is returned."""
    await kv.delete("a")
    async with kv.watch(ignore_deletes=True) as watch:
        assert watch.is_current
        await asyncio.wait_for(watch.current(), 30)
        await kv.put("a", b"1")
        assert await take(watch, 1) == [("a", b"1")]


async def until_current(watch: Any) -> list[str]:
    """Read the entries that existed at the start, as programs do."""
    keys: list[str] = []
    while not watch.is_current:
        entry = await asyncio.wait_for(watch.next(), 30)
        assert entry.is_initial
        keys.append(entry.key)
    return keys


@pytest.mark.covers("K49", "K51")
@pytest.mark.parametrize("deleted", [["c"], ["a", "c"], ["b", "c"], ["a", "b", "c"], ["a"]], ids="".join)
async def test_last_entries_are_deletions(kv: Any, deleted: list[str]) -> None:
    """The last value says that it is the last, before a program waits for another."""
    for key in ("a", "b", "c"):
        await (kv.delete(key) if key in deleted else kv.put(key, b""))
    async with kv.watch(ignore_deletes=True) as watch:
        assert await until_current(watch) == [key for key in ("a", "b", "c") if key not in deleted]


@pytest.mark.covers("K49")
@pytest.mark.parametrize("kept", [[], ["a"]], ids=["none", "first"])
async def test_entries_vanish_while_opening(kv: Any, connect: Any, proxy: Any, kept: list[str]) -> None:
    """The server has counted them, and they are removed before the watch requests them."""
    for key in ("a", "b", "c"):
        await kv.put(key, b"")
    slow = await proxy()
    other = await (await connect(slow)).key_value(kv.bucket)
    held = slow.hold_frames(answers_to(slow, "CONSUMER.CREATE.>"))

    async def open_and_read() -> list[str]:
        async with other.watch() as watch:
            return await until_current(watch)

    opening = asyncio.create_task(open_and_read())
    await held.wait()
    for key in {"a", "b", "c"}.difference(kept):
        await kv.purge(key)
    await kv.purge_deletes(older_than=0)
    held.release()
    assert await asyncio.wait_for(opening, 60) == kept


@pytest.mark.covers("K59")
async def test_cancelled_while_looking_ahead(kv: Any) -> None:
    """The watch keeps a value until it knows the next value. Then the next call returns it."""
    for number in range(300):
        await kv.put(f"k{number}", b"")
    keys: list[str] = []
    async with kv.watch() as watch:
        while not watch.is_current:
            waiting = asyncio.create_task(watch.next())
            await asyncio.sleep(random.choice([0, 0, 0.001]))
            waiting.cancel()
            try:
                keys.append((await waiting).key)
            except asyncio.CancelledError:
                continue
    assert keys == [f"k{number}" for number in range(300)]


@pytest.mark.covers("K52")
async def test_without_values(kv: Any) -> None:
    await kv.put("a", bytes(100))
    await kv.delete("b")
    async with kv.watch(meta_only=True) as watch:
        first, second = [await watch.next() for _ in range(2)]
        assert (first.value, first.size, first.operation) == (b"", 100, "PUT")
        assert (second.size, second.operation) == (0, "DEL")


@pytest.mark.covers("K53")
async def test_after_revision(kv: Any) -> None:
    for number in range(4):
        await kv.put("a", b"%d" % number)
    async with kv.watch(after=2) as watch:
        assert await take(watch, 2) == [("a", b"2"), ("a", b"3")]
        assert watch.is_current
    async with kv.watch(after=4) as watch:
        assert watch.is_current


@pytest.mark.covers("K59")
async def test_cancelled_next_loses_nothing(kv: Any) -> None:
    async with kv.watch() as watch:
        values = []
        for number in range(100):
            waiting = asyncio.create_task(watch.next())
            await asyncio.sleep(0)
            await kv.put("a", b"%d" % number)
            await asyncio.sleep(random.uniform(0, 0.002))
            waiting.cancel()
            try:
                values.append((await waiting).value)
            except asyncio.CancelledError:
                values.append((await watch.next()).value)
        assert values == [b"%d" % number for number in range(100)]


@pytest.mark.covers("K59")
async def test_consumer_is_deleted(kv: Any, oracle: Any) -> None:
    async with kv.watch() as watch:
        waiting = asyncio.create_task(watch.next())
        assert len(await oracle.consumer_names(kv.stream)) == 1
    with pytest.raises(ClosedError):
        await waiting

    async def is_gone() -> bool:
        return await oracle.consumer_names(kv.stream) == []

    await eventually(is_gone)
    with pytest.raises(ClosedError):
        await watch.next()
    assert [entry async for entry in watch] == []


@pytest.mark.covers("K54")
async def test_consumer_deleted_by_others(kv: Any, oracle: Any) -> None:
    await kv.put("a", b"0")
    async with kv.watch() as watch:
        assert await take(watch, 1) == [("a", b"0")]
        for number in range(1, 4):
            for name in await oracle.consumer_names(kv.stream):
                await oracle.delete_consumer(kv.stream, name)
            await kv.put("a", b"%d" % number)
            assert await take(watch, 1) == [("a", b"%d" % number)]


@pytest.mark.covers("K49")
async def test_current_although_consumer_was_deleted(kv: Any, oracle: Any) -> None:
    """The entries that remain to be read are purged together with the consumer."""
    await kv.put("a", b"1")
    await kv.put("b", b"2")
    async with kv.watch() as watch:
        await kv.purge("a")
        await kv.purge("b")
        await kv.purge_deletes(older_than=0)
        initial = await until_current(watch)
        assert initial == ["a", "b"][: len(initial)]
        await kv.put("c", b"3")
        while (entry := await watch.next()).key != "c":
            assert entry.is_deleted, "the purges may be returned"


@pytest.mark.covers("K56")
async def test_bucket_deleted(js: Any, kv: Any) -> None:
    async with kv.watch() as watch:
        waiting = asyncio.create_task(watch.next())
        await asyncio.sleep(0)
        await js.delete_key_value(kv.bucket)
        with pytest.raises(BucketNotFoundError):
            await asyncio.wait_for(waiting, 60)


async def test_not_opened(kv: Any) -> None:
    """Reading it says how to open it, and does not just end."""
    with pytest.raises(ConfigError, match="async with"):
        async for _ in kv.watch():
            pass


async def test_no_such_bucket(js: Any, name: str) -> None:
    kv = await js.key_value(name, check=False)
    with pytest.raises(BucketNotFoundError):
        async with kv.watch():
            pass


@pytest.mark.covers("K57")
async def test_slow_reader_loses_nothing(make: Any, js: Any) -> None:
    kv = await make(history=64)
    async with kv.watch(include_history=True) as watch:
        async with js.publisher() as publisher:
            for number in range(5000):
                await publisher.publish(f"$KV.{kv.bucket}.k{number % 100}", b"%d" % number)
        values = []
        for _ in range(5000):
            values.append(int((await watch.next()).value))
            if len(values) % 1000 == 0:
                await asyncio.sleep(0.05)
    assert values == list(range(5000))


@pytest.mark.covers("K54", "K55", "K58")
@pytest.mark.limit(240)
async def test_restarts(own_server: Any, connect: Any, events: list[Any]) -> None:
    """At rest the follower has what the bucket has, and revisions only grow."""
    own = await own_server()
    js, writer = await connect(own, **FAST), await connect(own, **FAST)
    kv = await writer.create_key_value("cfg")
    random.seed(3)
    seen: dict[str, bytes | None] = {}
    revisions: list[int] = []
    watch = (await js.key_value("cfg")).watch()

    async def follow() -> None:
        async with watch:
            async for entry in watch:
                seen[entry.key] = None if entry.is_deleted else entry.value
                revisions.append(entry.revision)

    task = asyncio.create_task(follow())
    ended = asyncio.Event()

    async def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            key = f"k{random.randrange(20)}"
            try:
                if random.random() < 0.2:
                    await kv.delete(key)
                else:
                    await kv.put(key, b"%d" % number)
            except (DisconnectedError, RequestTimeoutError):
                # Whether the change was stored is unknown. The comparison at the end is with the bucket itself.
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.001)

    writing = asyncio.create_task(write())
    for _ in range(8):
        await asyncio.sleep(0.3)
        await own.kill()
        await own.start()
    await asyncio.sleep(0.5)
    ended.set()
    await writing

    async def equal() -> bool:
        stored = {key: (await kv.get(key)).value for key in await keys_of(kv)}
        return {key: value for key, value in seen.items() if value is not None} == stored

    await eventually(equal, 60, "the follower has what the bucket has")
    assert revisions == sorted(set(revisions))
    assert len(revisions) > 20
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert of(BucketNotFoundError, events) == []


@pytest.mark.limit(60)
@pytest.mark.parametrize("count", [0, 10])
async def test_purge_of_the_stream_while_it_opens(make: Any, oracle: Any, count: int) -> None:
    """A consumer of the newest entries does not get past those that were removed. The watch goes on nevertheless."""
    kv = await make(history=5)
    await kv.put_many({f"k{number}": b"1" for number in range(5000)})
    async with kv.watch() as watch:
        for _ in range(count):
            await watch.next()
        await oracle.purge(kv.stream)
        revision = await kv.put("fresh", b"1")
        while (await watch.next()).revision != revision:
            pass
        assert watch.is_current
        changed = await kv.put("fresh", b"2")
        assert (await watch.next()).revision == changed
