"""An object is stored as a whole or not at all, whatever fails, and whoever else stores one of that name."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from integration.buckets.kit import digest, info_subject, is_same, names_of
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import of
from integration.kit.network.match import published
from jsclient import (
    ApiError,
    BucketFullError,
    ConfigError,
    ErrorRaised,
    HandlerFailed,
    MaxPayloadError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    RequestTimeoutError,
)

DATA = bytes(range(256)) * 2000  # four chunks, of which the last is smaller


class AsyncFile:
    """A file whose `read` is a coroutine function."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def apieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for piece in pieces(data, size):
        yield piece


@pytest.mark.core_cases(4)
@pytest.mark.covers("O7", "O13")
@pytest.mark.parametrize(
    "source",
    [
        lambda: DATA,
        lambda: bytearray(DATA),
        lambda: memoryview(DATA),
        lambda: memoryview(DATA + DATA[::-1])[: len(DATA)],
        lambda: io.BytesIO(DATA),
        lambda: AsyncFile(DATA),
        lambda: pieces(DATA, 1000),
        lambda: apieces(DATA, 131_072),
        lambda: apieces(DATA, 131_073),
        lambda: [DATA, b""],
        lambda: apieces(DATA, 300_001),
    ],
    ids=[
        "bytes",
        "bytearray",
        "view",
        "slice",
        "file",
        "async-file",
        "small",
        "equal",
        "larger",
        "list",
        "odd",
    ],
)
async def test_sources(store: Any, oracle: Any, source: Any) -> None:
    """Every chunk but the last has the same size, however the content comes."""
    info = await store.put("a", source())
    sizes = [len(message.payload) for message in await oracle.messages(store.stream)]
    assert sizes[:-1] == [131_072, 131_072, 131_072, len(DATA) - 3 * 131_072]
    assert (info.size, info.digest) == (len(DATA), digest(DATA))
    assert is_same(await store.get("a"), DATA)


@pytest.mark.covers("O13", "O14")
@pytest.mark.parametrize(
    "bad",
    ["text", io.StringIO("text"), 5, None, {}, [1], ["text"], [None]],
    ids=lambda bad: type(bad).__name__,
)
async def test_no_bytes(store: Any, oracle: Any, bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"bytes|encode|mode 'rb'"):
        await store.put("a", bad)
    with pytest.raises(TypeError):
        await store.put("a", b"", link="b")
    assert (await oracle.state(store.stream))["last_seq"] == 0


@pytest.mark.covers("O6", "O13")
@pytest.mark.parametrize(
    "options",
    [
        {"chunk_size": 0},
        {"chunk_size": 1024 * 1024},
        {"chunk_size": "1"},
        {"headers": {"a": 1}},
        {"headers": []},
        {"metadata": {"a": 1}},
        {"description": b"a"},
        {"size": -1},
        {"size": 5},
        {"timeout": 0},
        {"if_match": 0},
        {"if_match": 1, "if_none_match": True},
        {"progress": 5},
    ],
    ids=str,
)
async def test_bad_options(store: Any, oracle: Any, options: Any) -> None:
    with pytest.raises(ConfigError):
        await store.put("a", DATA, **options)
    assert (await oracle.state(store.stream))["last_seq"] == 0


@pytest.mark.covers("O6")
async def test_chunk_size(store: Any, own_server: Any, connect: Any, oracle_for: Any) -> None:
    assert (await store.put("a", DATA, chunk_size=1000)).chunks == 512
    assert is_same(await store.get("a"), DATA)
    assert (await store.put("a", DATA, chunk_size=512 * 1024)).chunks == 1
    assert is_same(await store.get("a"), DATA)
    own = await own_server(config={"max_payload": 64 * 1024})
    js = await connect(own)
    small = await js.create_object_store("blobs")
    info = await small.put("a", DATA)
    assert info.max_chunk_size < 64 * 1024, "chunks fit the server's limit"
    assert is_same(await small.get("a"), DATA)
    with pytest.raises(ConfigError, match="chunk_size"):
        await small.put("a", DATA, chunk_size=128 * 1024)
    with pytest.raises(MaxPayloadError):
        await small.put("b", b"", metadata={"m": "x" * 70_000})
    assert await names_of(small) == ["a"]


async def test_size_differs(store: Any, oracle: Any) -> None:
    with pytest.raises(ConfigError, match=r"size is 5, and the content has 512,000 bytes"):
        await store.put("a", io.BytesIO(DATA), size=5)
    assert (await oracle.state(store.stream))["messages"] == 0


