"""A reader that receives nothing reports why: each reason, produced on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import jsclient
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient.events import ConsumerResumed, ConsumerStalled

AFTER = 0.4  # seconds, in place of 25
READERS = ["fetch", "next", "messages", "worker"]


@pytest.fixture
async def quick(connect: Callable[..., Awaitable[Any]], server: ServerUnderTest) -> Any:
    return await connect(server, stall_after=AFTER)


@pytest.fixture
async def read() -> Any:
    """Read in the background, in one of the ways of a program, and ack nothing but what a worker handles."""
    tasks: list[asyncio.Task[Any]] = []

    def start(sub: Any, way: str) -> None:
        tasks.append(asyncio.create_task(reading(sub, way)))

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def reading(sub: Any, way: str) -> None:
    if way == "worker":
        await sub.run(handled)
    messages = sub.messages() if way == "messages" else sub
    while True:
        try:
            await (sub.fetch(1, expires=0.3) if way == "fetch" else messages.next(timeout=0.3))
        except jsclient.RequestTimeoutError:
            pass


async def handled(_: Any) -> None: ...


async def reason(events: list[Any], code: str) -> ConsumerStalled:
    event = await wait_for_event(ConsumerStalled, events, lambda one: one.reason == code)
    assert event.stream
    assert event.consumer == "c"
    assert event.evidence
    assert event.fix
    return event


@pytest.mark.smoke
@pytest.mark.server(">=2.11")
@pytest.mark.parametrize("way", READERS)
async def test_paused_reported(quick: Any, stream: OwnStream, events: list[Any], read: Any, way: str) -> None:
    await stream.create_consumer("c", ack_policy="explicit")
    handle = await (await quick.stream(stream.name)).consumer("c")
    await handle.pause(600)
    await stream.publish(2)
    read(await quick.pull_subscribe(stream=stream.name, consumer="c"), way)
    event = await reason(events, "paused")
    assert "is paused until 20" in event.evidence
    assert "2 messages wait" in event.evidence
    assert "resume()" in event.fix
    await handle.resume()
    resumed = await wait_for_event(ConsumerResumed, events, timeout=30)
    assert resumed.reason == "paused"
    assert resumed.stood_for > 0


@pytest.mark.parametrize("way", READERS)
async def test_unacked_elsewhere_reported(
    quick: Any, js: Any, stream: OwnStream, events: list[Any], read: Any, way: str
) -> None:
    await stream.create_consumer("c", ack_policy="explicit", max_ack_pending=3)
    await stream.publish(5)
    other = await js.pull_subscribe(stream=stream.name, consumer="c")
    assert len(await other.fetch(3)) == 3
    read(await quick.pull_subscribe(stream=stream.name, consumer="c"), way)
    event = await reason(events, "max_ack_pending")
    assert "3 of 3 are not acked" in event.evidence
    assert "other clients hold them all" in event.evidence
    assert "2 messages wait" in event.evidence


@pytest.mark.parametrize("way", ["fetch", "next", "messages"])
async def test_unacked_here_reported(
    quick: Any, stream: OwnStream, events: list[Any], read: Any, way: str
) -> None:
    await stream.create_consumer("c", ack_policy="explicit", max_ack_pending=3)
    await stream.publish(5)
    read(await quick.pull_subscribe(stream=stream.name, consumer="c"), way)
    assert "this client received as many" in (await reason(events, "max_ack_pending")).evidence


async def test_filter_of_a_misspelt_subject_reported_once(
    quick: Any, stream: OwnStream, events: list[Any], read: Any
) -> None:
    """The stream may store it, but it has other messages only."""
    await stream.publish(3, "orders")
    await stream.create_consumer("c", ack_policy="explicit", filter_subject=stream.subject("ordres"))
    read(await quick.pull_subscribe(stream=stream.name, consumer="c"), "next")
    event = await reason(events, "filter")
    assert "has 3 messages on 1 other subject" in event.evidence
    await asyncio.sleep(4 * AFTER)  # more looks
    assert len(of(ConsumerStalled, events)) == 1
    await stream.publish(1, "ordres")
    assert (await wait_for_event(ConsumerResumed, events, timeout=30)).reason == "filter"


@pytest.mark.parametrize("config", [{}, {"deliver_policy": "new"}], ids=["empty", "new"])
async def test_filter_that_waits_for_its_first_message(
    quick: Any, stream: OwnStream, events: list[Any], read: Any, config: dict[str, Any]
) -> None:
    """A fresh stream is empty, and a consumer of new messages does not ask for the old ones."""
    if config:
        await stream.publish(3, "orders")
    await stream.create_consumer("c", ack_policy="explicit", filter_subject=stream.subject("a"), **config)
    read(await quick.pull_subscribe(stream=stream.name, consumer="c"), "next")
    await asyncio.sleep(6 * AFTER)
    assert of(ConsumerStalled, events) == []


@pytest.mark.parametrize("way", ["iteration", "callback"])
async def test_push_unacked_reported(quick: Any, stream: OwnStream, events: list[Any], way: str) -> None:
    await stream.create_consumer(
        "c", ack_policy="explicit", max_ack_pending=3, deliver_subject=stream.prefix + "-to"
    )
    await stream.publish(5)
    options = {"callback": handled, "auto_ack": False} if way == "callback" else {}
    sub = await quick.subscribe(stream=stream.name, consumer="c", **options)
    if way == "iteration":
        await take(sub, 3)
        with pytest.raises(jsclient.RequestTimeoutError):
            await sub.next(timeout=4 * AFTER)
    assert "3 of 3 are not acked" in (await reason(events, "max_ack_pending")).evidence


@pytest.mark.parametrize("way", ["pull", "push", "callback"])
async def test_hanging_handler_reported(quick: Any, stream: OwnStream, events: list[Any], way: str) -> None:
    push = {} if way == "pull" else {"deliver_subject": stream.prefix + "-to"}
    await stream.create_consumer("c", ack_policy="explicit", ack_wait=300_000_000, **push)
    await stream.publish(3)
    free = asyncio.Event()

    async def hangs(_: Any) -> None:
        await free.wait()

    names = {"stream": stream.name, "consumer": "c"}
    if way == "callback":
        await quick.subscribe(**names, callback=hangs)
    else:
        sub = await (quick.pull_subscribe(**names) if way == "pull" else quick.subscribe(**names))
        sub.run(hangs)
    event = await reason(events, "handler")
    assert "ack_wait is 0.3 s" in event.evidence
    assert f"{stream.subject()!r} (stream sequence 1, attempt " in event.evidence
    free.set()
    assert (await wait_for_event(ConsumerResumed, events, timeout=20)).reason == "handler"


@pytest.mark.parametrize("others_go_on", [False, True])
async def test_lone_hanging_handler_reported(
    quick: Any, stream: OwnStream, events: list[Any], others_go_on: bool
) -> None:
    """No message waits for it, and other handlers of its worker may continue: it is reported once."""
    await stream.create_consumer("c", ack_policy="explicit", ack_wait=300_000_000)
    free, handled_others = asyncio.Event(), 0
    publishes = others_go_on

    async def hangs(message: Any) -> None:
        nonlocal handled_others
        if message.metadata.stream_seq == 1:
            await free.wait()
        else:
            handled_others += 1

    await stream.publish(1, "slow")
    sub = await quick.pull_subscribe(stream=stream.name, consumer="c")
    sub.run(hangs, concurrency=2)

    async def publish() -> None:
        while publishes:
            await stream.publish(1, "quick")
            await asyncio.sleep(AFTER / 8)

    publishing = asyncio.create_task(publish())
    event = await reason(events, "handler")
    assert f"{stream.subject('slow')!r} (stream sequence 1, attempt " in event.evidence
    assert "ack_wait is 0.3 s; it is kept alive" in event.evidence
    assert not str(event).startswith("nothing came")
    before = handled_others
    await eventually(lambda: not others_go_on or handled_others > before + 10, 60)
    await asyncio.sleep(3 * AFTER)
    assert [one.reason for one in of(ConsumerStalled, events)] == ["handler"]
    free.set()
    assert (await wait_for_event(ConsumerResumed, events, timeout=20)).reason == "handler"
    publishes = False  # a cancellation may be lost in nats-py's `wait_for` on Python 3.11
    await publishing  # before the connection closes under it


async def test_handlers_long_by_nature_reported_once(
    quick: Any, stream: OwnStream, events: list[Any]
) -> None:
    """The first handler shows how long they take."""
    await stream.create_consumer("c", ack_policy="explicit", ack_wait=100_000_000)
    ended = 0

    async def long(_: Any) -> None:
        nonlocal ended
        await asyncio.sleep(1.0)
        ended += 1

    await stream.publish(4)
    (await quick.pull_subscribe(stream=stream.name, consumer="c")).run(long)
    await eventually(lambda: ended == 4)
    (event,) = of(ConsumerStalled, events)
    assert "(stream sequence 1, attempt " in event.evidence


async def test_impossible_filter_reported(
    quick: Any, stream: OwnStream, events: list[Any], read: Any
) -> None:
    await stream.create_consumer("c", ack_policy="explicit", filter_subject="nowhere.at.all")
    await stream.publish(1)
    read(await quick.pull_subscribe(stream=stream.name, consumer="c"), "messages")
    event = await reason(events, "filter")
    assert "'nowhere.at.all'" in event.evidence
    assert repr(stream.all) in event.evidence


@pytest.mark.server(">=2.11")
async def test_pinned_elsewhere_reported(
    quick: Any, js: Any, stream: OwnStream, events: list[Any], read: Any
) -> None:
    handle = await (await js.stream(stream.name)).create_consumer(
        durable_name="c", priority_groups=["g"], priority_policy="pinned_client", priority_timeout=60
    )
    await stream.publish(3)
    assert len(await handle.fetch(1, group="g")) == 1  # and never asks again
    sub = await quick.pull_subscribe(stream=stream.name, consumer="c")
    waiting = asyncio.create_task(sub.fetch(1, expires=30, group="g"))
    event = await reason(events, "pinned")
    assert "group 'g'" in event.evidence
    assert "unpin('g')" in event.fix
    await handle.unpin("g")
    assert len(await waiting) == 1
    await sub.unsubscribe()


async def test_other_subject_reported(quick: Any, stream: OwnStream, events: list[Any]) -> None:
    await stream.create_consumer("c", deliver_subject=stream.prefix + "-old")
    sub = await quick.subscribe(stream=stream.name, consumer="c")
    waiting = asyncio.create_task(sub.next(timeout=30))
    await stream.delete_consumer("c")
    await stream.create_consumer("c", deliver_subject=stream.prefix + "-new")
    await stream.publish(2)
    event = await reason(events, "no_interest")
    assert "-new', and the server knows nobody who listens there" in event.evidence
    assert "-old'" in event.evidence
    waiting.cancel()


async def test_silent_mirror_reported(
    quick: Any, oracle: Oracle, make_stream: Callable[..., Awaitable[OwnStream]], events: list[Any], read: Any
) -> None:
    mirror = await make_stream(oracle=oracle, subjects=[], mirror={"name": "not-there"})
    await mirror.create_consumer("c", ack_policy="explicit")
    read(await quick.pull_subscribe(stream=mirror.name, consumer="c"), "next")
    event = await reason(events, "mirror")
    assert "'not-there'" in event.evidence


@pytest.mark.parametrize("filters", [True, False])
async def test_wait_for_nothing_is_logged_once(
    quick: Any, stream: OwnStream, events: list[Any], caplog: Any, filters: bool
) -> None:
    """`next` without a timeout waits for ever. That is not a fault, but the log says what it waits for."""
    caplog.set_level("INFO", "jsclient.consumer")
    subject = stream.subject("orders")
    await stream.publish(1, "orders")
    config = {"filter_subject": subject} if filters else {}
    await stream.create_consumer("c", deliver_subject=stream.prefix + "-to", ack_policy="none", **config)
    sub = await quick.subscribe(stream=stream.name, consumer="c")
    await sub.next(timeout=10)
    waiting = asyncio.create_task(sub.next())

    def lines() -> list[str]:
        return [line for line in caplog.messages if "has waited" in line]

    await eventually(lines, 20, "the line")
    await asyncio.sleep(5 * AFTER)  # more looks
    (line,) = lines()
    assert f"a reader of consumer 'c' of stream {stream.name!r} has waited" in line
    which = f"no messages match {subject!r}" if filters else "no messages are in its stream"
    assert f"{which} that it has not delivered" in line
    assert "next(timeout=...) ends a wait" in line
    assert of(ConsumerStalled, events) == []
    waiting.cancel()


async def test_nothing_told_while_healthy(
    quick: Any, js: Any, stream: OwnStream, events: list[Any], read: Any
) -> None:
    """Idle readers, slow handlers that take all the consumer allows, a program that is busy, work that others do."""
    names = {"stream": stream.name, "consumer": "c"}
    await stream.create_consumer("c", ack_policy="explicit", max_ack_pending=2)
    for way in READERS[:3]:
        await stream.create_consumer(way, ack_policy="explicit")
        read(await quick.pull_subscribe(stream=stream.name, consumer=way), way)
    ended = 0

    async def slow(_: Any) -> None:
        nonlocal ended
        await asyncio.sleep(4 * AFTER)
        ended += 1

    await stream.publish(6)
    (await quick.pull_subscribe(**names)).run(slow, concurrency=2)
    starving = await quick.pull_subscribe(**names)
    read(starving, "fetch")
    await eventually(lambda: ended >= 4, 60)
    # Only the reader that starves beside the slow worker may receive the event, by what the server shows.
    assert [event for event in of(ConsumerStalled, events) if event.consumer != "c"] == []


async def test_busy_program_is_left_alone(quick: Any, stream: OwnStream, events: list[Any]) -> None:
    """The reader takes one message at a time. While the program handles it, no message can arrive or be missing."""
    await stream.create_consumer("c", ack_policy="explicit", max_ack_pending=1)
    await stream.publish(3)
    sub = await quick.pull_subscribe(stream=stream.name, consumer="c")
    messages = sub.messages()
    for _ in range(3):
        message = await messages.next(timeout=10)
        await asyncio.sleep(4 * AFTER)
        await message.ack_sync()
    assert of(ConsumerStalled, events) == []


async def test_ordered_reader_that_recreates_is_not_stalled(
    quick: Any, stream: OwnStream, events: list[Any]
) -> None:
    """Its consumer is deleted, and the next consumer delivers to another subject."""
    sub = await quick.subscribe(stream.all, ordered=True)
    await stream.publish(1)
    assert len(await take(sub, 1)) == 1
    first = sub.consumer
    await stream.delete_consumer(first)
    waiting = asyncio.create_task(sub.next())
    await eventually(lambda: sub.consumer not in {"", first}, 60)
    await asyncio.sleep(3 * AFTER)  # looks at the new one
    await stream.publish(1)
    await asyncio.wait_for(waiting, 20)
    assert of(ConsumerStalled, events) == []


async def test_denied_look_is_harmless_and_reported_once(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, events: list[Any]
) -> None:
    rights = {"publish": {"allow": [">"], "deny": ["$JS.API.CONSUMER.INFO.>"]}}
    users = [
        {"user": "judge", "password": "judge"},
        {"user": "limited", "password": "limited", "permissions": rights},
    ]
    own = await own_server(config={"authorization": {"users": users}})
    stream = await make_stream(oracle=await oracle_for(own, user="judge", password="judge"))
    await stream.create_consumer("c")
    js = await connect(own, user="limited", password="limited", stall_after=AFTER)
    sub = await js.pull_subscribe(stream=stream.name, consumer="c")
    waiting = asyncio.create_task(sub.fetch(1, expires=30))
    event = await reason(events, "could_not_look")
    assert event.severity == "info"
    assert "CONSUMER.INFO" in event.evidence
    await asyncio.sleep(4 * AFTER)
    assert len(of(ConsumerStalled, events)) == 1
    await stream.publish(1)
    assert len(await waiting) == 1


@pytest.mark.full
@pytest.mark.limit(120)
async def test_reported_with_default_options(
    js: Any, stream: OwnStream, events: list[Any], read: Any
) -> None:
    """Within 35 s, although the server delivers unacked messages again after 30 s."""
    await stream.create_consumer("c", ack_policy="explicit", max_ack_pending=3)
    await stream.publish(5)
    read(await js.pull_subscribe(stream=stream.name, consumer="c"), "messages")
    event = await wait_for_event(ConsumerStalled, events, timeout=35)
    assert event.reason == "max_ack_pending"
    assert 25 <= event.stood_for < 30
