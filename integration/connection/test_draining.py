"""`JetStream.drain`: handlers end, acks are read, publishes get their acks, and what remained is named."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import FAST
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.deletes import DELETES
from jsclient import ConfigError, Message
from jsclient.core.message import CoreMessage
from jsclient.errors import ClosedError, DrainTimeoutError


async def filled(connect: Any, server: Any, stream: Any, count: int) -> Any:
    """A separate connection, and messages in the stream."""
    js = await connect(server)
    await js.publish_many(stream.subject("a"), [b"%d" % number for number in range(count)])
    return js


@pytest.mark.parametrize("kind", ["callback", "worker", "pull worker"])
async def test_handlers_end_and_their_acks_are_read(
    kind: str, server: Any, connect: Any, stream: Any, js: Any
) -> None:
    mine = await filled(connect, server, stream, 20)
    begun, handled = asyncio.Event(), []

    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.sleep(0.02)
        await mine.publish(stream.subject("out"), message.data)  # the connection still publishes
        handled.append(message.metadata.stream_seq)

    options = {"durable": "d", "delete_on_close": False, "config": jsclient.ConsumerConfig(ack_wait=60.0)}
    if kind == "callback":
        await mine.subscribe(stream.subject("a"), callback=handle, **options)
    elif kind == "worker":
        sub = await mine.subscribe(stream.subject("a"), **options)
        sub.run(handle, concurrency=2)
    else:
        await (await mine.stream(stream.name)).create_consumer(
            durable_name="d", ack_policy="explicit", ack_wait=60.0
        )
        psub = await mine.pull_subscribe(stream=stream.name, consumer="d")
        psub.run(handle, concurrency=2)
    await begun.wait()
    await mine.drain(60)
    assert mine.is_closed
    await (await js.stream(stream.name)).get_last_message(stream.subject("out"))
    assert handled
    info = await (await (await js.stream(stream.name)).consumer("d")).info()
    assert info.ack_floor.stream_seq == max(handled)


async def test_publishes_get_their_acks(server: Any, connect: Any, stream: Any) -> None:
    mine = await connect(server)
    publisher = mine.publisher(max_in_flight=500)
    futures = [await publisher.publish(stream.subject("a"), b"x") for _ in range(500)]
    single = [asyncio.create_task(mine.publish(stream.subject("b"), b"x")) for _ in range(50)]
    await asyncio.sleep(0)
    await mine.drain(60)
    assert mine.is_closed
    assert len({(await future).seq for future in [*futures, *single]}) == 550


async def test_messages_that_arrived_are_read_first(server: Any, connect: Any, stream: Any) -> None:
    mine = await filled(connect, server, stream, 30)
    sub = await mine.subscribe(stream.all)
    plain = await mine.core.subscribe("plain.of.drain")
    for _ in range(10):
        await mine.core.publish("plain.of.drain", b"x")
    await mine.core.flush()
    await eventually(lambda: sub.pending == 30, what="what precedes the drain")
    drain = asyncio.create_task(mine.drain(60))
    await asyncio.sleep(0.1)
    assert not drain.done()
    assert len([message async for message in sub]) == 30
    assert len([message async for message in plain]) == 10
    await drain


async def test_services_answer_what_has_arrived(server: Any, connect: Any, js: Any) -> None:
    mine = await connect(server)

    async def answer(request: Any) -> None:
        await asyncio.sleep(0.2)
        await request.respond(b"done")

    service = await mine.core.add_service("draining", "1.0.0")
    await service.add_endpoint("slow", answer, subject="draining.slow")
    await mine.core.flush()
    before = mine.stats().messages_received
    asked = [asyncio.create_task(js.core.request("draining.slow", timeout=30.0)) for _ in range(3)]
    await eventually(lambda: mine.stats().messages_received >= before + 3, what="the requests")
    await mine.drain(30)
    assert [(await one).data for one in asked] == [b"done"] * 3
    assert service.is_closed


async def test_what_remained_is_named(server: Any, connect: Any, stream: Any) -> None:
    mine = await filled(connect, server, stream, 3)

    begun: list[str] = []

    async def stuck(_: Message) -> None:
        begun.append("stuck")
        await asyncio.sleep(600)

    async def stuck_plain(_: CoreMessage) -> None:
        begun.append("stuck plain")
        await asyncio.sleep(600)

    await mine.subscribe(stream.all, durable="stuck", callback=stuck)
    unread = await mine.subscribe(stream.all, durable="unread")
    await mine.core.subscribe("stuck.plain", callback=stuck_plain)
    await mine.core.publish("stuck.plain", b"x")
    await eventually(lambda: unread.pending == 3 and len(begun) == 2, what="what precedes the drain")
    started = asyncio.get_running_loop().time()
    with pytest.raises(DrainTimeoutError) as caught:
        await mine.drain(0.5)
    assert asyncio.get_running_loop().time() - started < 30
    assert mine.is_closed
    assert caught.value.timeout == 0.5
    text = str(caught.value)
    assert f"{stream.name}/stuck" in text
    assert f"{stream.name}/unread" in text
    assert "3 messages that were not read" in text
    assert "'stuck.plain'" in text
    assert len(caught.value.remaining) == 3


async def test_publishes_without_acks_are_counted(server: Any, connect: Any, stream: Any, proxy: Any) -> None:
    tap = await proxy(server)
    mine = await connect(tap, **FAST)
    publisher = mine.publisher()
    await (await publisher.publish(stream.subject("a"), b"x"))
    tap.refuse()
    tap.cut()
    await eventually(lambda: not mine.is_connected, what="what precedes the drain")
    waiting = asyncio.create_task(mine.account_info())
    await asyncio.sleep(0.05)
    with pytest.raises(DrainTimeoutError, match="what was written last, such as acks"):
        await mine.drain(0.5)
    with pytest.raises(jsclient.JetStreamError):
        await waiting


async def test_handler_cannot_drain_what_it_belongs_to(server: Any, connect: Any) -> None:
    mine = await connect(server)
    errors: list[BaseException] = []

    async def handle(_: CoreMessage) -> None:
        try:
            await mine.drain(1)
        except ConfigError as error:
            errors.append(error)

    await mine.core.subscribe("drain.myself", callback=handle)
    await mine.core.publish("drain.myself", b"x")
    await eventually(lambda: errors, what="what precedes the drain")
    assert "by a handler" in str(errors[0])
    await mine.drain()
    await mine.drain()  # a second drain finds no open handle
    with pytest.raises(ClosedError):
        await mine.core.publish("a", b"")


async def test_cancelled_drain_closes(server: Any, connect: Any, stream: Any) -> None:
    mine = await filled(connect, server, stream, 1)
    sub = await mine.subscribe(stream.all)
    await eventually(lambda: sub.pending, what="what precedes the drain")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(mine.drain(30), 0.3)
    assert mine.is_closed


async def all_acked(js: Any, stream: Any, count: int, among: int) -> None:
    """The first messages were acked, and the server delivers the others again at once, not after ``ack_wait``."""
    consumer = await (await js.stream(stream.name)).consumer("d")

    async def acked() -> bool:
        info = await consumer.info()
        return info.ack_floor.stream_seq == count

    await eventually(acked, what="the acks")
    if count < among:
        batch = await consumer.fetch(among - count, expires=30)
        assert sorted(message.metadata.stream_seq for message in batch) == [*range(count + 1, among + 1)]


async def by_loop(reader: Any) -> AsyncIterator[Message]:
    async for message in reader:
        yield message


async def by_fetch(reader: Any) -> AsyncIterator[Message]:
    while True:
        for message in await reader.fetch(5):
            yield message


async def by_next(reader: Any) -> AsyncIterator[Message]:
    while True:
        yield await reader.next()


@pytest.mark.core_cases(3)
@pytest.mark.parametrize("how", [by_loop, by_fetch, by_next])
@pytest.mark.parametrize("kind", ["subscription", "deleted at the end", "consumer"])
async def test_what_a_pull_has_handed_out_is_acked(
    how: Any, kind: str, server: Any, connect: Any, stream: Any, js: Any, proxy: Any
) -> None:
    """The loop ends when the drain does, and the acks arrive before the consumer is deleted."""
    tap = await proxy(server)
    mine = await filled(connect, tap, stream, 5)
    if kind == "consumer":
        reader = await (await mine.stream(stream.name)).create_consumer(
            durable_name="d", ack_policy="explicit", ack_wait=60.0
        )
    else:
        options = {
            "delete_on_close": kind != "subscription",
            "config": jsclient.ConsumerConfig(ack_wait=60.0),
        }
        reader = await mine.pull_subscribe(stream.subject("a"), durable="d", **options)
    acked = []

    async def read() -> None:
        with contextlib.suppress(ClosedError):
            async for message in how(reader):
                await asyncio.sleep(0.1)
                await message.ack()
                acked.append(message.metadata.stream_seq)

    reading = asyncio.create_task(read())
    # By a loop, all are on their way at once. A drain reads what has arrived.
    await eventually(lambda: acked, what="the first ack")
    await eventually(lambda: how is not by_loop or len(tap.find(match.is_data)) == 5, what="all messages")
    await mine.drain(60)
    count = len(acked)
    if how is not by_next:
        assert count == 5
    await within(30, reading, "the end of the loop")
    assert len(acked) == count
    if kind == "deleted at the end":
        [deleted] = tap.sent(DELETES)
        acks = tap.find(match.is_ack)
        assert len(acks) == count
        assert max(frame.number for frame in acks) < deleted.number
    else:
        await all_acked(js, stream, count, 5)


async def test_pulls_end_with_the_drain(server: Any, connect: Any, stream: Any) -> None:
    mine = await filled(connect, server, stream, 2)
    psub = await mine.pull_subscribe(stream.subject("a"), durable="d")
    consumer = await (await mine.stream(stream.name)).create_consumer(durable_name="e", ack_policy="explicit")
    first = await psub.fetch(1)
    partial = asyncio.create_task(psub.fetch(5, expires=30))
    other = asyncio.create_task(consumer.fetch(5, expires=30))

    async def has_both() -> bool:
        infos = [await psub.consumer_info(), await consumer.info()]
        return [info.num_ack_pending for info in infos] == [2, 2]

    await eventually(has_both, what="both messages, on both consumers")
    draining = asyncio.create_task(mine.drain(60))
    batch = await within(30, partial, "the fetch in flight")
    assert [message.data for message in batch] == [b"1"]
    assert isinstance(batch.error, ClosedError)
    for call in (psub.fetch(1), psub.next(), consumer.fetch(1), anext(aiter(consumer.messages()))):
        with pytest.raises((ClosedError, StopAsyncIteration)):
            await within(30, call, "a new pull")
    assert not draining.done()
    for message in (*batch, *first, *await within(30, other, "the other fetch")):
        await message.ack()
    await within(30, draining, "the drain")


async def test_left_loops_and_dropped_messages_do_not_hold_a_drain(
    server: Any, connect: Any, stream: Any, js: Any
) -> None:
    mine = await filled(connect, server, stream, 10)
    psub = await mine.pull_subscribe(stream.subject("a"), durable="d", delete_on_close=False)
    async for message in psub:
        await message.ack()
        break
    await eventually(lambda: psub._reader.pending == 9, what="what the left loop has")
    other = await mine.pull_subscribe(stream.subject("a"), durable="e", delete_on_close=False)
    await other.fetch(5)
    await within(30, mine.drain(20), "the drain")
    again = await js.pull_subscribe(stream=stream.name, consumer="d")
    assert len(await again.fetch(9, expires=20)) == 9  # they were returned


async def test_fetched_messages_without_an_ack_are_named(server: Any, connect: Any, stream: Any) -> None:
    mine = await filled(connect, server, stream, 3)
    psub = await mine.pull_subscribe(stream.subject("a"), durable="d")
    batch = await psub.fetch(3)
    await batch[0].ack()
    with pytest.raises(DrainTimeoutError, match="2 fetched messages that were not acked"):
        await mine.drain(0.5)
    assert len(batch) == 3


@pytest.mark.parametrize("deletes", [False, True])
async def test_last_message_of_a_push_subscription_is_acked(
    deletes: bool, server: Any, connect: Any, stream: Any, js: Any, proxy: Any
) -> None:
    tap = await proxy(server)
    mine = await filled(connect, tap, stream, 3)
    sub = await mine.subscribe(stream.subject("a"), durable="d", delete_on_close=deletes)
    acked = []

    async def read() -> None:
        async for message in sub:
            await asyncio.sleep(0.3)
            await message.ack()
            acked.append(message.metadata.stream_seq)

    await eventually(lambda: sub.pending == 3, what="the messages")
    reading = asyncio.create_task(read())
    await mine.drain(60)
    await within(30, reading, "the end of the loop")
    assert acked == [1, 2, 3]
    if deletes:
        [deleted] = tap.sent(DELETES)
        acks = tap.find(match.is_ack)
        assert len(acks) == 3
        assert max(frame.number for frame in acks) < deleted.number
    else:
        await all_acked(js, stream, 3, 3)
