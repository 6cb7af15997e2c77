"""Readers of topics that receive no records report the reason by the state of the stream, once, and its end, too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import noting, of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.network.wire import TO_CLIENT, Frame
from integration.kit.servers.cluster import OwnCluster
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient.events import ConsumerResumed, ConsumerStalled

AFTER = 0.4  # seconds, in place of 25
READERS = ["each", "each without pushes", "since", "table", "latest", "latest of several"]
MakeStream = Callable[..., Awaitable[OwnStream]]


@pytest.fixture
async def quick(connect: Callable[..., Awaitable[Any]], server: ServerUnderTest) -> Any:
    return await connect(server, stall_after=AFTER)


@pytest.fixture
def read() -> Iterator[Callable[..., asyncio.Event]]:
    """Read in the background until the test ends. The event says that the reader is open, except for `latest`."""
    tasks: list[asyncio.Task[None]] = []

    def start(js: Any, subject: str, stream: str, way: str) -> asyncio.Event:
        opened = asyncio.Event()
        tasks.append(asyncio.create_task(reading(js, subject, stream, way, opened)))
        return opened

    yield start
    for task in tasks:
        task.cancel()


async def reading(js: Any, subject: str, stream: str, way: str, opened: asyncio.Event) -> None:
    several = way in ("table", "latest of several")
    topic = js.topic(f"{subject}.>" if several else f"{subject}.x", stream=stream)
    if way == "table":
        async with topic.table() as table:
            opened.set()
            await table.wait_for(lambda _: False)
    # These wait inside their loops, so that the caller must cancel this task.
    if way.startswith("latest"):
        async with topic.latest() as reader:
            async for _ in reader:
                pass
    options: dict[str, Any] = {"push": None} if way == "each without pushes" else {}
    reader = await topic.each(**options, quiet=300.0)
    if way == "since":
        reader = await topic.since(reader.position, quiet=300.0)
    opened.set()
    async for _ in reader:
        pass


def is_stream_info(frame: Frame) -> bool:
    """The answer to a request for the state of a stream."""
    return frame.direction == TO_CLIENT and b"stream_info_response" in frame.payload


async def reason(events: list[Any], code: str, stream: str) -> ConsumerStalled:
    event = await wait_for_event(ConsumerStalled, events, lambda one: one.reason == code)
    assert event.stream == stream
    assert event.consumer == ""
    assert event.stood_for > AFTER - 0.01  # uvloop's clock counts milliseconds
    assert event.evidence
    assert event.fix
    return event


@pytest.mark.parametrize("way", READERS)
async def test_silent_mirror_reported(
    quick: Any, oracle: Oracle, make_stream: MakeStream, events: list[Any], read: Any, way: str
) -> None:
    """Its origin does not exist."""
    mirror = await make_stream(oracle=oracle, subjects=[], mirror={"name": "not-there"})
    read(quick, mirror.prefix, mirror.name, way)
    event = await reason(events, "mirror", mirror.name)
    assert "does not follow its mirror 'not-there'" in event.evidence


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("way", READERS)
async def test_lagging_mirror_reported(
    quick: Any, oracle: Oracle, make_stream: MakeStream, events: list[Any], read: Any, way: str
) -> None:
    """It is full and takes none."""
    origin = await make_stream(oracle=oracle)
    limits = {"max_msgs": 2, "discard": "new"}
    mirror = await make_stream(oracle=oracle, subjects=[], mirror={"name": origin.name}, **limits)
    await origin.publish(9)
    read(quick, origin.prefix, mirror.name, way)
    event = await reason(events, "mirror", mirror.name)
    assert f"does not follow its mirror {origin.name!r}" in event.evidence
    assert re.search(r"[1-7] messages? not copied yet", event.evidence)  # about 7, by the server's count
    assert "its max_msgs is 2, it has 2, and discard='new' refuses more" in event.evidence
    assert "raise max_msgs" in event.fix


async def test_nothing_told_while_healthy(
    quick: Any, oracle: Oracle, make_stream: MakeStream, events: list[Any], read: Any
) -> None:
    """Idle readers of a stream and of its mirror, which has all. One that does not read. One that is closed."""
    origin = await make_stream(oracle=oracle)
    mirror = await make_stream(oracle=oracle, subjects=[], mirror={"name": origin.name})
    await origin.publish(3)
    for way in READERS:
        read(quick, origin.prefix, origin.name, way)
        read(quick, origin.prefix, mirror.name, way)
    async with quick.topic(origin.all, stream=origin.name).each():
        await asyncio.sleep(20 * AFTER)
    assert of(ConsumerStalled, events) == []


async def test_deleted_stream_reported(
    connect: Any,
    server: ServerUnderTest,
    oracle: Oracle,
    make_stream: MakeStream,
    events: list[Any],
    read: Any,
) -> None:
    """Republished records come by a plain subscription, which does not end with the stream."""
    stream = await make_stream(oracle=oracle)
    js = await connect(server, stall_after=AFTER)
    topic = js.topic(f"pushed.{stream.prefix}")
    log = await topic.create(storage="memory")
    reader = await topic.each("now", quiet=300.0)
    waiting = asyncio.create_task(reader.next())
    await oracle.delete_stream(log.stream)
    event = await reason(events, "stream_deleted", log.stream)
    assert log.stream in event.evidence
    waiting.cancel()
    await reader.close()


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("way", READERS[:4])
async def test_no_answer_reported_and_its_end(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any], read: Any, way: str
) -> None:
    tap = await proxy()
    js = await connect(tap, stall_after=AFTER, timeout=2.0)
    await stream.publish(1)
    await read(js, stream.prefix, stream.name, way).wait()
    lost = tap.drop_frames(is_stream_info)
    event = await reason(events, "no_answer", stream.name)
    assert "the server does not say how the stream is" in event.evidence
    lost.remove()
    await stream.publish(1)
    assert (await wait_for_event(ConsumerResumed, events)).reason == "no_answer"


@pytest.mark.full
@pytest.mark.limit(300)
async def test_no_leader_reported_and_its_end(
    cluster: OwnCluster, connect: Any, events: list[Any], read: Any
) -> None:
    """Two of three servers are away: no one leads, neither the stream nor the consumer of a worker beside it."""
    near = cluster.servers["n1"]
    js = await connect(near, stall_after=AFTER)
    stream = await js.create_stream("S", subjects=["s.>"], num_replicas=3, storage="memory")
    await stream.create_consumer(durable_name="c", num_replicas=3)
    await js.publish("s.x", b"1")
    await read(js, "s", "S", "each").wait()
    worker = (await js.pull_subscribe(stream="S", consumer="c")).run(noting([]))
    away = [server for name, server in cluster.servers.items() if name != "n1"]
    for server in away:
        await server.kill()
    for consumer, fix in [("", "start the servers that are away"), ("c", "the servers of the cluster")]:
        event = await wait_for_event(ConsumerStalled, events, lambda one, name=consumer: one.consumer == name)
        assert event.reason in ("no_leader", "no_answer")
        assert event.stream == "S"
        # A leader that has not noticed yet that it is alone does not answer, and does not report its cluster.
        assert event.fix.startswith("look at the servers of") or fix in event.fix
    for server in away:
        await server.start()
    for consumer in ["", "c"]:
        await wait_for_event(
            ConsumerResumed, events, lambda one, name=consumer: one.consumer == name, timeout=120
        )
    worker.close()
