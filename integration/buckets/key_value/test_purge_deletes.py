"""The entries of deleted keys are removed, and nothing else is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.buckets.kit import keys_of
from jsclient import ConfigError


@pytest.mark.covers("K64")
async def test_purge_deletes(kv: Any, raw: Any) -> None:
    for key in ("a", "b", "c"):
        await kv.put(key, b"1")
    await kv.delete("a")
    await kv.purge("b")
    assert await kv.purge_deletes() == 0
    assert [(key, headers.get("KV-Operation")) for key, _, headers in await raw()] == [
        ("c", None),
        ("a", "DEL"),
        ("b", "PURGE"),
    ], "young deletions stay, and what they have deleted is gone"
    assert await kv.purge_deletes(older_than=0) == 2
    assert [key for key, _, _ in await raw()] == ["c"]
    with pytest.raises(ConfigError):
        await kv.purge_deletes(older_than=-1)


@pytest.mark.covers("K65")
async def test_purge_deletes_keeps_new_values(kv: Any) -> None:
    """A value is put between the look at the deletions and their removal."""
    for number in range(20):
        await kv.put(f"k{number}", b"old")
        await kv.delete(f"k{number}")

    async def put_again() -> None:
        for number in range(20):
            await kv.put(f"k{number}", b"new")

    await asyncio.gather(kv.purge_deletes(older_than=0), put_again())
    assert len(await keys_of(kv)) == 20
