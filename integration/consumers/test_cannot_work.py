"""A configuration that cannot work is refused, by every way in, and before a request is sent if that is possible."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.network.asking import traffic
from integration.kit.network.proxy import Proxy
from jsclient import ConsumerConfig


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap)


LATER = datetime.now(UTC) + timedelta(days=1)
WRONG: list[dict[str, Any]] = [
    {"filter_subject": "a b"},
    {"filter_subject": ".a"},
    {"filter_subject": "a..b"},
    {"filter_subject": "a\nb"},
    {"filter_subjects": ["a", "b c"]},
    {"filter_subjects": ["a", "b..c"]},
    {"deliver_group": "a b", "deliver_subject": "to"},
    {"deliver_policy": "by_start_time", "opt_start_time": LATER},
]
WAYS = [
    "create", "create named", "create durable", "create_or_update", "update", "ensure", "subscribe", "pull_subscribe",
    "ordered_consumer",
]  # fmt: skip


async def by(way: str, js: Any, stream: Any, fields: dict[str, Any]) -> None:
    match way:
        case "create":
            await stream.create_consumer(**fields)
        case "create named":
            await stream.create_consumer(name="n", **fields)
        case "create durable":
            await stream.create_consumer(durable_name="d", **fields)
        case "create_or_update":
            await stream.create_or_update_consumer(durable_name="d", **fields)
        case "update":
            await stream.update_consumer(durable_name="d", **fields)
        case "ensure":
            await stream.ensure_consumer(durable_name="d", **fields)
        case "subscribe":
            await js.subscribe(stream=stream.name, config=ConsumerConfig(**fields))
        case "pull_subscribe":
            await js.pull_subscribe(stream=stream.name, config=ConsumerConfig(**fields))
        case _:
            await js.ordered_consumer(stream.name, **fields)


@pytest.mark.parametrize("way", WAYS)
async def test_refused_before_the_wire(js: Any, tap: Proxy, stream: OwnStream, way: str) -> None:
    handle = await js.stream(stream.name)
    since = len(tap.frames)
    for fields in WRONG:
        if "deliver_group" in fields and way in {"pull_subscribe", "ordered_consumer"}:
            continue  # refused for another reason, or no argument
        with pytest.raises(jsclient.ConfigError) as caught:
            await by(way, js, handle, fields)
        wrong = fields.get("filter_subjects", [*fields.values()])[-1 if "filter_subjects" in fields else 0]
        if "opt_start_time" not in fields:
            assert repr(wrong) in str(caught.value)
    await js.ping()
    assert traffic(tap, since) == []


@pytest.mark.server(">=2.14")
async def test_reset_after_the_end(js: Any, stream: OwnStream) -> None:
    await stream.publish(3)
    consumer = await (await js.stream(stream.name)).create_consumer(durable_name="d")
    with pytest.raises(jsclient.ConfigError, match=r"last message of stream .* is 3: .* next 996; give 4"):
        await consumer.reset(seq=1000)
    assert (await consumer.info()).num_pending == 3
    assert await consumer.reset(seq=4) == 4


async def test_name_instead_of_config(js: Any, tap: Proxy, stream: OwnStream) -> None:
    handle = await js.stream(stream.name)
    for method in (handle.create_consumer, handle.ensure_consumer, handle.create_or_update_consumer):
        with pytest.raises(jsclient.ConfigError, match=r"config is 'd': .* give durable_name='d'"):
            await method("d")


async def test_names_as_others_give_them(js: Any, stream: OwnStream) -> None:
    assert (await js.ensure_stream(name=stream.name)).name == stream.name
    async with js.pull_subscribe(stream.subject("a"), "d", delete_on_close=False) as sub:
        assert (await sub.consumer_info()).config.durable_name == "d"


@pytest.mark.parametrize("timeout", [0, -1, "1"])
async def test_timeout_of_next(js: Any, stream: OwnStream, timeout: Any) -> None:
    async with js.pull_subscribe(stream.all) as sub:
        with pytest.raises(jsclient.ConfigError, match=r"^timeout is "):
            await sub.next(timeout=timeout)


async def test_work_queue_taken(js: Any, oracle: Any, make_stream: Any) -> None:
    """The error names the consumer that has the messages, and what it takes."""
    stream: OwnStream = await make_stream(retention="workqueue")
    handle = await js.stream(stream.name)
    await handle.create_consumer(durable_name="apart", filter_subject=stream.subject("apart"))
    await handle.create_consumer(durable_name="first", filter_subject=stream.subject("a"))
    for attempt in (
        handle.create_consumer(durable_name="w", filter_subject=stream.subject("a")),
        handle.create_consumer(durable_name="w", filter_subjects=[stream.subject("a"), stream.subject("b")]),
        handle.ensure_consumer(durable_name="w", filter_subject=stream.subject("a")),
        js.pull_subscribe(stream.subject("a"), "w", delete_on_close=False),
        js.subscribe(stream.subject("a")),
    ):
        with pytest.raises(jsclient.ApiError) as caught:
            await attempt
        text = str(caught.value)
        assert caught.value.err_code in {10099, 10100}
        assert f"consumer 'first' takes '{stream.subject('a')}', and a work queue" in text
        assert "share that consumer, or give both filter subjects that do not overlap" in text


async def test_work_queue_read_in_order(js: Any, oracle: Any, make_stream: Any) -> None:
    stream: OwnStream = await make_stream(retention="workqueue")
    handle = await js.stream(stream.name)
    for attempt in (
        js.ordered_consumer(stream.name),
        js.subscribe(stream.all, ordered=True),
        handle.create_consumer(durable_name="w", ack_policy="none"),
    ):
        with pytest.raises(
            jsclient.ApiError, match=r"its consumers ack each message: .* ordered readers need"
        ):
            await attempt
    with pytest.raises(jsclient.ApiError, match='leave deliver_policy out, or give "all"'):
        await handle.create_consumer(durable_name="w", deliver_policy="new")
