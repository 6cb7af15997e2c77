"""Having a consumer or a stream as wished, whatever exists before: ensure, its drift and its races."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle, OracleError
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within
from integration.kit.network.asking import answers_to, api_requests, body, traffic
from jsclient import ConsumerConfig, StreamConfig

RACES = 200


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.fixture
async def name(oracle: Oracle) -> AsyncIterator[str]:
    """A name for a stream that the test makes itself."""
    name = f"E{secrets.token_hex(5)}"
    yield name
    await oracle.delete_stream(name, missing_ok=True)


async def consumer_config(stream: OwnStream) -> dict[str, Any]:
    """Of the consumer `c`, as the server has it, without what the server says in it of itself."""
    config: dict[str, Any] = (await stream.consumer_info("c"))["config"]
    return without_server_metadata(config)


def without_server_metadata(config: dict[str, Any]) -> dict[str, Any]:
    own = {k: v for k, v in config.get("metadata", {}).items() if not k.startswith("_nats.")}
    return {**config, "metadata": own}


# --- consumers: what differs -------------------------------------------------------------------------------------

CHANGES: list[tuple[str, Any, Any]] = [
    ("description", "one", "two"),
    ("ack_wait", 5.0, 6.5),
    ("max_deliver", 3, 4),
    ("max_ack_pending", 10, 20),
    ("sample_freq", "10%", "20"),
    ("headers_only", False, True),
    ("max_batch", 10, 20),
    ("max_expires", 5.0, 6.0),
    ("max_bytes", 1000, 2000),
    ("inactive_threshold", 60.0, 70.0),
    ("metadata", {"a": "1"}, {"a": "2", "b": "3"}),
    ("filter_subject", "{}.a", "{}.b"),
    ("filter_subjects", ["{}.a", "{}.b"], ["{}.b", "{}.c"]),
]
"""Fields that the server changes, in a durable pull consumer."""

FIXED: list[tuple[str, Any, Any]] = [
    ("ack_policy", "explicit", "all"),
    ("deliver_policy", "all", "new"),
    ("replay_policy", "instant", "original"),
    ("max_waiting", 10, 20),
]
"""Fields that it does not."""


def within_stream(stream: OwnStream, value: Any) -> Any:
    """A filter as a subject of this stream."""
    if isinstance(value, list):
        return [within_stream(stream, item) for item in value]
    return value.format(stream.prefix) if isinstance(value, str) and "{}" in value else value


@pytest.mark.row(136)
@pytest.mark.parametrize(("field", "before", "after"), CHANGES, ids=[row[0] for row in CHANGES])
async def test_drift_named_and_updated(
    near: Any, stream: OwnStream, field: str, before: Any, after: Any
) -> None:
    before, after = within_stream(stream, before), within_stream(stream, after)
    handle = await near.stream(stream.name)
    others = {"max_ack_pending": 77, "description": "kept"}
    others.pop(field, None)
    await handle.ensure_consumer(durable_name="c", **{field: before}, **others)
    was = await consumer_config(stream)
    same = await handle.ensure_consumer(durable_name="c", **{field: before})
    if field != "metadata":  # which has entries of the server's too
        assert getattr(same.config, field) == before or not before
    with pytest.raises(jsclient.ConfigMismatchError) as caught:
        await handle.ensure_consumer(durable_name="c", **{field: after})
    ((reports, expected, _),) = caught.value.mismatches
    assert (reports, expected) == (field, after)
    await handle.ensure_consumer(durable_name="c", on_drift="ignore", **{field: after})
    assert await consumer_config(stream) == was
    changed = await handle.ensure_consumer(durable_name="c", on_drift="update", **{field: after})
    now = await consumer_config(stream)
    assert {key for key in now.keys() | was.keys() if now.get(key) != was.get(key)} == {field}
    assert changed.config == (await changed.info()).config
    await handle.ensure_consumer(durable_name="c", **{field: after}, **others)


@pytest.mark.row(136)
@pytest.mark.parametrize(("field", "before", "after"), FIXED, ids=[row[0] for row in FIXED])
async def test_refused_update_reported(
    near: Any, stream: OwnStream, field: str, before: Any, after: Any
) -> None:
    handle = await near.stream(stream.name)
    await handle.ensure_consumer(durable_name="c", max_deliver=3, **{field: before})
    was = await consumer_config(stream)
    with pytest.raises(jsclient.ApiError) as caught:
        await handle.ensure_consumer(durable_name="c", on_drift="update", **{"max_deliver": 4, field: after})
    assert caught.value.err_code == 10012
    assert await consumer_config(stream) == was


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"filter_subject": "{}.a"}, {"filter_subjects": ["{}.a", "{}.b"]}),
        ({"filter_subjects": ["{}.a", "{}.b"]}, {"filter_subject": "{}.c"}),
        ({"filter_subjects": ["{}.a", "{}.b"]}, {"filter_subjects": []}),
        ({"filter_subject": "{}.a"}, {"filter_subjects": []}),
        ({}, {"filter_subjects": ["{}.a", "{}.b"]}),
    ],
)
async def test_filters_replace_each_other(
    near: Any, stream: OwnStream, before: dict[str, Any], after: dict[str, Any]
) -> None:
    before = {key: within_stream(stream, value) for key, value in before.items()}
    after = {key: within_stream(stream, value) for key, value in after.items()}
    handle = await near.stream(stream.name)
    await handle.ensure_consumer(durable_name="c", **before)
    with pytest.raises(jsclient.ConfigMismatchError):
        await handle.ensure_consumer(durable_name="c", **after)
    changed = await handle.ensure_consumer(durable_name="c", on_drift="update", **after)
    assert set(changed.config.filters) == set(ConsumerConfig(**after).filters)
    await handle.ensure_consumer(durable_name="c", **after)


@pytest.mark.row(136)
async def test_server_fills_in_no_drift(near: Any, tap: Any, stream: OwnStream) -> None:
    """Zero, minus one and false are how others say "not set"."""
    handle = await near.stream(stream.name)
    config = ConsumerConfig(
        durable_name="c", ack_wait=0, max_deliver=0, max_ack_pending=0, max_waiting=0, max_batch=0, max_expires=0,
        max_bytes=0, inactive_threshold=0, num_replicas=0, backoff=[], filter_subject="", filter_subjects=[],
        headers_only=False, mem_storage=False, sample_freq="", description="", metadata={}, replay_policy="instant",
    )  # fmt: skip
    created = await handle.ensure_consumer(config)
    since = len(tap.frames)
    for on_drift in ("error", "update", "ignore"):
        assert (await handle.ensure_consumer(config, on_drift=on_drift)).config == created.config
    assert (await handle.ensure_consumer(created.config)).config == created.config
    assert (
        await handle.ensure_consumer(durable_name="c", max_deliver=-1, ack_wait=30)
    ).config == created.config
    assert set(api_requests(tap, since=since)) == {f"CONSUMER.INFO.{stream.name}.c"}


async def test_deliver_subject_compared(near: Any, stream: OwnStream) -> None:
    handle = await near.stream(stream.name)
    await handle.ensure_consumer(durable_name="c", deliver_subject="d.one", idle_heartbeat=1)
    await handle.ensure_consumer(durable_name="c", idle_heartbeat=1)
    with pytest.raises(jsclient.ConfigMismatchError) as caught:
        await handle.ensure_consumer(durable_name="c", deliver_subject="d.two")
    assert caught.value.mismatches == [("deliver_subject", "d.two", "d.one")]
    moved = await handle.ensure_consumer(durable_name="c", deliver_subject="d.two", on_drift="update")
    assert (moved.config.deliver_subject, moved.config.idle_heartbeat) == ("d.two", 1)


async def test_cannot_be_meant_refused_before_wire(near: Any, tap: Any, stream: OwnStream) -> None:
    handle = await near.stream(stream.name)
    before = len(tap.frames)
    for call in (
        handle.ensure_consumer(ack_wait=5),
        handle.ensure_consumer(durable_name="c", on_drift="Update"),
        handle.ensure_consumer(durable_name="c", on_drift=None),
        handle.update_consumer(ack_wait=5),
        handle.create_consumer(durable_name="c", name="d"),
        handle.update_consumer(durable_name="c", name="d"),
        handle.create_or_update_consumer(durable_name="c", name="d"),
        handle.create_consumer(durable_name="c", ack_wait="5"),
        handle.create_consumer(durable_name="c", ack_policy="sometimes"),
        near.ensure_stream(stream.name, on_drift="fix"),
    ):
        with pytest.raises(jsclient.ConfigError):
            await call
    await near.ping()
    assert traffic(tap, before) == []


# --- consumers: what only the server knows -----------------------------------------------------------------------


def add_field(tap: Any, where: bytes) -> None:
    """The server's configurations have a field that this version does not know."""

    def enrich(frame: Any) -> bytes:
        payload = frame.payload.replace(b'"config":{', b'"config":{"of_the_future":{"a":[1]},', 1)
        raw: bytes = frame.but(payload=payload).raw
        return raw

    tap.modify_frames(lambda frame: frame.direction == "to_client" and where in frame.payload, enrich)


