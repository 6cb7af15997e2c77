"""Faults of the stream that a query reads: an error that names the fault, and then the rest, each row once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle, number_of
from integration.kit.judge.recount import Recount, payloads
from integration.kit.judge.waiting import eventually
from integration.kit.spark.copies import filled, query, run
from integration.kit.spark.sessions import settings

pytestmark = [pytest.mark.full, pytest.mark.limit(900), pytest.mark.server(">=2.11")]

COUNT, BATCH = 4_000, 2_000


async def of(server: Any, stream: str, expected: Iterable[int]) -> Recount:
    """The numbers of a stream, over a plain socket."""
    actual = await asyncio.to_thread(payloads, server.url, stream)
    return Recount.of(stream, expected, map(number_of, actual))


def tolerant(copy: dict[str, Any]) -> dict[str, Any]:
    return {**copy, "source": {**copy["source"], "failOnDataLoss": "false"}}


async def make_again(oracle: Oracle, first: int, count: int) -> None:
    await oracle.delete_stream("IN")
    await oracle.create_stream("IN", ["in.>"], storage="file", allow_direct=True)
    await oracle.publish_many("in.0", count, first=first, size=64)


@pytest.mark.covers("L11")
@pytest.mark.fault("unread messages purged, then failOnDataLoss=false")
async def test_purged(copies: Any, recount: Any) -> None:
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600})
    copy = query(server.url, "out", batch=BATCH)
    await copy_all(copy)
    await oracle.publish_many("in.0", 2_000, first=COUNT + 1, size=64)
    await oracle.purge("IN", seq=COUNT + 501)
    with recount.refused("OUT", "LostHeadError", f"messages {COUNT + 1} to {COUNT + 500}"):
        await copy_all(copy)
    await recount(server, "OUT", COUNT)
    await copy_all(tolerant(copy))
    remaining = [*range(1, COUNT + 1), *range(COUNT + 501, COUNT + 2_001)]
    recount.exact(await of(server, "OUT", remaining))


@pytest.mark.covers("L11")
@pytest.mark.fault("stream deleted between two runs")
async def test_deleted(copies: Any, recount: Any) -> None:
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600})
    copy = query(server.url, "out", batch=BATCH)
    await copy_all(copy)
    await oracle.delete_stream("IN")
    with recount.refused("OUT", "NoSuchStreamError", "stream 'IN' does not exist"):
        await copy_all(copy)
    await recount(server, "OUT", COUNT)


@pytest.mark.covers("L11", "L14")
@pytest.mark.fault("stream made again, then failOnDataLoss=false")
@pytest.mark.parametrize("count", [COUNT // 2, 2 * COUNT], ids=["shorter", "longer"])
async def test_recreated(copies: Any, recount: Any, count: int) -> None:
    """All of the new stream is read, whether or not it has more messages than the query had read."""
    server, oracle, copy_all = copies
    await filled(oracle, COUNT, {"OUT": 600})
    copy = query(server.url, "out", batch=BATCH)
    await copy_all(copy)
    await make_again(oracle, COUNT + 1, count)
    with recount.refused("OUT", "PositionInvalidError", "was recreated"):
        await copy_all(copy)
    await recount(server, "OUT", COUNT)
    await copy_all(tolerant(copy))
    await recount(server, "OUT", COUNT + count)


@pytest.mark.covers("L12")
@pytest.mark.fault("stream restored from an older copy and grown past the position")
async def test_restored(
    own_server: Any,
    oracle_for: Any,
    spark: Any,
    in_thread: Any,
    checkpoint: Path,
    recount: Any,
    tmp_path: Path,
) -> None:
    """After the error, a tolerant query reads all that came after the copy."""
    files = tmp_path / "files"
    server = await own_server(store_dir=files)
    oracle = await oracle_for(server)
    await filled(oracle, COUNT, {})
    await server.stop()
    shutil.copytree(files, tmp_path / "copy")
    await server.start()
    await oracle.publish_many("in.0", 1_000, first=COUNT + 1, size=64)
    await oracle.create_stream("OUT", ["out.>"], duplicate_window=600 * 10**9)
    copy = query(server.url, "out", batch=BATCH)
    copy_all = partial(in_thread, run, spark, checkpoint=checkpoint)
    await copy_all(copy)
    await server.stop()
    of_in = [path for path in files.rglob("IN") if path.is_dir()]
    for path in of_in:
        shutil.rmtree(path)
        shutil.copytree(tmp_path / "copy" / path.relative_to(files), path)
    await server.start()
    assert (await oracle.state("IN"))["last_seq"] == COUNT, "the copy is back"
    await oracle.publish_many("in.0", 1_500, first=COUNT + 1_001, size=64)
    with recount.refused("OUT", "PositionInvalidError", "from a backup"):
        await copy_all(copy)
    await copy_all(tolerant(copy))
    await recount(server, "OUT", COUNT + 2_500)


@pytest.mark.covers("L13")
@pytest.mark.fault("compacted stream followed while it is written")
async def test_compacted(copies: Any, recount: Any) -> None:
    """The newest value of each key arrives as the last value of the key."""
    server, oracle, copy_all = copies
    keys = 200
    await oracle.create_stream(
        "IN", ["in.>"], allow_direct=True, max_msgs_per_subject=1, discard="new", storage="file"
    )
    await oracle.create_stream("OUT", ["out.>"], duplicate_window=600 * 10**9)
    enough = asyncio.Event()

    async def keep_writing() -> int:
        """A new value of each key, repeatedly. How often."""
        rounds = 0
        while not enough.is_set():
            rounds += 1
            for key in range(keys):
                publish = oracle.publish if key == keys - 1 else oracle.nc.publish
                await publish(f"in.{key}", b"%d:%d" % (key, rounds))
            await asyncio.sleep(0.05)
        return rounds

    writing = asyncio.create_task(keep_writing())
    copy = query(server.url, "out", batch=keys // 3)
    copy["source"]["minPartitions"] = "1"
    for _ in range(2):
        await copy_all(copy)
    enough.set()
    rounds = await writing
    await copy_all(copy)
    newest = await asyncio.to_thread(payloads, server.url, "IN")
    assert sorted(newest) == sorted(b"%d:%d" % (key, rounds) for key in range(keys))
    copied = await asyncio.to_thread(payloads, server.url, "OUT")
    last = {payload.partition(b":")[0]: payload for payload in copied}
    recount.exact(Recount.of("OUT, last of each key", newest, last.values()))


async def aggregate(oracle: Oracle) -> None:
    """The stream IN: `COUNT` messages of two others under "all.0", 400 under "all.1", 40 for itself under "own.0"."""
    for name in ("first", "second"):
        await oracle.create_stream(name.upper(), [f"{name}.>"], storage="file")
    sources = [
        {"name": name.upper(), "subject_transforms": [{"src": f"{name}.>", "dest": "all.>"}]}
        for name in ("first", "second")
    ]
    transform = {"src": "in.>", "dest": "own.>"}
    await oracle.create_stream(
        "IN", ["in.>"], storage="file", allow_direct=True, sources=sources, subject_transform=transform
    )
    for part in range(4):
        some = COUNT // 8
        await oracle.publish_many("first.0", some, first=2 * part * some + 1)
        await oracle.publish_many("second.0", some, first=(2 * part + 1) * some + 1)
        await oracle.publish_many("second.1", 100, first=COUNT + 1)
    await oracle.publish_many("in.0", 40, first=COUNT + 1)

    async def copied() -> bool:
        return int((await oracle.state("IN"))["messages"]) == COUNT + 440

    await eventually(copied, 60, what="the messages of the sources")


@pytest.mark.covers("L6", "L10")
@pytest.mark.fault("aggregate with subject transforms, filtered by the subject after them")
async def test_transformed(copies: Any, spark: Any, in_thread: Any, recount: Any) -> None:
    """Once 533 rows came of 1,600. By an option of the source, and by a filter that Spark pushes down."""
    server, oracle, copy_all = copies
    await aggregate(oracle)
    for name in ("OUT", "PUSHED"):
        await oracle.create_stream(name, [f"{name.lower()}.>"], duplicate_window=600 * 10**9)
    copy = query(server.url, "out", batch=BATCH)
    await copy_all({**copy, "source": {**copy["source"], "subjects": "all.0"}})
    recount.exact(await of(server, "OUT", range(1, COUNT + 1)))

    def push() -> None:
        rows = spark.read.format("jetstream").options(servers=server.url, stream="IN", pushdown="true").load()
        with settings(spark, {"spark.sql.python.filterPushdown.enabled": "true"}):
            some = rows.where("subject = 'all.0'").selectExpr("'pushed.x' as subject", "data")
            some.write.format("jetstream").mode("append").options(servers=server.url).save()

    await in_thread(push)
    recount.exact(await of(server, "PUSHED", range(1, COUNT + 1)))


@pytest.mark.covers("L3", "L5")
@pytest.mark.fault("batch reads that find nothing, and a start in the future")
async def test_nothing(copies: Any, spark: Any, in_thread: Any, recount: Any) -> None:
    server, oracle, _ = copies
    await filled(oracle, COUNT, {"EMPTY": 600, "EMPTY2": 600})
    nothing = [
        {"stream": "IN", "startingOffsets": "latest"},
        {"stream": "IN", "startingSequence": str(COUNT + 1)},
        {"stream": "IN", "endingTimestamp": "2020-01-01T00:00:00Z"},
        {"stream": "IN", "subjects": "in.none"},
        {"stream": "EMPTY"},
        {"stream": "EMPTY,EMPTY2"},
    ]

    def read(options: dict[str, str]) -> list[bytes]:
        frame = spark.read.format("jetstream").options(servers=server.url, **options).load()
        return [bytes(row.data) for row in frame.select("data").collect()]

    for options in nothing:
        where = ", ".join(f"{name}={value}" for name, value in options.items())
        recount.exact(Recount.of(where, (), await in_thread(read, options)))
    with recount.refused("IN", "ConfigError", "in the future"):
        await in_thread(read, {"stream": "IN", "startingTimestamp": "2100-01-01T00:00:00Z"})


@pytest.mark.covers("L9")
@pytest.mark.fault("streams of a pattern come, go, are purged and made again")
async def test_streams_come_and_go(copies: Any, recount: Any) -> None:
    server, oracle, copy_all = copies
    await oracle.create_stream("OUT", ["out.>"], duplicate_window=600 * 10**9)
    published = 0

    async def fill(name: str, *, create: bool = True) -> None:
        """500 more numbers, in a new stream or in the existing stream."""
        nonlocal published
        if create:
            await oracle.create_stream(name, [f"{name}.>"], allow_direct=True, storage="file")
        await oracle.publish_many(f"{name}.x", 500, first=published + 1, size=64)
        published += 500

    copy = query(server.url, "out", batch=700)
    del copy["source"]["stream"]
    copy["source"] |= {"streamPattern": "IN_*", "failOnDataLoss": "false"}
    await fill("IN_A")
    await fill("IN_B")
    await copy_all(copy)
    await fill("IN_C")
    await oracle.purge("IN_A")
    await fill("IN_A", create=False)
    await copy_all(copy)
    await oracle.delete_stream("IN_B")
    await copy_all(copy)
    await fill("IN_B")
    await oracle.delete_stream("IN_C")
    await fill("IN_C")
    await fill("IN_C", create=False)
    await copy_all(copy)
    await recount(server, "OUT", published)