@pytest.mark.covers("O13")
async def test_progress(store: Any, events: list[Any]) -> None:
    seen: list[tuple[int, int | None]] = []
    await store.put("a", DATA, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(DATA), len(DATA))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    seen.clear()
    await store.put("a", apieces(DATA, 1000), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(DATA), None)

    def raising(done: int, total: int | None) -> None:
        raise ZeroDivisionError

    await store.put("a", DATA, progress=raising)
    assert is_same(await store.get("a", progress=raising), DATA)
    assert isinstance(of(HandlerFailed, events)[0].error, ZeroDivisionError)


@pytest.mark.covers("O23", "O27")
async def test_overwrite(store: Any, chunks: Any) -> None:
    await store.put("a", DATA)
    await store.put("b", DATA)
    info = await store.put("a", b"new")
    assert await store.get("a") == b"new"
    assert (await chunks())[info.nuid] == 1
    assert len(await chunks()) == 2
    assert is_same(await store.get("b"), DATA)
    link = await store.add_link("l", "a")
    assert link.nuid not in await chunks()
    await store.put("l", b"now an object")
    assert len(await chunks()) == 3, "a link has no chunks to purge"


@pytest.mark.covers("O28")
async def test_conditions(store: Any, oracle: Any) -> None:
    first = await store.put("a", b"1", if_none_match=True)
    before = await oracle.state(store.stream)
    with pytest.raises(ObjectExistsError):
        await store.put("a", b"2", if_none_match=True)
    with pytest.raises(ObjectChangedError) as caught:
        await store.put("a", b"2", if_match=first.revision + 1)
    assert (caught.value.expected, caught.value.current) == (first.revision + 1, first.revision)
    assert await oracle.state(store.stream) == before
    second = await store.put("a", b"2", if_match=first.revision)
    with pytest.raises(ObjectChangedError):
        await store.put("a", b"3", if_match=first.revision)
    await store.delete("a")
    with pytest.raises(ObjectChangedError, match="gone"):
        await store.put("a", b"3", if_match=second.revision)
    await store.put("a", b"3", if_none_match=True)


@pytest.mark.covers("O27", "O28")
async def test_condition_is_checked_again_at_the_end(store: Any, chunks: Any) -> None:
    """Another object is stored while the content is sent."""
    first = await store.put("a", b"1")

    async def slow() -> AsyncIterator[bytes]:
        yield DATA
        await store.put("a", b"2")
        yield DATA

    with pytest.raises(ObjectChangedError):
        await store.put("a", slow(), if_match=first.revision)
    assert await store.get("a") == b"2"
    assert list((await chunks()).values()) == [1]
    await store.put("a", slow())
    assert is_same(await store.get("a"), DATA + DATA)
    assert list((await chunks()).values()) == [8]


@pytest.mark.covers("O27")
async def test_concurrent_puts_leave_no_orphans(store: Any, chunks: Any) -> None:
    contents = [bytes([number]) * 200_000 for number in range(4)]
    for _ in range(10):
        infos = await asyncio.gather(*(store.put("a", content) for content in contents))
        newest = max(infos, key=lambda info: info.revision)
        assert await chunks() == {newest.nuid: 2}
        assert digest(await store.get("a")) in map(digest, contents)
    await asyncio.gather(*(store.put("a", contents[0]) for _ in range(4)), store.put("b", b"1"))
    assert len(await chunks()) == 2


@pytest.mark.full
@pytest.mark.covers("O27")
@pytest.mark.limit(600)
async def test_concurrent_puts_200_rounds(server: Any, connect: Any, store: Any, chunks: Any) -> None:
    """Four connections store, rename and delete one name."""
    others = [await (await connect(server)).object_store(store.bucket) for _ in range(4)]
    random.seed(7)

    async def work(one: Any, content: bytes) -> None:
        try:
            chance = random.random()
            if chance < 0.6:
                await one.put("a", content)
            elif chance < 0.8:
                await one.rename(*random.sample(["a", "b"], 2))
            else:
                await one.delete("a")
        except (ObjectNotFoundError, ObjectExistsError, ObjectChangedError):
            pass

    for number in range(200):
        content = bytes([number]) * random.choice([0, 1000, 200_000])
        await asyncio.gather(*(work(one, content) for one in others))
        infos = [info async for info in store.list()]
        # The stream has the chunks of the stored objects only: the loser of each race has removed its chunks.
        assert await chunks() == {info.nuid: info.chunks for info in infos if info.chunks}
        for info in infos:
            assert len(await store.get(info.name)) == info.size