@pytest.mark.row(136)
async def test_update_keeps_unknown(near: Any, tap: Any, stream: OwnStream) -> None:
    """P31."""
    await stream.create_consumer("c", max_deliver=3, description="kept")
    add_field(tap, b"consumer_info_response")
    handle = await near.stream(stream.name)
    with contextlib.suppress(jsclient.ApiError):  # newer servers refuse the field, older ones drop it
        await handle.ensure_consumer(durable_name="c", max_deliver=4, on_drift="update")
    (request,) = tap.sent("$JS.API.CONSUMER.CREATE.>")
    sent = body(request)
    assert (sent["action"], sent["config"]["of_the_future"]) == ("update", {"a": [1]})
    assert (sent["config"]["max_deliver"], sent["config"]["description"]) == (4, "kept")


async def test_partial_update_reported(near: Any, tap: Any, stream: OwnStream) -> None:
    """A server that is too old for a field does this. The consumer exists, and is not as wished."""
    handle = await near.stream(stream.name)

    def forget(frame: Any) -> bytes:
        answer = json.loads(frame.payload)
        answer.get("config", {}).pop("max_batch", None)  # none in an error
        raw: bytes = frame.but(payload=json.dumps(answer).encode()).raw
        return raw

    answers = (b"consumer_create_response", b"consumer_info_response")
    rule = tap.modify_frames(lambda frame: any(answer in frame.payload for answer in answers), forget)
    for on_drift in ("error", "update"):
        with pytest.raises(jsclient.ConfigMismatchError) as caught:
            await handle.ensure_consumer(durable_name="c", max_batch=5, on_drift=on_drift)
        assert caught.value.mismatches == [("max_batch", 5, None)]
        await handle.delete_consumer("c")
    assert (await handle.ensure_consumer(durable_name="c", max_batch=5, on_drift="ignore")).name == "c"
    rule.remove()
    await handle.ensure_consumer(durable_name="c", max_batch=5)


