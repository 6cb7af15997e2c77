"""Buckets are created, found, changed, listed and deleted, with the streams that all clients expect."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient
from integration.buckets.kit import keys_of
from integration.kit.judge.waiting import eventually
from jsclient import (
    BucketExistsError,
    BucketNotFoundError,
    ConfigError,
    ConfigMismatchError,
    InvalidNameError,
    NotABucketError,
    StreamConfig,
)


@pytest.mark.covers("K1", "K2")
async def test_stream_of_bucket(js: Any, oracle: Any, name: str) -> None:
    kv = await js.create_key_value(name)
    config = (await oracle.stream_info(f"KV_{name}"))["config"]
    expected = {
        "subjects": [f"$KV.{name}.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
        "max_msgs": -1,
        "max_consumers": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "storage": "file",
        "num_replicas": 1,
    }
    assert {field: config[field] for field in expected} == expected
    assert (kv.bucket, kv.stream) == (name, f"KV_{name}")


@pytest.mark.covers("K1")
@pytest.mark.parametrize("bad", ["", "a.b", "a b", "ä", "*", "a\n", None, 1])
async def test_bad_names(js: Any, bad: Any) -> None:
    for call in (js.create_key_value, js.key_value, js.ensure_key_value, js.delete_key_value):
        with pytest.raises(InvalidNameError):
            await call(bad)
    with pytest.raises(InvalidNameError):
        await js.key_value(bad, check=False)


@pytest.mark.covers("K3", "K6")
@pytest.mark.parametrize(
    "options",
    [
        {"history": 0},
        {"history": 65},
        {"history": True},
        {"limit_marker_ttl": 0.5},
        {"ttl": -1},
        {"mirror": "a", "sources": ["b"]},
    ],
    ids=str,
)
async def test_bad_options(js: Any, oracle: Any, name: str, options: Any) -> None:
    with pytest.raises(ConfigError):
        await js.create_key_value(name, **options)
    assert f"KV_{name}" not in await oracle.stream_names()


async def test_unknown_option_named(js: Any, name: str) -> None:
    with pytest.raises(TypeError, match="did you mean 'history'"):
        await js.create_key_value(name, histroy=5)


@pytest.mark.covers("K4", "K5")
@pytest.mark.parametrize(("ttl", "window"), [(0.1, 0.1), (60, 60), (3600, 120)])
async def test_ttl(js: Any, oracle: Any, name: str, ttl: float, window: float) -> None:
    await js.create_key_value(name, ttl=ttl)
    config = (await oracle.stream_info(f"KV_{name}"))["config"]
    assert (config["max_age"], config["duplicate_window"]) == (int(ttl * 1e9), int(window * 1e9))


@pytest.mark.covers("K6", "K8", "K9", "K66")
@pytest.mark.server(">=2.11")
async def test_options_in_status(js: Any, name: str) -> None:
    kv = await js.create_key_value(
        name,
        history=3,
        ttl=60,
        limit_marker_ttl=5,
        compression=True,
        max_value_size=1000,
        max_bytes=10_000,
        description="settings",
        metadata={"team": "a"},
    )
    await kv.put("a", b"1")
    await kv.put("a", b"2")
    status = await kv.status()
    assert (status.bucket, status.values, status.history, status.ttl) == (name, 2, 3, 60.0)
    assert (status.limit_marker_ttl, status.is_compressed) == (5.0, True)
    assert status.metadata == {"team": "a"}
    assert status.size > 0
    assert (status.config.description, status.config.max_msg_size) == ("settings", 1000)


@pytest.mark.covers("K10")
async def test_create_again(js: Any, name: str) -> None:
    await js.create_key_value(name, history=2)
    await (await js.create_key_value(name, history=2)).put("a", b"1")
    with pytest.raises(BucketExistsError, match="ensure_key_value") as caught:
        await js.create_key_value(name, history=3)
    assert isinstance(caught.value, jsclient.ApiError)


@pytest.mark.covers("K11")
async def test_update_and_ensure(js: Any, name: str) -> None:
    with pytest.raises(BucketNotFoundError):
        await js.update_key_value(name)
    kv = await js.create_or_update_key_value(name, history=3)
    for value in (b"1", b"2", b"3"):
        await kv.put("a", value)
    await js.update_key_value(name, history=1, ttl=60)
    assert [entry.value async for entry in kv.history()] == [b"3"]
    assert (await kv.status()).ttl == 60
    with pytest.raises(ConfigMismatchError):
        await js.ensure_key_value(name, history=5)
    assert (await (await js.ensure_key_value(name, history=5, on_drift="ignore")).status()).history == 1
    assert (await (await js.ensure_key_value(name, history=5, on_drift="update")).status()).history == 5
    await js.create_or_update_key_value(name, history=2)


@pytest.mark.covers("K13", "K15")
async def test_bind_and_delete(js: Any, name: str) -> None:
    with pytest.raises(BucketNotFoundError, match=name):
        await js.key_value(name)
    await (await js.create_key_value(name)).put("a", b"1")
    assert (await (await js.key_value(name)).get("a")).value == b"1"
    await js.delete_key_value(name)
    with pytest.raises(BucketNotFoundError):
        await js.delete_key_value(name)


@pytest.mark.covers("K13")
async def test_not_a_bucket(js: Any, name: str) -> None:
    await js.create_stream(StreamConfig(name=f"KV_{name}", subjects=[name]))
    with pytest.raises(NotABucketError, match="max_msgs_per_subject"):
        await js.key_value(name)


@pytest.mark.covers("K12")
@pytest.mark.parametrize(
    "fields", [{"discard": "old"}, {"allow_direct": False}, {"deny_delete": False}], ids=str
)
async def test_bucket_of_other_client(js: Any, name: str, fields: Any) -> None:
    """Older clients create buckets with other fields."""
    config = {"subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": 1, "allow_rollup_hdrs": True, **fields}
    await js.create_stream(StreamConfig(name=f"KV_{name}", **config))
    kv = await js.key_value(name)
    revision = await kv.put("a", b"1")
    assert (await kv.get("a")).revision == revision
    assert await keys_of(kv) == ["a"]


@pytest.mark.covers("K14")
async def test_without_lookup(js: Any, make: Any, name: str) -> None:
    """No request is sent until the bucket is used. If it has no direct gets, the leader is asked."""
    await make()
    kv = await js.key_value(name, check=False)
    await kv.put("a", b"1")
    assert (await kv.get("a")).value == b"1"
    await js.update_stream((await js.stream(f"KV_{name}")).config.replace(allow_direct=False))
    kv = await js.key_value(name, check=False)
    assert (await kv.get("a")).value == b"1"
    with pytest.raises(BucketNotFoundError):
        await (await js.key_value(f"{name}-none", check=False)).get("a")


@pytest.mark.covers("K16", "K69")
async def test_names(js: Any, make: Any, name: str) -> None:
    """Mirrors have no subjects, and are listed anyway."""
    await make()
    await js.create_key_value(f"{name}-copy", mirror=name)
    try:
        names = [one async for one in js.key_value_names()]
        assert {name, f"{name}-copy"} <= set(names)
    finally:
        await js.delete_key_value(f"{name}-copy")


@pytest.mark.covers("K17")
async def test_rights_to_get_and_put(own_server: Any, connect: Any) -> None:
    rights = {
        "publish": ["$JS.API.DIRECT.GET.KV_cfg.>", "$KV.cfg.>"],
        "subscribe": ["_INBOX.>"],
    }
    users = [
        {"user": "owner", "password": "x"},
        {"user": "ann", "password": "x", "permissions": rights},
    ]
    own = await own_server(config={"authorization": {"users": users}})
    owner = await connect(own.url.replace("nats://", "nats://owner:x@"))
    await owner.create_key_value("cfg")
    ann = await connect(own.url.replace("nats://", "nats://ann:x@"))
    kv = await ann.key_value("cfg", check=False)
    await kv.put("a", b"1")
    assert (await kv.get("a")).value == b"1"
    with pytest.raises(jsclient.KeyNotFoundError):
        await kv.get("b")


@pytest.mark.covers("K69", "K70")
async def test_mirror(js: Any, make: Any, name: str) -> None:
    """It is read at its own stream, and written at its origin."""
    kv = await make()
    await kv.put("a", b"1")
    copy = await js.create_key_value(f"{name}-copy", mirror=name)
    try:

        async def copied() -> bool:
            try:
                return (await copy.get("a")).value == b"1"
            except jsclient.KeyNotFoundError:
                return False

        await eventually(copied)
        await copy.put("b", b"2")
        assert (await kv.get("b")).value == b"2"

        async def listed() -> bool:
            return await keys_of(copy) == ["a", "b"]

        await eventually(listed)
    finally:
        await js.delete_key_value(f"{name}-copy")


@pytest.mark.covers("K71")
async def test_sources(js: Any, make: Any, name: str) -> None:
    await (await make()).put("a", b"1")
    both = await js.create_key_value(f"{name}-all", sources=[name])
    try:

        async def copied() -> bool:
            try:
                return (await both.get("a")).value == b"1"
            except jsclient.KeyNotFoundError:
                return False

        await eventually(copied)
        await both.put("b", b"2")
        assert sorted(await keys_of(both)) == ["a", "b"]
    finally:
        await js.delete_key_value(f"{name}-all")


@pytest.mark.covers("K67")
async def test_domain(own_server: Any, connect: Any) -> None:
    own = await own_server(config={"jetstream": {"domain": "hub"}})
    js = await connect(own, domain="hub")
    kv = await js.create_key_value("cfg")
    revision = await kv.put("a", b"1")
    assert (await kv.get("a")).revision == revision
    async with kv.watch() as watch:
        assert (await watch.next()).value == b"1"


@pytest.mark.covers("K7")
@pytest.mark.server(">=2.11")
async def test_markers_are_switched_on_and_not_off(js: Any, make: Any, oracle: Any, name: str) -> None:
    await make()
    kv = await js.update_key_value(name, limit_marker_ttl=60, storage="memory")
    revision = await kv.put("a", b"1", ttl=600)
    with pytest.raises(jsclient.ApiError) as caught:
        await js.update_key_value(name, storage="memory")
    assert caught.value.err_code == 10052
    assert "message TTL status can not be disabled" in str(caught.value)
    config = (await oracle.stream_info(f"KV_{name}"))["config"]
    assert (config["allow_msg_ttl"], config["subject_delete_marker_ttl"]) == (True, 60_000_000_000)
    assert (await kv.get("a")).revision == revision


def imported_account(service: dict[str, str]) -> dict[str, Any]:
    """Account I uses the buckets of account A, under the prefix fromA. Watches are answered below accI."""
    return {
        "accounts": {
            "A": {
                "users": [{"user": "a", "password": "x"}],
                "jetstream": "enabled",
                "exports": [
                    {"service": "$JS.API.>", **service},
                    {"service": "$KV.>"},
                    {"stream": "accI.>"},
                ],
            },
            "I": {
                "users": [{"user": "i", "password": "x"}],
                "imports": [
                    {"service": {"account": "A", "subject": "$JS.API.>"}, "to": "fromA.>"},
                    {"service": {"account": "A", "subject": "$KV.>"}, "to": "fromA.$KV.>"},
                    {"stream": {"account": "A", "subject": "accI.>"}},
                ],
            },
        }
    }


@pytest.mark.core_cases(1)
@pytest.mark.covers("K68")
@pytest.mark.parametrize("service", [{}, {"response": "stream"}], ids=["one answer", "many answers"])
async def test_imported_account(own_server: Any, connect: Any, service: dict[str, str]) -> None:
    own = await own_server(config=imported_account(service))
    owner = await connect(own.url.replace("nats://", "nats://a:x@"))
    there = await owner.create_key_value("cfg", history=2)
    guest = await connect(own.url.replace("nats://", "nats://i:x@"), prefix="fromA", inbox_prefix="accI")
    here = await guest.key_value("cfg")
    revision = await here.put("a", b"1")
    assert (await there.get("a")).revision == revision
    async with here.watch() as watch:
        assert (await watch.next()).value == b"1"
        await there.put("a", b"2")
        assert (await watch.next()).value == b"2"
    assert await keys_of(here) == ["a"]
    assert [entry.value async for entry in here.history("a")] == [b"1", b"2"]
    await here.delete("a")
    with pytest.raises(jsclient.KeyNotFoundError):
        await there.get("a")


@pytest.mark.covers("K72")
async def test_republished_entries(js: Any, make: Any, name: str) -> None:
    """The headers that the server adds to a republished message say where it was, and not where it is."""
    copy = await js.create_key_value(f"{name}-copy", storage="memory")
    try:
        await copy.put("other", b"0")
        await copy.put("other", b"0")
        kv = await make(republish=jsclient.models.RePublish(src=f"$KV.{name}.>", dest=f"$KV.{name}-copy.>"))
        assert await kv.put("a", b"1") == 1

        async def is_copied() -> bool:
            return (await copy.status()).values == 2

        await eventually(is_copied)
        entry = await copy.get("a")
        assert (entry.key, entry.value, entry.revision, entry.operation) == ("a", b"1", 3, "PUT")
        assert entry.headers["Nats-Stream"] == f"KV_{name}"
        async with copy.watch("a") as watch:
            entry = await watch.next()
            assert (entry.key, entry.value, entry.revision, entry.operation) == ("a", b"1", 3, "PUT")
        await copy.update("a", b"2", 3)
    finally:
        await js.delete_key_value(f"{name}-copy")


@pytest.mark.covers("K73")
async def test_handle_that_does_not_write(js: Any, make: Any, oracle: Any, name: str) -> None:
    await (await make()).put("a", b"1")
    kv = await js.key_value(name, writable=False)
    assert (await kv.get("a")).value == b"1"
    writes = (
        lambda: kv.put("a", b"2"),
        lambda: kv.create("b", b"2"),
        lambda: kv.update("a", b"2", 1),
        lambda: kv.delete("a"),
        lambda: kv.purge("a"),
        lambda: kv.update_with("a", lambda _: b"2"),
        kv.purge_deletes,
    )
    for write in writes:
        with pytest.raises(jsclient.ReadOnlyError, match="reads only") as caught:
            await write()
        assert caught.value.bucket == name
    assert (await oracle.stream_info(f"KV_{name}"))["state"]["last_seq"] == 1
