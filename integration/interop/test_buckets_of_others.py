"""Buckets with another configuration, other keys and copies, which another client has created."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from integration.buckets.kit import keys_of
from integration.interop.command_process import CommandError
from integration.interop.other_client import KEY_VALUE_CLIENTS, ClientNamed, Entry, OtherClient
from integration.kit.judge.waiting import eventually
from jsclient import ConfigError, KeyNotFoundError
from jsclient.buckets import Base64Keys

# nats-py creates no copies, and nats-key-value asks for a mirror with subjects, which the server refuses.
COPYING = [name for name in KEY_VALUE_CLIENTS if name not in {"nats-py", "nats-key-value"}]


@pytest.fixture(params=KEY_VALUE_CLIENTS)
async def theirs(request: pytest.FixtureRequest, client_named: ClientNamed) -> AsyncIterator[OtherClient]:
    async with client_named(request.param) as client:
        yield client


@pytest.fixture(params=COPYING)
async def copying(request: pytest.FixtureRequest, client_named: ClientNamed) -> AsyncIterator[OtherClient]:
    async with client_named(request.param) as client:
        yield client


@pytest.fixture
async def copy(oracle: Any, name: str) -> AsyncIterator[str]:
    yield f"{name}-copy"
    await oracle.delete_stream(f"KV_{name}-copy", missing_ok=True)


async def values_of(kv: Any) -> dict[str, bytes]:
    return {key: (await kv.get(key)).value for key in await keys_of(kv)}


@pytest.mark.covers("I8", "K12")
async def test_each_method_works(js: Any, theirs: Any, name: str, oracle: Any, events: list[Any]) -> None:
    """JavaScript does not forbid deletions, and nats-py does not allow direct gets. Nothing is reported."""
    await theirs.create_bucket(name, history=3)
    config = (await oracle.stream_info(f"KV_{name}"))["config"]
    assert config.get("deny_delete", False) is (theirs.name != "js")
    assert config.get("allow_direct", False) is (theirs.name != "nats-py")
    kv = await js.key_value(name)
    async with kv.watch() as watch, kv.cache() as cache:
        last = await kv.put("a", b"1")
        last = await kv.update("a", b"2", last)
        await theirs.put(name, "b", b"3")
        await kv.create("c", b"4")
        assert await kv.update_with("c", lambda value: value + b"!") == 5
        await kv.delete("b")
        seen = [(entry.key, entry.value) for entry in [await watch.next() for _ in range(6)]]
        assert seen == [("a", b"1"), ("a", b"2"), ("b", b"3"), ("c", b"4"), ("c", b"4!"), ("b", b"")]
        await cache.wait_for(6)
        assert sorted(cache) == ["a", "c"]
    assert (await kv.get("a", min_revision=last)).value == b"2"
    assert (await kv.get("a", revision=1)).value == b"1"
    if theirs.name == "nats-py":
        with pytest.raises(ConfigError):  # which says that the bucket needs allow_direct=True
            await kv.get_many(">")
    assert await values_of(kv) == {"a": b"2", "c": b"4!"}
    assert sorted(await keys_of(kv)) == ["a", "c"]
    assert [entry.revision async for entry in kv.history("a")] == [1, 2]
    await kv.purge("c", last=5)
    await kv.purge_deletes(older_than=0)
    with pytest.raises(KeyNotFoundError) as caught:
        await kv.get("b")
    assert caught.value.deleted is None
    assert (await kv.status()).history == 3
    assert events == []


@pytest.mark.covers("I8", "K12")
async def test_ensure_of_theirs(js: Any, theirs: Any, name: str, oracle: Any) -> None:
    """What their client leaves out is set only if that is asked for, and values stay."""
    await theirs.create_bucket(name, history=2)
    await theirs.put(name, "a", b"1")
    kv = await js.ensure_key_value(name, history=2, on_drift="update")
    config = (await oracle.stream_info(f"KV_{name}"))["config"]
    assert (config["deny_delete"], config["allow_direct"]) == (True, True)
    assert (await kv.get("a")).value == b"1"
    assert await theirs.get(name, "a") == Entry("a", b"1", 1, "PUT")


@pytest.mark.covers("I9")
async def test_keys_in_base64(js: Any, javascript: Any, name: str) -> None:
    """The codec of JavaScript takes each character for a byte, and has the standard alphabet of base64."""
    kv = await js.create_key_value(name, key_codec=Base64Keys())
    await javascript.encode_keys(name)
    keys = ["plain", "a b.c@d", "user:1.*x", "a>b"]
    for number, key in enumerate(keys):
        await kv.put(key, b"%d" % number)
        assert (await javascript.get(name, key)).value == b"%d" % number
        await javascript.put(name, key, b"theirs")
        assert (await kv.get(key)).value == b"theirs"
    assert sorted(await keys_of(kv)) == sorted(await javascript.keys(name)) == sorted(keys)
    assert await keys_of(kv, "a b.*") == ["a b.c@d"]  # JavaScript refuses the filter
    # The two characters in which the alphabets differ: JavaScript refuses its own "+", and "/" is another key.
    with pytest.raises(CommandError, match="invalid key"):
        await javascript.put(name, "~~~", b"1")
    await javascript.put(name, "???", b"theirs")
    assert "Pz8/" in await keys_of(kv)  # as it is stored
    with pytest.raises(KeyNotFoundError):
        await kv.get("???")


@pytest.mark.covers("I10", "K69")
async def test_mirror_of_theirs(js: Any, copying: Any, name: str, copy: str) -> None:
    """It is read through its own name. Values that are written to it go to its origin."""
    kv = await js.create_key_value(name)
    await kv.put("a", b"1")
    await copying.create_bucket(copy, mirror={"name": f"KV_{name}"})
    mirror = await js.key_value(copy)
    await eventually(lambda: has(mirror, {"a": b"1"}))
    await mirror.put("b", b"2")
    assert (await kv.get("b")).value == b"2"
    await eventually(lambda: has(mirror, {"a": b"1", "b": b"2"}))
    assert sorted(await keys_of(mirror)) == ["a", "b"]
    async with mirror.watch() as watch:
        assert [(await watch.next()).key for _ in range(2)] == ["a", "b"]


@pytest.mark.covers("I10")
async def test_others_read_no_mirror(js: Any, theirs: Any, name: str, copy: str) -> None:
    """They look for subjects with the name of the mirror, which stores those of its origin. Go writes to the origin."""
    kv = await js.create_key_value(name)
    await kv.put("a", b"1")
    mirror = await js.create_key_value(copy, mirror=name)
    await eventually(lambda: has(mirror, {"a": b"1"}))
    assert await theirs.get(copy, "a") is None
    if theirs.name == "go":
        assert await theirs.put(copy, "b", b"2") == 2
        assert (await kv.get("b")).value == b"2"


@pytest.mark.covers("I10", "K71")
@pytest.mark.parametrize("who", ["ours", "theirs"])
async def test_sources(js: Any, copying: Any, name: str, copy: str, who: str) -> None:
    """A bucket that collects another one has its values under its own name. Those of Rust keep the other name."""
    if (copying.name, who) == ("rust", "theirs"):
        pytest.skip("the Rust client transforms no subjects of sources")
    kv = await js.create_key_value(name)
    await kv.put("a", b"1")
    if who == "ours":
        collected = await js.create_key_value(copy, sources=[name])
    else:
        await copying.create_bucket(copy, sources=[{"name": f"KV_{name}"}])
        collected = await js.key_value(copy)
    await eventually(lambda: has(collected, {"a": b"1"}))
    await copying.put(copy, "b", b"2")
    assert await values_of(collected) == {"a": b"1", "b": b"2"}
    assert (await copying.get(copy, "a")).value == b"1"
    with pytest.raises(KeyNotFoundError):
        await kv.get("b")


async def has(kv: Any, values: dict[str, bytes]) -> bool:
    return await values_of(kv) == values
