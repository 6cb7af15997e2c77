"""Streams, consumers and stored messages: made, changed, compared, listed, removed. Source: ADR-1, ADR-31, ADR-37."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.network.asking import api_requests, body
from integration.kit.network.proxy import Proxy
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient import ConsumerConfig, StreamConfig


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


@pytest.fixture
async def name(oracle: Oracle) -> AsyncIterator[str]:
    """A name for a stream that the test makes itself."""
    name = f"M{secrets.token_hex(5)}"
    yield name
    await oracle.delete_stream(name, missing_ok=True)


# Streams


@pytest.mark.parametrize("how", ["config", "fields"])
async def test_stream_created_changed_and_deleted(js: Any, oracle: Oracle, name: str, how: str) -> None:
    """Row 136: create, update, upsert, delete."""
    fields = {"subjects": [f"{name}.>"], "max_msgs": 10, "max_age": 1.5, "storage": "memory"}

    async def call(method: Any, **changes: Any) -> Any:
        return await (
            method(StreamConfig(name=name, **fields, **changes))
            if how == "config"
            else method(name, **fields, **changes)
        )

    stream = await call(js.create_stream)
    actual = (await oracle.stream_info(name))["config"]
    assert (actual["max_msgs"], actual["max_age"], actual["storage"]) == (10, 1_500_000_000, "memory")
    assert (stream.name, stream.config.max_age, stream.config.retention) == (name, 1.5, "limits")
    assert (await call(js.create_stream)).config == stream.config, "the same again is no error"
    with pytest.raises(jsclient.StreamExistsError) as caught:
        await call(js.create_stream, description="x")
    assert caught.value.err_code == 10058
    assert (await call(js.update_stream, description="x")).config.description == "x"
    assert (await js.stream(name)).config.description == "x"
    await js.delete_stream(name)
    assert name not in await oracle.stream_names()
    assert (await call(js.create_or_update_stream, description="y")).config.description == "y"
    assert (await call(js.create_or_update_stream, description="z")).config.description == "z"


async def test_missing_stream_error(js: Any) -> None:
    for call in (
        js.stream("missing"),
        js.delete_stream("missing"),
        js.update_stream("missing", ["a.missing"]),
    ):
        with pytest.raises(jsclient.StreamNotFoundError) as caught:
            await call
        assert (caught.value.code, caught.value.err_code) == (404, 10059)


async def test_illegal_names_refused_before_wire(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Row 136: names."""
    handle = await js.stream(stream.name)
    since = len(tap.frames)
    for bad in ("a.b", "a b", "a*", "", "a\r\n", "x" * 256):
        for call in (
            js.stream(bad),
            js.delete_stream(bad),
            js.create_stream(bad, ["a"]),
            js.ensure_stream(bad, subjects=["a"]),
            js.create_stream("LIST_OF_LETTERS", "abc.>"),
            js.stream_name_by_subject(bad + ".."),
            handle.consumer(bad),
            handle.delete_consumer(bad),
            handle.create_consumer(durable_name=bad or "a.b"),
        ):
            with pytest.raises(jsclient.ConfigError):
                await call
    await js.ping()
    assert api_requests(tap, since=since) == []


async def test_ensure_stream_compares_only_set(js: Any, tap: Proxy, oracle: Oracle, name: str) -> None:
    subjects = [f"{name}.>"]
    created = await js.ensure_stream(name, subjects=subjects, max_msgs=10, description="first")
    assert created.config.max_msgs == 10
    since = len(tap.frames)
    for same in (
        {},
        {"max_msgs": 10},
        {"subjects": subjects, "max_bytes": -1, "storage": "file", "discard": "old"},
    ):
        assert (await js.ensure_stream(name, **same)).config == created.config
    assert set(api_requests(tap, since=since)) == {f"STREAM.INFO.{name}"}

    with pytest.raises(
        jsclient.ConfigMismatchError, match=f"^stream '{name}': .* update the stream"
    ) as caught:
        await js.ensure_stream(name, max_msgs=11, max_age=60)
    assert sorted(caught.value.mismatches)[1] == ("max_msgs", 11, 10)
    assert [field for field, _, _ in sorted(caught.value.mismatches)] == ["max_age", "max_msgs"]
    assert (await js.ensure_stream(name, max_msgs=11, on_drift="ignore")).config.max_msgs == 10
    updated = await js.ensure_stream(name, max_msgs=11, on_drift="update")
    assert (updated.config.max_msgs, updated.config.description) == (11, "first")
    saved = (await oracle.stream_info(name))["config"]
    assert (saved["max_msgs"], saved["description"], saved["subjects"]) == (11, "first", subjects)


