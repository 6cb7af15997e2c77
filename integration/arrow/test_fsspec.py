"""Object stores as a file system: the file operations of programs, and Parquet of pandas, pyarrow and Polars."""

from __future__ import annotations

import asyncio
import pickle
import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import jsclient
from integration.kit.judge.waiting import eventually_sync
from integration.kit.servers.monitor import connections
from jsclient.fsspec import NatsFileSystem

DATA = random.Random(8).randbytes(3_000_000)


@pytest.fixture
def bucket(server: Any):
    """A bucket of this test alone."""
    name = f"b-{secrets.token_hex(6)}"

    async def change(action: str) -> None:
        async with await jsclient.connect(server.url) as js:
            await getattr(js, action)(name)

    asyncio.run(change("create_object_store"))
    yield name
    asyncio.run(change("delete_object_store"))


@pytest.fixture
def fs(server: Any):
    fs = fsspec.filesystem("nats", servers=server.url, skip_instance_cache=True)
    yield fs
    fs.close()


@pytest.fixture(autouse=True)
def registered() -> None:
    """The entry point does this if the package is installed."""
    fsspec.register_implementation("nats", NatsFileSystem, clobber=True)


def test_whole_files(fs: Any, bucket: str) -> None:
    path = f"{bucket}/a/b/c.bin"
    assert not fs.exists(path)
    fs.pipe_file(path, DATA)
    assert fs.cat_file(path) == DATA
    assert fs.cat_file(f"nats://{path}", 10, 20) == DATA[10:20]
    assert fs.cat_file(path, -5) == DATA[-5:]
    assert fs.cat_file(path, 5, -5) == DATA[5:-5]
    assert fs.cat_file(path, 5, 10**9) == DATA[5:]
    assert fs.cat_file(path, 20, 10) == b""
    assert fs.cat_ranges([path] * 3, [0, 7, 1_000_000], [1, 9, 1_000_005]) == [
        DATA[:1], DATA[7:9], DATA[1_000_000:1_000_005],
    ]  # fmt: skip
    assert fs.cat([path, path]) == {path: DATA}
    info = fs.info(path)
    assert (info["name"], info["type"], info["size"]) == (path, "file", len(DATA))
    assert info["digest"].startswith("SHA-256=")
    with pytest.raises(FileExistsError):
        fs.pipe_file(path, b"", mode="create")


def test_directories(fs: Any, bucket: str) -> None:
    for name in ("a", "d/b", "d/c", "d/e/f", "d2/x"):
        fs.pipe_file(f"{bucket}/{name}", b"1")
    assert bucket in fs.ls("", detail=False)
    assert fs.ls(bucket, detail=False) == [f"{bucket}/{name}" for name in ("a", "d", "d2")]
    assert [one["type"] for one in fs.ls(bucket)] == ["file", "directory", "directory"]
    assert fs.ls(f"nats://{bucket}/d/", detail=False) == [f"{bucket}/d/{name}" for name in "bce"]
    assert fs.ls(f"{bucket}/a", detail=False) == [f"{bucket}/a"]
    assert fs.find(f"{bucket}/d") == [f"{bucket}/d/{name}" for name in ("b", "c", "e/f")]
    assert fs.find(f"{bucket}/a") == [f"{bucket}/a"]
    assert fs.find(f"{bucket}/absent") == []
    assert fs.find(f"{bucket}/d", maxdepth=1) == [f"{bucket}/d/b", f"{bucket}/d/c"]
    assert fs.glob(f"{bucket}/d/*") == [f"{bucket}/d/{name}" for name in "bce"]
    assert fs.du(bucket) == 5
    assert fs.isdir(f"{bucket}/d/e")
    assert fs.isfile(f"{bucket}/d/b")
    assert fs.isdir(bucket)
    for missing in (f"{bucket}/absent", "absent-bucket/a", "absent-bucket"):
        assert not fs.exists(missing)
        with pytest.raises(FileNotFoundError):
            fs.info(missing)
        with pytest.raises(FileNotFoundError):
            fs.ls(missing)
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            fs.cat_file(missing)


