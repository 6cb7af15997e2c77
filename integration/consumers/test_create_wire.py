"""The requests that create a consumer: subjects, bodies, and their order. Source: ADR-15."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest

import jsclient
from integration.kit.clients.foreign import client, flushed
from integration.kit.judge.oracle import number_of
from integration.kit.judge.reading import numbers, take
from integration.kit.judge.streams import OwnStream
from integration.kit.network import match
from integration.kit.network.asking import PREFIX, api_requests, body, creates, delivers
from integration.kit.network.proxy import Proxy
from integration.kit.network.recording import in_order
from jsclient import ConsumerConfig

ALWAYS = {"ack_policy": "explicit", "deliver_policy": "all", "replay_policy": "instant"}

PUSH_FIELDS: dict[str, tuple[Any, Any]] = {
    # field: what the user gives, what is sent
    "ack_policy": ("all", "all"),
    "ack_wait": (12.5, 12_500_000_000),
    "deliver_policy": ("by_start_sequence", "by_start_sequence"),
    "deliver_subject": ("deliver.all.fields", "deliver.all.fields"),
    "description": ("what it is for", "what it is for"),
    "durable_name": ("everything", "everything"),
    "flow_control": (True, True),
    "idle_heartbeat": (0.75, 750_000_000),
    "max_ack_pending": (77, 77),
    "max_deliver": (9, 9),
    "opt_start_seq": (3, 3),
    "rate_limit_bps": (1_000_000_000, 1_000_000_000),
    "replay_policy": ("instant", "instant"),
    "sample_freq": ("50", "50"),
}
TIMED = {
    "deliver_policy": ("by_start_time", "by_start_time"),
    "opt_start_time": ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456789Z"),
    "replay_policy": ("original", "original"),
}
GROUPED = {"deliver_group": ("workers", "workers"), "durable_name": ("group", "group")}
PULL_FIELDS = {
    "durable_name": ("pulled", "pulled"),
    "max_waiting": (17, 17),
    "max_ack_pending": (-1, -1),
    "inactive_threshold": (3600, 3_600_000_000_000),
}


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


@pytest.mark.covers("J9", "J10", "J44", "J47")
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("subscribe", PUSH_FIELDS),
        ("subscribe", TIMED),
        ("subscribe", GROUPED),
        ("pull_subscribe", PULL_FIELDS),
    ],
    ids=["push", "by time", "group", "pull"],
)
async def test_every_field_on_the_wire(
    tap: Proxy, js: Any, stream: OwnStream, kind: str, fields: dict[str, tuple[Any, Any]]
) -> None:
    config = ConsumerConfig(**{name: value for name, (value, _) in fields.items()})
    before = repr(config)
    sub = await getattr(js, kind)(stream.all, config=config)
    (create,) = creates(tap)
    sent = body(create)
    assert sent["stream_name"] == stream.name
    expected = ALWAYS | {"filter_subject": stream.all} | {name: wire for name, (_, wire) in fields.items()}
    actual = dict(sent["config"])
    if kind == "subscribe" and not {"idle_heartbeat", "deliver_group"} & fields.keys():
        expected["idle_heartbeat"] = 5_000_000_000
    if kind == "subscribe" and "deliver_subject" not in fields:
        assert actual.pop("deliver_subject") == sub.subject
    elif "durable_name" in fields:  # no new inbox that would prove who created it
        assert len(actual.pop("metadata")["jsclient.subscriber"]) == 16
    assert actual == expected
    assert repr(config) == before
    saved = (await stream.consumer_info(sub.consumer))["config"]
    assert {name: saved.get(name) for name in expected} == expected, "the server understood it"


@pytest.mark.covers("J47")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_filter_subject_is_that_of_the_user(tap: Proxy, js: Any, stream: OwnStream, kind: str) -> None:
    """The server stores it, and delivers only matching messages."""
    await stream.publish(2, "other")
    await stream.publish(3, "mine")
    sub = await getattr(js, kind)(stream.subject("mine"))
    (create,) = creates(tap)
    assert body(create)["config"]["filter_subject"] == stream.subject("mine")
    info = await stream.consumer_info(sub.consumer)
    assert info["config"]["filter_subject"] == stream.subject("mine")
    assert info["num_pending"] + info["delivered"]["consumer_seq"] == 3
    await sub.unsubscribe()


@pytest.mark.covers("J9")
async def test_fields_of_adr_all_among_those_shown() -> None:
    shown = {"filter_subject", *PUSH_FIELDS, *TIMED, *GROUPED, *PULL_FIELDS}
    adr = {
        "ack_policy", "ack_wait", "deliver_group", "deliver_policy", "deliver_subject", "description",
        "durable_name", "filter_subject", "flow_control", "idle_heartbeat", "max_ack_pending",
        "max_deliver", "max_waiting", "opt_start_seq", "opt_start_time", "rate_limit_bps",
        "replay_policy", "sample_freq",
    }  # fmt: skip
    assert adr <= shown
    assert adr <= set(ConsumerConfig.__struct_fields__)


@pytest.mark.covers("J9")
async def test_datetime_travels_as_rfc_3339(tap: Proxy, js: Any, stream: OwnStream) -> None:
    start = datetime(2026, 5, 4, 3, 2, 1, 500_000, tzinfo=UTC)
    await js.pull_subscribe(
        stream.all, config=ConsumerConfig(deliver_policy="by_start_time", opt_start_time=start)
    )
    (create,) = creates(tap)
    assert body(create)["config"]["opt_start_time"] in (
        "2026-05-04T03:02:01.5Z",
        "2026-05-04T03:02:01.500000Z",
    )


@pytest.mark.covers("J10", "J45", "J46", "J48", "J51", "J53")
@pytest.mark.parametrize("kind", ["subscribe", "pull_subscribe"])
async def test_ephemeral_named_by_server(tap: Proxy, js: Any, stream: OwnStream, kind: str) -> None:
    sub = await getattr(js, kind)(stream.all)
    (create,) = creates(tap)
    assert create.subject == f"{PREFIX}CONSUMER.CREATE.{stream.name}"
    expected = {**ALWAYS, "filter_subject": stream.all}
    if kind == "subscribe":
        expected |= {"deliver_subject": sub.subject, "idle_heartbeat": 5_000_000_000}
        assert sub.subject.startswith("_INBOX.")
    assert body(create) == {"stream_name": stream.name, "config": expected}
    assert await stream.consumer_names() == [sub.consumer]


@pytest.mark.covers("J24", "J43", "J49", "J50", "J46")
@pytest.mark.parametrize(
    ("kind", "arguments", "name", "group"),
    [
        ("subscribe", {"durable": "d"}, "d", None),
        ("pull_subscribe", {"durable": "d"}, "d", None),
        ("subscribe", {"queue": "q"}, "q", "q"),
        ("subscribe", {"queue": "q", "durable": "d"}, "d", "q"),
        ("subscribe", {"config": ConsumerConfig(durable_name="d", deliver_group="q")}, "d", "q"),
    ],
)
async def test_durable_looked_up_first(
    tap: Proxy, js: Any, stream: OwnStream, kind: str, arguments: dict[str, Any], name: str, group: str | None
) -> None:
    sub = await getattr(js, kind)(stream.all, **arguments)
    assert api_requests(tap) == [
        "STREAM.NAMES",
        f"CONSUMER.INFO.{stream.name}.{name}",
        f"CONSUMER.DURABLE.CREATE.{stream.name}.{name}",
    ]
    config = body(creates(tap)[0])["config"]
    assert config["durable_name"] == sub.consumer == name
    assert config.get("deliver_group") == group
    assert ("deliver_subject" in config) == (kind == "subscribe")
    if kind == "subscribe":
        assert [(frame.subject, frame.queue) for frame in delivers(tap)] == [(sub.subject, group)]


@pytest.mark.covers("J43", "J21", "J40")
async def test_durable_consumer_exists_not_created(tap: Proxy, js: Any, stream: OwnStream) -> None:
    """§4.1-14 and 30: nothing but the look-up is sent, and the consumer stays as it is."""
    await stream.create_consumer("there", filter_subject=stream.all, ack_wait=7_000_000_000)
    await stream.create_consumer("pushed", filter_subject=stream.all, deliver_subject="deliver.pushed")
    before = await stream.consumer_info("there")
    await js.pull_subscribe(stream.all, stream=stream.name, durable="there")
    push = await js.subscribe(stream.all, stream=stream.name, durable="pushed")
    assert api_requests(tap) == [f"CONSUMER.INFO.{stream.name}.{name}" for name in ("there", "pushed")]
    after = await stream.consumer_info("there")
    assert [after[key] for key in ("config", "created")] == [before[key] for key in ("config", "created")]
    assert [frame.subject for frame in delivers(tap)] == ["deliver.pushed"] == [push.subject]


@pytest.mark.covers("J40", "J41")
@pytest.mark.parametrize(
    ("arguments", "deliver"),
    [
        *(
            (arguments, deliver)
            for arguments in ({}, {"durable": "d"}, {"queue": "q"})
            for deliver in (None, "to.user")
        ),
        ({"ordered": True}, None),
    ],
)
async def test_listens_before_create(
    tap: Proxy, js: Any, stream: OwnStream, arguments: dict[str, Any], deliver: str | None
) -> None:
    """§4.1-4, and no delivery is lost, however soon it comes."""
    await stream.publish(20)
    sub = await js.subscribe(stream.all, config=ConsumerConfig(deliver_subject=deliver), **arguments)
    assert numbers(await take(sub, 20)) == list(range(1, 21))
    (listen,), (create,) = delivers(tap), creates(tap)
    first = await tap.wait_for(match.is_data)
    assert in_order(listen, create, first)
    assert body(create)["config"]["deliver_subject"] == listen.subject == sub.subject
    assert deliver in (None, sub.subject)


@pytest.mark.covers("J40", "J41", "J50")
@pytest.mark.parametrize("arguments", [{}, {"durable": "d"}, {"queue": "q"}])
async def test_order_same_on_connection_of_nats_py(
    tap: Proxy, stream: OwnStream, arguments: dict[str, Any]
) -> None:
    async with client(tap) as nc:
        js = jsclient.JetStream(nc)
        sub = await js.subscribe(stream.all, **arguments)
        (listen,), (create,) = delivers(tap), creates(tap)
        assert in_order(listen, create)
        assert body(create)["config"]["deliver_subject"] == listen.subject == sub.subject
        await sub.unsubscribe()
        await js.close()
        await flushed(nc)
    assert listen.sid in [frame.sid for frame in tap.unsubs()]
    assert api_requests(tap, "CONSUMER.DELETE.>") == [f"CONSUMER.DELETE.{stream.name}.{sub.consumer}"]


@pytest.mark.covers("J44")
async def test_config_is_reusable(js: Any, stream: OwnStream) -> None:
    """P9: nats-py writes filter and names into the caller's object, so the second subscription reads the first's."""
    config = ConsumerConfig()
    first = await js.subscribe(stream.subject("a"), config=config)
    second = await js.subscribe(stream.subject("b"), config=config)
    durable = await js.pull_subscribe(stream.subject("b"), durable="d", config=config)
    await stream.publish(1, "a", first=1)
    await stream.publish(1, "b", first=2)
    for sub, number in ((first, 1), (second, 2), (durable, 2)):
        assert number_of((await sub.next(5)).data) == number
        with pytest.raises(jsclient.RequestTimeoutError):
            await sub.next(0.1)
    assert config == ConsumerConfig()


@pytest.mark.covers("J44", "J9")
async def test_flow_control_in_configuration_kept(tap: Proxy, js: Any, stream: OwnStream) -> None:
    """P10: nats-py overwrites it with its own argument's default."""
    sub = await js.subscribe(stream.all, config=ConsumerConfig(flow_control=True, idle_heartbeat=5))
    assert body(creates(tap)[0])["config"]["flow_control"] is True
    assert (await stream.consumer_info(sub.consumer))["config"]["flow_control"] is True


@pytest.mark.covers("J9")
async def test_inactive_consumer_removed(connect: Any, js: Any, stream: OwnStream) -> None:
    """§4.1-13."""
    config = ConsumerConfig(inactive_threshold=0.1)
    sub = await js.subscribe(stream.all, config=config, delete_on_close=False)
    assert await stream.consumer_names() == [sub.consumer]
    await sub.unsubscribe()
    started = time.monotonic()
    while await stream.consumer_names():
        assert time.monotonic() - started < 10
        await asyncio.sleep(0.05)
