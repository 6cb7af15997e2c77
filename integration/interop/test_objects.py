"""Another client reads the objects that jsclient writes, and jsclient reads the objects of the other client."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.buckets.kit import digest, info_subject, is_same, names_of
from integration.interop.command_client import connected
from integration.interop.command_process import CommandError
from integration.interop.nats_py import nats_py
from integration.interop.other_client import OBJECT_CLIENTS, ClientNamed, Description, OtherClient
from integration.kit.servers.nats_server import NEWEST
from jsclient import BucketSealedError, DigestMismatchError, LinkError, ObjectInfo, ObjectNotFoundError

CHUNK = 131_072
DATA = random.Random(7).randbytes(10 * 1024 * 1024)
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 16 * CHUNK, 16 * CHUNK + 1, len(DATA)]
NAMES = ["n" * 200, ".hidden", "two\nlines", "a.b.>.*", "a/b c+?=%"]
NOT_ASCII = ["naïve/ü name+?.bin", "日本語 🎉", "e\u0301"]


@pytest.fixture(params=OBJECT_CLIENTS)
async def theirs(request: pytest.FixtureRequest, client_named: ClientNamed) -> AsyncIterator[OtherClient]:
    async with client_named(request.param) as client:
        yield client


@pytest.fixture(params=["ours", "theirs"])
async def store(request: pytest.FixtureRequest, js: Any, theirs: Any, name: str) -> Any:
    """A bucket, created by one of the two clients."""
    if request.param == "ours":
        return await js.create_object_store(name, storage="memory")
    await theirs.create_store(name, storage="memory")
    return await js.object_store(name)


def description_of(info: ObjectInfo) -> Description:
    return Description(
        info.name,
        info.size,
        info.chunks,
        info.digest,
        info.nuid,
        info.description,
        {name: list(values) for name, values in info.headers.items()},
        dict(info.metadata),
        info.is_deleted,
        () if info.link is None else tuple(filter(None, (info.link.bucket, info.link.name))),
    )


@pytest.mark.covers("I11", "O7", "O11")
@pytest.mark.parametrize("size", SIZES)
async def test_they_read_ours(store: Any, theirs: Any, name: str, size: int) -> None:
    info = await store.put("a", DATA[:size])
    assert (info.size, info.digest) == (size, digest(DATA[:size]))
    assert await theirs.describe(name, "a") == description_of(info)
    if size or theirs.name == "js":  # nats-py waits for chunks of an object that has none
        assert is_same(await theirs.get_object(name, "a"), DATA[:size])


@pytest.mark.covers("I11", "O7", "O11")
@pytest.mark.parametrize("size", SIZES)
async def test_we_read_theirs(store: Any, theirs: Any, name: str, size: int) -> None:
    await theirs.put_object(name, "a", DATA[:size])
    info = await store.info("a")
    assert (info.size, info.digest, info.chunks) == (size, digest(DATA[:size]), -(-size // CHUNK))
    assert await theirs.describe(name, "a") == description_of(info)
    assert is_same(await store.get("a"), DATA[:size])


@pytest.mark.covers("I12", "O3")
@pytest.mark.parametrize("object", NAMES)
async def test_names(store: Any, theirs: Any, name: str, object: str) -> None:
    await store.put(object, b"ours")
    assert await theirs.get_object(name, object) == b"ours"
    await theirs.put_object(name, object, b"theirs")
    assert await store.get(object) == b"theirs"
    assert await names_of(store) == await theirs.list_objects(name) == [object]


@pytest.mark.covers("I12", "O3")
@pytest.mark.parametrize("object", NOT_ASCII)
async def test_names_in_utf_8(js: Any, server: Any, name: str, object: str) -> None:
    store = await js.create_object_store(name)
    async with nats_py(server) as theirs:
        await store.put(object, b"ours")
        assert await theirs.get_object(name, object) == b"ours"
        await theirs.put_object(name, object, b"theirs")
        assert await store.get(object) == b"theirs"
        assert await names_of(store) == await theirs.list_objects(name) == [object]


@pytest.mark.covers("I12", "O34")
async def test_javascript_does_not_encode_names(js: Any, javascript: Any, name: str) -> None:
    """It takes each character for a byte: what is not ASCII has another subject, or none. Both list what they see."""
    store = await js.create_object_store(name)
    await store.put("naïve", b"1")
    assert await javascript.list_objects(name) == ["naïve"]
    assert await javascript.get_object(name, "naïve") is None
    await javascript.put_object(name, "naïve", b"2")
    assert await names_of(store) == ["naïve", "naïve"]
    assert await store.get("naïve") == b"1"
    with pytest.raises(CommandError, match="Invalid character"):
        await javascript.put_object(name, "日本語", b"1")


@pytest.mark.covers("I13", "O8", "O10")
async def test_texts(store: Any, theirs: Any, name: str) -> None:
    await store.put("a", b"1", description="text", headers={"h": "1"})
    read = await theirs.describe(name, "a")
    assert (read.description, read.headers) == ("text", {"h": ["1"]})
    await theirs.put_object(name, "a", b"1", description="their text", headers={"h": "2"})
    info = await store.info("a")
    assert (info.description, info.headers) == ("their text", {"h": ["2"]})


@pytest.mark.covers("I13", "O8")
async def test_metadata(js: Any, javascript: Any, name: str) -> None:
    store = await js.create_object_store(name)
    await store.put("a", b"1", metadata={"a": "b"})
    assert (await javascript.describe(name, "a")).metadata == {"a": "b"}
    await javascript.put_object(name, "a", b"1", metadata={"c": "d"})
    assert (await store.info("a")).metadata == {"c": "d"}


@pytest.mark.covers("I13", "O31")
async def test_they_read_what_we_renamed(store: Any, theirs: Any, name: str) -> None:
    await theirs.put_object(name, "old", DATA[: 3 * CHUNK])
    info = await store.rename("old", "new")
    assert await theirs.describe(name, "new") == description_of(info)
    assert is_same(await theirs.get_object(name, "new"), DATA[: 3 * CHUNK])
    assert await theirs.describe(name, "old") is None
    assert await theirs.list_objects(name) == ["new"]


@pytest.mark.covers("I13", "O10")
async def test_we_read_what_javascript_renamed(js: Any, javascript: Any, name: str) -> None:
    """It stores the new description without a rollup, and drops the size of the chunks."""
    store = await js.create_object_store(name)
    await store.put("old", DATA[: 3 * CHUNK], chunk_size=5000)
    await javascript.rename(name, "old", "new")
    assert await names_of(store) == ["new"]
    assert is_same(await store.get("new"), DATA[: 3 * CHUNK])
    with pytest.raises(ObjectNotFoundError):
        await store.info("old")


@pytest.mark.covers("I14", "O21", "O22")
async def test_links(js: Any, javascript: Any, name: str) -> None:
    store = await js.create_object_store(name)
    await store.put("a", b"1")
    await javascript.link(name, "theirs", name, "a")
    await store.add_link("ours", "a")
    assert await store.get("theirs") == await javascript.get_object(name, "ours") == b"1"
    assert (await store.info("theirs")).link == (await store.info("ours")).link
    assert (await javascript.describe(name, "ours")).link == (name, "a")
    assert (
        sorted(await names_of(store))
        == sorted(await javascript.list_objects(name))
        == ["a", "ours", "theirs"]
    )


@pytest.mark.covers("I14", "O21", "O22")
async def test_links_to_buckets(js: Any, javascript: Any, name: str) -> None:
    store = await js.create_object_store(name)
    await javascript.link_bucket(name, "theirs", name)
    await store.add_bucket_link("ours", name)
    assert (await store.info("theirs")).link == (await store.info("ours")).link
    assert (await javascript.describe(name, "ours")).link == (name,)
    with pytest.raises(LinkError):
        await store.get("theirs")


@pytest.mark.covers("I14", "O21")
async def test_nats_py_reads_our_link(js: Any, server: Any, name: str) -> None:
    store = await js.create_object_store(name)
    await store.put("a", b"1")
    await store.add_link("ours", "a")
    async with nats_py(server) as theirs:
        assert (await theirs.describe(name, "ours")).link == (name, "a")
        assert await theirs.get_object(name, "ours") == b"1"


@pytest.mark.covers("I15", "O23", "O29")
async def test_replace_and_delete(store: Any, theirs: Any, name: str, oracle: Any) -> None:
    async def chunks() -> int:
        return sum(".C." in message.subject for message in await oracle.messages(store.stream))

    for _ in range(2):
        await theirs.put_object(name, "a", DATA[: 2 * CHUNK])
        await store.put("a", DATA[: 3 * CHUNK])
        assert await chunks() == 3
    await theirs.delete_object(name, "a")
    with pytest.raises(ObjectNotFoundError):
        await store.get("a")
    await theirs.put_object(name, "a", b"1")
    await store.delete("a")
    assert await theirs.describe(name, "a") is None
    assert await chunks() == 0
    assert await names_of(store) == await theirs.list_objects(name) == []
    assert [info.name async for info in store.list(deleted=True)] == ["a"]


@pytest.mark.covers("I15", "O35")
async def test_watches(store: Any, theirs: Any, name: str) -> None:
    await store.put("a", b"1")
    watch = await theirs.watch_objects(name)
    assert (await watch.next()).name == "a"
    async with store.watch() as ours:
        assert (await ours.next()).name == "a"
        await theirs.put_object(name, "b", b"12")
        await store.delete("a")
        read = [description_of(await ours.next()) for _ in range(2)]
    assert [(one.name, one.size, one.deleted) for one in read] == [("b", 2, False), ("a", 0, True)]
    assert [await watch.next() for _ in read] == read
    await watch.stop()


@pytest.mark.covers("I16", "O36")
@pytest.mark.parametrize("who", ["ours", "theirs"])
async def test_seal(store: Any, theirs: Any, name: str, who: str) -> None:
    await store.put("a", b"1")
    await (store.seal() if who == "ours" else theirs.seal(name))
    assert (await store.status()).is_sealed
    assert (await theirs.store_status(name))["sealed"]
    with pytest.raises(BucketSealedError):
        await store.put("b", b"1")
    with pytest.raises(Exception, match="sealed"):
        await theirs.put_object(name, "b", b"1")
    assert await store.get("a") == await theirs.get_object(name, "a") == b"1"


@pytest.mark.covers("I17", "O17")
async def test_digest_differs(store: Any, theirs: Any, name: str, oracle: Any) -> None:
    await theirs.put_object(name, "a", b"12345")
    subject = info_subject(name, "a")
    (newest,) = (one for one in await oracle.messages(store.stream) if one.subject == subject)
    body = {**json.loads(newest.payload), "digest": digest(b"other")}
    await oracle.publish(subject, json.dumps(body).encode(), {"Nats-Rollup": "sub"})
    with pytest.raises(DigestMismatchError):
        await store.get("a")
    with pytest.raises(Exception, match=r"(?i)digest"):
        await theirs.get_object(name, "a")


@pytest.mark.covers("I18", "O6")
@pytest.mark.parametrize("chunk_size", [1024, 512 * 1024])
async def test_chunk_sizes(store: Any, theirs: Any, name: str, chunk_size: int) -> None:
    data = DATA[: 2 * chunk_size + 1]
    info = await store.put("a", data, chunk_size=chunk_size)
    assert is_same(await theirs.get_object(name, "a"), data)
    await theirs.put_object(name, "b", data, chunk_size=chunk_size)
    assert is_same(await store.get("b"), data)
    assert (await store.info("b")).chunks == info.chunks == 3


@pytest.mark.covers("I7", "O37")
async def test_options(js: Any, theirs: Any, name: str) -> None:
    await theirs.create_store(name, description="text", ttl=3600)
    status = await (await js.object_store(name)).status()
    assert (status.description, status.ttl, status.is_sealed) == ("text", 3600, False)
    assert await theirs.store_status(name) == {"description": "text", "ttl": 3600, "sealed": False}
    await js.delete_object_store(name)
    await js.create_object_store(name, description="other", ttl=60)
    assert await theirs.store_status(name) == {"description": "other", "ttl": 60, "sealed": False}


@pytest.mark.covers("I19")
async def test_second_form_of_ack_subjects(own_server: Any, connect: Any, node: Any, name: str) -> None:
    """JavaScript and jsclient read both forms. nats-py loses its connection."""
    own = await own_server(version=NEWEST, ack_v2=True)
    store = await (await connect(own)).create_object_store(name)
    async with connected("js", node, own.url) as theirs:
        await theirs.put_object(name, "a", DATA[: 2 * CHUNK])
        assert is_same(await store.get("a"), DATA[: 2 * CHUNK])
        assert is_same(await theirs.get_object(name, "a"), DATA[: 2 * CHUNK])


@pytest.mark.server(">=2.14")
@pytest.mark.covers("I18")
async def test_chunks_in_batches(js: Any, javascript: Any, name: str) -> None:
    """JavaScript can store the chunks with batched publishes, whose messages have further headers."""
    await javascript.create_store(name, allowBatched=True)
    data = DATA[: 20 * CHUNK + 5]
    await javascript.put_object(name, "a", data)
    store = await js.object_store(name)
    assert is_same(await store.get("a"), data)
    await store.put("b", data)
    assert is_same(await javascript.get_object(name, "b"), data)
