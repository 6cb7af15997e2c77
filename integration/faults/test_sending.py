"""What is sent while connections die: acks, publishes, and what callbacks of the user do to it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from integration.kit.clients.readers import PATIENT
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network.match import is_ack, is_data, is_publish_ack, published
from jsclient import (
    AcksLost,
    ConsumerConfig,
    Disconnected,
    DisconnectedError,
    HandlerFailed,
    JetStreamError,
    Reconnected,
    RequestTimeoutError,
    ack_all,
)


@pytest.mark.core_cases(1)
@pytest.mark.covers("J78", "J80")
@pytest.mark.parametrize("when", ["on the wire", "in the buffer", "while down"])
async def test_dying_acks_sent_or_reported(
    when: str, proxy: Any, connect: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R15: 200 acks, 0 lost without a word. 100 of 200 in nats-py."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    await stream.publish(200)
    sub = await js.subscribe(stream.all, durable="d", config=ConsumerConfig(ack_wait=60.0))
    messages = await take(sub, 200)
    failed = 0
    if when == "on the wire":
        swallowed = tap.drop_frames(is_ack)
        await ack_all(messages)
        await swallowed.wait(200)
        swallowed.remove()
        tap.cut()
    elif when == "in the buffer":
        # In one iteration of the loop, so no byte has reached the socket.
        await ack_all(messages)
        tap.cut()
    else:
        tap.refuse()
        tap.cut()
        await wait_for_event(Disconnected, events)
        with pytest.raises(ExceptionGroup) as caught:
            await ack_all(messages)
        assert caught.group_contains(DisconnectedError)
        failed = len(caught.value.exceptions)
        await tap.accept()
    await wait_for_event(Reconnected, events)
    if when == "while down":
        assert failed == 200
        await eventually(lambda: js.is_connected, what="the connection")
        await ack_all(messages)
    else:
        lost = await wait_for_event(AcksLost, events)
        assert (lost.count, lost.resent) == (200, 200)
    info = await oracle.wait_consumer(stream.name, "d", lambda info: not info["num_ack_pending"])
    assert info["ack_floor"]["stream_seq"] == 200
    # All are acked, so nothing is left that the server could deliver again.
    assert sub.pending == 0
    assert (await stream.consumer_info("d"))["num_redelivered"] == 0


async def test_confirmed_acks_not_sent_again(
    proxy: Any, connect: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R15: memory of acks is bounded by what no PONG has confirmed."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    await stream.publish(20)
    sub = await js.subscribe(stream.all, durable="d")
    await ack_all(await take(sub, 20))
    await js.ping()
    before = len(tap.frames)
    tap.cut()
    await wait_for_event(Reconnected, events)
    await js.ping()
    assert tap.find(is_ack, before) == []
    assert of(AcksLost, events) == []


@pytest.mark.covers("J74", "J80")
async def test_lost_nak_not_sent_again(
    proxy: Any, connect: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """A second one would cost the message another delivery. A second ack changes nothing."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    await stream.publish(2)
    sub = await js.subscribe(stream.all, durable="d")
    acked, refused = await take(sub, 2)
    swallowed = tap.drop_frames(is_ack)
    await refused.nak()
    await acked.ack()
    await swallowed.wait(2)
    swallowed.remove()
    before = len(tap.frames)
    tap.cut()
    lost = await wait_for_event(AcksLost, events)
    assert (lost.count, lost.resent) == (2, 1)
    assert str(lost).endswith("2 acks may have been lost with the connection, 1 of them was sent again")
    await oracle.wait_consumer(stream.name, "d", lambda info: info["num_ack_pending"] == 1)
    await js.ping()
    assert [frame.payload for frame in tap.find(is_ack, before)] == [b"+ACK"]
    assert (await stream.consumer_info("d"))["num_redelivered"] == 0