class BrokenError(Exception):
    pass


@pytest.mark.covers("O24")
async def test_source_fails(store: Any, chunks: Any, events: list[Any]) -> None:
    old = await store.put("a", b"old")

    async def breaking() -> AsyncIterator[bytes]:
        yield DATA
        raise BrokenError

    for source in (breaking(), [DATA, 5]):
        with pytest.raises((BrokenError, ConfigError)):
            await store.put("a", source)
        assert await chunks() == {old.nuid: 1}
        assert await store.get("a") == b"old"
    assert events == []


@pytest.mark.covers("O24")
async def test_cancelled(store: Any, chunks: Any, oracle: Any, events: list[Any]) -> None:
    """At any moment: nothing remains, or the whole object."""
    old = await store.put("a", b"old")
    stored = 0
    for turn in range(60):
        putting = asyncio.create_task(store.put("a", pieces(DATA, 100_000)))
        for _ in range(turn):
            await asyncio.sleep(0)
        putting.cancel()
        try:
            await putting
        except asyncio.CancelledError:
            info = await store.info("a")
            assert await chunks() == {info.nuid: info.chunks}
            stored += info.nuid != old.nuid
            old = info
    assert digest(await store.get("a")) in {digest(b"old"), digest(DATA)}
    assert events == []


@pytest.mark.covers("O24")
async def test_cancelled_while_source_waits(store: Any, chunks: Any) -> None:
    old = await store.put("a", b"old")
    sent = asyncio.Event()

    async def waiting() -> AsyncIterator[bytes]:
        yield DATA
        sent.set()
        await asyncio.Event().wait()

    putting = asyncio.create_task(store.put("a", waiting()))
    await sent.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await chunks() == {old.nuid: 1}
    assert await store.get("a") == b"old"


@pytest.mark.covers("O24", "O25")
async def test_bucket_full(js: Any, name: str, chunks: Any, events: list[Any]) -> None:
    store = await js.create_object_store(name, storage="memory", max_bytes=400_000)
    old = await store.put("a", b"old")
    with pytest.raises(BucketFullError, match="full") as caught:
        await store.put("a", DATA)
    assert isinstance(caught.value, ApiError)
    assert (caught.value.code, caught.value.err_code) == (503, 10077)
    assert await chunks() == {old.nuid: 1}
    assert await store.get("a") == b"old"
    assert events == []


@pytest.mark.covers("O29")
async def test_delete_from_full_bucket(js: Any, name: str, oracle: Any) -> None:
    """There is no room for the description of the deletion, until the chunks are gone."""
    store = await js.create_object_store(name, storage="memory")
    await store.put("a", bytes(100_000))
    size = (await oracle.state(store.stream))["bytes"]
    await js.update_object_store(name, storage="memory", max_bytes=size)
    with pytest.raises(BucketFullError):
        await store.put("b", b"1")
    await store.delete("a")
    assert await names_of(store) == []
    assert (await oracle.state(store.stream))["messages"] == 1


@pytest.mark.covers("O25")
async def test_message_size_of_stream(js: Any, name: str, chunks: Any) -> None:
    store = await js.create_object_store(name, storage="memory")
    await js.update_stream((await js.stream(store.stream)).config.replace(max_msg_size=1000))
    with pytest.raises(ApiError) as caught:
        await store.put("a", DATA)
    assert caught.value.err_code == 10054
    assert await chunks() == {}


@pytest.mark.covers("O26")
async def test_ack_of_chunk_lost(store: Any, proxy: Any, connect: Any, chunks: Any) -> None:
    """The chunk is sent again, with its id, and stored once."""
    slow = await proxy()
    other = await (await connect(slow, timeout=4)).object_store(store.bucket)
    sent = published(f"$O.{store.bucket}.C.>")
    replies: set[Any] = set()

    def of_second(frame: Any) -> bool:
        if sent(frame):
            replies.add(frame.reply)
        return frame.op == "MSG" and frame.subject in replies and len(replies) >= 2

    lost = slow.drop_frames(of_second, count=2)
    info = await other.put("a", DATA)
    assert lost.count == 2
    assert await chunks() == {info.nuid: 4}
    assert is_same(await store.get("a"), DATA)


