"""What peers have stored: one contract, in a stream and in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.clients.peers import ServerGround
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import TO_CLIENT
from jsclient import MaxPayloadError
from jsclient.peers.options import EngineOptions
from jsclient.peers.store import ConflictError, Entry, MemoryStore, Store, StreamStore
from jsclient.peers.streams import ensure_streams


@pytest.fixture
async def ground(server: Any) -> AsyncIterator[ServerGround]:
    ground = ServerGround(server.url)
    yield ground
    await ground.close()


async def stream_store(ground: ServerGround, js: Any, peer: str = "a") -> StreamStore:
    options = EngineOptions(prefix=ground.prefix, storage="memory")
    await ensure_streams(js, options)
    return StreamStore(js, options.state_stream, options.prefix, peer)


@pytest.fixture(params=["stream", "memory"])
async def store(request: pytest.FixtureRequest, ground: ServerGround, js: Any) -> Store:
    return MemoryStore() if request.param == "memory" else await stream_store(ground, js)


async def test_a_key_is_written_by_who_knows_what_is_there(store: Store) -> None:
    assert await store.load() == []
    assert await store.read("k") == Entry("k", None, 0)
    first = await store.write("k", b"1", 0)
    with pytest.raises(ConflictError) as caught:
        await store.write("k", b"2", 0)
    assert caught.value.found == Entry("k", b"1", first)
    second = await store.write("k", b"2", first)
    with pytest.raises(ConflictError) as caught:
        await store.write("k", None, first)
    assert caught.value.found == await store.read("k") == Entry("k", b"2", second)
    await store.write("relationship.Id-1=_", b"x", 0)
    assert sorted(await store.load()) == [
        Entry("k", b"2", second),
        Entry("relationship.Id-1=_", b"x", second + 1),
    ]


async def test_what_is_deleted_leaves_nothing(store: Store) -> None:
    for _ in range(3):
        revision = await store.write("k", b"1", 0)
        await store.write("k", None, revision)
        assert await store.load() == []
    with pytest.raises(ConflictError) as caught:
        await store.write("k", b"2", 7)
    assert caught.value.found == Entry("k", None, 0)


async def test_what_is_behind_a_revision_is_loaded(store: Store) -> None:
    revisions = [await store.write(f"k{number}", b"x", 0) for number in range(4)]
    last = await store.write("k0", b"y", revisions[0])
    assert await store.load(last) == []
    assert sorted(await store.load(revisions[2])) == [
        Entry("k0", b"y", last),
        Entry("k3", b"x", revisions[3]),
    ]
    await store.clear()
    assert await store.load() == await store.load(1) == []


async def test_more_than_a_page_is_loaded(ground: ServerGround, js: Any) -> None:
    store, other = [await stream_store(ground, js, peer) for peer in ("a", "a2")]
    async with js.publisher() as publisher:
        for number in range(1200):
            await publisher.publish(f"{ground.prefix}.state.a.k{number}", b"x")
    await other.write("k", b"other", 0)
    assert {entry.key for entry in await store.load()} == {f"k{number}" for number in range(1200)}
    await store.clear()
    assert await store.load() == []
    assert len(await other.load()) == 1


async def test_a_deletion_that_came_half_way_counts_as_one(ground: ServerGround, js: Any) -> None:
    """The process ended before the mark was removed: it is written over."""
    store = await stream_store(ground, js)
    revision = await store.write("k", b"1", 0)
    mark = (await js.publish(f"{ground.prefix}.state.a.k", b"", expected_last_subject_seq=revision)).seq
    assert await store.read("k") == Entry("k", None, mark)
    assert [entry.data for entry in await store.load()] == [None]
    again = await store.write("k", b"2", 0)
    assert await store.load() == [Entry("k", b"2", again)]


async def test_an_answer_that_is_lost_does_not_write_twice(
    ground: ServerGround, connect: Any, proxy: Any
) -> None:
    tap: Proxy = await proxy()
    store = await stream_store(ground, await connect(tap))
    first = await store.write("k", b"1", 0)
    dropped = tap.drop_frames(lambda frame: frame.direction == TO_CLIENT and b'"seq":' in frame.payload, 1)
    second = await store.write("k", b"2", first)
    assert await store.load() == [Entry("k", b"2", second)]
    assert second == first + 1
    assert dropped.count == 1


async def test_what_is_too_large_is_not_written(ground: ServerGround, js: Any) -> None:
    store = await stream_store(ground, js)
    with pytest.raises(MaxPayloadError):
        await store.write("k", b"x" * (2 << 20), 0)
    assert await store.load() == []
