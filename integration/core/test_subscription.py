"""Subscriptions to plain messages: reading, callbacks, limits, ends, faults."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.waiting import eventually
from jsclient import (
    ClosedError,
    ConfigError,
    HandlerFailed,
    HandlerSlow,
    PermissionDeniedError,
    Reconnected,
    RequestTimeoutError,
    SlowConsumer,
)
from jsclient.core.message import CoreMessage


async def publish(core: Any, subject: str, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        await core.publish(subject, b"%d" % number)
    await core.flush()


async def test_read_in_order(core: Any, subject: str) -> None:
    async with core.subscribe(f"{subject}.*") as sub:
        await publish(core, f"{subject}.a", 1000)
        assert [int((await sub.next(5)).data) for _ in range(400)] == list(range(400))
        remaining = []
        async for message in sub:
            remaining.append(int(message.data))
            if len(remaining) == 600:
                break
        assert remaining == list(range(400, 1000))
        assert (sub.received, sub.dropped, sub.pending, sub.pending_bytes) == (1000, 0, 0, 0)


async def test_next_timeout(core: Any, subject: str) -> None:
    async with core.subscribe(subject) as sub:
        with pytest.raises(RequestTimeoutError, match="no message"):
            await sub.next(0.05)
        await core.publish(subject, b"x")
        assert (await sub.next(5)).data == b"x"


async def test_cancelled_next_loses_nothing(js: Any, subject: str) -> None:
    async with js.core.subscribe(subject) as sub:
        numbers = []
        for number in range(200):
            waiting = asyncio.create_task(sub.next())
            await asyncio.sleep(0)
            await js.core.publish(subject, b"%d" % number)
            await js.core.flush()
            waiting.cancel()
            try:
                numbers.append(int((await waiting).data))
            except asyncio.CancelledError:
                numbers.append(int((await sub.next(5)).data))
        assert numbers == list(range(200))


async def test_two_readers(js: Any, subject: str) -> None:
    async with js.core.subscribe(subject) as sub:
        readers = [asyncio.create_task(sub.next(10)) for _ in range(5)]
        await publish(js.core, subject, 5)
        results = await asyncio.gather(*readers)
    assert sorted(int(message.data) for message in results) == list(range(5))


async def test_queue_group_shares(core: Any, subject: str) -> None:
    async with core.subscribe(subject, queue="q") as one, core.subscribe(subject, queue="q") as two:
        await publish(core, subject, 200)
        await eventually(lambda: one.received + two.received == 200)
        assert min(one.received, two.received) > 20


async def test_callback_in_order(core: Any, subject: str) -> None:
    numbers = []

    async def callback(message: Any) -> None:
        await asyncio.sleep(0)
        numbers.append(int(message.data))

    async with core.subscribe(subject, callback=callback) as sub:
        await publish(core, subject, 500)
        await sub.drain()
    assert numbers == list(range(500))


async def test_plain_callback_in_thread(js: Any, subject: str) -> None:
    threads = set()

    def callback(message: Any) -> None:
        threads.add(threading.current_thread())

    async with js.core.subscribe(subject, callback=callback) as sub:
        await publish(js.core, subject, 10)
        await sub.drain()
    assert threading.main_thread() not in threads
    assert len(threads) == 1


async def test_concurrent_callbacks(js: Any, subject: str) -> None:
    running = most = 0

    async def callback(message: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async with js.core.subscribe(subject, callback=callback, concurrency=8) as sub:
        await publish(js.core, subject, 100)
        await sub.drain()
    assert most == 8
    assert running == 0


async def test_failing_callback_reported(js: Any, events: list[Any], subject: str) -> None:
    numbers = []

    async def callback(message: Any) -> None:
        numbers.append(int(message.data))
        if message.data == b"1":
            raise ValueError("no")

    async with js.core.subscribe(subject, callback=callback) as sub:
        await publish(js.core, subject, 3)
        await sub.drain()
    assert numbers == [0, 1, 2]
    (event,) = of(HandlerFailed, events)
    assert (event.subject, str(event.error)) == (subject, "no")


@pytest.mark.parametrize("kind", ["callback", "endpoint"])
async def test_blocking_handler_reported(js: Any, events: list[Any], subject: str, kind: str) -> None:
    """One that waits, or that blocks a thread only, is not reported."""
    handled = []

    async def handle(message: CoreMessage) -> None:
        if message.data == b"block":
            time.sleep(1.2)
        elif message.data == b"wait":
            await asyncio.sleep(1.2)
        handled.append(message.data)

    def handle_in_thread(message: CoreMessage) -> None:
        time.sleep(1.2)
        handled.append(message.data)

    if kind == "callback":
        await js.core.subscribe(f"{subject}.*", callback=handle)
        await js.core.subscribe(f"thread.{subject}", callback=handle_in_thread)
    else:
        service = await js.core.add_service("slow", "1.0.0")
        await service.add_endpoint("slow", handle, subject=f"{subject}.*")
        await service.add_endpoint("thread", handle_in_thread, subject=f"thread.{subject}")
    await js.core.publish(f"thread.{subject}")
    for data in (b"", b"wait", b""):
        await js.core.publish(f"{subject}.a", data)
    await eventually(lambda: len(handled) == 4, what="the calls")
    assert of(HandlerSlow, events) == []
    await js.core.publish(f"{subject}.b", b"block")
    await eventually(lambda: of(HandlerSlow, events), what="the event")
    await js.core.publish(f"{subject}.c", b"")
    await js.core.publish(f"{subject}.d", b"block")
    await eventually(lambda: len(of(HandlerSlow, events)) == 2, what="the second event")
    first, second = of(HandlerSlow, events)
    assert (first.subject, first.count) == (f"{subject}.b", 1)
    assert (second.subject, second.count) == (f"{subject}.d", 2)
    assert 1.1 < first.blocked < 30


async def test_not_read_with_callback(js: Any, subject: str) -> None:
    async with js.core.subscribe(subject, callback=print) as sub:
        with pytest.raises(ConfigError, match="callback"):
            await sub.next()


async def test_full_buffer_reported(core: Any, events: list[Any], subject: str) -> None:
    async with core.subscribe(subject, max_pending=10) as sub:
        await publish(core, subject, 100)
        await eventually(lambda: sub.received == 100)
        assert (sub.pending, sub.dropped) == (10, 90)
        assert [int((await sub.next()).data) for _ in range(10)] == list(range(10))
        await core.publish(subject, b"100")
        assert (await sub.next(5)).data == b"100"
    drops = of(SlowConsumer, events)
    assert {event.subject for event in drops} == {subject}
    assert [event.dropped for event in drops] == [1, 2, 4, 8, 16, 32, 64, 90]
    assert drops[-1].ended


async def test_unsubscribe(core: Any, subject: str) -> None:
    sub = await core.subscribe(subject)
    waiting = asyncio.create_task(sub.next())
    await asyncio.sleep(0)
    await sub.unsubscribe()
    with pytest.raises(ClosedError):
        await waiting
    await sub.unsubscribe()
    assert sub.is_closed
    assert [message async for message in sub] == []
    await publish(core, subject, 1)
    assert sub.received == 0


async def test_unsubscribe_after(core: Any, subject: str) -> None:
    sub = await core.subscribe(subject)
    await sub.unsubscribe(after=5)
    await publish(core, subject, 10)
    assert [int(message.data) async for message in sub] == [0, 1, 2, 3, 4]
    assert sub.is_closed


async def test_unsubscribe_after_what_arrived(js: Any, subject: str) -> None:
    sub = await js.core.subscribe(subject)
    await publish(js.core, subject, 5)
    await eventually(lambda: sub.received == 5)
    await sub.unsubscribe(after=3)
    assert len([message async for message in sub]) == 5, "what has arrived is read"
    with pytest.raises(ConfigError):
        await sub.unsubscribe(after=0)


async def test_unsubscribe_after_leaves_rest_to_group(core: Any, subject: str) -> None:
    """The server knows the limit, so that no message of the group goes to a member that has ended."""
    async with core.subscribe(subject, queue="q") as other:
        sub = await core.subscribe(subject, queue="q")
        await sub.unsubscribe(after=3)
        await core.flush()
        await publish(core, subject, 100)
        assert len([message async for message in sub]) == 3
        await eventually(lambda: other.received == 97)


async def test_unsubscribe_after_reconnect(
    own_server: Any, proxy: Any, connect: Any, events: list[Any], subject: str
) -> None:
    """The messages are counted over all connections."""
    own = await own_server()
    link = await proxy(own)
    js, sender = await connect(link, **PATIENT), await connect(own)
    sub = await js.core.subscribe(subject)
    other = await sender.core.subscribe(subject, queue="q")
    await sub.unsubscribe(after=5)
    await js.core.flush()
    await publish(sender.core, subject, 3)
    await eventually(lambda: sub.received == 3)
    link.cut()
    await wait_for_event(Reconnected, events)
    await js.core.flush()
    await publish(sender.core, subject, 10, 3)
    assert [int(message.data) async for message in sub] == [0, 1, 2, 3, 4]
    await eventually(lambda: other.received == 13)


async def test_callback_after_limit(core: Any, subject: str) -> None:
    numbers = []

    async def callback(message: Any) -> None:
        numbers.append(int(message.data))

    sub = await core.subscribe(subject, callback=callback)
    await sub.unsubscribe(after=3)
    await publish(core, subject, 10)
    await eventually(lambda: sub.is_closed)
    assert numbers == [0, 1, 2]


async def test_drain_leaves_messages_to_read(core: Any, subject: str) -> None:
    sub = await core.subscribe(subject)
    await publish(core, subject, 10)
    await sub.drain()
    assert not sub.is_closed
    await publish(core, subject, 10, 10)
    assert [int(message.data) async for message in sub] == list(range(10))
    assert sub.is_closed
    await sub.drain()


async def test_drain_with_nothing_left(core: Any, subject: str) -> None:
    sub = await core.subscribe(subject)
    await asyncio.gather(sub.drain(), sub.drain())
    assert sub.is_closed


async def test_drain_too_late(js: Any, subject: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def callback(message: Any) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    sub = await js.core.subscribe(subject, callback=callback)
    await js.core.publish(subject)
    await began.wait()
    with pytest.raises(RequestTimeoutError, match="drain"):
        await sub.drain(timeout=0.1)
    assert ended.is_set()
    assert sub.is_closed


async def test_drain_from_callback(js: Any, subject: str) -> None:
    numbers = []

    async def callback(message: Any) -> None:
        numbers.append(int(message.data))
        await sub.drain()

    sub = await js.core.subscribe(subject, callback=callback)
    await publish(js.core, subject, 3)
    await eventually(lambda: sub.is_closed)
    assert numbers == [0, 1, 2]


async def test_restored_after_reconnect(
    own_server: Any, connect: Any, events: list[Any], subject: str
) -> None:
    own = await own_server()
    js = await connect(own, **PATIENT)
    sub = await js.core.subscribe(subject)
    grouped = await js.core.subscribe(subject, queue="q")
    for number in range(3):
        await own.kill()
        await own.start()
        await eventually(lambda: len(of(Reconnected, events)) == number + 1)  # noqa: B023
        await js.core.publish(subject, b"%d" % number)
        assert (await sub.next(30)).data == b"%d" % number
        assert (await grouped.next(30)).data == b"%d" % number


async def test_subscribe_while_disconnected(
    own_server: Any, connect: Any, events: list[Any], subject: str
) -> None:
    own = await own_server()
    js = await connect(own, **PATIENT)
    await own.kill()
    await eventually(lambda: not js.is_connected)
    sub = await js.core.subscribe(subject)
    await own.start()
    await wait_for_event(Reconnected, events)
    await js.core.publish(subject, b"x")
    assert (await sub.next(5)).data == b"x"


async def test_denied(own_server: Any, connect: Any) -> None:
    """The reader gets an error, and does not wait. Once the user has the permission, it reads again."""
    user = {"user": "ann", "password": "x", "permissions": {"subscribe": {"deny": ["secret"]}}}
    own = await own_server(config={"authorization": {"users": [user]}})
    js = await connect(own.url.replace("nats://", "nats://ann:x@"), **PATIENT)
    sub = await js.core.subscribe("secret")
    with pytest.raises(PermissionDeniedError, match="secret"):
        await sub.next(30)
    own.reload({"authorization": {"users": [{"user": "ann", "password": "x"}]}})

    async def readable() -> bool:
        try:
            await js.core.publish("secret", b"x")
            return (await sub.next(0.2)).data == b"x"
        except (PermissionDeniedError, RequestTimeoutError, jsclient.DisconnectedError):
            return False

    await own.kill()
    await own.start()
    await eventually(readable)


async def test_ends_with_connection(server: Any, subject: str) -> None:
    async with jsclient.connect(server.url) as js:
        sub = await js.core.subscribe(subject)
        with_callback = await js.core.subscribe(subject, callback=print)
        waiting = asyncio.create_task(sub.next())
        await asyncio.sleep(0)
    with pytest.raises(ClosedError):
        await waiting
    assert sub.is_closed
    assert with_callback.is_closed


async def test_close_ends_running_callback(server: Any, subject: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def callback(message: Any) -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async with jsclient.connect(server.url) as js:
        await js.core.subscribe(subject, callback=callback)
        await js.core.publish(subject)
        await began.wait()
    assert ended.is_set()


async def test_close_from_callback(server: Any, subject: str) -> None:
    js = await jsclient.connect(server.url)

    async def callback(message: Any) -> None:
        await js.close()

    await js.core.subscribe(subject, callback=callback)
    await js.core.publish(subject)
    await eventually(lambda: js.is_closed)


async def test_message_of_stream(js: Any, stream: Any) -> None:
    """It arrives as a plain message, too."""
    async with js.core.subscribe(stream.subject("x")) as sub:
        await js.publish(stream.subject("x"), b"stored")
        message = await sub.next(5)
    assert message.data == b"stored"