# --- consumers: races --------------------------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("on_drift", ["error", "update", "ignore"])
async def test_created_in_between(near: Any, tap: Any, stream: OwnStream, on_drift: str) -> None:
    handle = await near.stream(stream.name)
    held = tap.hold_frames(answers_to(tap, "CONSUMER.INFO.>"), count=1)
    ensuring = asyncio.create_task(handle.ensure_consumer(durable_name="c", max_deliver=4, on_drift=on_drift))
    await held.wait(1)
    await stream.create_consumer("c", max_deliver=3, description="theirs")
    held.release()
    if on_drift == "error":
        with pytest.raises(jsclient.ConfigMismatchError) as caught:
            await within(30, ensuring, "the error")
        assert caught.value.mismatches == [("max_deliver", 4, 3)]
    else:
        actual = await within(30, ensuring, "the consumer")
        assert actual.config.max_deliver == (4 if on_drift == "update" else 3)
        assert actual.config.description == "theirs"
    assert "CONSUMER.INFO" in " ".join(api_requests(tap)[-2:])


async def test_deleted_in_between(near: Any, tap: Any, stream: OwnStream) -> None:
    await stream.create_consumer("c", max_deliver=3)
    handle = await near.stream(stream.name)
    held = tap.hold_frames(answers_to(tap, "CONSUMER.INFO.>"), count=1)
    ensuring = asyncio.create_task(handle.ensure_consumer(durable_name="c", max_deliver=4, on_drift="update"))
    await held.wait(1)
    await stream.delete_consumer("c")
    held.release()
    assert (await within(30, ensuring, "the consumer")).config.max_deliver == 4


async def test_looking_again_has_an_end(near: Any, tap: Any, stream: OwnStream) -> None:
    """A server that says "not found" to a look and "exists" to a create."""
    await stream.create_consumer("c", max_deliver=3)
    handle = await near.stream(stream.name)
    error = {"code": 404, "err_code": 10014, "description": "consumer not found"}
    tap.modify_frames(
        answers_to(tap, "CONSUMER.INFO.>"),
        lambda frame: frame.but(payload=json.dumps({"error": error}).encode()).raw,
    )
    with pytest.raises(jsclient.ConsumerExistsError):
        await within(30, handle.ensure_consumer(durable_name="c", max_deliver=4), "the error")
    assert len(tap.sent("$JS.API.CONSUMER.CREATE.>")) <= 5


