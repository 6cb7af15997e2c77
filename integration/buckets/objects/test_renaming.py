"""An object is renamed without a moment in which it has no name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.buckets.kit import info_subject, names_of
from jsclient import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from jsclient.buckets.objects.renaming import rename_object


@pytest.mark.covers("O30", "O31", "O32")
async def test_rename(store: Any, oracle: Any, chunks: Any) -> None:
    put = await store.put("a", bytes(200_000), metadata={"m": "n"})
    await store.put("b", b"b")
    with pytest.raises(ObjectExistsError):
        await store.rename("a", "b")
    with pytest.raises(ObjectNotFoundError):
        await store.rename("c", "d")
    info = await store.rename("a", "c")
    assert (info.name, info.nuid, info.size, info.metadata) == ("c", put.nuid, 200_000, {"m": "n"})
    assert await store.get("c") == bytes(200_000)
    assert sorted(await names_of(store)) == ["b", "c"]
    with pytest.raises(ObjectNotFoundError) as caught:
        await store.get("a")
    assert caught.value.deleted is None, "nothing remains under the old name"
    assert (await chunks())[put.nuid] == 2
    assert await store.rename("c", "c") == await store.info("c")
    await store.delete("b")
    await store.rename("c", "b")
    assert await store.get("b") == bytes(200_000)
    await store.put("c", b"new")
    await store.put("a", b"new")
    assert await store.get("b") == bytes(200_000), "who takes an old name removes no chunk"


@pytest.mark.covers("O31")
async def test_rename_while_replaced(store: Any, proxy: Any, connect: Any) -> None:
    """Another client replaces the object between the two steps: it keeps its name, and no name has lost chunks."""
    await store.put("a", bytes(200_000))
    slow = await proxy()
    other = await (await connect(slow)).object_store(store.bucket)
    held = slow.hold_frames(
        lambda frame: frame.op == "HPUB" and frame.subject == info_subject(store.bucket, "b"), count=1
    )
    renaming = asyncio.create_task(rename_object(other._site, "a", "b"))
    await held.wait()
    await store.put("a", b"new")
    held.release()
    with pytest.raises(ObjectChangedError):
        await renaming
    assert await names_of(store) == ["a"]
    assert await store.get("a") == b"new"
