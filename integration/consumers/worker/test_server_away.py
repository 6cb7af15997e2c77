"""A worker that is stopped while its server is away ends with its handlers, and says which acks it could not send."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually, within
from jsclient import ConsumerConfig
from jsclient.events import AcksUnsent, DeadLettered, DeadLetterFailed, HandlerFailed

GRACE = 60.0  # seconds: far more than the tests take


async def subscribed(js: Any, kind: str, **config: Any) -> Any:
    await js.create_stream("S", ["s"])
    await js.create_stream("DEAD", ["dead"])
    for number in range(8):
        await js.publish("s", b"%d" % number)
    options = {"durable": "d", "config": ConsumerConfig(**config), "delete_on_close": False}
    return await (js.pull_subscribe if kind == "pull" else js.subscribe)("s", **options)


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("ack_sync", [False, True], ids=["ack", "ack_sync"])
@pytest.mark.parametrize("kind", ["pull", "push"])
async def test_ends_with_its_handlers(
    own_server: Any, connect: Any, events: list[Any], kind: str, ack_sync: bool
) -> None:
    """It took the whole grace and a second more, and nothing said why."""
    server = await own_server()
    js = await connect(server)
    sub = await subscribed(js, kind)
    gate = asyncio.Event()

    async def wait(_: jsclient.Message) -> None:
        await gate.wait()

    worker = sub.run(wait, concurrency=8, grace=GRACE, ack_sync=ack_sync)
    await eventually(lambda: worker.counts.running == 8, what="handling them")
    await server.kill()
    await eventually(lambda: not js.is_connected, what="noticing it")
    worker.stop()
    done, _ = await asyncio.wait({worker.task}, timeout=2.0)
    assert not done  # its handlers still run
    gate.set()
    counts = await within(GRACE / 2, worker, "the end")
    assert (counts.handled, counts.unsettled, counts.running) == (0, 8, 0)
    (event,) = of(AcksUnsent, events)
    assert (event.stream, event.consumer, event.count, event.returned) == ("S", "d", 8, 0)
    assert "8 messages were handled, but their acks could not be sent" in str(event)
    assert of(HandlerFailed, events) == []


async def test_acks_are_sent_if_it_comes_back_in_time(
    own_server: Any, connect: Any, events: list[Any]
) -> None:
    server = await own_server()
    js = await connect(server)
    sub = await subscribed(js, "pull")
    gate, ended = asyncio.Event(), []

    async def wait(msg: jsclient.Message) -> None:
        if msg.metadata.stream_seq > 1:
            await gate.wait()
        ended.append(msg)

    worker = sub.run(wait, concurrency=8, grace=GRACE)
    await eventually(lambda: worker.counts.running == 7, what="handling them")
    await server.kill()
    await eventually(lambda: not js.is_connected, what="noticing it")
    worker.stop()
    await asyncio.sleep(0)
    await server.start()  # while handlers run, it waits for the server, too
    await eventually(lambda: js.is_connected, what="the reconnect")
    gate.set()
    counts = await within(GRACE / 2, worker, "the end")
    assert (counts.handled, counts.unsettled) == (8, 0)
    assert of(AcksUnsent, events) == []


async def test_last_delivery_that_was_handled_is_no_dead_letter(
    own_server: Any, connect: Any, events: list[Any]
) -> None:
    server = await own_server()
    js = await connect(server)
    sub = await subscribed(js, "pull", max_deliver=1)
    gate = asyncio.Event()

    async def wait(_: jsclient.Message) -> None:
        await gate.wait()

    worker = sub.run(wait, concurrency=8, grace=GRACE, dead_letter="dead")
    await eventually(lambda: worker.counts.running == 8, what="handling them")
    await server.kill()
    await eventually(lambda: not js.is_connected, what="noticing it")
    gate.set()
    worker.stop()
    counts = await within(GRACE / 2, worker, "the end")
    assert (counts.handled, counts.failed, counts.unsettled) == (0, 0, 8)
    assert of(DeadLettered, events) == of(DeadLetterFailed, events) == []


async def test_messages_that_waited_are_counted_apart(
    own_server: Any, connect: Any, events: list[Any]
) -> None:
    server = await own_server()
    js = await connect(server)
    sub = await subscribed(js, "pull", ack_wait=3.0)
    gate = asyncio.Event()

    async def wait(_: jsclient.Message) -> None:
        await gate.wait()

    worker = sub.run(wait, concurrency=1, prefetch=7, grace=GRACE)
    await eventually(lambda: (worker.counts.running, worker.counts.waiting) == (1, 7), what="all messages")
    await server.kill()
    await eventually(lambda: not js.is_connected, what="noticing it")
    gate.set()
    worker.stop()
    counts = await within(GRACE / 2, worker, "the end")
    assert (counts.handled, counts.returned, counts.unsettled) == (0, 0, 8)
    (event,) = of(AcksUnsent, events)
    assert (event.count, event.returned) == (1, 7)
    assert "1 message was handled, but its ack could not be sent" in str(event)
    assert "7 messages could not be returned" in str(event)
