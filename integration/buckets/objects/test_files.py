"""Files become objects, and objects files, which are complete or not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from integration.buckets.kit import digest, is_same
from jsclient import ObjectNotFoundError

DATA = bytes(range(256)) * 20_000


@pytest.mark.covers("O13", "O17")
async def test_there_and_back(store: Any, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(DATA)
    seen: list[tuple[int, int | None]] = []
    info = await store.put_file(
        "a", tmp_path / "in", metadata={"m": "n"}, progress=lambda *args: seen.append(args)
    )
    assert (info.size, info.metadata) == (len(DATA), {"m": "n"})
    assert seen[-1] == (len(DATA), len(DATA)), "the size of a file is known"
    back = await store.get_file("a", str(tmp_path / "out"))
    assert back.digest == info.digest
    assert is_same((tmp_path / "out").read_bytes(), DATA)
    await store.put("a", b"new")
    await store.get_file("a", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"new"
    await store.put("empty", b"")
    await store.get_file("empty", tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "in", "out"]


@pytest.mark.covers("O17")
async def test_nothing_remains(store: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(ObjectNotFoundError):
        await store.get_file("none", tmp_path / "a")
    await store.put("a", DATA)
    for turn in range(0, 200, 20):
        task = asyncio.create_task(store.get_file("a", tmp_path / "a"))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert [*tmp_path.iterdir()] == [tmp_path / "a"]
        assert digest((tmp_path / "a").read_bytes()) in {digest(b"old"), digest(DATA)}
    with pytest.raises(FileNotFoundError):
        await store.get_file("a", tmp_path / "none" / "a")
    with pytest.raises(FileNotFoundError):
        await store.put_file("b", tmp_path / "none")
    with pytest.raises(ObjectNotFoundError):
        await store.info("b")
