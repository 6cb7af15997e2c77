"""Every field of a configuration that is sent comes back, and is sent again as it was. Source: ADR-1, ADR-37.

Row 140 of the conformance suite. A field that is added to `StreamConfig` or `ConsumerConfig` needs a case here. A field
that a newer server adds fails these tests on that server, until it is known.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.streams import OwnStream
from integration.kit.servers.nats_server import ServerUnderTest, fits
from jsclient import ConsumerConfig, StreamConfig

PAST = "2021-01-31T12:00:00.123456789Z"
NOON = "2035-01-31T12:00:00.123456789Z"  # times that are set keep their nanoseconds

# (name, server, fields), {p} is a prefix for this test, {o} is a stream that can be copied from
STREAMS: list[tuple[str, str, dict[str, Any]]] = [
    ("limits", ">=2.10", {
        "description": "d", "subjects": ["{p}.>"], "retention": "limits", "max_consumers": 7, "max_msgs": 8,
        "max_bytes": 9000, "max_age": 1000.5, "max_msgs_per_subject": 2, "max_msg_size": 1000, "discard": "new",
        "discard_new_per_subject": True, "storage": "file", "num_replicas": 1, "duplicate_window": 2.5,
        "compression": "s2", "first_seq": 100, "metadata": {"k": "v"}, "allow_direct": True, "no_ack": True,
        "consumer_limits": {"inactive_threshold": 30.5, "max_ack_pending": 50},
        "subject_transform": {"src": "{p}.>", "dest": "{p}.x.>"},
        "republish": {"src": "{p}.>", "dest": "{p}r.>", "headers_only": True},
    }),
    ("rights", ">=2.10", {
        "subjects": ["{p}.>"], "retention": "workqueue", "storage": "memory", "deny_delete": True, "deny_purge": True,
        "discard": "old", "allow_rollup_hdrs": False,
    }),
    ("rollup", ">=2.10", {"subjects": ["{p}.>"], "retention": "interest", "allow_rollup_hdrs": True}),
    ("mirror", ">=2.10", {
        "mirror": {"name": "{o}", "opt_start_seq": 3, "filter_subject": "{o}.a",
                   "external": {"api": "$JS.hub.API", "deliver": "{p}deliver"}},
        "mirror_direct": True,
    }),
    ("sources", ">=2.10", {
        "subjects": ["{p}.>"],
        "sources": [
            {"name": "{o}", "opt_start_time": NOON,
             "subject_transforms": [{"src": "{o}.a", "dest": "{p}.a"}, {"src": "{o}.b", "dest": "{p}.b"}]},
        ],
    }),
    ("ttl", ">=2.11", {"subjects": ["{p}.>"], "allow_msg_ttl": True, "subject_delete_marker_ttl": 61.0}),
    ("counter", ">=2.12", {"subjects": ["{p}.>"], "allow_msg_counter": True}),
    ("schedules", ">=2.12", {"subjects": ["{p}.>"], "allow_msg_schedules": True, "allow_atomic": True}),
    ("persist", ">=2.12", {"subjects": ["{p}.>"], "persist_mode": "async", "storage": "file"}),
    ("batched", ">=2.14", {"subjects": ["{p}.>"], "allow_batched": True}),
]  # fmt: skip

# Not to be had on a single server, or not at creation: shown without a server (tests/protocol), or below.
STREAM_APART = {"name", "extra", "placement", "sealed"}

CONSUMERS: list[tuple[str, str, dict[str, Any]]] = [
    ("pull", ">=2.10", {
        "durable_name": "pull", "description": "d", "deliver_policy": "by_start_sequence", "opt_start_seq": 5,
        "ack_policy": "explicit", "ack_wait": 12.5, "max_deliver": 4, "filter_subjects": ["{p}.a", "{p}.b"],
        "replay_policy": "original", "sample_freq": "50%", "max_waiting": 20, "max_ack_pending": 30,
        "headers_only": True, "max_batch": 10, "max_expires": 3.5, "max_bytes": 1000, "inactive_threshold": 60.0,
        "num_replicas": 1, "mem_storage": True, "metadata": {"k": "v"},
    }),
    ("backoff", ">=2.10", {
        "name": "backoff", "backoff": [1.0, 2.5, 1.000_000_001], "max_deliver": 5, "filter_subject": "{p}.a",
        "deliver_policy": "by_start_time", "opt_start_time": PAST,
    }),
    ("push", ">=2.10", {
        "durable_name": "push", "deliver_subject": "{p}deliver", "deliver_group": "group",
        "idle_heartbeat": 5.0, "flow_control": True, "rate_limit_bps": 1_000_000, "ack_policy": "all",
        "deliver_policy": "last_per_subject", "filter_subject": "{p}.>", "replay_policy": "instant",
    }),
    ("paused", ">=2.11", {"durable_name": "paused", "pause_until": NOON}),
    ("overflow", ">=2.11", {
        "durable_name": "overflow", "priority_groups": ["A"], "priority_policy": "overflow",
    }),
    ("pinned", ">=2.11", {
        "durable_name": "pinned", "priority_groups": ["A"], "priority_policy": "pinned_client",
        "priority_timeout": 9.5,
    }),
    ("prioritized", ">=2.12", {
        "durable_name": "prioritized", "priority_groups": ["A"], "priority_policy": "prioritized",
    }),
]  # fmt: skip


@pytest.fixture
async def name(oracle: Oracle) -> AsyncIterator[str]:
    """A name for a stream that the test makes itself."""
    name = f"M{secrets.token_hex(5)}"
    yield name
    await oracle.delete_stream(name, missing_ok=True)


def filled(value: Any, **names: str) -> Any:
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"{{{name}}}", text)
    elif isinstance(value, dict):
        value = {key: filled(part, **names) for key, part in value.items()}
    elif isinstance(value, list):
        value = [filled(part, **names) for part in value]
    return value


def unknown(value: Any, where: str = "") -> Iterator[str]:
    """The fields that the server sent and this version does not know, wherever they are."""
    if isinstance(value, list):
        for part in value:
            yield from unknown(part, where)
    elif hasattr(value, "__struct_fields__"):
        for name in getattr(value, "extra", {}):
            yield f"{where}.{name}"
        for name in value.__struct_fields__:
            if name != "extra":
                yield from unknown(getattr(value, name), f"{where}.{name}")


def differing(expected: Any, reported: Any) -> list[str]:
    """The fields set in `wanted` that came back otherwise."""
    names = [name for name in expected.__struct_fields__ if name != "extra"]
    return [
        f"{name}: {getattr(expected, name)!r} came back as {getattr(reported, name)!r}"
        for name in names
        if getattr(expected, name) is not None
        and plain(getattr(expected, name)) != plain(getattr(reported, name))
    ]


def plain(value: Any) -> Any:
    if isinstance(value, dict):  # metadata: the server adds its own
        return {key: text for key, text in value.items() if not key.startswith("_nats.")}
    return value


def test_every_field_of_stream_case() -> None:
    covered = {field for _, _, fields in STREAMS for field in fields}
    assert covered | STREAM_APART == set(StreamConfig.__struct_fields__)
    for nested, field in (
        (jsclient.StreamConsumerLimits, "consumer_limits"),
        (jsclient.RePublish, "republish"),
        (jsclient.SubjectTransform, "subject_transform"),
    ):
        assert set(nested.__struct_fields__) - {"extra"} == set(STREAMS[0][2][field])


def test_every_field_of_consumer_case() -> None:
    covered = {field for _, _, fields in CONSUMERS for field in fields}
    assert covered | {"extra"} == set(ConsumerConfig.__struct_fields__)


@pytest.mark.parametrize(("case", "version", "fields"), STREAMS, ids=[case for case, _, _ in STREAMS])
async def test_stream_comes_back_as_sent(
    js: Any, server: ServerUnderTest, stream: OwnStream, name: str, case: str, version: str, fields: dict[str, Any]
) -> None:  # fmt: skip
    """Row 140: created, read, sent again, read again."""
    if not fits(server.version, version):
        pytest.skip(f"needs nats-server {version}")
    config = StreamConfig(name=name, **filled(fields, p=name, o=stream.name))
    created = (await js.create_stream(config)).config
    assert differing(config, created) == []
    read = await (await js.stream(name)).info()
    assert list(unknown(read)) == []
    assert differing(config, read.config) == []
    changed = (await js.update_stream(read.config.replace(description="another"))).config
    assert changed == read.config.replace(description="another")
    assert (await js.ensure_stream(config.replace(description="another"))).config == changed


@pytest.mark.parametrize(("case", "version", "fields"), CONSUMERS, ids=[case for case, _, _ in CONSUMERS])
async def test_consumer_comes_back_as_sent(
    js: Any, server: ServerUnderTest, stream: OwnStream, case: str, version: str, fields: dict[str, Any]
) -> None:
    """Row 140: created, read, sent again, read again."""
    if not fits(server.version, version):
        pytest.skip(f"needs nats-server {version}")
    handle = await js.stream(stream.name)
    config = ConsumerConfig(**filled(fields, p=stream.prefix))
    consumer = (await handle.create_consumer(config)).config
    assert differing(config, consumer) == []
    read = await (await handle.consumer(case)).info()
    assert list(unknown(read)) == []
    assert differing(config, read.config) == []
    changed = (await handle.update_consumer(read.config.replace(description="another"))).config
    assert changed == read.config.replace(description="another")
    assert (await handle.ensure_consumer(config.replace(description="another"))).config == changed


async def test_a_sealed_stream_says_so(js: Any, stream: OwnStream) -> None:
    """It cannot be made sealed, and a sealed one stays so."""
    actual = (await js.stream(stream.name)).config
    sealed = (await js.update_stream(actual.replace(sealed=True))).config
    assert (sealed.sealed, sealed.deny_delete, sealed.deny_purge) == (True, True, True)
    with pytest.raises(jsclient.ApiError) as caught:
        await js.publish(stream.subject("a"))
    assert caught.value.err_code == 10109


async def test_infos_have_no_unknown(js: Any, stream: OwnStream) -> None:
    """Row 140: the rest of what servers send."""
    await stream.publish(5)
    handle = await js.stream(stream.name)
    await handle.delete_message(3)
    consumer = await handle.create_consumer(durable_name="c")
    await consumer.fetch(2, no_wait=True)
    assert list(unknown(await handle.info(deleted_details=True, subjects_filter=">"))) == []
    assert list(unknown(await consumer.info())) == []
    assert list(unknown(await js.account_info())) == []
    assert [list(unknown(info)) async for info in handle.consumers()] == [[]]
    assert [list(unknown(info)) async for info in js.streams(stream.all)] == [[]]
    ack = await js.publish(stream.subject("a"), msg_id="1")
    assert list(unknown(ack)) == []
