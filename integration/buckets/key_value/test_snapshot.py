"""Several keys are read as of one revision, from which a watch continues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jsclient import TooManyResultsError


@pytest.mark.server(">=2.11")
async def test_get_many(kv: Any) -> None:
    for number in range(30):
        await kv.put(f"a.{number}", b"%d" % number)
    await kv.put("b", b"x")
    await kv.delete("a.3")
    snapshot = await kv.get_many(["a.>", "b", "none"])
    assert len(snapshot) == 30
    assert {key: entry.value for key, entry in snapshot.items()} == {
        "b": b"x",
        **{f"a.{n}": b"%d" % n for n in range(30) if n != 3},
    }
    assert snapshot.revision == 32
    async with kv.watch(after=snapshot.revision) as watch:
        await kv.put("b", b"y")
        assert (await watch.next()).value == b"y"
    assert (await kv.get_many("none")).revision == 33


@pytest.mark.server(">=2.11")
async def test_revision_of_nothing(kv: Any) -> None:
    """A key is put after the request that has found none: the snapshot has it, or a watch after it returns it."""
    assert (await kv.get_many("a")).revision == 0
    renewed = kv._renewed

    async def put_and_renew() -> Any:
        await kv.put("a", b"1")
        return await renewed()

    kv._renewed = put_and_renew
    snapshot = await kv.get_many("a")
    assert (snapshot.revision, snapshot["a"].value) == (1, b"1")


@pytest.mark.server(">=2.11")
async def test_get_many_of_too_many(kv: Any, js: Any, name: str) -> None:
    async with js.publisher() as publisher:
        for number in range(1100):
            publisher.send(f"$KV.{name}.k{number}", b"")
    with pytest.raises(TooManyResultsError):
        await kv.get_many(">")
    assert len(await kv.get_many([f"k{number}" for number in range(1100)])) == 1100


@pytest.mark.server(">=2.11")
@pytest.mark.limit(120)
async def test_more_keys_than_one_request_takes(make: Any) -> None:
    """Keys that have a value all the time are not missing, though the value before may be gone: the history is 1."""
    kv = await make()
    values = {f"k{number}": b"1" for number in range(2500)}
    await kv.put_many(values)
    stop = asyncio.Event()

    async def put_again() -> None:
        while not stop.is_set():
            await kv.put_many(dict.fromkeys(list(values)[1000:], b"2"))

    putting = asyncio.create_task(put_again())
    for _ in range(5):
        snapshot = await kv.get_many(values)
        assert snapshot.keys() == values.keys()
        first = snapshot["k0"].revision
        assert first <= snapshot.revision, (
            "a watch after it misses no change of the keys of the first request"
        )
    stop.set()
    await putting
