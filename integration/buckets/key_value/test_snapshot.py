"""Several keys are read as of one revision, from which a watch continues."""

from __future__ import annotations

from typing import Any

import pytest

from jsclient import TooManyResultsError
from jsclient.buckets.key_value import snapshot as snapshots


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
async def test_no_key_of_a_later_request_is_missing(
    kv: Any, js: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket keeps one value of each key, so the value as of the first request is replaced meanwhile."""
    await kv.put_many((f"k{number}", b"1") for number in range(1200))
    read, requests = snapshots._read, []

    async def read_and_put(stream: Any, subjects: Any, up_to: Any, add: Any) -> int:
        revision = await read(stream, subjects, up_to, add)
        if not requests:
            await kv.put("k1100", b"2")
        requests.append(len(subjects))
        return revision

    monkeypatch.setattr(snapshots, "_read", read_and_put)
    snapshot = await kv.get_many([f"k{number}" for number in range(1200)])
    assert (requests, len(snapshot), snapshot.revision) == ([1000, 200], 1200, 1200)
    assert (snapshot["k1100"].value, snapshot["k1100"].revision) == (b"2", 1201)
