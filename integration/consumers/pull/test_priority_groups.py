"""Priority groups: what is said on the wire, overflow, and priorities."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import jsclient
from integration.kit.calls.priority_groups import GROUP, WAYS, asks, grouped, pull_requests, two, unknown
from integration.kit.judge.reading import alarms, numbers, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within
from integration.kit.network import match
from integration.kit.network.asking import traffic

pytestmark = pytest.mark.server(">=2.11")


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


# --- what is said on the wire ------------------------------------------------------------------------------------


@pytest.mark.core_cases(8)
@pytest.mark.row(86, 87, 89)
@WAYS
@pytest.mark.parametrize("kind", ["consumer", "pull_subscribe"])
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("overflow", {}),
        pytest.param(
            "overflow", {"min_pending": 1, "min_ack_pending": 7}, marks=pytest.mark.server(">=2.12")
        ),
        ("pinned_client", {}),
        pytest.param("prioritized", {"priority": 0}, marks=pytest.mark.server(">=2.12")),
        pytest.param("prioritized", {"priority": 9}, marks=pytest.mark.server(">=2.12")),
    ],
)
async def test_request_has_group_only(
    tap: Any, near: Any, stream: OwnStream, way: str, kind: str, policy: str, options: dict[str, int]
) -> None:
    await stream.publish(2)
    handle: Any = await grouped(near, stream, policy)
    if kind == "pull_subscribe":
        handle = await near.pull_subscribe(stream=stream.name, consumer="c")
    assert numbers(await asks(way, handle, 2, group=GROUP, **options)) == [1, 2]
    first, *_ = bodies = pull_requests(tap)
    remainder = {"batch", "expires", "idle_heartbeat", "id"}
    assert {key: value for key, value in first.items() if key not in remainder} == {"group": GROUP, **options}
    assert ("id" in bodies[-1]) == (policy == "pinned_client" and len(bodies) > 1)


@WAYS
async def test_no_group_plain_request(tap: Any, near: Any, stream: OwnStream, way: str) -> None:
    """Its messages may carry what looks like a pin: it is a header like others."""
    for number in (1, 2):
        await stream.oracle.publish(stream.subject(), b"%d" % number, {"Nats-Pin-Id": "mine"})
    sub = await near.pull_subscribe(stream.all)
    messages = await asks(way, sub, 2)
    assert numbers(messages) == [1, 2]
    assert messages[0].headers == {"Nats-Pin-Id": "mine"}
    for body in pull_requests(tap):
        assert body.keys() <= {"batch", "expires", "idle_heartbeat"}


BAD: list[tuple[str, dict[str, Any]]] = [
    ("overflow", {}),
    ("overflow", {"group": "other"}),
    ("overflow", {"group": ""}),
    ("overflow", {"group": "a b"}),
    ("overflow", {"group": "x" * 17}),
    ("overflow", {"group": 7}),
    ("overflow", {"min_pending": 1}),
    ("overflow", {"min_ack_pending": 1}),
    ("overflow", {"group": GROUP, "min_pending": 0}),
    ("overflow", {"group": GROUP, "min_pending": True}),
    ("overflow", {"group": GROUP, "min_ack_pending": 1.5}),
    ("overflow", {"group": GROUP, "min_ack_pending": 2**63}),
    ("overflow", {"group": GROUP, "priority": 1}),
    ("pinned_client", {}),
    ("pinned_client", {"group": GROUP, "min_pending": 1}),
    ("pinned_client", {"group": GROUP, "priority": 0}),
    ("none", {"group": GROUP}),
    ("none", {"priority": 1}),
]


@pytest.mark.core_cases(6)
@pytest.mark.row(86, 87)
@pytest.mark.parametrize(("policy", "options"), BAD)
async def test_cannot_work_refused_before_wire(
    tap: Any, near: Any, stream: OwnStream, policy: str, options: dict[str, Any]
) -> None:
    if policy == "none":
        await stream.create_consumer("c")
    else:
        await grouped(near, stream, policy)
    consumer = await (await near.stream(stream.name)).consumer("c")
    sub = await near.pull_subscribe(stream=stream.name, consumer="c")
    before = len(tap.frames)
    for handle in (consumer, sub):
        with pytest.raises(jsclient.ConfigError):
            await handle.fetch(1, **options)
        with pytest.raises(jsclient.ConfigError):
            await handle.next(1, **options)
        with pytest.raises(jsclient.ConfigError):
            handle.messages(**options)
        if not options:
            with pytest.raises(jsclient.ConfigError, match="group="):
                aiter(handle)
    await near.ping()
    assert traffic(tap, before) == []


@pytest.mark.row(89)
@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("priority", [-1, 10, True, 1.0, "1"])
async def test_priority_range_checked(tap: Any, near: Any, stream: OwnStream, priority: Any) -> None:
    consumer = await grouped(near, stream, "prioritized")
    before = len(tap.frames)
    with pytest.raises(jsclient.ConfigError, match="0 to 9"):
        await consumer.fetch(1, group=GROUP, priority=priority)
    with pytest.raises(jsclient.ConfigError, match="prioritized"):
        await consumer.fetch(1, group=GROUP, min_pending=1)
    await near.ping()
    assert traffic(tap, before) == []


@pytest.mark.row(87)
@pytest.mark.parametrize(
    ("policy", "options", "says"),
    [
        ("overflow", {}, "Priority Group missing"),
        ("overflow", {"group": "other"}, "Invalid Priority Group"),
        ("pinned_client", {}, "Priority Group missing"),
        ("pinned_client", {"group": "other"}, "Invalid Priority Group"),
        pytest.param(
            "pinned_client",
            {"group": GROUP, "min_pending": 1},
            "Not a Overflow",
            marks=pytest.mark.server(">=2.14"),
        ),
    ],
)
async def test_unknown_consumer_refused(
    tap: Any, near: Any, stream: OwnStream, policy: str, options: dict[str, Any], says: str
) -> None:
    await stream.publish(1)
    await grouped(near, stream, policy)
    sub = await unknown(tap, near, stream)
    for call in (sub.fetch(1, **options), sub.next(**options), sub.messages(**options).next()):
        with pytest.raises(jsclient.BadRequestError, match=says):
            await within(5, call, "the error")


# --- overflow ----------------------------------------------------------------------------------------------------


@pytest.mark.row(86)
@WAYS
async def test_overflow_threshold(connect: Any, proxy: Any, stream: OwnStream, way: str) -> None:
    """Heartbeats continue meanwhile: no alarm."""
    (consumer, tap, events), _ = await two(connect, proxy, stream, "overflow")
    await stream.publish(4)
    waiting = asyncio.create_task(asks(way, consumer, 1, expires=30, group=GROUP, min_pending=5))
    await tap.wait_for(match.is_heartbeat)
    assert not waiting.done()
    await stream.publish(1, first=5)
    assert numbers(await within(20, waiting, "a message")) == [1]
    assert alarms(events) == []


@pytest.mark.row(86)
@pytest.mark.server(">=2.12")
async def test_either_threshold_will_do(near: Any, stream: OwnStream) -> None:
    consumer = await grouped(near, stream, "overflow")
    await stream.publish(6)
    none = await consumer.fetch(1, expires=0.2, group=GROUP, min_pending=10, min_ack_pending=2)
    assert (len(none), none.ending) == (0, jsclient.Ending.EXPIRED)
    assert len(await consumer.fetch(2, group=GROUP)) == 2
    both = await consumer.fetch(1, expires=5, group=GROUP, min_pending=10, min_ack_pending=2)
    assert numbers(both) == [3]
    alone = await consumer.fetch(1, expires=5, group=GROUP, min_ack_pending=3)
    assert numbers(alone) == [4]


@pytest.mark.row(86)
async def test_conditions_never_inherited(near: Any, stream: OwnStream) -> None:
    """A fetch was cancelled, its request lives. One with a threshold must not be served by it."""
    consumer = await grouped(near, stream, "overflow")
    leaving = asyncio.create_task(consumer.fetch(1, expires=20, group=GROUP))
    await stream.until_asked("c")
    leaving.cancel()
    await asyncio.wait({leaving})
    picky = asyncio.create_task(consumer.fetch(1, expires=20, group=GROUP, min_pending=3))
    await stream.until_asked("c", 2)
    plain = asyncio.create_task(consumer.fetch(1, expires=20, group=GROUP))
    await near.ping()
    await stream.publish(1)
    assert numbers(await within(5, plain, "the one without conditions")) == [1]
    assert not picky.done()
    await stream.publish(3, first=2)
    assert numbers(await within(5, picky, "the one with conditions")) == [2]


# --- priorities --------------------------------------------------------------------------------------------------


@pytest.mark.row(89)
@pytest.mark.server(">=2.12")
async def test_lower_number_first(near: Any, stream: OwnStream) -> None:
    consumer = await grouped(near, stream, "prioritized")
    chance = random.Random(89)
    for _ in range(20):
        priorities = chance.sample(range(10), 4)
        fetches = {}
        for asking, priority in enumerate(priorities, 1):
            fetches[priority] = asyncio.create_task(
                consumer.fetch(1, expires=20, group=GROUP, priority=priority)
            )
            await stream.until_asked("c", asking)
        for count, priority in enumerate(sorted(priorities), 1):
            await stream.publish(1)
            batch = await within(5, fetches[priority], f"priority {priority} of {priorities}")
            assert len(batch) == 1
            assert sum(fetch.done() for fetch in fetches.values()) == count


@pytest.mark.row(89)
@pytest.mark.server(">=2.12")
@pytest.mark.parametrize("leaves", ["stop", "disconnect"])
async def test_next_rank_takes_over(connect: Any, proxy: Any, stream: OwnStream, leaves: str) -> None:
    # What the server sends to a connection that just went comes again after `ack_wait`.
    (near, tap, _), (far, *_) = await two(connect, proxy, stream, "prioritized", ack_wait=4)
    first = near.messages(max_messages=10, group=GROUP)
    second = far.messages(max_messages=10, group=GROUP, priority=5)
    waiting = asyncio.create_task(second.next())
    await stream.until_asked("c")
    reading = asyncio.create_task(take(first, 5))
    await stream.until_asked("c", 2)
    await stream.publish(5)
    got = await within(10, reading, "the first")
    assert numbers(got) == [1, 2, 3, 4, 5]
    for message in got:
        await message.ack_sync()
    assert not waiting.done()
    if leaves == "stop":
        await first.stop()
    else:
        tap.refuse()
        tap.cut()
    await stream.publish(1, first=6)
    assert numbers([await within(40, waiting, "the second")]) == [6]
    await second.stop()
    await first.stop()