@pytest.mark.limit(300)
@pytest.mark.core_cases(1)
@pytest.mark.row(136)
@pytest.mark.parametrize("on_drift", ["error", "update", "ignore"])
async def test_concurrent_ensures(connect: Any, server: Any, stream: OwnStream, on_drift: str) -> None:
    """A race of two wishes, run 200 times."""
    handles = [await (await connect(server)).stream(stream.name) for _ in range(3)]
    for number in range(RACES):
        name = f"c{number}"
        wishes = [3, 3, 4]
        results = await asyncio.gather(
            *(
                handle.ensure_consumer(
                    durable_name=name, max_deliver=wish, mem_storage=True, on_drift=on_drift
                )
                for handle, wish in zip(handles, wishes, strict=True)
            ),
            return_exceptions=True,
        )
        has = (await stream.consumer_info(name))["config"]["max_deliver"]
        for wish, result in zip(wishes, results, strict=True):
            # who loses the race sees what the winner has set
            if isinstance(result, BaseException):
                assert type(result) is jsclient.ConfigMismatchError
                assert on_drift == "error"
                assert result.mismatches == [("max_deliver", wish, has)]
            elif on_drift == "error":
                assert result.config.max_deliver == wish == has
            elif on_drift == "update":
                assert result.config.max_deliver == wish
        await stream.delete_consumer(name)


# --- streams -----------------------------------------------------------------------------------------------------

STREAM_CHANGES: list[tuple[str, Any, Any]] = [
    ("description", "one", "two"),
    ("subjects", ["{}.a"], ["{}.a", "{}.b"]),
    ("max_msgs", 10, 20),
    ("max_bytes", 10_000, 20_000),
    ("max_age", 60.0, 61.5),
    ("max_msgs_per_subject", 5, 6),
    ("max_msg_size", 100, 200),
    ("discard", "old", "new"),
    ("duplicate_window", 10.0, 20.0),
    ("allow_direct", False, True),
    ("allow_rollup_hdrs", False, True),
    ("no_ack", False, True),
    ("metadata", {"a": "1"}, {"b": "2"}),
]


@pytest.mark.core_cases(4)
@pytest.mark.row(136)
@pytest.mark.parametrize(("field", "before", "after"), STREAM_CHANGES, ids=[row[0] for row in STREAM_CHANGES])
async def test_stream_drift_updated(
    near: Any, oracle: Oracle, name: str, field: str, before: Any, after: Any
) -> None:
    def named(value: Any) -> Any:
        return [item.format(name) for item in value] if field == "subjects" else value

    before, after = named(before), named(after)
    others = {"subjects": [f"{name}.a"], "storage": "memory", "max_consumers": 9}
    others.pop(field, None)
    await near.ensure_stream(name, **{field: before}, **others)
    was = without_server_metadata((await oracle.stream_info(name))["config"])
    await near.ensure_stream(name, **{field: before})
    with pytest.raises(jsclient.ConfigMismatchError) as caught:
        await near.ensure_stream(name, **{field: after})
    ((reports, expected, _),) = caught.value.mismatches
    assert (reports, expected) == (field, after)
    await near.ensure_stream(name, on_drift="ignore", **{field: after})
    assert without_server_metadata((await oracle.stream_info(name))["config"]) == was
    changed = await near.ensure_stream(name, on_drift="update", **{field: after})
    now = without_server_metadata((await oracle.stream_info(name))["config"])
    assert {key for key in now.keys() | was.keys() if now.get(key) != was.get(key)} == {field}
    assert changed.config == (await changed.info()).config
    await near.ensure_stream(name, **{field: after}, **others)


@pytest.mark.parametrize("change", [{"storage": "file"}, {"retention": "workqueue"}], ids=str)
async def test_refused_stream_update(near: Any, oracle: Oracle, name: str, change: dict[str, Any]) -> None:
    await near.ensure_stream(name, subjects=[f"{name}.a"], storage="memory", max_consumers=9)
    was = (await oracle.stream_info(name))["config"]
    with pytest.raises(jsclient.ApiError) as caught:
        await near.ensure_stream(name, on_drift="update", max_msgs=5, **change)
    assert caught.value.code in (400, 500)
    assert (await oracle.stream_info(name))["config"] == was


