"""A publisher is cancelled or ends, and no task or subscription remains."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from integration.kit.calls.publisher import ids, results
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from jsclient import (
    ClosedError,
    PublishFailed,
    Reconnected,
    TooManyInFlightError,
)


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, **PATIENT)


# --- cancelling and ending -------------------------------------------------------------------------------


async def test_cancelled_wait_unsent(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=1) as pub:
        first = await pub.publish(stream.subject("x"), b"1")
        tasks = [asyncio.create_task(pub.publish(stream.subject("x"), b"%d" % n)) for n in (2, 3, 4)]
        await held.wait(1)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        # The caller is cancelled in the iteration in which it is admitted. The next caller is admitted instead.
        first.add_done_callback(lambda _: tasks[1].cancel())
        held.release()
        fourth = await within(30, tasks[2], "the publish behind those that were cancelled")
        assert (await fourth).seq == 2
        await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [True, True, False]
    assert [frame.payload for frame in tap.sent(stream.all)] == [b"1", b"4"]


@pytest.mark.parametrize("how", ["the future", "its task"])
async def test_cancelled_future_keeps_place(js: Any, tap: Proxy, stream: OwnStream, how: str) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=1, room_timeout=0) as pub:
        future = await pub.publish(stream.subject("x"), b"1")
        if how == "the future":
            future.cancel()
        else:

            async def wait() -> None:
                await future

            task = asyncio.create_task(wait())
            await held.wait(1)
            task.cancel()
            await asyncio.wait([task])
        assert future.cancelled()
        assert pub.in_flight == 1
        with pytest.raises(TooManyInFlightError):
            await pub.publish(stream.subject("x"), b"2")
        await held.wait(1)
        held.release()
        await pub.flush()
        await (await pub.publish(stream.subject("x"), b"3"))
    assert [message.payload for message in await stream.messages()] == [b"1", b"3"]


async def test_cancelled_id_not_resent(js: Any, tap: Proxy, stream: OwnStream, events: list[Any]) -> None:
    tap.drop_frames(match.is_publish_ack, count=2)
    async with js.publisher(timeout=20) as pub:
        missing = await pub.publish(stream.subject("x"), b"1", msg_id="1")
        saved = await pub.publish(stream.subject("x"), b"2", msg_id="2")
        await tap.wait_for(match.is_publish_ack)
        missing.cancel()
        tap.cut()
        await wait_for_event(Reconnected, events)
        await within(30, saved, "the publish")
    assert ids(tap.sent(stream.all)) == ["1", "2", "2"]
    assert pub.failed == 1


@pytest.mark.row(131)
async def test_close_ends_waiting(js: Any, tap: Proxy, stream: OwnStream, events: list[Any]) -> None:
    """Row 131: what is pending fails."""
    tap.drop_frames(match.is_publish_ack)
    pub = js.publisher(max_in_flight=3, timeout=90)
    awaited, _, dropped = [await pub.publish(stream.subject("x"), b"%d" % n) for n in range(3)]
    waiting = asyncio.create_task(pub.publish(stream.subject("x"), b"never"))
    looking = asyncio.create_task(results([awaited]))
    flushing = asyncio.create_task(pub.flush())
    await asyncio.sleep(0)
    del dropped
    await within(40, pub.close(), "close")
    with pytest.raises(ClosedError, match="nothing was sent"):
        await waiting
    assert isinstance((await looking)[0], ClosedError)
    with pytest.raises(ClosedError):
        await pub.publish(stream.subject("x"))
    with pytest.raises(ClosedError):
        async with pub:
            pass
    await pub.close()
    # Those that no one waits for are reported, by one event or by the flush in progress, and asyncio says nothing.
    await asyncio.wait([flushing])
    raised = len(flushing.exception().failures) if flushing.exception() else 0
    assert raised + sum(event.count for event in of(PublishFailed, events)) == 2
    assert (pub.in_flight, pub.in_flight_bytes, pub.waiting, pub.is_closed) == (0, 0, 0, True)
    gc.collect()


async def test_connection_close_gives_time(
    connect: Any, tap: Proxy, server: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    js = await connect(tap, **PATIENT)
    pub = js.publisher(max_in_flight=2)
    future = await pub.publish(stream.subject("x"), b"1")
    lost = await pub.publish(stream.subject("x"), b"2")
    await held.wait(2)
    closing = asyncio.create_task(js.close())
    await asyncio.sleep(0)
    with pytest.raises(ClosedError):
        await pub.publish(stream.subject("x"), b"never")
    held._held.pop()  # the second ack is lost
    held.release()
    await within(30, closing, "closing the connection")
    assert future.result().seq == 1
    assert isinstance(lost.exception(), ClosedError)
    await wait_for_event(PublishFailed, events)


async def test_block_cancelled_does_not_wait(
    js: Any, tap: Proxy, stream: OwnStream, events: list[Any]
) -> None:
    tap.drop_frames(match.is_publish_ack)

    async def publish() -> None:
        async with js.publisher(timeout=30) as pub:
            for _ in range(10):
                await pub.publish(stream.subject("x"))
            await asyncio.Event().wait()

    task = asyncio.create_task(publish())
    await eventually(lambda: len(tap.sent(stream.all)) == 10, what="the publishes")
    task.cancel()
    await within(30, asyncio.wait([task]), "the block")
    assert task.cancelled()
    event = await wait_for_event(PublishFailed, events)
    assert (type(event.error), event.count) == (ClosedError, 10)


async def test_leaving_cancelled_ends(js: Any, tap: Proxy, stream: OwnStream) -> None:
    tap.drop_frames(match.is_publish_ack)
    futures: list[Any] = []

    async def publish() -> None:
        async with js.publisher(timeout=30) as pub:
            futures.append(await pub.publish(stream.subject("x")))

    task = asyncio.create_task(publish())
    await eventually(lambda: len(tap.sent(stream.all)) == 1, what="the publish")
    task.cancel()
    await within(30, asyncio.wait([task]), "leaving")
    assert isinstance(futures[0].exception(), ClosedError)


@pytest.mark.row(129)
async def test_callback_may_publish(js: Any, stream: OwnStream) -> None:
    """Row 129: RetryInErrHandler. Leaving waits for what callbacks publish, one after the other."""
    tasks: list[Any] = []

    async with js.publisher(max_in_flight=5) as pub:

        async def publish(number: int, data: bytes, expected: int | None) -> None:
            future = await pub.publish(stream.subject(number), data, expected_last_subject_seq=expected)
            future.add_done_callback(lambda future: again(number, data, future))

        def again(number: int, data: bytes, future: Any) -> None:
            if future.exception() is not None:
                tasks.append(asyncio.create_task(publish(number, b"again", None)))
            elif data == b"again":
                tasks.append(asyncio.create_task(publish(number, b"and again", None)))

        for number in range(20):
            await publish(number, b"refused", 7)
    assert (pub.failed, pub.stored, pub.in_flight) == (20, 40, 0)
    assert all(task.done() for task in tasks)
    messages = [(m.subject, m.payload) for m in await stream.messages()]
    assert sorted(messages) == sorted(
        (stream.subject(number), data) for number in range(20) for data in (b"again", b"and again")
    )


# --- nothing is left -------------------------------------------------------------------------------------


async def test_publishers_leave_nothing(js: Any, oracle: Oracle, server: Any, stream: OwnStream) -> None:
    """R12."""
    await js.account_info()

    async def once() -> None:
        async with js.publisher(max_in_flight=10) as pub:
            for _ in range(30):
                await pub.publish(stream.subject("x"), b"x")

    await once()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        for _ in range(50):
            await once()
    assert len(js._connection.subscriptions) == 1
    assert len(js._connection._listeners) == len(js._connection.denied) == 1
    assert js._context.open == set()
