"""An object is read as it was stored, or an error says what is wrong. Nothing waits for ever."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from integration.buckets.kit import info_subject, is_same
from integration.kit.clients.readers import FAST
from integration.kit.judge.waiting import eventually
from jsclient import (
    ClosedError,
    ConfigError,
    DigestMismatchError,
    JetStreamError,
    ObjectChangedError,
    ObjectIncompleteError,
    ObjectNotFoundError,
)

CHUNK = 131_072
DATA = random.Random(1).randbytes(40 * CHUNK + 5)


async def forge(oracle: Any, store: Any, name: str, **changes: Any) -> None:
    """Change the description of an object, as no client does."""
    subject = info_subject(store.bucket, name)
    newest = [one for one in await oracle.messages(store.stream) if one.subject == subject][-1]
    body = json.dumps({**json.loads(newest.payload), **changes}).encode()
    await oracle.publish(subject, body, {"Nats-Rollup": "sub"})


async def until_error(file: Any) -> tuple[int, JetStreamError]:
    """Read to the error that ends it. Returns the bytes before it, and the error."""
    received = 0
    try:
        async with asyncio.timeout(60):
            async for piece in file:
                received += len(piece)
    except JetStreamError as error:
        return received, error
    raise AssertionError(f"no error after {received} bytes")


@pytest.mark.covers("O16")
async def test_pieces(store: Any) -> None:
    await store.put("a", DATA)
    async with store.open("a") as file:
        assert (file.info.name, file.info.size) == ("a", len(DATA))
        pieces = [piece async for piece in file]
    assert is_same(b"".join(pieces), DATA)
    assert len(pieces) == 41
    with pytest.raises(ClosedError):
        await file.next()


@pytest.mark.covers("O16")
async def test_read_sizes(store: Any) -> None:
    await store.put("a", DATA)
    random.seed(2)
    async with store.open("a") as file:
        parts = [await file.read(0), await file.read(5), await file.next()]
        while part := await file.read(random.choice([1, 1000, CHUNK, 3 * CHUNK])):
            parts.append(part)
        assert is_same(b"".join(parts), DATA)
        assert await file.read() == b""
    async with store.open("a") as file:
        assert is_same(await file.read(10) + await file.read(), DATA)
    with pytest.raises(ConfigError, match="async with"):
        await store.open("a").read(5)
    with pytest.raises(ConfigError, match="async with"):
        store.open("a").info  # noqa: B018  the access is the point


@pytest.mark.covers("O16", "O41")
async def test_reader_that_pauses_stops_the_server(store: Any, proxy: Any, connect: Any) -> None:
    """The number of chunks in flight is bounded, whatever the size of the object."""
    await store.put("a", bytes(256 * CHUNK))
    tap = await proxy()
    other = await (await connect(tap)).object_store(store.bucket)
    async with other.open("a") as file:
        await file.next()
        await asyncio.sleep(0.3)
        delivered = sum(len(frame.payload) for frame in tap.frames if frame.direction == "to_client")
        assert delivered < 12 * 1024 * 1024
        assert len(await file.read()) == 255 * CHUNK


@pytest.mark.covers("O17")
@pytest.mark.parametrize("size", [5, 3 * CHUNK, 3 * CHUNK + 5])
async def test_digest_differs(store: Any, oracle: Any, tmp_path: Any, size: int) -> None:
    """The last piece is not returned, and a file does not appear."""
    await store.put("a", DATA[:size])
    await forge(oracle, store, "a", digest="SHA-256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU=")
    with pytest.raises(DigestMismatchError, match="SHA-256="):
        await store.get("a")
    async with store.open("a") as file:
        received, error = await until_error(file)
        assert isinstance(error, DigestMismatchError)
        assert received < size
        with pytest.raises(DigestMismatchError):
            await file.read(1)
    with pytest.raises(DigestMismatchError):
        await store.get_file("a", tmp_path / "a")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.covers("O17")
@pytest.mark.parametrize("text", ["SHA-256=abc", "MD5=abc", "SHA-256=", "x"])
async def test_digest_is_odd(store: Any, oracle: Any, text: str) -> None:
    for name, data in (("a", DATA[:5]), ("empty", b"")):
        await store.put(name, data)
        await forge(oracle, store, name, digest=text)
        with pytest.raises(DigestMismatchError):
            await store.get(name)


@pytest.mark.core_cases(4)
@pytest.mark.covers("O18")
@pytest.mark.parametrize(
    "changes",
    [
        {"size": 3 * CHUNK + 6},
        {"size": 3 * CHUNK + 4},
        {"chunks": 5},
        {"chunks": 3},
        {"chunks": 1},
        {"chunks": 1, "size": 5},
        {"size": 0},
        {"nuid": "0123456789012345678901"},
        {"nuid": "0123456789012345678901", "chunks": 1, "size": 5},
        {"nuid": "0123456789012345678901", "chunks": 10**15, "size": 10**18},
    ],
    ids=str,
)
async def test_size_or_number_differs(store: Any, oracle: Any, changes: Any) -> None:
    await store.put("a", DATA[: 3 * CHUNK + 5])
    await forge(oracle, store, "a", **changes)
    with pytest.raises((ObjectIncompleteError, DigestMismatchError)) as caught:
        await asyncio.wait_for(store.get("a"), 30)
    if isinstance(caught.value, ObjectIncompleteError):
        assert caught.value.size == changes.get("size", 3 * CHUNK + 5)
        assert str(caught.value.received) in str(caught.value)


@pytest.mark.covers("O18")
@pytest.mark.parametrize("which", [0, 1, -1])
async def test_chunk_is_missing(store: Any, oracle: Any, which: int) -> None:
    await store.put("a", DATA)
    messages = [one for one in await oracle.messages(store.stream) if ".C." in one.subject]
    await oracle.delete_message(store.stream, messages[which].seq)
    with pytest.raises(ObjectIncompleteError) as caught:
        await asyncio.wait_for(store.get("a"), 30)
    assert caught.value.received == len(DATA) - len(messages[which].payload)


@pytest.mark.covers("O18")
async def test_chunk_stored_twice(store: Any, oracle: Any) -> None:
    await store.put("a", DATA[: 2 * CHUNK])
    first = (await oracle.messages(store.stream))[0]
    await oracle.publish(first.subject, first.payload)
    assert is_same(await store.get("a"), DATA[: 2 * CHUNK]), "what comes after the last chunk does not count"
    await forge(oracle, store, "a", chunks=3)
    with pytest.raises(ObjectIncompleteError):
        await store.get("a")


@pytest.mark.core_cases(2)
@pytest.mark.covers("O19")
@pytest.mark.parametrize("change", ["put", "delete", "bucket"])
@pytest.mark.parametrize("taken", [0, 1])
async def test_changed_while_read(js: Any, store: Any, change: str, taken: int) -> None:
    size = 200 * CHUNK  # more than the buffer of the reader
    info = await store.put("a", bytes(size))
    async with store.open("a") as file:
        taken_size = sum([len(await file.next()) for _ in range(taken)])
        if change == "put":
            await store.put("a", b"new")
        elif change == "delete":
            await store.delete("a")
        else:
            await js.delete_object_store(store.bucket)
        received, error = await until_error(file)
        assert taken_size + received < size
        if change != "bucket":
            assert isinstance(error, ObjectChangedError)
            assert error.expected == info.revision
            assert error.current > info.revision
        with pytest.raises(type(error)):
            await file.next()


@pytest.mark.covers("O19")
async def test_changed_while_read_all_buffered(store: Any) -> None:
    """What has arrived is the whole object: it is returned, since the digest is right."""
    await store.put("a", DATA)
    async with store.open("a") as file:
        first = await file.next()
        await eventually(lambda: file._consumer.pending == 40)
        await store.put("a", b"new")
        assert is_same(first + await file.read(), DATA)


@pytest.mark.covers("O19")
async def test_renamed_while_read(store: Any) -> None:
    """Its content is not touched."""
    await store.put("a", bytes(200 * CHUNK))
    async with store.open("a") as file:
        await file.next()
        await store.rename("a", "b")
        assert len(await file.read()) == 199 * CHUNK


@pytest.mark.covers("O20")
async def test_consumer_deleted(store: Any, oracle: Any) -> None:
    await store.put("a", DATA)
    async with store.open("a") as file:
        parts = []
        while part := await file.read(CHUNK):
            parts.append(part)
            if len(parts) in (1, 10):
                for name in await oracle.consumer_names(store.stream):
                    await oracle.delete_consumer(store.stream, name)
        assert is_same(b"".join(parts), DATA)


@pytest.mark.covers("O20")
@pytest.mark.limit(240)
async def test_server_killed(own_server: Any, connect: Any) -> None:
    """It reads on from the next chunk, and the digest covers all of them."""
    own = await own_server()
    js = await connect(own, **FAST)
    store = await js.create_object_store("blobs")
    size = 300 * CHUNK
    data = random.Random(3).randbytes(size)
    await store.put("a", data)
    received = bytearray()
    async with store.open("a") as file:
        async for piece in file:
            received += piece
            if len(received) in (CHUNK, 100 * CHUNK):
                await own.kill()
                await own.start()
    assert is_same(received, data)


@pytest.mark.full
@pytest.mark.covers("O20")
async def test_cancelled_next_loses_nothing(store: Any) -> None:
    await store.put("a", DATA)
    parts = []
    async with store.open("a") as file:
        while True:
            reading = asyncio.create_task(file.read(CHUNK))
            # Now and then, wait long enough to open the file, also on a slow machine.
            await asyncio.wait([reading], timeout=random.choice([0, 0, 0.001, 2]))
            reading.cancel()
            try:
                if not (part := await reading):
                    break
            except asyncio.CancelledError:
                continue
            parts.append(part)
    assert is_same(b"".join(parts), DATA)


@pytest.mark.covers("O20")
async def test_end_before_the_last_piece(store: Any, oracle: Any) -> None:
    """The consumer is deleted, and a part does not look like the whole."""
    await store.put("a", DATA)
    async with store.open("a") as file:
        async for _ in file:
            break
        assert len(await oracle.consumer_names(store.stream)) == 1
    with pytest.raises(ClosedError):
        async for _ in file:
            pass
    with pytest.raises(ClosedError):
        await file.read(5)

    async def gone() -> bool:
        return await oracle.consumer_names(store.stream) == []

    await eventually(gone)


async def test_connection_closed_while_read(store: Any, server: Any, connect: Any) -> None:
    js = await connect(server)
    await store.put("a", bytes(200 * CHUNK))
    async with (await js.object_store(store.bucket)).open("a") as file:
        await file.next()
        await js.close()
        with pytest.raises(ClosedError):
            await file.read()


@pytest.mark.covers("O10", "O12")
async def test_old_server_form_of_chunks(store: Any, oracle: Any) -> None:
    """Chunks of different sizes are read, although no client writes them now."""
    parts = [b"1" * 10, b"2" * 300_000, b"3"]
    info = await store.put("a", b"".join(parts))
    await oracle.purge(store.stream, filter=f"$O.{store.bucket}.C.>")
    for part in parts:
        await oracle.publish(f"$O.{store.bucket}.C.{info.nuid}", part)
    assert await store.get("a") == b"".join(parts)


@pytest.mark.full
@pytest.mark.covers("O41")
@pytest.mark.limit(900)
async def test_larger_than_memory(own_server: Any, connect: Any, tmp_path: Any) -> None:
    """Two gigabytes from an iterable and to a file, within 64 MiB over the memory before."""
    own = await own_server()
    store = await (await connect(own)).create_object_store("blobs")
    block = random.Random(4).randbytes(1024 * 1024)
    await store.put("small", block * 20)
    await store.get_file("small", tmp_path / "small")
    before = resident()
    highest = 0

    async def source() -> Any:
        for _ in range(2048):
            yield block

    def look(done: int, total: int | None) -> None:
        nonlocal highest
        if done % (64 * 1024 * 1024) == 0:
            highest = max(highest, resident())

    await store.put("a", source(), progress=look)
    await store.get_file("a", tmp_path / "a", progress=look)
    assert (tmp_path / "a").stat().st_size == 2048 * len(block)
    assert highest - before < 64 * 1024 * 1024


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_no_such_object(store: Any) -> None:
    with pytest.raises(ObjectNotFoundError):
        async with store.open("a"):
            pass
