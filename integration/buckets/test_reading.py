"""What a bucket has is read in order: keys without their values, and the whole history."""

from __future__ import annotations

from typing import Any

import pytest

from integration.buckets.kit import keys_of


@pytest.mark.covers("K60", "K61", "K62")
async def test_list_keys(kv: Any) -> None:
    assert await keys_of(kv) == []
    for key in ("a.1", "a.2", "b.1", "c"):
        await kv.put(key, b"1")
    await kv.put("a.1", b"2")
    await kv.delete("a.2")
    assert await keys_of(kv) == ["b.1", "c", "a.1"]
    assert await keys_of(kv, "a.*") == ["a.1"]
    assert await keys_of(kv, "c", "b.>", "b.1") == ["b.1", "c"]
    assert await keys_of(kv, "none") == []
    listed = []
    async for key in kv.keys():
        listed.append(key)
        await kv.put("b.1", b"3")
    assert sorted(listed) == ["a.1", "b.1", "c"]


@pytest.mark.covers("K63")
async def test_history(kv: Any) -> None:
    for number in range(7):
        await kv.put("a", b"%d" % number)
    await kv.put("b", b"x")
    await kv.delete("a")
    history = [entry async for entry in kv.history("a")]
    assert [(entry.value, entry.operation) for entry in history] == [
        (b"3", "PUT"),
        (b"4", "PUT"),
        (b"5", "PUT"),
        (b"6", "PUT"),
        (b"", "DEL"),
    ]
    assert [entry.delta for entry in history] == [4, 3, 2, 1, 0]
    assert [entry async for entry in kv.history("none")] == []
    assert len([entry async for entry in kv.history()]) == 6
