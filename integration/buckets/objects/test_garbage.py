"""What belongs to no object is removed, and nothing that belongs to one, or is going to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from integration.buckets.kit import info_subject, is_same
from integration.buckets.uploads import upload_killed
from integration.kit.clients.foreign import client
from integration.kit.judge.waiting import eventually
from integration.kit.network.match import published
from jsclient import (
    BucketSealedError,
    ConfigError,
    ObjectInfoError,
    ObjectNotFoundError,
    PublishError,
)
from jsclient.buckets import RemovedGarbage
from jsclient.buckets.objects import garbage, upload

CHUNK = 10_000
DATA = random.Random(4).randbytes(5 * CHUNK + 7)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> float:
    """An age in seconds that chunks reach during a test. Uploads expect a removal after half of it."""
    monkeypatch.setattr(garbage, "LEAST_AGE", 1.0)
    monkeypatch.setattr(upload, "_LONG", 0.5)
    return 1.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


async def removed_soon(store: Any, age: float, count: int = 1) -> RemovedGarbage:
    """Call `gc` until this number of uploads or deletions is old enough, and return what was removed."""
    orphans, deletions = [], []

    async def are_removed() -> bool:
        removed = await store.gc(older_than=age)
        orphans.extend(removed.orphans)
        deletions.extend(removed.deletions)
        return len(orphans) + len(deletions) >= count

    await eventually(are_removed)
    return RemovedGarbage(orphans=orphans, deletions=deletions)


@pytest.mark.covers("O45")
@pytest.mark.parametrize("bad", [0, -1, 59.9, None, "1", float("nan"), True])
async def test_ages_that_are_refused(store: Any, oracle: Any, bad: Any) -> None:
    with pytest.raises(ConfigError, match="older_than"):
        await store.gc(older_than=bad)
    with pytest.raises(TypeError):
        await store.gc()
    assert (await oracle.state(store.stream))["last_seq"] == 0


@pytest.mark.covers("O45")
async def test_killed_uploads(
    server: Any, store: Any, path: Path, chunks: Any, soon: float, oracle: Any
) -> None:
    """Their chunks are kept while they are young, and removed when they are old."""
    kept = await store.put("kept", DATA, chunk_size=CHUNK)
    for count in (1, 5):
        await upload_killed(server, store.bucket, path, chunks=count, chunk_size=CHUNK)
    orphans = (await store.check()).orphans
    assert len(orphans) == 2
    assert (await store.gc(older_than=60)) == RemovedGarbage()
    removed = await removed_soon(store, soon, 2)
    assert sorted(removed.orphans, key=repr) == sorted(orphans, key=repr)
    assert await chunks() == {kept.nuid: kept.chunks}
    assert is_same(await store.get("kept"), DATA)
    assert (await oracle.state(store.stream))["messages"] == kept.chunks + 1
    assert await store.gc(older_than=soon) == RemovedGarbage()
    assert await oracle.consumer_names(store.stream) == []


@pytest.mark.covers("O45")
async def test_deletions(store: Any, oracle: Any, soon: float) -> None:
    await store.put("a", DATA)
    await store.put("b", DATA)
    await store.delete("a")
    assert (await store.gc(older_than=60)).deletions == ()
    removed = await removed_soon(store, soon)
    assert [info.name for info in removed.deletions] == ["a"]
    with pytest.raises(ObjectNotFoundError):
        await store.info("a", deleted=True)
    assert (await oracle.state(store.stream))["messages"] == 2
    await store.put("a", b"new")
    assert await store.get("a") == b"new"


@pytest.mark.covers("O45")
async def test_deletion_by_others_that_kept_the_chunks(
    store: Any, oracle: Any, chunks: Any, soon: float
) -> None:
    """A client that is killed between the deletion and the removal leaves chunks that a description names."""
    info = await store.put("a", DATA)
    body = b'{"name": "a", "nuid": "%s", "deleted": true}' % info.nuid.encode()
    await oracle.publish(info_subject(store.bucket, "a"), body, {"Nats-Rollup": "sub"})
    removed = await removed_soon(store, soon, 2)
    assert ([one.nuid for one in removed.orphans], len(removed.deletions)) == ([info.nuid], 1)
    assert await chunks() == {}


@pytest.mark.covers("O45")
async def test_upload_that_pauses(store: Any, soon: float, chunks: Any) -> None:
    """Its chunks are removed as those of a dead upload. It fails, and the object before stays."""
    old = await store.put("a", b"old")
    stored, removed = asyncio.Event(), asyncio.Event()

    async def pausing() -> AsyncIterator[bytes]:
        yield DATA
        stored.set()
        await removed.wait()
        yield DATA

    putting = asyncio.create_task(store.put("a", pausing(), chunk_size=CHUNK))
    await stored.wait()
    await removed_soon(store, soon)
    removed.set()
    with pytest.raises(PublishError, match="store the object again"):
        await putting
    assert await store.get("a") == b"old"
    assert await chunks() == {old.nuid: 1}


@pytest.mark.covers("O45")
@pytest.mark.parametrize("held_back", ["look-up", "removal"])
@pytest.mark.parametrize("then", ["chunk", "description"])
async def test_upload_goes_on_during_removal(
    server: Any, connect: Any, proxy: Any, store: Any, soon: float, chunks: Any, then: str, held_back: str
) -> None:
    """The newest chunk is old, but the upload goes on before its chunks are removed: they stay."""
    slow = await proxy()
    other = await (await connect(slow)).object_store(store.bucket)
    stored, goes_on = asyncio.Event(), asyncio.Event()

    async def pausing() -> AsyncIterator[bytes]:
        yield DATA[: 3 * CHUNK]
        stored.set()
        await goes_on.wait()
        if then == "chunk":
            yield DATA[3 * CHUNK :]

    putting = asyncio.create_task(store.put("a", pausing(), chunk_size=CHUNK))
    await stored.wait()
    await eventually(chunks, 10)
    await asyncio.sleep(soon + 0.1)  # the age of the chunks, which only time gives them
    request = f"$JS.API.STREAM.MSG.GET.{store.stream}"
    held = slow.hold_frames(published(request if held_back == "look-up" else f"$O.{store.bucket}.C.>"))
    removing = asyncio.create_task(other.gc(older_than=soon))
    await eventually(lambda: held.count, 10)
    goes_on.set()
    info = await putting
    held.release()
    assert (await removing).orphans == ()
    assert await chunks() == {info.nuid: info.chunks}
    assert is_same(await store.get("a"), DATA if then == "chunk" else DATA[: 3 * CHUNK])


@pytest.mark.covers("O45")
async def test_last_chunk_is_young(
    server: Any, connect: Any, proxy: Any, store: Any, soon: float, oracle: Any, chunks: Any
) -> None:
    """An upload that pauses before its end stores the last chunk again, ahead of the description."""
    slow = await proxy()
    other = await (await connect(slow)).object_store(store.bucket)
    stored, goes_on = asyncio.Event(), asyncio.Event()
    done = list[int]()

    async def pausing() -> AsyncIterator[bytes]:
        yield DATA[: 3 * CHUNK]
        stored.set()
        await goes_on.wait()

    putting = asyncio.create_task(
        other.put("a", pausing(), chunk_size=CHUNK, progress=lambda n, _: done.append(n))
    )
    await stored.wait()

    async def are_stored() -> bool:
        return (await chunks()).total() == 3

    await eventually(are_stored, 10)
    await asyncio.sleep(soon)  # the age of the chunks, which only time gives them
    before = (await oracle.state(store.stream))["last_seq"]
    held = slow.hold_frames(published(f"$O.{store.bucket}.M.>"))
    goes_on.set()
    await eventually(lambda: held.count, 10)
    *_, newest = await oracle.messages(store.stream)
    assert newest.seq > before
    held.release()
    info = await putting
    assert (info.chunks, done[-1]) == (3, 3 * CHUNK)
    assert is_same(await store.get("a"), DATA[: 3 * CHUNK])
    assert (await oracle.state(store.stream))["messages"] == 4


@pytest.mark.covers("O27", "O45")
async def test_concurrent_puts(server: Any, connect: Any, store: Any, soon: float, chunks: Any) -> None:
    """Four connections store one name while everything that is old enough is removed."""
    others = [await (await connect(server)).object_store(store.bucket) for _ in range(4)]
    is_done = False

    async def collect() -> None:
        while not is_done:
            await store.gc(older_than=soon)

    collecting = asyncio.create_task(collect())
    for number in range(25):
        contents = [bytes([number, index]) * 100_000 for index in range(4)]
        await asyncio.gather(*(one.put("a", content) for one, content in zip(others, contents, strict=True)))
        assert any([is_same(await store.get("a"), content) for content in contents])
    is_done = True
    await collecting
    info = await store.info("a")
    assert await chunks() == {info.nuid: info.chunks}


@pytest.mark.covers("O45")
async def test_puts_of_nats_py(own_server: Any, connect: Any, soon: float, oracle_for: Any) -> None:
    """Four concurrent puts of one name by nats-py leave the chunks of three, which are removed."""
    server = await own_server(ack_v2=False)
    store = await (await connect(server)).create_object_store("blobs")
    async with client(server) as nc:
        theirs = await nc.jetstream().object_store("blobs")
        await asyncio.gather(*(theirs.put("a", bytes([number]) * 300_000) for number in range(4)))
        orphans = (await store.check()).orphans
        assert orphans
        removed = await removed_soon(store, soon, len(orphans))
        assert {one.nuid for one in removed.orphans} == {one.nuid for one in orphans}
        assert is_same((await theirs.get("a")).data, await store.get("a"))
    info = await store.info("a")
    assert (await (await oracle_for(server)).state(store.stream))["messages"] == info.chunks + 1


@pytest.mark.covers("O45")
async def test_full_bucket(
    js: Any, server: Any, name: str, path: Path, oracle: Any, soon: float, chunks: Any
) -> None:
    """A bucket that is full of remains has no capacity for another message, and is emptied."""
    store = await js.create_object_store(name, storage="memory")
    await upload_killed(server, name, path, chunks=4, chunk_size=CHUNK)
    size = (await oracle.state(store.stream))["bytes"]
    await js.update_object_store(name, storage="memory", max_bytes=size)
    assert len((await removed_soon(store, soon)).orphans) == 1
    assert await chunks() == {}
    await store.put("a", b"1")


@pytest.mark.covers("O45")
async def test_refusals(js: Any, store: Any, oracle: Any, name: str, soon: float) -> None:
    """Nothing is removed if a description cannot be read, or the bucket cannot be changed."""
    await oracle.publish(f"$O.{name}.C.x", b"1")
    await oracle.publish(info_subject(name, "a"), b"text")
    await asyncio.sleep(soon + 0.1)  # the age of the chunk, which only time gives it
    with pytest.raises(ObjectInfoError):
        await store.gc(older_than=soon)
    await store.put("a", b"1")
    await store.seal()
    with pytest.raises(BucketSealedError):
        await store.gc(older_than=soon)
    assert len((await store.check()).orphans) == 1
    copy = await js.create_object_store(f"{name}-copy", mirror=name, storage="memory")
    with pytest.raises(ConfigError, match="mirror"):
        await copy.gc(older_than=soon)
    await js.delete_object_store(copy.bucket)
