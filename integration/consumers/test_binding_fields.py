"""A configuration for `subscribe` is compared with the configuration of a consumer on the server. Source: ADR-15."""

from __future__ import annotations

from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from jsclient import ConsumerConfig

PUSH = {"deliver_subject": "deliver.of.the.consumer"}

# Every field of the ADR that a user can set, and some newer ones: what the consumer is created with beside
# the field (in the server's words), the field's value there, and the other value that the user wants.
START_TIME = "2026-01-02T03:04:05Z"
FIELDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "ack_policy": (PUSH, "explicit", "all"),
    "ack_wait": ({}, 20_000_000_000, 21.0),
    "deliver_policy": ({}, "all", "new"),
    "description": ({}, "this", "that"),
    "flow_control": ({**PUSH, "idle_heartbeat": 1_000_000_000}, True, False),
    "idle_heartbeat": (PUSH, 1_000_000_000, 2.0),
    "max_ack_pending": ({}, 50, 60),
    "max_deliver": ({}, 3, 4),
    "max_waiting": ({}, 50, 60),
    "opt_start_seq": ({"deliver_policy": "by_start_sequence"}, 2, 3),
    "opt_start_time": ({"deliver_policy": "by_start_time"}, START_TIME, "2026-01-02T03:04:05.000000001Z"),
    "rate_limit_bps": (PUSH, 100_000, 200_000),
    "replay_policy": ({}, "instant", "original"),
    "sample_freq": ({}, "10", "20"),
    "backoff": ({"max_deliver": 5}, [1_000_000_000, 2_000_000_000], [1.0, 3.0]),
    "filter_subjects": ({}, ["<prefix>.a", "<prefix>.b"], ["<prefix>.a", "<prefix>.c"]),
    "headers_only": ({}, True, False),
    "inactive_threshold": ({}, 30_000_000_000, 31.0),
    "max_batch": ({}, 10, 11),
    "max_bytes": ({}, 10_000, 11_000),
    "max_expires": ({}, 3_000_000_000, 4.0),
    "mem_storage": ({}, True, False),
    "metadata": ({}, {"k": "v"}, {"k": "w"}),
}

# How the user writes the value that the server has.
SAME: dict[str, Any] = {
    "ack_wait": 20.0,
    "idle_heartbeat": 1.0,
    "inactive_threshold": 30.0,
    "max_expires": 3.0,
    "backoff": [1.0, 2.0],
}


def _here(stream: OwnStream, value: Any) -> Any:
    return [text.replace("<prefix>", stream.prefix) for text in value] if "<prefix>" in str(value) else value


@pytest.mark.core_cases(12)
@pytest.mark.covers("J36", "J14")
@pytest.mark.parametrize("by", ["consumer", "durable"])
@pytest.mark.parametrize("name", FIELDS)
async def test_mismatch_changes_nothing(js: Any, stream: OwnStream, name: str, by: str) -> None:
    """§4.1-20, 21 and 30."""
    base, there, expected = FIELDS[name]
    there, expected = _here(stream, there), _here(stream, expected)
    await stream.create_consumer("found", **base, **{name: there})
    before = (await stream.consumer_info("found"))["config"]
    subscribe = js.subscribe if "deliver_subject" in base else js.pull_subscribe

    with pytest.raises(jsclient.ConfigMismatchError) as caught:
        await subscribe(stream=stream.name, config=ConsumerConfig(**{name: expected}), **{by: "found"})
    ((field, requested, actual),) = caught.value.mismatches
    same = SAME.get(name, there)
    if name == "metadata":
        actual = {key: text for key, text in actual.items() if not key.startswith("_nats.")}
    assert (field, requested, actual) == (name, expected, same)
    for text in (name, repr(expected), "v" if name == "metadata" else repr(actual)):
        assert text in str(caught.value)
    assert (await stream.consumer_info("found"))["config"] == before

    fitting = await subscribe(stream=stream.name, config=ConsumerConfig(**{name: same}), **{by: "found"})
    await fitting.unsubscribe()
    assert (await stream.consumer_info("found"))["config"] == before


@pytest.mark.covers("J36")
async def test_every_adr_field_shown() -> None:
    """The names, the filter and the group are omitted, because they have separate checks and errors."""
    adr = {
        "ack_policy", "ack_wait", "deliver_policy", "description", "flow_control", "idle_heartbeat",
        "max_ack_pending", "max_deliver", "max_waiting", "opt_start_seq", "opt_start_time",
        "rate_limit_bps", "replay_policy", "sample_freq",
    }  # fmt: skip
    assert adr <= set(FIELDS)


@pytest.mark.covers("J36")
async def test_all_fields_differ_reported_at_once(js: Any, stream: OwnStream) -> None:
    await stream.create_consumer("found", max_deliver=3, ack_wait=20_000_000_000, description="this")
    expected = ConsumerConfig(max_deliver=4, ack_wait=21, description="this")
    with pytest.raises(jsclient.ConfigMismatchError) as caught:
        await js.pull_subscribe(stream=stream.name, consumer="found", config=expected)
    assert sorted(caught.value.mismatches) == [("ack_wait", 21.0, 20.0), ("max_deliver", 4, 3)]


@pytest.mark.covers("J36")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_user_did_not_set_not_compared(js: Any, stream: OwnStream, kind: str) -> None:
    """§4.1-21: neither against what another user set, nor against the server's defaults."""
    push = PUSH if kind == "subscribe" else {}
    await stream.create_consumer(
        "found",
        **push,
        max_deliver=7,
        ack_wait=20_000_000_000,
        description="x",
        metadata={"a": "b"},
        sample_freq="5",
    )
    sub = await getattr(js, kind)(
        stream=stream.name, consumer="found", config=ConsumerConfig(description="x")
    )
    await sub.unsubscribe()


@pytest.mark.covers("J36")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_own_config_never_conflicts(js: Any, stream: OwnStream, kind: str) -> None:
    """§4.1-21: the server's defaults in the place of zeros and unset fields are not a conflict."""
    config = ConsumerConfig(
        ack_policy="explicit", ack_wait=0, max_deliver=0, max_ack_pending=0, description="", sample_freq="50%",
        replay_policy="instant", deliver_policy="all", num_replicas=0, metadata={},
    )  # fmt: skip
    for _ in range(3):
        sub = await getattr(js, kind)(stream.all, durable="same", config=config, delete_on_close=False)
        await sub.unsubscribe()
    assert await stream.consumer_names() == ["same"]


@pytest.mark.covers("J37", "J40")
@pytest.mark.parametrize("by", ["consumer", "durable"])
async def test_deliver_subject_may_differ(js: Any, stream: OwnStream, by: str) -> None:
    await stream.create_consumer("found", **PUSH)
    config = ConsumerConfig(deliver_subject="another.subject")
    sub = await js.subscribe(stream=stream.name, config=config, **{by: "found"})
    assert sub.subject == PUSH["deliver_subject"]
    await stream.publish(1)
    assert (await sub.next(5)).data == b"1"
