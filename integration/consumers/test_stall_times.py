"""How long each stand-still lasts until it is reported, with the options of a plain `connect`: 35 s at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.network.wire import TO_CLIENT, Frame
from integration.kit.servers.cluster import OwnCluster
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient.events import ConsumerDeleted, ConsumerStalled, Event

LIMIT = 35.0  # seconds
MakeStream = Callable[..., Awaitable[OwnStream]]


@dataclass
class StallCase:
    """The parts of a case. Each has a separate stream and connection."""

    oracle: Oracle
    stream: OwnStream
    make_stream: MakeStream
    js: Any
    other: Any
    proxy: Any
    own_connection: Callable[..., Awaitable[Any]]
    events: list[Event]

    async def pull(self, **options: Any) -> Any:
        return await self.js.pull_subscribe(stream=self.stream.name, consumer="c", **options)


Case = Callable[[StallCase], Awaitable[Awaitable[Any]]]
"""Makes the stand-still and returns the read that waits for a message for ever."""


async def forever(sub: Any, **options: Any) -> None:
    while True:
        try:
            await sub.fetch(1, expires=10, **options)
        except jsclient.JetStreamError:
            await asyncio.sleep(1)


async def max_ack_pending(at: StallCase) -> Awaitable[Any]:
    await at.stream.create_consumer("c", ack_policy="explicit", max_ack_pending=3)
    await at.stream.publish(5)
    other = await at.other.pull_subscribe(stream=at.stream.name, consumer="c")
    assert len(await other.fetch(3)) == 3
    return forever(await at.pull())


async def paused(at: StallCase) -> Awaitable[Any]:
    await at.stream.create_consumer("c", ack_policy="explicit")
    await (await (await at.js.stream(at.stream.name)).consumer("c")).pause(600)
    await at.stream.publish(2)
    return forever(await at.pull())


async def pinned(at: StallCase) -> Awaitable[Any]:
    handle = await (await at.other.stream(at.stream.name)).create_consumer(
        durable_name="c", priority_groups=["g"], priority_policy="pinned_client", priority_timeout=600
    )
    await at.stream.publish(3)
    assert len(await handle.fetch(1, group="g")) == 1
    return forever(await at.pull(), group="g")


async def no_interest(at: StallCase) -> Awaitable[Any]:
    """The server does not know of the subscription."""
    target = at.stream.prefix + "-to"
    await at.stream.create_consumer("c", deliver_subject=target)
    tap = await at.proxy()
    js = await at.own_connection(tap)
    tap.drop_frames(lambda frame: frame.op == "SUB" and frame.subject == target)
    sub = await js.subscribe(stream=at.stream.name, consumer="c")
    await at.stream.publish(2)
    return sub.next()


async def recreated_elsewhere(at: StallCase) -> Awaitable[Any]:
    await at.stream.create_consumer("c", deliver_subject=at.stream.prefix + "-old")
    sub = await at.js.subscribe(stream=at.stream.name, consumer="c")
    await at.stream.delete_consumer("c")
    await at.stream.create_consumer("c", deliver_subject=at.stream.prefix + "-new")
    await at.stream.publish(2)
    return sub.next()


async def handler(at: StallCase) -> Awaitable[Any]:
    await at.stream.create_consumer("c", ack_policy="explicit", ack_wait=10_000_000_000)
    await at.stream.publish(3)
    sub = await at.pull()

    async def hangs(_: Any) -> None:
        await asyncio.Event().wait()

    return sub.run(hangs)


async def impossible_filter(at: StallCase) -> Awaitable[Any]:
    await at.stream.create_consumer("c", ack_policy="explicit", filter_subject="nowhere.at.all")
    await at.stream.publish(1)
    return forever(await at.pull())


async def filter_of_nothing_stored(at: StallCase) -> Awaitable[Any]:
    await at.stream.create_consumer("c", ack_policy="explicit", filter_subject=at.stream.subject("ordesr"))
    await at.stream.publish(5, "orders")
    return forever(await at.pull())


async def full_mirror(at: StallCase) -> OwnStream:
    limits = {"max_msgs": 2, "discard": "new"}
    mirror = await at.make_stream(oracle=at.oracle, subjects=[], mirror={"name": at.stream.name}, **limits)
    await at.stream.publish(9)
    return mirror


async def mirror_of_a_consumer(at: StallCase) -> Awaitable[Any]:
    at.stream = await full_mirror(at)
    await at.stream.create_consumer("c", ack_policy="explicit")
    return forever(await at.pull())


async def mirror_of_a_topic(at: StallCase) -> Awaitable[Any]:
    mirror = await full_mirror(at)
    reader = await at.js.topic(at.stream.all, stream=mirror.name).each()
    await take(reader, 2)
    return reader.next()


async def mirror_of_a_table(at: StallCase) -> Awaitable[Any]:
    mirror = await full_mirror(at)
    table = await at.js.topic(at.stream.all, stream=mirror.name).table()
    return table.wait_for(lambda _: False)


async def deleted(at: StallCase) -> Awaitable[Any]:
    await at.stream.create_consumer("c", deliver_subject=at.stream.prefix + "-to")
    sub = await at.js.subscribe(stream=at.stream.name, consumer="c")
    await at.stream.delete_consumer("c")
    return sub.next()


async def expired(at: StallCase) -> Awaitable[Any]:
    """The server removes it while its program is busy with something else."""
    await at.stream.create_consumer("c", ack_policy="explicit", inactive_threshold=1_000_000_000)
    sub = await at.pull()

    async def is_removed() -> bool:
        return "c" not in await at.stream.consumer_names()

    await eventually(is_removed, 30)
    return forever(sub)


async def stream_deleted(at: StallCase) -> Awaitable[Any]:
    topic = at.js.topic(f"pushed.{at.stream.prefix}")
    log = await topic.create(storage="memory")
    reader = await topic.each(quiet=300.0)
    await at.js.publish(topic.subject, b"1")
    await take(reader, 1)
    await at.oracle.delete_stream(log.stream)
    return reader.next()


def is_info(frame: Frame) -> bool:
    """The answer to a request for the state of a stream or a consumer."""
    return frame.direction == TO_CLIENT and b"_info_response" in frame.payload


async def no_answer_about_a_topic(at: StallCase) -> Awaitable[Any]:
    tap = await at.proxy()
    js = await at.own_connection(tap)
    reader = await js.topic(at.stream.all, stream=at.stream.name).each()
    tap.drop_frames(is_info)
    return reader.next()


async def no_answer_about_a_consumer(at: StallCase) -> Awaitable[Any]:
    await at.stream.create_consumer("c", ack_policy="explicit")
    tap = await at.proxy()
    js = await at.own_connection(tap)
    sub = await js.pull_subscribe(stream=at.stream.name, consumer="c")
    tap.drop_frames(is_info)
    return forever(sub)


CASES: dict[Case, set[str]] = {
    max_ack_pending: {"max_ack_pending"},
    paused: {"paused"},
    pinned: {"pinned"},
    no_interest: {"no_interest"},
    recreated_elsewhere: {"no_interest", "ConsumerDeleted"},
    handler: {"handler"},
    impossible_filter: {"filter"},
    filter_of_nothing_stored: {"filter"},
    mirror_of_a_consumer: {"mirror"},
    mirror_of_a_topic: {"mirror"},
    mirror_of_a_table: {"mirror"},
    deleted: {"deleted", "ConsumerDeleted"},
    expired: {"deleted", "ConsumerDeleted"},
    # The error, if the history is requested while the server still answers for the stream.
    stream_deleted: {"stream_deleted", "StreamNotFoundError"},
    no_answer_about_a_topic: {"no_answer"},
    no_answer_about_a_consumer: {"no_answer"},
}


def word(event: Event) -> str:
    """The reason of a stand-still, or the event that reports it before."""
    return event.reason if isinstance(event, ConsumerStalled) else type(event).__name__


async def measured(case: Case, at: StallCase) -> tuple[float, str]:
    """Seconds until one of its reasons was reported, and which. An error of the read counts, too."""
    began = time.monotonic()
    reading = asyncio.ensure_future(await case(at))
    telling = asyncio.ensure_future(
        wait_for_event(
            Event,
            at.events,
            lambda one: isinstance(one, ConsumerStalled | ConsumerDeleted) and word(one) in CASES[case],
            timeout=90,
        )
    )
    try:
        await asyncio.wait([reading, telling], return_when=asyncio.FIRST_COMPLETED)
        error = type(reading.exception()).__name__ if reading.done() else ""
        reason = error if error in CASES[case] else word(await telling)
        return time.monotonic() - began, reason
    finally:
        for task in (reading, telling):
            task.cancel()
        await asyncio.wait([reading, telling])


@pytest.mark.full
@pytest.mark.server(">=2.11")
@pytest.mark.limit(240)
async def test_each_stand_still_reported(
    server: ServerUnderTest, oracle: Oracle, make_stream: MakeStream, js: Any, proxy: Any
) -> None:
    """All at once, so that it takes half a minute. ``-s`` shows the seconds."""
    connections = []

    async def run(case: Case) -> tuple[float, str]:
        events: list[Event] = []

        async def own(server: Any) -> Any:
            connections.append(await jsclient.connect(server.url, on_event=events.append))
            return connections[-1]

        stream = await make_stream(oracle=oracle)
        at = StallCase(oracle, stream, make_stream, await own(server), js, proxy, own, events)
        return await measured(case, at)

    try:
        results = await asyncio.gather(*(run(case) for case in CASES), return_exceptions=True)
    finally:
        for connection in connections:
            await connection.close()
    lines, late = [], []
    for case, result in zip(CASES, results, strict=True):
        if isinstance(result, BaseException) or result[0] > LIMIT:
            late.append(case.__name__)
        says = f"{result!r:.300}" if isinstance(result, BaseException) else f"{result[0]:5.1f} s  {result[1]}"
        lines.append(f"{case.__name__:28} {says}")
    print("\n".join(["", *lines]))
    assert not late, "\n".join(lines)


@pytest.mark.full
@pytest.mark.limit(240)
async def test_no_leader_reported(cluster: OwnCluster, connect: Any) -> None:
    """One of two replicas is away, so that no one leads the stream and its consumer, and the cluster still answers."""
    events: list[Event] = []
    async with jsclient.connect(cluster.urls, wait=30) as maker:
        handle = await maker.create_stream("S", subjects=["s.>"], num_replicas=2, storage="memory")
        await handle.create_consumer(durable_name="c", num_replicas=2)
        await maker.publish("s.x", b"1")
        placed = (await handle.info()).cluster
        assert placed is not None
        (other,) = [peer.name for peer in placed.replicas or ()]
        near = next(name for name in cluster.servers if name not in (placed.leader, other))
    js = await connect(cluster.servers[near], on_event=events.append)
    reader = await js.topic("s.>", stream="S").each()
    sub = await js.pull_subscribe(stream="S", consumer="c")
    await take(reader, 1)
    (first,) = await sub.fetch(1)
    await first.ack_sync()
    reading = [asyncio.ensure_future(reader.next()), asyncio.ensure_future(forever(sub))]
    await cluster.servers[other].kill()
    began = time.monotonic()
    try:
        # No one answers for a consumer without a leader. For a stream, the leader of the cluster does.
        for consumer, reasons in [("", {"no_leader"}), ("c", {"no_leader", "no_answer"})]:
            event = await wait_for_event(
                ConsumerStalled, events, lambda one, name=consumer: one.consumer == name, timeout=90
            )
            seconds = time.monotonic() - began
            print(f"{event.reason} of {'the consumer' if consumer else 'the stream':12} {seconds:5.1f} s")
            assert event.reason in reasons
            assert seconds < LIMIT
    finally:
        for task in reading:
            task.cancel()
        await asyncio.wait(reading)
