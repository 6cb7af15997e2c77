"""A stream that has all the consumers that it may have: objects are read without one."""

from __future__ import annotations

import random
from typing import Any

import pytest

from integration.buckets.kit import is_same
from integration.kit.clients.readers import FAST
from jsclient import ConsumerLimitError, DigestMismatchError, ObjectChangedError, ObjectIncompleteError
from jsclient.buckets import ObjectStore
from jsclient.buckets.objects.direct_chunks import DirectChunks
from jsclient.events import ConsumerRefused
from jsclient.protocol.buckets.object_config import object_config

CHUNK = 131_072
DATA = random.Random(1).randbytes(100 * CHUNK + 5)  # more than one page


async def full_store(js: Any, oracle: Any, name: str, **fields: Any) -> ObjectStore:
    """An object store whose stream has the only consumer that it may have."""
    config = object_config(name).replace(max_consumers=1, **fields)
    await oracle.create_consumer((await js.create_stream(config)).name, "first", ack_policy="none")
    return await js.object_store(name)


@pytest.fixture(params=["direct", "leader"])
async def full(request: pytest.FixtureRequest, js: Any, oracle: Any, name: str) -> Any:
    """An object store without room for a consumer, with and without direct gets."""
    return await full_store(js, oracle, name, storage="memory", allow_direct=request.param == "direct")


@pytest.mark.covers("O16", "O20")
async def test_read_without_a_consumer(full: Any, oracle: Any, events: list[Any], tmp_path: Any) -> None:
    await full.put("other", bytes(1000))
    await full.put("a", DATA)
    assert is_same(await full.get("a"), DATA)
    (event,) = (event for event in events if isinstance(event, ConsumerRefused))
    assert isinstance(event.error, ConsumerLimitError)
    assert "object 'a' is read without a consumer" in str(event)
    await full.get_file("a", tmp_path / "a")
    assert is_same((tmp_path / "a").read_bytes(), DATA)
    assert await oracle.consumer_names(full.stream) == ["first"]


@pytest.mark.covers("O17", "O18")
async def test_damaged_object_without_a_consumer(full: Any, oracle: Any) -> None:
    """What is missing or differs is an error, as with a consumer."""
    await full.put("a", DATA[: 3 * CHUNK])
    messages = [one for one in await oracle.messages(full.stream) if ".C." in one.subject]
    await oracle.delete_message(full.stream, messages[1].seq)
    with pytest.raises(ObjectIncompleteError):
        await full.get("a")
    await oracle.publish(messages[1].subject, messages[1].payload)  # behind the others
    with pytest.raises(DigestMismatchError):
        await full.get("a")


@pytest.mark.covers("O19")
async def test_replaced_object_without_a_consumer(full: Any) -> None:
    await full.put("a", DATA)
    async with full.open("a") as file:
        await file.next()
        await full.put("a", b"new")
        with pytest.raises(ObjectChangedError):
            await file.read()


@pytest.mark.covers("O20")
async def test_server_killed_without_a_consumer(own_server: Any, connect: Any, oracle_for: Any) -> None:
    own = await own_server()
    store = await full_store(await connect(own, **FAST), await oracle_for(own), "blobs")
    await store.put("a", DATA)
    received = bytearray()
    async with store.open("a") as file:
        async for piece in file:
            received += piece
            if len(received) == 10 * CHUNK:
                await own.kill()
                await own.start()
    assert is_same(received, DATA)


async def test_page_doubles(js: Any, store: Any) -> None:
    """Chunks come in order from the sequence that is given, and then there is no other."""
    info = await store.put("a", DATA[: 10 * CHUNK])
    stream, subject = await js.stream(store.stream), f"$O.{store.bucket}.C.{info.nuid}"
    chunks = DirectChunks(store._context, stream, subject, page=1, most=4, max_bytes=10**7, after=2)
    for number in range(2, 10):
        data, behind = await chunks.next_chunk()
        assert is_same(data, DATA[number * CHUNK : (number + 1) * CHUNK])
        assert (chunks.seq, behind) == (number + 1, int(number < 9))
    assert await chunks.next_chunk() is None
