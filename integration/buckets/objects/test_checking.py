"""A check of a bucket reports what cannot be read, and nothing else."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from integration.buckets.kit import digest, info_subject
from integration.buckets.uploads import upload_killed
from jsclient import (
    BucketNotFoundError,
    DigestMismatchError,
    LinkError,
    ObjectIncompleteError,
    ObjectInfoError,
    ObjectNotFoundError,
)
from jsclient.buckets import BrokenObject, ObjectStoreReport
from jsclient.buckets.objects.checking import check_objects

CHUNK = 10_000
DATA = random.Random(3).randbytes(5 * CHUNK + 7)


async def chunks_of(store: Any, oracle: Any, name: str) -> list[Any]:
    subject = f"$O.{store.bucket}.C.{(await store.info(name)).nuid}"
    return [one for one in await oracle.messages(store.stream) if one.subject == subject]


def errors_of(broken: list[BrokenObject]) -> dict[str, type[Exception]]:
    return {one.name: type(one.error) for one in broken}


@pytest.mark.covers("O44")
@pytest.mark.parametrize("digests", [False, True])
async def test_sound_bucket(js: Any, store: Any, oracle: Any, digests: bool) -> None:
    assert await store.check(digests=digests) == ObjectStoreReport(objects=0)
    await store.put("a", DATA, chunk_size=CHUNK)
    await store.put("empty", b"")
    await store.add_link("link", "a")
    await store.add_bucket_link("bucket", store)
    await store.put("gone", DATA)
    await store.delete("gone")
    await store.put("a", DATA[::-1], chunk_size=CHUNK)
    before = await oracle.state(store.stream)
    report = await store.check(digests=digests)
    assert report == ObjectStoreReport(objects=4)
    assert report.is_sound
    assert await oracle.state(store.stream) == before
    assert await oracle.consumer_names(store.stream) == []


@pytest.mark.covers("O44")
async def test_missing_and_changed_chunks(store: Any, oracle: Any) -> None:
    for name in ("sound", "first", "last", "all", "short", "twice", "other"):
        await store.put(name, DATA, chunk_size=CHUNK)
    for name, which in (("first", [0]), ("last", [-1]), ("all", range(6)), ("short", [5]), ("other", [5])):
        chunks = await chunks_of(store, oracle, name)
        for number in which:
            await oracle.delete_message(store.stream, chunks[number].seq)
    nuids = {name: (await store.info(name)).nuid for name in ("short", "twice", "other")}
    await oracle.publish(f"$O.{store.bucket}.C.{nuids['short']}", b"1")
    await oracle.publish(f"$O.{store.bucket}.C.{nuids['twice']}", b"1")
    await oracle.publish(f"$O.{store.bucket}.C.{nuids['other']}", b"1234567")  # the size is right
    report = await store.check()
    expected = dict.fromkeys(("first", "last", "all", "short", "twice"), ObjectIncompleteError)
    assert errors_of(report.broken) == expected
    assert [one.info.name for one in report.broken] == [one.name for one in report.broken]
    assert not report.is_sound
    assert report.objects == 7
    assert (report.orphans, report.broken_links) == ((), ())
    report = await check_objects(store._site, digests=True)
    assert errors_of(report.broken) == expected | {"other": DigestMismatchError}


@pytest.mark.covers("O44")
async def test_descriptions_that_are_not_valid(store: Any, oracle: Any) -> None:
    await oracle.publish(info_subject(store.bucket, "text"), b"text")
    await oracle.publish(info_subject(store.bucket, "bare"), b"{}")
    body = {"name": "sizeless", "nuid": "x", "digest": digest(DATA)}
    await oracle.publish(info_subject(store.bucket, "sizeless"), json.dumps(body).encode())
    report = await store.check()
    assert errors_of(report.broken) == {
        "text": ObjectInfoError,
        "bare": ObjectInfoError,
        "sizeless": ObjectIncompleteError,
    }
    await oracle.publish(f"$O.{store.bucket}.C.x", DATA)
    assert errors_of((await store.check()).broken).keys() == {"text", "bare"}


@pytest.mark.covers("O44")
async def test_links_to_nothing(js: Any, store: Any, oracle: Any) -> None:
    await store.put("a", DATA)
    await store.add_link("sound", "a")
    await store.put("b", DATA)
    for link, target in (("nothing", {"bucket": store.bucket, "name": "b"}),
                         ("no bucket", {"bucket": "absent", "name": "b"}),
                         ("absent", {"bucket": "absent"}),
                         ("no name of a bucket", {"bucket": "a.b"}),
                         ("circle", {"bucket": store.bucket, "name": "circle"})):  # fmt: skip
        body = {"name": link, "options": {"link": target}}
        await oracle.publish(info_subject(store.bucket, link), json.dumps(body).encode())
    await store.delete("b")
    report = await store.check()
    assert errors_of(report.broken_links) == {
        "nothing": ObjectNotFoundError,
        "no bucket": BucketNotFoundError,
        "absent": BucketNotFoundError,
        "no name of a bucket": LinkError,
        "circle": LinkError,
    }
    assert not report.is_sound
    assert report.broken == ()


@pytest.mark.covers("O44")
async def test_orphans(server: Any, store: Any, oracle: Any, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    await upload_killed(server, store.bucket, path, chunks=3, chunk_size=CHUNK)
    await store.put("b", DATA)
    (orphan,) = (await store.check()).orphans
    messages = [one for one in await oracle.messages(store.stream) if one.subject.endswith(orphan.nuid)]
    assert orphan.chunks == len(messages) >= 3
    assert (await store.check()).is_sound, "an object is not harmed by what belongs to none"
    stored = await (await store._site.stream_handle()).get_message(messages[-1].seq)
    assert (orphan.modified_ns, orphan.modified) == (stored.time_ns, stored.time)


@pytest.mark.covers("O44")
async def test_changes_meanwhile(server: Any, connect: Any, store: Any) -> None:
    """Objects that are replaced, stored and deleted during a check are not reported."""
    other = await (await connect(server)).object_store(store.bucket)
    checks = 0

    async def change() -> None:
        number = 0
        while checks < 8:
            number += 1
            await other.put(f"a{number % 5}", DATA, chunk_size=CHUNK)
            await other.put("b", b"%d" % number)
            if number % 3 == 0:
                await other.delete(f"a{number % 5}")

    changing = asyncio.create_task(change())
    while checks < 8 and not changing.done():
        report = await store.check(digests=checks % 2 == 0)
        assert (report.broken, report.broken_links) == ((), ())
        checks += 1
    await changing
    assert (await store.check()).orphans == ()


@pytest.mark.covers("O44")
async def test_bucket_is_deleted(js: Any, store: Any) -> None:
    await js.delete_object_store(store.bucket)
    with pytest.raises(BucketNotFoundError):
        await store.check()