@pytest.mark.core_cases(1)
@pytest.mark.covers("O26")
@pytest.mark.parametrize("which", [0, 1, 9])
async def test_chunk_lost(store: Any, proxy: Any, connect: Any, chunks: Any, oracle: Any, which: int) -> None:
    """It is sent again, when others are stored behind it. The order of the chunks is right anyway."""
    data = random.Random(which).randbytes(30 * 100_000)
    slow = await proxy()
    other = await (await connect(slow)).object_store(store.bucket)
    is_chunk = published(f"$O.{store.bucket}.C.>")
    number = -1

    def is_lost(frame: Any) -> bool:
        nonlocal number
        number += is_chunk(frame)
        return is_chunk(frame) and number in (which, which + 3)

    rule = slow.drop_frames(is_lost)
    info = await other.put("a", data, chunk_size=100_000)
    assert rule.count == 2
    assert await chunks() == {info.nuid: 30}
    assert digest(await store.get("a")) == digest(data)


@pytest.mark.core_cases(1)
@pytest.mark.covers("O26")
@pytest.mark.parametrize("arrives", [True, False])
async def test_answer_about_description_lost(
    store: Any, proxy: Any, connect: Any, chunks: Any, arrives: bool
) -> None:
    """It is asked for again. The object is stored once, and its chunks stay."""
    slow = await proxy()
    other = await (await connect(slow, timeout=10)).object_store(store.bucket)
    subject = info_subject(store.bucket, "a")
    replies: set[Any] = set()

    def answers(frame: Any) -> bool:
        if frame.op == "HPUB" and frame.subject == subject:
            replies.add(frame.reply)
        return frame.op == "MSG" and frame.subject in replies

    is_published = published(subject)
    rule = slow.drop_frames(answers if arrives else is_published, count=1)
    info = await other.put("a", DATA)
    assert rule.count == 1
    assert await chunks() == {info.nuid: 4}
    assert (await store.info("a")).revision == info.revision


@pytest.mark.covers("O24", "O26")
async def test_description_not_acked(store: Any, proxy: Any, connect: Any, chunks: Any) -> None:
    """Whether it is stored is unknown, so that the chunks stay."""
    slow = await proxy()
    other = await (await connect(slow, timeout=3)).object_store(store.bucket)
    slow.drop_frames(published(info_subject(store.bucket, "a")))
    with pytest.raises(RequestTimeoutError):
        await other.put("a", DATA)
    assert list((await chunks()).values()) == [4]


@pytest.mark.covers("O24", "O26")
async def test_connection_lost(own_server: Any, connect: Any, oracle_for: Any) -> None:
    """The server is killed while chunks are sent. They are sent again, and stored once."""
    own = await own_server()
    js = await connect(own, **FAST)
    store = await js.create_object_store("blobs")

    async def source() -> AsyncIterator[bytes]:
        for number in range(8):
            yield bytes([number]) * 100_000
            if number in (2, 5):
                await own.kill()
                await own.start()

    info = await store.put("a", source())
    content = b"".join(bytes([number]) * 100_000 for number in range(8))
    assert (info.size, info.digest) == (len(content), digest(content))
    assert is_same(await store.get("a"), content)
    judge = await oracle_for(own)
    assert (await judge.state("OBJ_blobs"))["messages"] == info.chunks + 1


@pytest.mark.covers("O24")
async def test_trouble_with_removal_is_told(store: Any, proxy: Any, connect: Any, events: list[Any]) -> None:
    """The cause is raised, and the failure of the removal is an event."""
    slow = await proxy()
    other = await (await connect(slow)).object_store(store.bucket)
    slow.modify_frames(
        published(f"$JS.API.STREAM.PURGE.{store.stream}"), lambda frame: frame.but(payload=b"{").raw
    )

    async def breaking() -> AsyncIterator[bytes]:
        yield DATA
        raise BrokenError

    with pytest.raises(BrokenError):
        await other.put("a", breaking())
    assert isinstance(of(ErrorRaised, events)[0].error, ApiError)


async def test_slow_source_holds_back(store: Any) -> None:
    """Memory is bounded: the source is not asked for more than the window."""
    asked = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal asked
        for _ in range(500):
            asked += 1
            yield bytes(131_072)

    acked: list[int] = []
    ahead = 0

    def progress(done: int, total: int | None) -> None:
        nonlocal ahead
        acked.append(done)
        ahead = max(ahead, asked * 131_072 - done)

    await store.put("a", endless(), progress=progress)
    assert acked[-1] == 500 * 131_072
    assert ahead < 20 * 1024 * 1024
