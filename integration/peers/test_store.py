"""The stored state of peers: one contract, in a stream and in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.kit.clients.peers import ServerGround
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import TO_CLIENT
from jsclient import MaxPayloadError, StreamNotFoundError
from jsclient.buckets.state import StateConflictError, StateEntry, StoredState, open_state
from jsclient.events import RecordSkipped
from jsclient.peers.backend import Store
from jsclient.peers.local_backend import MemoryStore
from jsclient.peers.nats_backend import ensure_streams
from jsclient.protocol.peers.options import EngineOptions


@pytest.fixture
async def ground(server: Any) -> AsyncIterator[ServerGround]:
    ground = ServerGround(server.url)
    yield ground
    await ground.close()


async def stream_store(ground: ServerGround, js: Any, peer: str = "a", *, own: bool = False) -> StoredState:
    options = EngineOptions(prefix=ground.prefix, storage="memory")
    await ensure_streams(js, options)
    return open_state(js._context, options.state_stream, f"{options.prefix}.state.{peer}.", own=own)


@pytest.fixture(params=["stream", "memory"])
async def store(request: pytest.FixtureRequest, ground: ServerGround, js: Any) -> Store:
    return MemoryStore() if request.param == "memory" else await stream_store(ground, js)


async def test_key_written_by_who_knows_there(store: Store) -> None:
    assert await store.entries() == []
    assert await store.get("k") == StateEntry("k", None, 0)
    first = await store.update("k", b"1", 0)
    with pytest.raises(StateConflictError) as caught:
        await store.update("k", b"2", 0)
    assert caught.value.stored_entry == StateEntry("k", b"1", first)
    second = await store.update("k", b"2", first)
    with pytest.raises(StateConflictError) as caught:
        await store.update("k", None, first)
    assert caught.value.stored_entry == await store.get("k") == StateEntry("k", b"2", second)
    await store.update("relationship.Id-1=_", b"x", 0)
    assert sorted(await store.entries()) == [
        StateEntry("k", b"2", second),
        StateEntry("relationship.Id-1=_", b"x", second + 1),
    ]


async def test_deleted_leaves_nothing(store: Store) -> None:
    for _ in range(3):
        revision = await store.update("k", b"1", 0)
        await store.update("k", None, revision)
        assert await store.entries() == []
    with pytest.raises(StateConflictError) as caught:
        await store.update("k", b"2", 7)
    assert caught.value.stored_entry == StateEntry("k", None, 0)


async def test_behind_revision_loaded(store: Store) -> None:
    revisions = [await store.update(f"k{number}", b"x", 0) for number in range(4)]
    last = await store.update("k0", b"y", revisions[0])
    assert await store.entries(last) == []
    assert sorted(await store.entries(revisions[2])) == [
        StateEntry("k0", b"y", last),
        StateEntry("k3", b"x", revisions[3]),
    ]
    await store.purge()
    assert await store.entries() == await store.entries(1) == []


async def test_more_than_a_page_is_loaded(ground: ServerGround, js: Any) -> None:
    store, other = [await stream_store(ground, js, peer) for peer in ("a", "a2")]
    async with js.publisher() as publisher:
        for number in range(1200):
            await publisher.publish(f"{ground.prefix}.state.a.k{number}", b"x")
    await other.update("k", b"other", 0)
    assert {entry.key for entry in await store.entries()} == {f"k{number}" for number in range(1200)}
    await store.purge()
    assert await store.entries() == []
    assert len(await other.entries()) == 1


async def test_stored_answer_of_a_direct_get_is_no_value(
    ground: ServerGround, js: Any, events: list[Any]
) -> None:
    """The answer has the value and all headers of the message, its message id too."""
    store = await stream_store(ground, js, own=True)
    name, subject = ground.streams[1], f"{ground.prefix}.state.a.k"
    # Before the put: a shorter window does not always end the period of ids that are already known.
    await js.update_stream((await js.stream(name)).config.replace(allow_direct=True, duplicate_window=0.1))
    await store.put("k", b"1")

    async def stored() -> bool:
        """Within the window the answer is a duplicate of the message."""
        await js._connection.publish(f"$JS.API.DIRECT.GET.{name}", b'{"seq":1}', reply=subject)
        return bool((await (await js.stream(name)).info()).state.last_seq > 1)

    await eventually(stored, what="the answer is stored")
    stored_entry = await store.get("k")
    assert (stored_entry.value, stored_entry.is_stray) == (None, True)
    (skipped, *_) = await eventually(lambda: of(RecordSkipped, events), what="the report")
    assert (skipped.stream, skipped.subject) == (name, subject)
    await store.put("k", b"2")
    assert (await store.get("k")).value == b"2"


async def test_half_deletion_counts(ground: ServerGround, js: Any) -> None:
    """The process ended before the mark was removed: it is written over."""
    store = await stream_store(ground, js)
    revision = await store.update("k", b"1", 0)
    mark = (await js.publish(f"{ground.prefix}.state.a.k", b"", expected_last_subject_seq=revision)).seq
    assert await store.get("k") == StateEntry("k", None, mark)
    assert [entry.value for entry in await store.entries()] == [None]
    again = await store.update("k", b"2", 0)
    assert await store.entries() == [StateEntry("k", b"2", again)]


async def test_answer_lost_does_not_write_twice(ground: ServerGround, connect: Any, proxy: Any) -> None:
    tap: Proxy = await proxy()
    store = await stream_store(ground, await connect(tap))
    first = await store.update("k", b"1", 0)
    dropped = tap.drop_frames(lambda frame: frame.direction == TO_CLIENT and b'"seq":' in frame.payload, 1)
    second = await store.update("k", b"2", first)
    assert await store.entries() == [StateEntry("k", b"2", second)]
    assert second == first + 1
    assert dropped.count == 1


async def test_too_large_not_written(ground: ServerGround, js: Any) -> None:
    store = await stream_store(ground, js)
    with pytest.raises(MaxPayloadError):
        await store.update("k", b"x" * (2 << 20), 0)
    assert await store.entries() == []


async def test_put_replaces_any_revision(ground: ServerGround, js: Any) -> None:
    store = await stream_store(ground, js)
    first = await store.put("k", b"1")
    second = await store.put("k", b"2")
    assert await store.entries() == [StateEntry("k", b"2", second)]
    with pytest.raises(StateConflictError):
        await store.update("k", b"3", first)
    await js.delete_stream(ground.streams[1])
    with pytest.raises(StreamNotFoundError):
        await store.get("k")


async def test_what_earlier_versions_have_stored(ground: ServerGround, js: Any, oracle: Any) -> None:
    """They marked a value by its id, and stored an empty message for a deletion."""
    store = await stream_store(ground, js, own=True)
    subject = f"{ground.prefix}.state.a"
    first = (await js.publish(f"{subject}.k", b"1", msg_id="1")).seq
    mark = (await js.publish(f"{subject}.gone", b"", msg_id="2")).seq
    assert await store.entries() == [StateEntry("k", b"1", first), StateEntry("gone", None, mark)]
    second = await store.update("k", b"2", first)
    await store.update("gone", b"3", 0)
    stored = await (await js.stream(ground.streams[1])).get_message(second)
    assert (stored.subject, stored.data) == (f"{subject}.k", b"2")
    assert sorted(stored.headers) == [
        "Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Stream", "Nats-Msg-Id"
    ]  # fmt: skip


async def test_deletion_that_was_not_removed(ground: ServerGround, js: Any) -> None:
    """The message of a deletion, as this version stores it, and as every client of buckets reads it."""
    store = await stream_store(ground, js, own=True)
    headers = {"KV-Operation": "DEL"}
    mark = (await js.publish(f"{ground.prefix}.state.a.k", b"", msg_id="1", headers=headers)).seq
    assert await store.get("k") == StateEntry("k", None, mark)
    assert await store.entries() == [StateEntry("k", None, mark)]
    again = await store.update("k", b"2", 0)
    assert await store.entries() == [StateEntry("k", b"2", again)]