@pytest.mark.parametrize("with_id", [True, False], ids=["with an id", "without"])
async def test_timed_out_publish_unsent(
    with_id: bool, proxy: Any, connect: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    """R2, R3: 20 of 20 were sent later by nats-py."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    await js.publish(stream.subject("x"), b"before")
    tap.refuse()
    tap.cut()
    await wait_for_event(Disconnected, events)
    results = await asyncio.gather(
        *(
            js.publish(stream.subject("x"), b"never", msg_id=f"n{n}" if with_id else None, timeout=0.5)
            for n in range(20)
        ),
        return_exceptions=True,
    )
    assert {type(result) for result in results} == {RequestTimeoutError}
    await tap.accept()
    await wait_for_event(Reconnected, events)
    await js.publish(stream.subject("x"), b"after")
    assert [message.payload for message in await stream.messages()] == [b"before", b"after"]
    assert len(tap.sent(stream.all)) == 2


async def test_publish_waits_offline(proxy: Any, connect: Any, stream: OwnStream, events: list[Any]) -> None:
    """R2."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    tap.refuse()
    tap.cut()
    await wait_for_event(Disconnected, events)
    waiting = asyncio.create_task(js.publish(stream.subject("x"), b"1", timeout=30))
    await never(waiting.done, 0.3, "an end while offline")
    await tap.accept()
    assert (await within(30, waiting, "the publish")).seq == 1


@pytest.mark.full
@pytest.mark.parametrize(
    "end",
    [
        "kill",
        pytest.param("stop", marks=pytest.mark.full),
        pytest.param("lost answer", marks=pytest.mark.full),
    ],
)
async def test_ids_stored_exactly_once(
    end: str, own_server: Any, oracle_for: Any, proxy: Any, connect: Any, events: list[Any]
) -> None:
    """R1, R2: each ends as stored, in time. The stream has each once."""
    own = await own_server()
    oracle = await oracle_for(own)
    stream = await OwnStream.create(oracle, "once", storage="file")
    tap = await proxy(own)
    js = await connect(tap, **PATIENT)
    results: list[int] = []
    rule = tap.drop_frames(is_publish_ack, count=20) if end == "lost answer" else None

    async def publisher(first: int) -> None:
        for number in range(first, first + 150):
            data = str(number).encode()
            results.append(
                (await js.publish(stream.subject("x"), data, msg_id=f"id{number}", timeout=25)).seq
            )

    publishers = [asyncio.create_task(publisher(first)) for first in range(1, 3001, 150)]
    await eventually(lambda: len(results) > 300, 20, "publishes before the fault")
    # each of these loses acks, and perhaps messages, on their way
    if end == "stop":
        await own.restart()
    elif end == "kill":
        await own.kill()
        await asyncio.sleep(0.3)
        await own.start()
    await within(40, asyncio.gather(*publishers), "all publishes")
    if rule is not None:
        assert rule.count == 20
    else:
        assert of(Reconnected, events)
    await eventually(lambda: oracle.nc.is_connected, 10, "the oracle's connection")
    state = await stream.state()
    stored = sorted(int(message.payload) for message in await stream.messages())
    again = len(tap.sent(stream.all)) - 3000
    print(f"{end}: {state['messages']} stored of 3000, {again} sent again")
    assert stored == list(range(1, 3001))
    assert sorted(results) == list(range(1, 3001))


async def test_no_id_lost_answer_unknown(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """R1, R2: an unknown outcome has a separate error."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    rule = tap.drop_frames(is_publish_ack)
    with pytest.raises(RequestTimeoutError):
        await js.publish(stream.subject("x"), b"1", timeout=0.5)
    await rule.wait(1)
    waiting = asyncio.create_task(js.publish(stream.subject("x"), b"2", timeout=60))
    await rule.wait(2)
    started = time.monotonic()
    tap.cut()
    with pytest.raises(DisconnectedError):
        await waiting
    assert time.monotonic() - started < 40, "long before its 60 s have passed"
    assert len(tap.find(published(stream.all))) == 2
    assert (await stream.state())["messages"] == 2


@pytest.mark.parametrize("form", ["coroutine function", "function"])
async def test_acks_of_a_callback_wait_for_the_connection(
    form: str, proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    """One failure for each message would flood the log, and the handled messages would be redelivered."""
    tap = await proxy()
    js = await connect(tap.url, **PATIENT)
    began, cut = asyncio.Event(), asyncio.Event()
    loop, handled = asyncio.get_running_loop(), []

    async def handle(message: Any) -> None:
        handled.extend(numbers([message]))
        began.set()
        await cut.wait()

    def handle_in_thread(message: Any) -> None:
        asyncio.run_coroutine_threadsafe(handle(message), loop).result()

    callback = handle if form == "coroutine function" else handle_in_thread
    config = ConsumerConfig(ack_wait=300)
    sub = await js.subscribe(stream.all, durable="d", callback=callback, config=config)
    await stream.publish(50)
    await within(60, began.wait(), "the first message")
    await eventually(lambda: sub.pending == 49, what="the messages in the buffer")
    tap.refuse()
    tap.cut()
    await wait_for_event(Disconnected, events)
    cut.set()
    await never(lambda: len(handled) > 1 or of(HandlerFailed, events), 0.5, "a handler without a connection")
    await tap.accept()
    await wait_for_event(Reconnected, events)
    await eventually(lambda: len(handled) == 50, what="the other messages")

    async def settled() -> bool:
        info = await sub.consumer_info()
        return (info.num_ack_pending, info.num_redelivered, info.ack_floor.consumer_seq) == (0, 0, 50)

    await eventually(settled, what="the acks")
    assert of(HandlerFailed, events) == []
    assert handled == sorted(handled)


async def test_close_ends_a_callback_whose_ack_waits(
    proxy: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    tap = await proxy()
    js = await connect(tap.url, **PATIENT)
    handled: list[int] = []

    async def handle(message: Any) -> None:
        handled.extend(numbers([message]))
        tap.refuse()
        tap.cut()
        await wait_for_event(Disconnected, events)

    sub = await js.subscribe(stream.all, durable="d", callback=handle)
    await stream.publish(50)
    await wait_for_event(Disconnected, events)
    await within(30, js.close(), "close")
    assert len(handled) == 1
    assert len(of(HandlerFailed, events)) <= 1
    assert sub._runner.done()


@pytest.mark.parametrize("callback", ["raises", "slow", "blocks"])
async def test_callbacks_of_user_stop_nothing(
    callback: str, proxy: Any, server: Any, stream: OwnStream, caplog: Any
) -> None:
    """R16: `error_cb` or `disconnected_cb` that raises ends reconnecting in nats-py, 2 of 2."""
    from jsclient import connect

    calls: list[Any] = []

    async def slow(event: Any) -> None:
        calls.append(event)
        await asyncio.Event().wait()

    def other(event: Any) -> None:
        calls.append(event)
        if callback == "raises":
            raise RuntimeError("a callback of the user")
        time.sleep(0.2)

    tap = await proxy()
    async with connect(tap.url, on_event=slow if callback == "slow" else other, **PATIENT) as js:
        sub = await js.subscribe(stream.all, durable="d", config=ConsumerConfig(idle_heartbeat=0.5))
        for number in range(1, 4):
            tap.cut()
            await eventually(lambda: len(of(Reconnected, calls)) == number, what="the reconnect")  # noqa: B023
            await stream.publish(1, first=number)
            [message] = await take(sub, 1)
            assert numbers([message]) == [number]
            await message.ack_sync()
    assert len(of(Disconnected, calls)) == 3
    if callback == "raises":
        assert "a callback of the user" in caplog.text


@pytest.mark.row(68)
async def test_pull_survives_restart(
    own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """P23: with a fetch of 60 s in progress when the server goes."""
    own = await own_server()
    oracle = await oracle_for(own)
    stream = await OwnStream.create(oracle, "p23", storage="file")
    js = await connect(own, **PATIENT)
    psub = await js.pull_subscribe(stream.all, durable="d")
    reader = (await js.pull_subscribe(stream.all, durable="m")).messages(expires=60.0)
    got: list[tuple[float, int]] = []
    continued: list[tuple[float, int]] = []
    ended: list[str] = []
    back: list[float] = []

    async def fetching() -> None:
        while True:
            try:
                batch = await psub.fetch(100, expires=60.0)
            except JetStreamError as error:
                ended.append(type(error).__name__)
                continue
            got.extend((time.monotonic(), number) for number in numbers(batch))
            await ack_all(batch)

    async def reading() -> None:
        async for message in reader:
            continued.append((time.monotonic(), numbers([message])[0]))
            await message.ack()

    tasks = [asyncio.create_task(fetching()), asyncio.create_task(reading())]
    await oracle.wait_consumer(stream.name, "d", lambda info: info["num_waiting"])
    await own.stop()
    await own.start()
    await wait_for_event(Reconnected, events)
    back.append(time.monotonic())
    await eventually(lambda: oracle.nc.is_connected, what="the oracle's connection")
    await stream.publish(100)
    sent = time.monotonic()
    await eventually(lambda: len(got) == len(continued) == 100, 60, "the messages after the restart")
    print(f"first message: fetch {got[0][0] - back[0]:.3f} s, messages {continued[0][0] - back[0]:.3f} s")
    print(f"published {sent - back[0]:.3f} s after the reconnect; the fetch ended with {ended}")
    assert max(got[-1][0], continued[-1][0]) - sent < 20
    assert [number for _, number in got] == [number for _, number in continued] == list(range(1, 101))
    await reader.stop()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_subscribe_during_reconnect(
    proxy: Any, connect: Any, oracle: Oracle, events: list[Any]
) -> None:
    """R4, R12: nats-py has written its subscriptions again, and is not yet connected."""
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    connection = js._context.connection
    seen: list[Any] = []
    saved = await connection.subscribe("seam.old", seen.extend)
    await js.ping()
    pongs = tap.hold_frames(
        lambda frame: frame.op == "PONG" and frame.connection == 1 and len(pings(tap)) > 1
    )
    tap.cut()
    await pongs.wait()
    assert not connection.is_connected
    await connection.subscribe("seam.new", seen.extend)
    await connection.unsubscribe(saved)
    pongs.release()
    await wait_for_event(Reconnected, events)
    await js.ping()
    await oracle.nc.publish("seam.old", b"old")
    await oracle.nc.publish("seam.new", b"new")
    await eventually(lambda: seen, what="the message")
    assert [frame[3] for frame in seen] == [b"new"]
    assert tap.link.subs.keys() == {sid for sid, sub in tap.link.subs.items() if sub.subject != "seam.old"}


def pings(tap: Any) -> list[Any]:
    return tap.find(lambda frame: frame.op == "PING" and frame.connection == 1)


async def test_deliveries_seen_on_wire(proxy: Any, connect: Any, stream: OwnStream) -> None:
    """The positive control of this file: without the faults, the calls that they harm succeed."""
    tap = await proxy()
    js = await connect(tap)
    sub = await js.subscribe(stream.all, durable="d")
    await js.publish(stream.subject("x"), b"1.")
    [message] = await take(sub, 1)
    await message.ack_sync()
    for predicate in (is_data, is_ack, is_publish_ack, published(stream.all)):
        assert len(tap.find(predicate)) == 1
