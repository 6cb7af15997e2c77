"""Objects are stored and read as ADR-20 says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from integration.buckets.kit import digest, info_subject, names_of
from integration.kit.judge.waiting import eventually
from jsclient import (
    BucketSealedError,
    ConfigError,
    InvalidNameError,
    ObjectChangedError,
    ObjectInfo,
    ObjectInfoError,
    ObjectNotFoundError,
)

NAMES = [
    "a",
    "naïve/ü name+?.bin",
    "x" * 200,
    ".hidden",
    "a\nb",
    "*",
    "a.>",
    " ",
    "日本語",
    "cafe\u0301",
    "café",
]


@pytest.mark.covers("O3")
@pytest.mark.parametrize("text", NAMES)
async def test_names(store: Any, oracle: Any, text: str) -> None:
    info = await store.put(text, text.encode())
    assert (info.name, (await store.info(text)).name) == (text, text)
    assert await store.get(text) == text.encode()
    assert await names_of(store) == [text]
    subjects = [message.subject for message in await oracle.messages(store.stream)]
    assert info_subject(store.bucket, text) in subjects


@pytest.mark.covers("O3")
async def test_names_are_not_normalised(store: Any) -> None:
    await store.put("café", b"one")
    await store.put("cafe\u0301", b"two")
    assert await store.get("café") == b"one"
    assert len(await names_of(store)) == 2


@pytest.mark.covers("O3", "O4")
@pytest.mark.parametrize("bad", ["", None, 1, b"a", "\ud800", "x" * 4000], ids=repr)
async def test_bad_names(store: Any, oracle: Any, bad: Any) -> None:
    calls = [
        store.put(bad, b""),
        store.get(bad),
        store.info(bad),
        store.delete(bad),
        store.update_info(bad),
        store.rename(bad, "a"),
        store.add_link(bad, ObjectInfo(bucket=store.bucket, name="a")),
        store.add_bucket_link(bad, "other"),
    ]
    for call in calls:
        with pytest.raises(InvalidNameError, match="object"):
            await call
    with pytest.raises(InvalidNameError):
        store.watch(bad)
    await store.put("b", b"")
    with pytest.raises(InvalidNameError, match="object"):
        await store.rename("b", bad)
    assert (await oracle.state(store.stream))["messages"] == 1


@pytest.mark.covers("O5", "O6", "O7", "O8", "O9")
async def test_messages_of_object(store: Any, oracle: Any) -> None:
    """The chunks, and then the description, with the fields that all clients read."""
    data = bytes(range(256)) * 1200  # two chunks and a part of one
    info = await store.put(
        "a", data, description="text", headers={"h": ["1", "2"], "i": "3"}, metadata={"m": "n"}
    )
    messages = await oracle.messages(store.stream)
    assert [len(message.payload) for message in messages[:-1]] == [131_072, 131_072, len(data) - 262_144]
    assert {message.subject for message in messages[:-1]} == {f"$O.{store.bucket}.C.{info.nuid}"}
    assert b"Nats-Rollup: sub" in messages[-1].headers
    assert json.loads(messages[-1].payload) == {
        "name": "a",
        "description": "text",
        "headers": {"h": ["1", "2"], "i": ["3"]},
        "metadata": {"m": "n"},
        "options": {"max_chunk_size": 131_072},
        "bucket": store.bucket,
        "nuid": info.nuid,
        "size": len(data),
        "chunks": 3,
        "digest": digest(data),
    }
    assert len(info.nuid) == 22
    assert info.nuid.isalnum()
    assert info.nuid.isascii()
    assert (await store.put("a", data)).nuid != info.nuid


@pytest.mark.covers("O9", "O33", "O42")
async def test_info(store: Any, oracle: Any) -> None:
    put = await store.put("a", b"hello", metadata={"m": "n"})
    info = await store.info("a")
    assert (info.size, info.chunks, info.digest, info.metadata) == (5, 1, digest(b"hello"), {"m": "n"})
    assert info.revision == put.revision == (await oracle.state(store.stream))["last_seq"]
    stored = await oracle.message(store.stream, info.revision)
    assert abs(info.modified.timestamp() - put.modified.timestamp()) < 60
    assert json.loads(stored.payload).get("mtime") is None
    with pytest.raises(ObjectNotFoundError) as caught:
        await store.info("b")
    assert caught.value.deleted is None


@pytest.mark.covers("O11", "O12")
@pytest.mark.parametrize("size", [0, 1, 131_071, 131_072, 131_073, 16 * 131_072, 16 * 131_072 + 1])
async def test_sizes(store: Any, oracle: Any, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    info = await store.put("a", data)
    assert (info.size, info.chunks, info.digest) == (size, -(-size // 131_072), digest(data))
    assert (await oracle.state(store.stream))["messages"] == info.chunks + 1
    assert await store.get("a") == data
    assert await oracle.consumer_names(store.stream) == []


@pytest.mark.covers("O12")
async def test_empty_object_needs_no_consumer(store: Any, proxy: Any, connect: Any) -> None:
    await store.put("a", b"")
    tap = await proxy()
    other = await (await connect(tap)).object_store(store.bucket)
    since = len(tap.frames)
    async with other.open("a") as file:
        assert [piece async for piece in file] == []
        assert await file.read() == b""
    assert [frame.subject for frame in tap.sent("$JS.>", since)] == [f"$JS.API.STREAM.MSG.GET.{store.stream}"]
    assert (await store.info("a")).digest == "SHA-256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU="


@pytest.mark.covers("O10")
@pytest.mark.parametrize(
    "changes",
    [
        {"mtime": ""},
        {"mtime": "0001-01-01T00:00:00Z", "revision": 7, "more": {"x": 1}},
        {"mtime": None, "headers": None, "metadata": None, "options": None, "description": None},
        {"headers": {"h": "text"}},
        {"size": None},
        {"digest": None},
        {"chunks": None, "size": None},
    ],
    ids=str,
)
async def test_infos_of_other_clients(store: Any, oracle: Any, changes: Any) -> None:
    data = bytes(200_000)
    await store.put("a", data, headers={"h": "text"})
    subject = info_subject(store.bucket, "a")
    raw = json.loads((await oracle.messages(store.stream))[-1].payload)
    changed = {key: value for key, value in {**raw, **changes}.items() if value is not None}
    changed |= {key: None for key, value in changes.items() if key in {"headers", "mtime"} and value is None}
    await oracle.publish(subject, json.dumps(changed).encode(), {"Nats-Rollup": "sub"})
    assert await store.get("a") == data
    info = await store.info("a")
    assert info.headers == ({"h": ["text"]} if changed.get("headers") else {})
    assert [one.name async for one in store.list()] == ["a"]


@pytest.mark.covers("O30")
async def test_unknown_fields_survive_change(store: Any, oracle: Any) -> None:
    info = await store.put("a", b"1")
    raw = json.loads((await oracle.messages(store.stream))[-1].payload)
    body = json.dumps({**raw, "colour": "red"}).encode()
    await oracle.publish(info_subject(store.bucket, "a"), body, {"Nats-Rollup": "sub"})
    await store.update_info("a", description="new")
    raw = json.loads((await oracle.messages(store.stream))[-1].payload)
    assert (raw["colour"], raw["description"], raw["nuid"]) == ("red", "new", info.nuid)


@pytest.mark.covers("O15")
async def test_missing_and_odd_objects(store: Any, oracle: Any) -> None:
    with pytest.raises(ObjectNotFoundError, match="has no object 'a'"):
        await store.get("a")
    info = await store.put("a", b"1")
    await store.delete("a")
    with pytest.raises(ObjectNotFoundError, match="deleted at revision") as caught:
        await store.get("a")
    assert caught.value.deleted.is_deleted
    assert (await store.info("a", deleted=True)).revision > info.revision
    for body in (b"{", b"[]", b"\xff", json.dumps({"name": "b", "size": 3, "chunks": 1}).encode()):
        await oracle.publish(info_subject(store.bucket, "b"), body)
        with pytest.raises(ObjectInfoError, match="'b'"):
            await store.get("b")


@pytest.mark.covers("O10", "O15")
async def test_odd_description_is_replaced(store: Any, oracle: Any) -> None:
    """It can be overwritten and deleted. Otherwise no one could use the name any more."""
    for change in (store.put("a", b"1"), store.delete("a")):
        await oracle.publish(info_subject(store.bucket, "a"), b"{")
        for call in (
            store.info("a"),
            store.update_info("a"),
            store.rename("a", "b"),
            store.add_link("a", "x"),
        ):
            with pytest.raises((ObjectInfoError, ObjectNotFoundError)):
                await call
        await change
    assert (await store.info("a", deleted=True)).is_deleted


@pytest.mark.covers("O29")
async def test_delete(store: Any, oracle: Any, chunks: Any) -> None:
    await store.put("a", bytes(300_000))
    await store.put("b", bytes(10))
    await store.delete("a")
    assert list((await chunks()).values()) == [1]
    message = (await oracle.messages(store.stream))[-1]
    raw = json.loads(message.payload)
    assert (raw["deleted"], raw["size"], raw["chunks"], raw["digest"]) == (True, 0, 0, "")
    assert b"Nats-Rollup: sub" in message.headers
    state = await oracle.state(store.stream)
    await store.delete("a")
    assert (await oracle.state(store.stream))["last_seq"] == state["last_seq"]
    with pytest.raises(ObjectNotFoundError):
        await store.delete("c")
    await store.put("a", b"again")
    assert await store.get("a") == b"again"


@pytest.mark.covers("O30")
async def test_update_info(store: Any, chunks: Any) -> None:
    put = await store.put("a", b"1", metadata={"m": "n"}, description="old")
    info = await store.update_info("a", description="new", headers={"h": "1"})
    assert info == await store.info("a") or info.revision == (await store.info("a")).revision
    assert (info.description, info.headers, info.metadata) == ("new", {"h": ["1"]}, {"m": "n"})
    assert (info.nuid, info.digest) == (put.nuid, put.digest)
    assert await store.get("a") == b"1"
    with pytest.raises(ConfigError):
        await store.update_info("a", metadata={"m": 1})
    await store.delete("a")
    with pytest.raises(ObjectNotFoundError):
        await store.update_info("a", description="x")


@pytest.mark.covers("O34", "O42")
async def test_list(store: Any, oracle: Any, proxy: Any, connect: Any) -> None:
    assert [info async for info in store.list()] == []
    for name in ("a/1", "a/2", "b"):
        await store.put(name, b"")
    await store.add_link("l", "b")
    await store.delete("a/2")
    assert await names_of(store) == ["a/1", "b", "l"]
    assert await names_of(store, "a/") == ["a/1"]
    assert [info.name async for info in store.list(deleted=True)] == ["a/1", "b", "l", "a/2"]
    tap = await proxy()
    other = await (await connect(tap)).object_store(store.bucket)
    since = len(tap.frames)
    await other.info("b")
    assert len(tap.sent("$JS.>", since)) == 1


@pytest.mark.covers("O42")
async def test_list_of_thousand(store: Any, oracle: Any) -> None:
    names = [f"n{number}" for number in range(1000)]
    bodies = [
        {"name": name, "bucket": store.bucket, "nuid": "x", "size": 0, "chunks": 0, "digest": ""}
        for name in names
    ]
    for body in bodies:
        await oracle.publish(info_subject(store.bucket, body["name"]), json.dumps(body).encode())
    assert await names_of(store) == names


@pytest.mark.covers("O36")
async def test_seal(js: Any, store: Any, oracle: Any) -> None:
    await store.put("a", bytes(200_000), metadata={"m": "n"})
    before = (await oracle.stream_info(store.stream))["config"]
    await store.seal()
    after = (await oracle.stream_info(store.stream))["config"]
    changed = {field for field in {*before, *after} if before.get(field) != after.get(field)}
    assert changed <= {"sealed", "deny_delete", "deny_purge", "allow_rollup_hdrs", "metadata"}
    assert (await store.status()).is_sealed
    for write in (
        store.put("b", b"1"),
        store.put("a", b""),
        store.delete("a"),
        store.update_info("a", description="x"),
        store.rename("a", "b"),
        store.add_link("l", "a"),
    ):
        with pytest.raises(BucketSealedError):
            await write
    assert await store.get("a") == bytes(200_000)
    assert await names_of(store) == ["a"]
    async with store.watch() as watch:
        assert (await watch.next()).name == "a"


@pytest.mark.covers("O38")
async def test_expired(js: Any, name: str) -> None:
    store = await js.create_object_store(name, storage="memory", ttl=0.5)
    await store.put("a", bytes(200_000))

    async def gone() -> bool:
        try:
            await store.get("a")
        except (ObjectNotFoundError, ObjectChangedError):  # it may expire while it is read
            return True
        return False

    await eventually(gone)
    assert await names_of(store) == []
    assert (await store.put("a", b"again")).size == 5


async def test_requests_of_a_small_object(store: Any, proxy: Any, connect: Any) -> None:
    """A request to look, a chunk, a description, and a purge if an object is replaced."""
    tap = await proxy()
    other = await (await connect(tap)).object_store(store.bucket)
    for expected in (["GET", "C", "M"], ["GET", "C", "M", "PURGE"]):
        since = len(tap.frames)
        await other.put("a", b"1")
        sent = [frame.subject.split(".") for frame in [*tap.sent("$JS.>", since), *tap.sent("$O.>", since)]]
        assert sorted(tokens[-2] for tokens in sent) == sorted(expected)


async def test_connection_of_nats_py(natspy_js: Any, name: str, chunks: Any) -> None:
    """Its writes may wait. Writes of a connection of jsclient do not wait."""
    store = await natspy_js.create_object_store(name, storage="memory")
    data = bytes(range(256)) * 20_000
    for _ in range(2):
        info = await store.put("a", data)
        assert digest(await store.get("a")) == info.digest == digest(data)
        assert await chunks() == {info.nuid: info.chunks}
    async with store.watch() as watch:
        assert (await watch.next()).name == "a"
