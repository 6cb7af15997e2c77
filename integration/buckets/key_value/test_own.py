"""With ``own=True``, a message that another client has stored under a key is passed over, and reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from integration.buckets.kit import keys_of
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually, never, within
from jsclient import KeyExistsError, KeyNotFoundError, RevisionMismatchError
from jsclient.events import RecordSkipped


@pytest.fixture
async def own(js: Any, make: Any, name: str) -> Any:
    # After this window, the server stores an answer that copies the message id of a value.
    await make()
    await js.update_stream((await js.stream(f"KV_{name}")).config.replace(duplicate_window=0.1))
    return await js.key_value(name, own=True)


async def answer_stored(js: Any, oracle: Any, name: str, key: str, of_key: str) -> None:
    """Have the answer to a direct get stored under a key, as anybody can who may request one."""
    before = (await oracle.stream_info(f"KV_{name}"))["state"]["last_seq"]
    request = f"$JS.API.DIRECT.GET.KV_{name}.$KV.{name}.{of_key}"

    async def is_stored() -> bool:
        if (await oracle.stream_info(f"KV_{name}"))["state"]["last_seq"] > before:
            return True
        await js._connection.publish(request, b"", reply=f"$KV.{name}.{key}")
        await asyncio.sleep(0.1)
        return False

    await eventually(is_stored, what="the answer is stored")


@pytest.mark.parametrize("kind", ["a plain message", "an answer that copies the id of a value"])
async def test_stray_message_is_no_value(
    js: Any, own: Any, oracle: Any, name: str, kind: str, events: list[Any]
) -> None:
    await own.put("a", b"1")
    revision = await own.put("b", b"2")
    if kind == "a plain message":
        await oracle.publish(f"$KV.{name}.b", b"no")
    else:
        await answer_stored(js, oracle, name, "b", "a")
    with pytest.raises(KeyNotFoundError):
        await own.get("b")
    assert (await own.get("a")).value == b"1"
    assert await keys_of(own) == ["a"]
    assert [entry.key async for entry in own.history()] == ["a"]
    skipped = of(RecordSkipped, events)
    assert [(event.subject, event.count) for event in skipped] == [(f"$KV.{name}.b", 1)]
    # What was known of the key remains in effect: its next change finds it.
    assert await own.update("b", b"3", revision) > revision + 1
    assert (await own.get("b")).value == b"3"


async def test_each_method_passes_it_over(js: Any, own: Any, oracle: Any, name: str) -> None:
    async def disturb(key: str) -> None:
        await oracle.publish(f"$KV.{name}.{key}", b"no")

    await disturb("new")
    await own.create("new", b"1")
    with pytest.raises(KeyExistsError):
        await own.create("new", b"2")
    await disturb("new")
    assert await own.update_with("new", lambda value: value or b"none") == 4
    with pytest.raises(RevisionMismatchError):
        await own.update("new", b"5", 2)
    last = await own.put("gone", b"1")
    await disturb("gone")
    await own.delete("gone", last=last)
    with pytest.raises(KeyNotFoundError) as caught:
        await own.get("gone")
    assert caught.value.deleted.operation == "DEL"
    await disturb("gone")
    await own.purge("gone")
    await disturb("gone")
    await own.put("gone", b"2")
    assert (await own.get("gone")).value == b"2"


@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("kind", ["put", "delete", "guard", "create"])
async def test_transactions_pass_it_over(
    js: Any, oracle: Any, name: str, kind: str, events: list[Any]
) -> None:
    """A revision that was known before a message of another client remains in effect, as in `update`."""
    await js.create_key_value(name, storage="memory", allow_atomic=True)
    kv = await js.key_value(name, own=True)
    last = await kv.put("a", b"1")
    if kind == "create":
        await kv.delete("a")
    await oracle.publish(f"$KV.{name}.a", b"no")
    async with kv.transaction() as tx:
        if kind == "put":
            tx.put("a", b"2", last=last)
        elif kind == "delete":
            tx.delete("a", last=last)
        elif kind == "create":
            tx.create("a", b"2")
        else:
            tx.guard("a", last)
        tx.put("b", b"3")
    stored = [(message.subject, message.payload) for message in await oracle.messages(f"KV_{name}")]
    start = f"$KV.{name}."
    assert stored[-1] == (f"{start}b", b"3")
    assert stored[0] == (f"{start}a", {"guard": b"no", "delete": b""}.get(kind, b"2"))
    if kind != "create":
        assert [event.subject for event in of(RecordSkipped, events)] == [f"{start}a"]
    tx = kv.transaction()
    tx.put("b", b"4", last=last)  # an own value is newer
    with pytest.raises(RevisionMismatchError) as caught:
        await tx.commit()
    assert caught.value.key == "b"


async def test_watches_and_caches_pass_it_over(js: Any, own: Any, oracle: Any, name: str) -> None:
    await own.put("a", b"1")
    async with own.watch() as watch, own.cache() as cache:
        assert (await watch.next()).value == b"1"
        await oracle.publish(f"$KV.{name}.b", b"no")
        revision = await own.put("c", b"2")
        assert (await within(5, watch.next(), "the change")).key == "c"
        await within(5, cache.wait_for(revision), "the change in the cache")
        assert (sorted(cache), len(cache), "b" in cache, "c" in cache) == (["a", "c"], 2, False, True)
        with pytest.raises(KeyError):
            cache["b"]
        changes = cache.changes("first")
        seen = {}
        for _ in range(3):
            change = await within(5, changes.next(), "a change")
            seen[change.key] = change.entry and change.entry.value
        assert seen == {"a": b"1", "b": None, "c": b"2"}


@pytest.mark.server(">=2.12")
async def test_values_of_other_methods_are_own(js: Any, name: str) -> None:
    await js.create_key_value(name, storage="memory", allow_atomic=True, limit_marker_ttl=60)
    kv = await js.key_value(name, own=True)
    async with kv.transaction() as tx:
        tx.put("a", b"1")
        tx.create("b", b"2")
    async with kv.lock("lock", ttl=5, value=b"me") as lock:
        await lock.put("c", b"3")
        assert (await kv.get("lock")).value == b"me"
    assert sorted(await kv.get_many(["a", "b", "c", "lock"])) == ["a", "b", "c"]
    await kv.put("d", b"4", ttl=3)
    async with kv.watch("d") as watch:
        assert (await watch.next()).operation == "PUT"
        assert (await within(30, watch.next(), "the marker")).operation == "PURGE"


async def test_a_lost_answer_is_asked_for_again(own_server: Any, proxy: Any, connect: Any) -> None:
    """Each value has an id, so it is sent again, and stored once."""
    own = await own_server()
    link = await proxy(own)
    js = await connect(link, timeout=5.0)
    await js.create_key_value("cfg", storage="memory")
    kv = await js.key_value("cfg", own=True)
    link.drop_frames(lambda frame: b'"seq":1' in frame.raw and b'"duplicate"' not in frame.raw)
    assert await kv.put("a", b"1") == 1
    assert (await kv.status()).values == 1


async def test_plain_handles_count_everything(
    js: Any, make: Any, oracle: Any, name: str, events: list[Any]
) -> None:
    kv = await make()
    await oracle.publish(f"$KV.{name}.b", b"yes")
    assert (await kv.get("b")).value == b"yes"
    await never(lambda: of(RecordSkipped, events), 0.05, "a report")
