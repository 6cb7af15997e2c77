"""An object is read from any position, as its content has it."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import pytest

from integration.buckets.kit import digest, info_subject, is_same
from jsclient import ConfigError, DigestMismatchError, ObjectChangedError, ObjectIncompleteError
from jsclient.buckets.objects.ranges import ObjectRanges

CHUNK = 10_000
DATA = random.Random(1).randbytes(40 * CHUNK + 5)


async def store_mixed(store: Any, name: str) -> None:
    """Store the content so that other messages are between its chunks."""

    async def pieces() -> Any:
        for start in range(0, len(DATA), CHUNK):
            yield DATA[start : start + CHUNK]
            if start % (3 * CHUNK) == 0:
                await store.put(f"between-{start}", b"1")

    await store.put(name, pieces(), chunk_size=CHUNK)


@pytest.fixture(params=["regular", "mixed"])
async def filled(request: pytest.FixtureRequest, store: Any) -> Any:
    """A bucket with the object "a", whose chunks follow each other, or have other messages between them."""
    if request.param == "regular":
        await store.put("a", DATA, chunk_size=CHUNK)
    else:
        await store_mixed(store, "a")
    return store


async def read_exactly(file: Any, size: int) -> bytes:
    parts = []
    while size and (part := await file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@pytest.mark.core_cases(1)
@pytest.mark.covers("O16", "O43")
async def test_random_ranges(filled: Any) -> None:
    chance = random.Random(2)
    async with filled.open("a") as file:
        for _ in range(200):
            start, size = chance.randrange(len(DATA) + 10), chance.choice([1, 100, CHUNK, 3 * CHUNK + 1])
            assert file.seek(start) == file.tell() == start
            assert is_same(await read_exactly(file, size), DATA[start : start + size])
            assert file.tell() == max(start, min(start + size, len(DATA)))


@pytest.mark.covers("O43")
async def test_rest_from_a_position(filled: Any, oracle: Any) -> None:
    async with filled.open("a") as file:
        await file.read(5)
        assert file.seek(-3 * CHUNK, io.SEEK_END) == len(DATA) - 3 * CHUNK
        assert is_same(await file.read(), DATA[-3 * CHUNK :])
        assert await file.read(1) == b""
        assert file.seek(7) == 7
        assert is_same(b"".join([piece async for piece in file]), DATA[7:])
        assert file.seek(0) == 0
        assert is_same(await file.read(), DATA)
        assert await oracle.consumer_names(filled.stream) == []


@pytest.mark.covers("O17", "O43")
async def test_skip_within_a_chunk_keeps_the_digest(store: Any, oracle: Any) -> None:
    """The digest is checked as long as all chunks are read in order."""
    await store.put("a", DATA, chunk_size=CHUNK)
    async with store.open("a") as file:
        assert await file.read(10) == DATA[:10]
        assert file.seek(20, io.SEEK_CUR) == 30
        assert await file.read(10) == DATA[30:40]
        assert file._ranges is None  # an `ObjectRanges` would not check it
        assert is_same(await file.read(), DATA[40:])


@pytest.mark.covers("O43")
async def test_chunks_of_other_sizes(store: Any, oracle: Any) -> None:
    parts = [DATA[:10], DATA[10:30_000], DATA[30_000:30_001]]
    info = await store.put("a", b"".join(parts))
    await oracle.purge(store.stream, filter=f"$O.{store.bucket}.C.>")
    for part in parts:
        await oracle.publish(f"$O.{store.bucket}.C.{info.nuid}", part)
    async with store.open("a") as file:
        for start in (30_000, 0, 5, 10, 29_999):
            file.seek(start)
            assert is_same(await file.read(), DATA[start:30_001])


@pytest.mark.covers("O18", "O43")
@pytest.mark.parametrize("which", [0, 3, -1])
async def test_missing_chunk(filled: Any, oracle: Any, which: int) -> None:
    """What is not there is an error, and never the content of another position."""
    info = await filled.info("a")
    subject = f"$O.{filled.bucket}.C.{info.nuid}"
    chunks = [one for one in await oracle.messages(filled.stream) if one.subject == subject]
    await oracle.delete_message(filled.stream, chunks[which].seq)
    async with filled.open("a") as file:
        file.seek(range(0, len(DATA), CHUNK)[which] + 1)
        with pytest.raises(ObjectIncompleteError):
            await file.read(1)


@pytest.mark.covers("O19", "O43")
@pytest.mark.parametrize("opened", [False, True])
async def test_replaced_meanwhile(filled: Any, opened: bool) -> None:
    async with filled.open("a") as file:
        if opened:
            file.seek(2 * CHUNK)
            await file.read(1)
        await filled.put("a", b"new")
        file.seek(20 * CHUNK)
        with pytest.raises(ObjectChangedError):
            await file.read(1)


@pytest.mark.covers("O43")
async def test_positions_that_are_refused(store: Any, oracle: Any) -> None:
    await store.put("a", DATA)
    with pytest.raises(ConfigError, match="not open"):
        store.open("a").seek(1)
    async with store.open("a") as file:
        for arguments in ((-1,), (-1, io.SEEK_CUR), (0, 3), ("1",), (-len(DATA) - 1, io.SEEK_END)):
            with pytest.raises(ConfigError):
                file.seek(*arguments)
        assert file.tell() == 0
    body = b'{"name": "b", "nuid": "x", "digest": "%s"}' % digest(b"").encode()
    await oracle.publish(info_subject(store.bucket, "b"), body)
    async with store.open("b") as file:
        with pytest.raises(ConfigError, match="size is not known"):
            file.seek(1)


@pytest.mark.covers("O12", "O43")
async def test_empty_object(store: Any) -> None:
    await store.put("a", b"")
    async with store.open("a") as file:
        assert file.seek(5) == 5
        assert await file.read() == b""


async def test_piece_ends_with_its_chunk(filled: Any) -> None:
    ranges = ObjectRanges(filled._context, filled._site, await filled.info("a"))
    for position in (CHUNK - 1, CHUNK, 5, 39 * CHUNK + 1, 40 * CHUNK + 4):
        end = (position // CHUNK + 1) * CHUNK
        assert is_same(await ranges.read_piece(position), DATA[position:end])


@pytest.mark.covers("O43")
async def test_chunks_stored_again(js: Any, name: str, oracle: Any) -> None:
    """nats-server 2.10 passes over the last chunk, if chunks before it were removed."""
    store = await js.create_object_store(name, storage="memory")
    info = await store.put("a", DATA, chunk_size=CHUNK)
    subject = f"$O.{store.bucket}.C.{info.nuid}"
    chunks = [one for one in await oracle.messages(store.stream) if one.subject == subject]
    for chunk in chunks[-2:]:
        await oracle.delete_message(store.stream, chunk.seq)
        await oracle.publish(f"$O.{store.bucket}.C.other", b"between")
    for chunk in chunks[-2:]:
        await oracle.publish(subject, chunk.payload)
    await store.update_info("a", description="its revision is behind the chunks")
    async with store.open("a") as file:
        for start in (len(DATA) - 1, 5, 39 * CHUNK, 40 * CHUNK, 0):
            file.seek(start)
            assert is_same(await file.read(), DATA[start:])


@pytest.mark.core_cases(3)
@pytest.mark.covers("O17", "O43")
@pytest.mark.parametrize("way", ["from the start", "size first", "back and forth", "continued"])
async def test_digest_of_reads_in_order(filled: Any, oracle: Any, way: str) -> None:
    """The digest is checked after a seek, too, if the reads covered the whole content in order."""
    info = await filled.info("a")
    subject = f"$O.{filled.bucket}.C.{info.nuid}"
    chunk = next(one for one in await oracle.messages(filled.stream) if one.subject == subject)
    body = {
        "name": "a",
        "nuid": info.nuid,
        "size": info.size,
        "chunks": info.chunks,
        "digest": digest(b"other"),
    }
    body["options"] = {"max_chunk_size": CHUNK}
    await oracle.publish(info_subject(filled.bucket, "a"), json.dumps(body).encode())
    assert chunk.payload == DATA[:CHUNK]
    async with filled.open("a") as file:
        if way == "size first":
            file.seek(0, io.SEEK_END)
        elif way == "back and forth":
            await read_exactly(file, 3 * CHUNK + 5)
            file.seek(20 * CHUNK)
            await read_exactly(file, 10)
        elif way == "continued":
            await read_exactly(file, 2 * CHUNK)
            file.seek(30 * CHUNK + 7)
            await read_exactly(file, 2 * CHUNK)
            file.seek(2 * CHUNK)
        if way != "continued":
            file.seek(5 * CHUNK)
            file.seek(0)
        with pytest.raises(DigestMismatchError):
            await file.read()
    async with filled.open("a") as file:
        file.seek(CHUNK)
        assert is_same(await file.read(), DATA[CHUNK:]), "a part has no digest"
