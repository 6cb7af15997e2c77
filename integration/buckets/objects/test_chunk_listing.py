"""Chunks are listed with their sizes, in order and without their content, on each server."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient.buckets.objects.chunk_listing import ChunkTotal, count_all_chunks, list_chunks


@pytest.mark.covers("O43", "O44")
@pytest.mark.parametrize("storage", ["memory", "file"])
@pytest.mark.parametrize("removed", [(), (0,), (1,), (2,), (1, 2), (0, 1, 2)])
async def test_chunks_of_object(js: Any, name: str, oracle: Any, storage: str, removed: Any) -> None:
    """nats-server 2.10 passes over the last message of a subject if messages before it were removed."""
    store = await js.create_object_store(name, storage=storage)
    subject = f"$O.{name}.C.x"
    seqs = [await oracle.publish(subject, b"1" * number) for number in range(3)]
    for number in removed:
        await oracle.delete_message(store.stream, seqs[number])
    await oracle.publish(f"$O.{name}.C.y", b"between")
    for number in removed:
        await oracle.publish(subject, b"again", {"Nats-Msg-Id": f"id-{number}"})
    end = await oracle.publish(f"$O.{name}.M.x", b"{}")
    expected = [
        (one.seq, len(one.payload)) for one in await oracle.messages(store.stream) if one.subject == subject
    ]
    listed = await list_chunks(store._site, "x", end)
    assert [(chunk.seq, chunk.size) for chunk in listed] == expected
    assert [chunk.msg_id for chunk in listed if chunk.msg_id] == [f"id-{number}" for number in removed]
    assert await oracle.consumer_names(store.stream) == []


@pytest.mark.covers("O44")
async def test_totals(store: Any, oracle: Any) -> None:
    assert await count_all_chunks(store._site) == {}
    assert await list_chunks(store._site, "x", 1) == []
    info = await store.put("a", b"1" * 25, chunk_size=10)
    await oracle.publish(f"$O.{store.bucket}.C.x", b"12")
    totals = await count_all_chunks(store._site)
    assert {nuid: total[:2] for nuid, total in totals.items()} == {info.nuid: (3, 25), "x": (1, 2)}
    assert totals["x"] == ChunkTotal(1, 2, (await store._site.last_chunk("x")).time_ns)