async def test_server_fills_in_no_drift_of_stream(near: Any, tap: Any, name: str) -> None:
    config = StreamConfig(
        name=name, subjects=[f"{name}.>"], storage="memory", retention="limits", discard="old", max_msgs=0, max_bytes=0,
        max_age=0, max_consumers=0, max_msgs_per_subject=0, max_msg_size=0, num_replicas=0, duplicate_window=0,
        no_ack=False, sealed=False, deny_delete=False, deny_purge=False, allow_rollup_hdrs=False, allow_direct=False,
        mirror_direct=False, discard_new_per_subject=False, description="", metadata={}, sources=[],
        compression="none",
    )  # fmt: skip
    created = await near.ensure_stream(config)
    since = len(tap.frames)
    for on_drift in ("error", "update", "ignore"):
        assert (await near.ensure_stream(config, on_drift=on_drift)).config == created.config
    assert (await near.ensure_stream(created.config)).config == created.config
    unlimited = {"max_msgs": -1, "max_bytes": -1, "max_consumers": -1, "num_replicas": 1}
    assert (await near.ensure_stream(name, **unlimited)).config == created.config
    assert set(api_requests(tap, since=since)) == {f"STREAM.INFO.{name}"}


async def test_stream_update_keeps_unknown(near: Any, tap: Any, stream: OwnStream) -> None:
    """P31."""
    add_field(tap, b"stream_info_response")
    with contextlib.suppress(jsclient.ApiError):
        await near.ensure_stream(stream.name, max_msgs=7, on_drift="update")
    (request,) = tap.sent("$JS.API.STREAM.UPDATE.>")
    assert (body(request)["of_the_future"], body(request)["max_msgs"]) == ({"a": [1]}, 7)


@pytest.mark.parametrize("on_drift", ["error", "update", "ignore"])
async def test_stream_created_in_between(
    near: Any, tap: Any, oracle: Oracle, name: str, on_drift: str
) -> None:
    held = tap.hold_frames(answers_to(tap, "STREAM.INFO.>"), count=1)
    ensuring = asyncio.create_task(
        near.ensure_stream(name, subjects=[f"{name}.>"], max_msgs=4, storage="memory", on_drift=on_drift)
    )
    await held.wait(1)
    await oracle.create_stream(name, [f"{name}.>"], max_msgs=3, storage="memory", description="theirs")
    held.release()
    if on_drift == "error":
        with pytest.raises(jsclient.ConfigMismatchError) as caught:
            await within(30, ensuring, "the error")
        assert caught.value.mismatches == [("max_msgs", 4, 3)]
    else:
        actual = await within(30, ensuring, "the stream")
        assert actual.config.max_msgs == (4 if on_drift == "update" else 3)
        assert actual.config.description == "theirs"


async def test_stream_deleted_in_between(near: Any, tap: Any, oracle: Oracle, name: str) -> None:
    await oracle.create_stream(name, [f"{name}.>"], max_msgs=3, storage="memory")
    held = tap.hold_frames(answers_to(tap, "STREAM.INFO.>"), count=1)
    ensuring = asyncio.create_task(
        near.ensure_stream(name, subjects=[f"{name}.>"], max_msgs=4, storage="memory", on_drift="update")
    )
    await held.wait(1)
    await oracle.delete_stream(name)
    held.release()
    assert (await within(30, ensuring, "the stream")).config.max_msgs == 4


@pytest.mark.limit(300)
@pytest.mark.core_cases(1)
@pytest.mark.row(136)
@pytest.mark.parametrize("how", ["ensure", "create_or_update"])
async def test_concurrent_stream_ensures(
    connect: Any, server: Any, oracle: Oracle, name: str, how: str
) -> None:
    """A race, run 200 times. In `create_or_update` one process has another configuration, and the last call wins."""
    clients = [await connect(server) for _ in range(3)]
    for number in range(RACES):
        stream = f"{name}{number % 7}"
        same = how == "ensure"
        streams = await asyncio.gather(
            *(
                getattr(js, f"{how}_stream")(
                    stream, subjects=[f"{stream}.>"], storage="memory", max_msgs=10 if same else 10 + at
                )
                for at, js in enumerate(clients)
            )
        )
        has = (await oracle.stream_info(stream))["config"]["max_msgs"]
        assert has in {info.config.max_msgs for info in streams}
        assert {info.name for info in streams} == {stream}
        with contextlib.suppress(OracleError):
            await oracle.delete_stream(stream)
