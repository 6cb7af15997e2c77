"""An upload that was killed at any chunk goes on where it ended, and becomes the same object."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from integration.buckets.kit import digest, is_same
from integration.buckets.uploads import upload_killed
from integration.kit.clients.foreign import client
from integration.kit.clients.readers import FAST
from integration.kit.judge.waiting import eventually
from integration.kit.network.match import published
from integration.kit.network.rules import HoldRule
from jsclient import (
    ConfigError,
    InvalidNameError,
    ObjectChangedError,
    ObjectExistsError,
    PublishError,
    RequestTimeoutError,
    SourceChangedError,
)
from jsclient.buckets.objects.resuming import check_equal

CHUNK = 10_000
DATA = random.Random(6).randbytes(5 * CHUNK + 7)  # six chunks
COUNT = 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


async def sequences(oracle: Any, store: Any) -> list[int]:
    """The sequences of all chunks in the bucket."""
    start = f"$O.{store.bucket}.C."
    return [one.seq for one in await oracle.messages(store.stream) if one.subject.startswith(start)]


async def is_stored(store: Any, oracle: Any, info: Any) -> None:
    """The object is the whole content, and the bucket has nothing else."""
    assert (info.size, info.chunks, info.digest) == (len(DATA), COUNT, digest(DATA))
    assert is_same(await store.get("a"), DATA)
    state = await oracle.state(store.stream)
    assert state["messages"] == COUNT + 1
    assert (await store.check(digests=True)).is_sound


@pytest.mark.core_cases(2)
@pytest.mark.covers("O46")
@pytest.mark.parametrize("count", range(COUNT + 2))
async def test_killed_at_each_chunk(
    server: Any, store: Any, oracle: Any, path: Path, count: int, chunks: Any
) -> None:
    token = store.upload_token("a", chunk_size=CHUNK)
    await upload_killed(server, store.bucket, path, chunks=count, chunk_size=CHUNK, token=token)
    before = await sequences(oracle, store)
    assert len(before) == min(count, COUNT)
    seen: list[int] = []
    info = await store.put_file("a", path, resume=token, progress=lambda done, _: seen.append(done))
    await is_stored(store, oracle, info)
    after = await sequences(oracle, store)
    can_remove = oracle.server_version >= "2.11"
    kept = count if count > COUNT or not can_remove else count - 1
    assert before[: max(kept, 0)] == after[: max(kept, 0)], "chunks were sent again"
    assert count > COUNT or seen[-1] == len(DATA)
    assert await store.put_file("a", path, resume=token) == await store.info("a")
    assert await sequences(oracle, store) == after


@pytest.mark.full
@pytest.mark.covers("O46")
async def test_killed_again_and_again(server: Any, store: Any, oracle: Any, path: Path) -> None:
    token = store.upload_token("a", chunk_size=CHUNK)
    assert json.loads(json.dumps({"token": token})) == {"token": token}
    for count in (2, 2, 4, 5):
        await upload_killed(server, store.bucket, path, chunks=count, chunk_size=CHUNK, token=token)
    assert len((await store.check()).orphans) == 1
    await is_stored(store, oracle, await store.put("a", DATA, resume=token))


@pytest.mark.covers("O46")
async def test_connection_lost(own_server: Any, connect: Any, oracle_for: Any) -> None:
    """The server ends for longer than the upload waits. The next attempt goes on."""
    own = await own_server()
    js = await connect(own, timeout=3, **FAST)
    store = await js.create_object_store("blobs")
    token = store.upload_token("a", chunk_size=CHUNK)
    judge = await oracle_for(own)

    async def is_begun() -> bool:
        return len(await sequences(judge, store)) == 3

    async def source() -> AsyncIterator[bytes]:
        yield DATA[: 3 * CHUNK]
        await eventually(is_begun)
        await own.kill()
        yield DATA[3 * CHUNK :]

    with pytest.raises((PublishError, RequestTimeoutError)):
        await store.put("a", source(), resume=token, timeout=3)
    await own.start()
    judge = await oracle_for(own)
    assert len(await sequences(judge, store)) == 3
    await eventually(lambda: js.is_connected)  # a request waits for that only as long as its timeout
    await is_stored(store, judge, await store.put("a", DATA, resume=token))


@pytest.mark.covers("O46")
@pytest.mark.parametrize("attempt", [1, 2])
async def test_cancelled(store: Any, oracle: Any, chunks: Any, events: list[Any], attempt: int) -> None:
    """The chunks stay, and the next attempt goes on."""
    token, stored = store.upload_token("a", chunk_size=CHUNK), 0
    attempts: list[asyncio.Task[Any]] = []
    for acked in range(1, COUNT, attempt):
        calls = 0

        def cancel(done: int, total: int | None, at: int = acked) -> None:
            nonlocal calls
            calls += 1
            if calls == at:
                attempts[-1].cancel()

        attempts.append(asyncio.create_task(store.put("a", DATA, resume=token, progress=cancel)))
        try:
            await attempts[-1]
        except asyncio.CancelledError:
            stored = max(stored, sum((await chunks()).values()))
        else:
            break  # an attempt that was cancelled at its end has stored the object
    assert stored
    await is_stored(store, oracle, await store.put("a", DATA, resume=token))
    assert events == []


@pytest.mark.core_cases(1)
@pytest.mark.covers("O46")
@pytest.mark.parametrize("count", [1, 3, COUNT, COUNT + 1])
async def test_source_changed(server: Any, store: Any, oracle: Any, path: Path, count: int) -> None:
    """Content that does not begin with what is stored is refused, and changes nothing."""
    old = await store.put("old", b"old")
    token = store.upload_token("a", chunk_size=CHUNK)
    await upload_killed(server, store.bucket, path, chunks=count, chunk_size=CHUNK, token=token)
    before = await oracle.messages(store.stream)
    changed = bytearray(DATA)
    changed[5] ^= 1
    stored = min(count * CHUNK, len(DATA))
    for content in (bytes(changed), DATA[: stored - 5], b"", b"5" + DATA):
        with pytest.raises(SourceChangedError, match="new token") as caught:
            await store.put("a", content, resume=token)
        assert caught.value.stored == stored
    assert [one.seq for one in await oracle.messages(store.stream)] == [one.seq for one in before]
    await store.put("a", changed)
    assert is_same(await store.get("a"), bytes(changed))
    assert await store.info("old") == await store.info(old.name)


@pytest.mark.covers("O46")
@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1])
async def test_sizes(store: Any, oracle: Any, size: int) -> None:
    token = store.upload_token("a", chunk_size=CHUNK)
    with pytest.raises(ZeroDivisionError):
        await store.put("a", broken(DATA[:size]), resume=token)
    info = await store.put("a", DATA[:size], resume=token)
    assert (info.size, info.digest) == (size, digest(DATA[:size]))
    assert is_same(await store.get("a"), DATA[:size])


async def broken(content: bytes) -> AsyncIterator[bytes]:
    yield content
    raise ZeroDivisionError


@pytest.mark.covers("O46")
async def test_chunks_out_of_order(server: Any, store: Any, oracle: Any, path: Path) -> None:
    """A killed process has stored chunks without one before them, or a process was not killed at all."""
    token = store.upload_token("a", chunk_size=CHUNK)
    await upload_killed(server, store.bucket, path, chunks=5, chunk_size=CHUNK, token=token)
    numbered = await sequences(oracle, store)
    await oracle.delete_message(store.stream, numbered[2])
    await oracle.publish(f"$O.{store.bucket}.C.{json.loads(token)['nuid']}", b"of another program")
    await is_stored(store, oracle, await store.put("a", DATA, resume=token))


class HeldUpload(NamedTuple):
    """An upload of another process, none of whose chunks has reached the server yet."""

    token: str
    chunks: HoldRule
    ended: asyncio.Task[Any]


@pytest.fixture
async def other_process(store: Any, proxy: Any, connect: Any) -> HeldUpload:
    slow = await proxy()
    other = await (await connect(slow)).object_store(store.bucket)
    token = store.upload_token("a", chunk_size=CHUNK)
    held = slow.hold_frames(published(f"$O.{store.bucket}.C.>"))
    ended = asyncio.create_task(other.put("a", DATA, resume=token))
    await eventually(lambda: held.count == COUNT, what="all chunks are held")
    return HeldUpload(token, held, ended)


@pytest.mark.covers("O46")
async def test_other_process_goes_on(store: Any, oracle: Any, other_process: HeldUpload) -> None:
    """Two processes that resume one upload do not make an object of the chunks of both."""
    token, held, first = other_process

    async def source() -> AsyncIterator[bytes]:
        yield DATA[:CHUNK]
        held.release()
        await eventually(first.done, what="the end of the other upload")
        yield DATA[CHUNK:]

    with pytest.raises((PublishError, ObjectChangedError)):
        await store.put("a", source(), resume=token)
    with suppress(PublishError):  # it may have all its chunks, and then it is the one that stores the object
        await first
    await is_stored(store, oracle, await store.put("a", DATA, resume=token))


@pytest.mark.covers("O46")
async def test_late_process_leaves_nothing(store: Any, oracle: Any, other_process: HeldUpload) -> None:
    """A process that stores its chunks after another one has completed the object removes them."""
    token, held, first = other_process

    async def source() -> AsyncIterator[bytes]:
        held.release()
        await eventually(first.done, what="the end of the other upload")
        yield DATA

    with pytest.raises(PublishError):
        await store.put("a", source(), resume=token)
    await is_stored(store, oracle, await first)
    await oracle.publish(f"$O.{store.bucket}.C.{json.loads(token)['nuid']}", b"of a process that was killed")
    await is_stored(store, oracle, await store.put("a", DATA, resume=token))


@pytest.mark.covers("O46")
async def test_renamed_meanwhile(store: Any, oracle: Any) -> None:
    """An object that was stored and renamed does not share its chunks with a second one."""
    token = store.upload_token("a", chunk_size=CHUNK)
    await store.put("a", DATA, resume=token)
    await store.rename("a", "b")
    with pytest.raises(ObjectExistsError) as caught:
        await store.put("a", DATA, resume=token)
    assert caught.value.name == "b"
    assert is_same(await store.get("b"), DATA)


@pytest.mark.covers("O46")
async def test_content_of_a_stored_object(store: Any) -> None:
    info = await store.put("a", DATA)
    for size in (1, CHUNK, len(DATA), len(DATA) + 1):
        await check_equal(info, [DATA[:5], DATA[5:]], size)
        for content in (DATA[:-1], DATA + b"1", b""):
            with pytest.raises(SourceChangedError):
                await check_equal(info, content, size)


@pytest.mark.covers("O28", "O46")
async def test_condition_and_replacement(store: Any, oracle: Any, chunks: Any) -> None:
    old = await store.put("a", b"old")
    token = store.upload_token("a", chunk_size=CHUNK)
    with pytest.raises(ZeroDivisionError):
        await store.put("a", broken(DATA[: 2 * CHUNK]), resume=token)
    assert await store.get("a") == b"old"
    with pytest.raises(ObjectChangedError):
        await store.put("a", DATA, resume=token, if_match=old.revision + 1)
    await is_stored(store, oracle, await store.put("a", DATA, resume=token, if_match=old.revision))


@pytest.mark.covers("O46")
async def test_tokens_that_are_refused(store: Any, oracle: Any) -> None:
    token = store.upload_token("a")
    fields = json.loads(token)
    for bad in ("", "text", 5, b"", token[:-1], "{}", json.dumps(fields | {"nuid": "a.>"}),
                json.dumps(fields | {"nuid": ""}), json.dumps(fields | {"chunk_size": 0}),
                json.dumps(fields | {"bucket": "other"}), json.dumps(fields | {"chunk_size": 2**30})):  # fmt: skip
        with pytest.raises(ConfigError):
            await store.put("a", DATA, resume=bad)
    with pytest.raises(ConfigError, match="'a'"):
        await store.put("b", DATA, resume=token)
    with pytest.raises(ConfigError, match="chunk_size"):
        await store.put("a", DATA, resume=token, chunk_size=CHUNK)
    with pytest.raises(InvalidNameError):
        store.upload_token("")
    with pytest.raises(ConfigError):
        store.upload_token("a", chunk_size=2**30)
    assert (await oracle.state(store.stream))["last_seq"] == 0


@pytest.mark.covers("O46")
async def test_nats_py_reads_it(own_server: Any, connect: Any) -> None:
    server = await own_server(ack_v2=False)
    store = await (await connect(server)).create_object_store("blobs")
    token = store.upload_token("a", chunk_size=CHUNK)
    with pytest.raises(ZeroDivisionError):
        await store.put("a", broken(DATA[: 2 * CHUNK]), resume=token)
    await store.put("a", DATA, resume=token)
    async with client(server) as nc:
        theirs = await nc.jetstream().object_store("blobs")
        assert is_same((await theirs.get("a")).data, DATA)