async def test_update_keeps_unknown(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """P31: nats-py erases what it does not know."""

    def enrich(frame: Any) -> bytes:
        raw: bytes = frame.raw
        if b"stream_info_response" in frame.payload or b"consumer_info_response" in frame.payload:
            payload = frame.payload.replace(b'"config":{', b'"config":{"of_the_future":{"a":[1]},', 1)
            raw = frame.but(payload=payload).raw
        return raw

    await stream.create_consumer("c", description="before")
    tap.modify_frames(lambda frame: frame.op == "MSG" and frame.direction == "to_client", enrich)
    handle = await js.stream(stream.name)
    assert handle.config.extra == {"of_the_future": {"a": [1]}}
    with contextlib.suppress(jsclient.ApiError):  # newer servers refuse the field, older ones drop it
        await js.update_stream(handle.config.replace(description="after"))
    (update,) = tap.sent("$JS.API.STREAM.UPDATE.>")
    assert body(update)["of_the_future"] == {"a": [1]}
    assert body(update)["description"] == "after"
    consumer = await handle.consumer("c")
    with contextlib.suppress(jsclient.ApiError):
        await handle.update_consumer(consumer.config.replace(description="after"))
    (update,) = tap.sent("$JS.API.CONSUMER.CREATE.>")
    assert body(update)["config"]["of_the_future"] == {"a": [1]}
    # A field that only the server knows can be set, too.
    for ensure in (
        js.ensure_stream(StreamConfig(name=stream.name, extra={"of_2050": 1}), on_drift="update"),
        handle.ensure_consumer(ConsumerConfig(durable_name="c", extra={"of_2050": 1}), on_drift="update"),
    ):
        # Newer servers refuse the field. That older ones drop it is reported.
        with contextlib.suppress(jsclient.ApiError, jsclient.ConfigMismatchError):
            await ensure
    assert body(tap.sent("$JS.API.STREAM.UPDATE.>")[1])["of_2050"] == 1
    assert body(tap.sent("$JS.API.CONSUMER.CREATE.>")[1])["config"]["of_2050"] == 1


async def test_streams_listed_page_by_page(js: Any, tap: Proxy, stream: OwnStream, make_stream: Any) -> None:
    """Row 136: pages of 2 in the place of the server's 1024 and 256, and filters."""
    others = [await make_stream() for _ in range(4)]

    def cut(frame: Any) -> bytes:
        answer = json.loads(frame.payload)
        if answer.get("streams"):
            answer["streams"] = answer["streams"][:2]
        raw: bytes = frame.but(payload=json.dumps(answer).encode()).raw
        return raw

    tap.modify_frames(
        lambda f: b"stream_names_response" in f.payload or b"stream_list_response" in f.payload, cut
    )
    expected = {stream.name, *(other.name for other in others)}
    names = [name async for name in js.stream_names()]
    assert expected <= set(names)
    assert len(names) == len(set(names))
    offsets = [body(frame)["offset"] for frame in tap.sent("$JS.API.STREAM.NAMES")]
    assert offsets[:3] == [0, 2, 4]
    infos = [info.name async for info in js.streams()]
    assert expected <= set(infos)
    assert len(infos) == len(set(infos))
    assert [name async for name in js.stream_names(stream.subject("a"))] == [stream.name]
    assert [info.name async for info in js.streams(stream.all)] == [stream.name]
    assert [name async for name in js.stream_names(f"{stream.prefix}x.none")] == []
    for listing in (js.stream_names(""), js.streams("a b")):
        with pytest.raises(jsclient.InvalidNameError):
            await anext(listing)


async def test_the_account_is_reported(js: Any, stream: OwnStream, server: ServerUnderTest) -> None:
    account = await js.account_info()
    assert account.streams >= 1
    assert account.memory >= 0
    assert account.limits.max_streams in (-1, 0) or account.limits.max_streams > 0
    assert account.api.total > 0
    assert js.server_version == server.version


# Messages


@pytest.mark.smoke
async def test_stored_messages_read_and_deleted(js: Any, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    await js.publish(stream.subject("a"), b"one", headers={"K": ["1", "2"]})
    await js.publish(stream.subject("b"), b"")
    await js.publish(stream.subject("a"), b"three")
    first = await handle.get_message(1)
    assert (first.subject, first.seq, first.data) == (stream.subject("a"), 1, b"one")
    assert first.headers.get_all("K") == ["1", "2"]
    assert abs((first.time - datetime.now(UTC)).total_seconds()) < 60
    assert first.time_ns // 1000 == round(first.time.timestamp() * 1_000_000)
    assert (await handle.get_last_message(stream.subject("a"))).seq == 3
    assert (await handle.get_last_message(stream.all)).seq == 3
    assert (await handle.get_message(2)).data == b""

    await handle.delete_message(1)
    await handle.delete_message(3, secure=True)
    for call in (handle.get_message(1), handle.get_message(99), handle.get_last_message(stream.subject("a"))):
        with pytest.raises(jsclient.MessageNotFoundError) as caught:
            await call
        assert caught.value.err_code == 10037
    with pytest.raises(jsclient.ApiError):
        await handle.delete_message(1)
    assert [m.seq for m in await stream.messages()] == [2]


async def test_stream_purged_in_whole_and_in_part(js: Any, stream: OwnStream) -> None:
    """Row 138: forms of purge. All of them in test_management_pages."""
    handle = await js.stream(stream.name)
    await stream.publish(10, "a")
    await stream.publish(10, "b")
    assert await handle.purge(seq=4) == 3
    assert await handle.purge(subject=stream.subject("a"), keep=2) == 5
    assert await handle.purge(subject=stream.subject("b")) == 10
    info = await handle.info(subjects_filter=">", deleted_details=True)
    assert (info.state.messages, info.state.subjects) == (2, {stream.subject("a"): 2})
    assert await handle.purge() == 2
    assert await handle.purge() == 0
    with pytest.raises(jsclient.ConfigError):
        await handle.purge(seq=1, keep=1)
    assert handle.cached_info.state.messages == 2


@pytest.mark.parametrize("seq", [0, 1])
async def test_purge_below_first(js: Any, oracle: Oracle, make_stream: Any, seq: int) -> None:
    """Servers read 0 as "no sequence", older ones also 1, and remove everything."""
    stream = await make_stream(storage="file")
    await stream.publish(5)
    handle = await js.stream(stream.name)
    assert await handle.purge(seq=seq) == 0
    assert await handle.purge(seq=seq, subject=stream.all) == 0
    assert (await stream.state())["messages"] == 5
    assert await handle.purge(seq=2) == 1
    for bad in ({"seq": -1}, {"keep": -1}, {"seq": True}, {"keep": "1"}, {"seq": 2**64}):
        with pytest.raises(jsclient.ConfigError):
            await handle.purge(**bad)
    assert (await stream.state())["messages"] == 4


# Consumers


async def test_consumer_life_cycle(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Row 136: create, update and upsert are distinguished by the action, by which the server decides."""
    handle = await js.stream(stream.name)
    consumer = await handle.create_consumer(durable_name="c", ack_wait=2.5, max_deliver=3)
    assert (consumer.name, consumer.stream, consumer.config.ack_wait) == ("c", stream.name, 2.5)
    assert (
        await handle.create_consumer(durable_name="c", ack_wait=2.5, max_deliver=3)
    ).config == consumer.config
    with pytest.raises(jsclient.ConsumerExistsError) as caught:
        await handle.create_consumer(durable_name="c", max_deliver=4)
    assert caught.value.err_code == 10148
    updated = await handle.update_consumer(consumer.config.replace(max_deliver=4))
    assert (updated.config.max_deliver, updated.config.ack_wait) == (4, 2.5)
    assert (await handle.create_or_update_consumer(durable_name="c", max_deliver=5)).config.max_deliver == 5
    assert (await (await handle.consumer("c")).info()).config.max_deliver == 5
    await handle.delete_consumer("c")
    for call in (handle.consumer("c"), handle.delete_consumer("c")):
        with pytest.raises(jsclient.ConsumerNotFoundError) as raised:
            await call
        assert (raised.value.code, raised.value.err_code) == (404, 10014)
    with pytest.raises(jsclient.ApiError) as missing:
        await handle.update_consumer(durable_name="c")
    assert missing.value.err_code == 10149
    actions = [body(frame).get("action") for frame in tap.sent("$JS.API.CONSUMER.CREATE.>")]
    assert actions == ["create", "create", "create", "update", None, "update"]
    assert await stream.consumer_names() == []


async def test_ensure_consumer_compares_only_set(js: Any, tap: Proxy, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    expected = ConsumerConfig(durable_name="c", max_deliver=3, filter_subject=stream.subject("a"))
    created = await handle.ensure_consumer(expected)
    since = len(tap.frames)
    for same in (
        expected,
        ConsumerConfig(durable_name="c"),
        ConsumerConfig(durable_name="c", ack_policy="explicit"),
    ):
        assert (await handle.ensure_consumer(same)).config == created.config
    assert set(api_requests(tap, since=since)) == {f"CONSUMER.INFO.{stream.name}.c"}
    with pytest.raises(jsclient.ConfigMismatchError) as caught:
        await handle.ensure_consumer(durable_name="c", max_deliver=4, ack_wait=9)
    assert sorted(caught.value.mismatches) == [("ack_wait", 9.0, 30.0), ("max_deliver", 4, 3)]
    ignored = await handle.ensure_consumer(durable_name="c", max_deliver=4, on_drift="ignore")
    assert ignored.config.max_deliver == 3
    updated = await handle.ensure_consumer(durable_name="c", max_deliver=4, on_drift="update")
    assert updated.config.max_deliver == 4
    assert updated.config.filter_subject == stream.subject("a")
    with pytest.raises(jsclient.ConfigError):
        await handle.ensure_consumer(max_deliver=4)


async def test_consumers_in_pages(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Row 136: 256 infos are the server's page."""
    for number in range(260):
        await stream.create_consumer(f"c{number}", mem_storage=True)
    handle = await js.stream(stream.name)
    actual = [info.name async for info in handle.consumers()]
    assert sorted(actual) == sorted(f"c{number}" for number in range(260))
    offsets = [body(frame)["offset"] for frame in tap.sent("$JS.API.CONSUMER.LIST.>")]
    assert offsets == [0, 256]


async def test_newer_fields_round_trip(js: Any, stream: OwnStream) -> None:
    """P31: nats-py loses them on the way."""
    fields: dict[str, Any] = {
        "max_batch": 10, "max_expires": 3.5, "max_bytes": 1000, "inactive_threshold": 60.0, "backoff": [1.0, 2.5],
        "max_deliver": 5, "filter_subjects": [stream.subject("a"), stream.subject("b")], "metadata": {"k": "v"},
        "headers_only": True, "mem_storage": True,
    }  # fmt: skip
    handle = await js.stream(stream.name)
    await handle.create_consumer(durable_name="c", **fields)
    config = (await handle.consumer("c")).config
    again = (await handle.update_consumer(config.replace(description="x"))).config
    for name, value in fields.items():
        actual = getattr(again, name)
        if name == "metadata":
            actual = {key: text for key, text in actual.items() if not key.startswith("_nats.")}
        assert actual == value, name