def test_remove_copy_and_move(fs: Any, bucket: str) -> None:
    for name in ("a", "d/b", "d/c"):
        fs.pipe_file(f"{bucket}/{name}", name.encode())
    digest = fs.info(f"{bucket}/a")["digest"]
    fs.mv(f"{bucket}/a", f"{bucket}/new")
    assert not fs.exists(f"{bucket}/a")
    assert fs.info(f"{bucket}/new")["digest"] == digest
    fs.mv(f"{bucket}/new", f"{bucket}/d/b")
    assert fs.cat_file(f"{bucket}/d/b") == b"a"
    fs.mv(f"{bucket}/d/b", f"{bucket}/e/")
    assert fs.cat_file(f"{bucket}/e/b") == b"a"
    fs.cp_file(f"{bucket}/d/c", f"{bucket}/d/copy")
    assert fs.cat_file(f"{bucket}/d/copy") == b"d/c"
    fs.rm(f"{bucket}/d/copy")
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{bucket}/d/copy")
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{bucket}/absent", f"{bucket}/x")
    fs.rm(f"{bucket}/d", recursive=True)
    assert fs.find(bucket) == [f"{bucket}/e/b"]


def test_local_files(fs: Any, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(DATA)
    fs.put(str(tmp_path / "in"), f"{bucket}/x")
    fs.get(f"{bucket}/x", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == DATA
    callback = fsspec.callbacks.Callback()
    fs.get_file(f"{bucket}/x", str(tmp_path / "again"), callback=callback)
    assert (callback.size, callback.value) == (len(DATA), len(DATA))


def test_open_to_read(fs: Any, bucket: str) -> None:
    fs.pipe_file(f"{bucket}/x", DATA)
    with fs.open(f"{bucket}/x", block_size=100_000) as file:
        assert file.read(10) == DATA[:10]
        assert file.seek(-10, 2) == len(DATA) - 10
        assert file.read() == DATA[-10:]
        file.seek(1_500_000)
        assert file.read(200_000) == DATA[1_500_000:1_700_000]
        file.seek(0)
        assert file.read() == DATA
    with fs.open(f"{bucket}/x", "wb") as file:
        file.write(b"one\ntwo\n")
    with fs.open(f"{bucket}/x", "r") as file:
        assert file.readlines() == ["one\n", "two\n"]
    with pytest.raises(FileNotFoundError):
        fs.open(f"{bucket}/absent")


@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_open_to_write(fs: Any, bucket: str, size: int) -> None:
    with fs.open(f"{bucket}/x", "wb", block_size=100_000) as file:
        for start in range(0, size, 70_001):
            file.write(DATA[start : min(start + 70_001, size)])
        assert not fs.exists(f"{bucket}/x"), "it appears when it is complete"
    assert fs.cat_file(f"{bucket}/x") == DATA[:size]


def raise_while_written(fs: Any, path: str, kind: type[BaseException]) -> None:
    with fs.open(path, "wb", block_size=1000) as file:
        file.write(DATA)
        raise kind


def fill(fs: Any, path: str) -> None:
    with fs.open(path, "wb", block_size=10_000) as file:
        for _ in range(100):
            file.write(DATA)


def test_writes_that_fail(fs: Any, bucket: str, server: Any) -> None:
    fs.pipe_file(f"{bucket}/x", b"old")
    for kind in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(kind):
            raise_while_written(fs, f"{bucket}/x", kind)
    assert fs.cat_file(f"{bucket}/x") == b"old"
    file = fs.open(f"{bucket}/x", "xb")
    file.write(b"new")
    with pytest.raises(FileExistsError):
        file.close()
    with pytest.raises(ValueError, match="mode"):
        fs.open(f"{bucket}/x", "ab")
    with pytest.raises(FileNotFoundError):
        fs.open("absent-bucket/x", "wb")

    async def limit() -> None:
        async with await jsclient.connect(server.url) as js:
            await js.update_object_store(bucket, max_bytes=500_000)

    asyncio.run(limit())
    with pytest.raises(jsclient.BucketFullError):
        fill(fs, f"{bucket}/x")
    assert fs.cat_file(f"{bucket}/x") == b"old"


def write_text(fs: Any, path: str) -> None:
    with fs.open(path, "w", encoding="latin-1") as file:
        file.write("new")
        raise ZeroDivisionError


def test_text_that_fails(fs: Any, bucket: str) -> None:
    fs.pipe_file(f"{bucket}/x", b"old")
    with pytest.raises(ZeroDivisionError):
        write_text(fs, f"{bucket}/x")
    assert fs.cat_file(f"{bucket}/x") == b"old"
    with fs.open(f"{bucket}/x", "wt", encoding="latin-1") as file:
        file.write("new")
    with fs.open(f"{bucket}/x", "r", encoding="latin-1") as file:
        assert file.read() == "new"


def write_in_transaction(fs: Any, path: str) -> None:
    with fs.transaction:
        with fs.open(path, "wb") as file:
            file.write(b"new")
        raise ZeroDivisionError


def test_transactions(fs: Any, bucket: str) -> None:
    fs.pipe_file(f"{bucket}/x", b"old")
    with pytest.raises(ZeroDivisionError):
        write_in_transaction(fs, f"{bucket}/x")
    assert fs.cat_file(f"{bucket}/x") == b"old"
    with fs.transaction:
        with fs.open(f"{bucket}/x", "wb") as file:
            file.write(b"new")
        assert fs.cat_file(f"{bucket}/x") == b"old"
    assert fs.cat_file(f"{bucket}/x") == b"new"


def test_a_cache_that_reads_in_a_thread(fs: Any, bucket: str) -> None:
    fs.pipe_file(f"{bucket}/x", DATA)
    positions = random.Random(1)
    with fs.open(f"{bucket}/x", cache_type="background", block_size=50_000) as file:
        for _ in range(50):
            start = positions.randrange(len(DATA) - 90_000)
            file.seek(start)
            assert file.read(80_000) == DATA[start : start + 80_000]


def test_files_that_are_not_closed(fs: Any, bucket: str) -> None:
    """They are not stored, and a reader frees what it has."""
    file = fs.open(f"{bucket}/x", "wb", block_size=1000)
    file.write(DATA)
    with pytest.warns(ResourceWarning, match="not closed"):
        del file
    assert not fs.exists(f"{bucket}/x")
    fs.pipe_file(f"{bucket}/x", DATA)
    file = fs.open(f"{bucket}/x")
    assert file.read(5) == DATA[:5]
    del file
    assert fs.cat_file(f"{bucket}/x") == DATA


def test_replaced_while_read(fs: Any, bucket: str) -> None:
    fs.pipe_file(f"{bucket}/x", DATA)
    with fs.open(f"{bucket}/x", block_size=1000) as file:
        assert file.read(5) == DATA[:5]
        fs.pipe_file(f"{bucket}/x", DATA[::-1])
        file.seek(2_000_000)
        with pytest.raises(jsclient.ObjectChangedError):
            file.read(5)


def test_link(fs: Any, bucket: str, server: Any) -> None:
    fs.pipe_file(f"{bucket}/x", DATA)

    async def link() -> None:
        async with await jsclient.connect(server.url) as js:
            await (await js.object_store(bucket)).add_link("newest", "x")

    asyncio.run(link())
    assert fs.info(f"{bucket}/newest")["size"] == len(DATA)
    assert [one["size"] for one in fs.ls(bucket)] == [len(DATA)] * 2
    assert fs.cat_file(f"{bucket}/newest", 5, 10) == DATA[5:10]


def count(server: Any) -> int:
    """The number of connections of this name that the server has."""
    return [name for name, _ in asyncio.run(connections(server.monitor)).values()].count("files")


def test_closes_its_connection(server: Any, bucket: str) -> None:
    assert count(server) == 0
    fs = fsspec.filesystem("nats", servers=server.url, connect_options={"name": "files"})
    assert fsspec.filesystem("nats", servers=server.url, connect_options={"name": "files"}) is fs
    fs.pipe_file(f"{bucket}/x", b"1")
    assert count(server) == 1
    fs.close()
    eventually_sync(lambda: count(server) == 0, 10, "closed")
    assert fs.cat_file(f"{bucket}/x") == b"1", "it connects again"
    copy = pickle.loads(pickle.dumps(fs))
    assert copy.cat_file(f"{bucket}/x") == b"1"
    fs.close()
    copy.close()
    eventually_sync(lambda: count(server) == 0, 10, "closed")


async def test_asynchronous(server: Any, bucket: str) -> None:
    fs = NatsFileSystem(servers=server.url, asynchronous=True, skip_instance_cache=True)
    await fs._pipe_file(f"{bucket}/x", DATA)
    assert await fs._cat_file(f"{bucket}/x", 3, 5) == DATA[3:5]
    await fs._close()


def test_makes_buckets(fs: Any, server: Any) -> None:
    name = f"b-{secrets.token_hex(6)}"
    with pytest.raises(FileNotFoundError):
        fs.pipe_file(f"{name}/a", b"1")
    fs.makedirs(f"{name}/d", exist_ok=True)
    fs.pipe_file(f"{name}/d/a", b"1")

    async def delete() -> None:
        async with await jsclient.connect(server.url) as js:
            await js.delete_object_store(name)

    asyncio.run(delete())


TABLE = {"number": list(range(50_000)), "text": [f"row {number}" for number in range(50_000)]}


def test_parquet_of_pandas(server: Any, bucket: str, fs: Any) -> None:
    frame, options = pd.DataFrame(TABLE), {"servers": server.url}
    frame.to_parquet(f"nats://{bucket}/a.parquet", storage_options=options)
    read = pd.read_parquet(f"nats://{bucket}/a.parquet", columns=["number"], storage_options=options)
    assert read["number"].tolist() == TABLE["number"]
    frame.to_csv(f"nats://{bucket}/a.csv", index=False, storage_options=options)
    assert pd.read_csv(f"nats://{bucket}/a.csv", storage_options=options).equals(frame)
    fsspec.filesystem("nats", **options).close()


def test_parquet_of_pyarrow(bucket: str, fs: Any) -> None:
    table = pa.table(TABLE)
    pq.write_table(table, f"{bucket}/a.parquet", filesystem=fs, row_group_size=10_000)
    assert pq.read_table(f"{bucket}/a.parquet", filesystem=fs).equals(table)
    part = table.append_column("part", pa.array([number % 3 for number in range(50_000)]))
    ds.write_dataset(part, f"{bucket}/set", format="parquet", partitioning=["part"], filesystem=fs)
    assert len(fs.find(f"{bucket}/set")) == 3
    read = ds.dataset(f"{bucket}/set", format="parquet", partitioning=["part"], filesystem=fs)
    rows = read.to_table(filter=ds.field("part") == 1, columns=["number"])
    assert sorted(rows["number"].to_pylist()) == list(range(1, 50_000, 3))


def test_parquet_of_polars(server: Any, bucket: str, fs: Any) -> None:
    frame = pl.DataFrame(TABLE)
    with fs.open(f"{bucket}/a.parquet", "wb") as file:
        frame.write_parquet(file)
    with fs.open(f"{bucket}/a.parquet") as file:
        assert pl.read_parquet(file, columns=["text"])["text"].to_list() == TABLE["text"]
    scanned = pl.scan_pyarrow_dataset(ds.dataset(f"{bucket}/a.parquet", filesystem=fs))
    assert scanned.filter(pl.col("number") > 49_990).select(pl.len()).collect().item() == 9


def test_threads_read_in_turns(fs: Any, bucket: str) -> None:
    """Caches read ahead in separate threads, and programs may do the same."""
    fs.pipe_file(f"{bucket}/x", DATA)
    with fs.open(f"{bucket}/x", cache_type="background", block_size=300_001) as file:
        parts = []
        while part := file.read(100_003):
            parts.append(part)
    assert b"".join(parts) == DATA
    with fs.open(f"{bucket}/x") as file, ThreadPoolExecutor(8) as threads:
        size = 100_000
        read = list(
            threads.map(lambda start: file._fetch_range(start, start + size), range(0, len(DATA), size))
        )
    assert b"".join(read) == DATA
