"""jsclient reads what the official Go client has written. The records of `go/record.py` are sent again."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from integration.buckets.kit import keys_of, names_of
from integration.kit.judge.oracle import Oracle
from jsclient import (
    BucketSealedError,
    KeyExistsError,
    KeyNotFoundError,
    LinkError,
    ObjectNotFoundError,
)

RECORDS = json.loads((Path(__file__).parent / "go" / "records.json").read_text(encoding="utf-8"))["records"]
STREAMS = ("KV_settings", "OBJ_files", "OBJ_sealed")
DATA = bytes(number % 251 for number in range(2007))

# The revisions that Go's operations had when they were recorded: a refused create takes none.
HISTORY = {
    "a": [(14, b"", "PURGE")],
    "deleted": [(5, b"1", "PUT"), (6, b"", "DEL")],
    "deleted.and.created": [(9, b"1", "PUT"), (10, b"", "DEL"), (11, b"2", "PUT")],
    "path/b=c_d-e": [(4, b"\x00\xff", "PUT")],
    "purged": [(8, b"", "PURGE")],
    "short": [(12, b"1", "PUT")],
}


class Buckets(NamedTuple):
    """The buckets of the records, as jsclient opens them."""

    settings: Any
    files: Any
    sealed: Any


@pytest.fixture
async def of_go(js: Any, oracle: Oracle) -> AsyncIterator[Buckets]:
    for record in RECORDS:
        data = base64.b64decode(record["data"])
        await oracle.nc.request(record["subject"], data, headers=record["headers"] or None, timeout=10)
    yield Buckets(
        await js.key_value("settings"), await js.object_store("files"), await js.object_store("sealed")
    )
    for stream in STREAMS:
        await oracle.delete_stream(stream, missing_ok=True)


@pytest.mark.server(">=2.11")
@pytest.mark.covers("I1", "I2", "I3", "I4", "I7")
async def test_values(of_go: Buckets) -> None:
    kv = of_go.settings
    history = {
        key: [(one.revision, one.value, one.operation) async for one in kv.history(key)] for key in HISTORY
    }
    # The create over a deletion was refused once, and sent again with the revision of the deletion.
    assert {key: [entry[1:] for entry in entries] for key, entries in history.items()} == {
        key: [entry[1:] for entry in entries] for key, entries in HISTORY.items()
    }
    values = {key: entry.value for key, entry in (await kv.get_many(">")).items()}
    assert values == {"deleted.and.created": b"2", "path/b=c_d-e": b"\x00\xff", "short": b"1"}
    assert sorted(await keys_of(kv)) == sorted(values)
    for key, operation in (("deleted", "DEL"), ("purged", "PURGE"), ("a", "PURGE")):
        with pytest.raises(KeyNotFoundError) as caught:
            await kv.get(key)
        assert caught.value.deleted.operation == operation
    async with kv.watch() as watch:
        seen = {entry.key: entry.operation for entry in [await watch.next() for _ in range(6)]}
        assert watch.is_current
    assert seen == {key: entries[-1][2] for key, entries in HISTORY.items()}
    status = await kv.status()
    assert (status.history, status.limit_marker_ttl, status.is_compressed) == (3, 3600, True)
    assert status.config.description == "text"


@pytest.mark.server(">=2.11")
@pytest.mark.covers("I2", "I6")
async def test_changes(of_go: Buckets) -> None:
    kv = of_go.settings
    for key in ("deleted", "purged", "a"):
        await kv.create(key, b"new")
        assert (await kv.get(key)).value == b"new"
    with pytest.raises(KeyExistsError):
        await kv.create("short", b"2")
    entry = await kv.get("short")
    assert await kv.update("short", b"2", entry.revision) > entry.revision
    await kv.purge_deletes(older_than=0)
    assert await kv.update_with("path/b=c_d-e", lambda value: value + b"!") > entry.revision


@pytest.mark.covers("I11", "I12", "I13", "I14", "I15", "I18")
async def test_objects(of_go: Buckets) -> None:
    store = of_go.files
    contents = {
        "empty": b"",
        "headers": b"1",
        "link": b"1",
        "naïve/ü name+?.bin": DATA,
        "new name": b"renamed",
        "replaced": b"new",
    }
    assert sorted(await names_of(store)) == sorted([*contents, "link to a bucket"])
    for name, content in contents.items():
        assert await store.get(name) == content
    info = await store.info("naïve/ü name+?.bin")
    assert (info.size, info.chunks, info.max_chunk_size, info.metadata) == (len(DATA), 3, 1000, {"a": "b"})
    info = await store.info("headers")
    assert (info.description, info.headers) == ("text", {"h": ["1"]})
    for name in ("deleted", "old name", "other"):
        with pytest.raises(ObjectNotFoundError):
            await store.get(name)
    with pytest.raises(LinkError):
        await store.get("link to a bucket")
    assert ((await store.info("link")).link.bucket, (await store.info("link")).link.name) == (
        "files",
        "headers",
    )
    report = await store.check()
    assert report.orphans == ()


@pytest.mark.covers("I13", "I15")
async def test_changes_of_objects(of_go: Buckets, oracle: Oracle) -> None:
    store = of_go.files
    await store.rename("naïve/ü name+?.bin", "b")
    assert await store.get("b") == DATA
    await store.put("headers", DATA, chunk_size=1000)
    assert await store.get("link") == DATA
    for name in await names_of(store):
        await store.delete(name)
    assert await names_of(store) == []
    assert not [one for one in await oracle.messages("OBJ_files") if ".C." in one.subject]


@pytest.mark.covers("I16")
async def test_sealed(of_go: Buckets) -> None:
    assert (await of_go.sealed.status()).is_sealed
    assert await of_go.sealed.get("a") == b"1"
    with pytest.raises(BucketSealedError):
        await of_go.sealed.put("b", b"1")
