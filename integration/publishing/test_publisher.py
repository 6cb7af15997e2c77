"""A publisher and a server: the ordinary case, and the window."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import jsclient
from integration.kit.calls.publisher import results
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import never, within
from integration.kit.network import match
from integration.kit.network.asking import traffic
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import TO_SERVER
from jsclient import (
    DisconnectedError,
    Reconnected,
    TooManyInFlightError,
)


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, **PATIENT)


# --- the ordinary case -----------------------------------------------------------------------------------


@pytest.mark.smoke
async def test_acked_in_call_order(js: Any, tap: Proxy, stream: OwnStream) -> None:
    async with js.publisher(max_in_flight=100) as pub:
        futures = [await pub.publish(stream.subject(n % 3), b"%d" % n, msg_id=f"id-{n}") for n in range(500)]
        assert pub.in_flight <= 100
    acks = [future.result() for future in futures]
    assert [ack.seq for ack in acks] == list(range(1, 501))
    assert {(ack.stream, ack.duplicate) for ack in acks} == {(stream.name, False)}
    assert [message.payload for message in await stream.messages()] == [b"%d" % n for n in range(500)]
    assert (pub.published, pub.stored, pub.failed, pub.resent, pub.in_flight, pub.in_flight_bytes) == (
        500, 500, 0, 0, 0, 0,
    )  # fmt: skip


HEADERS: list[Any] = [
    {"Trace-Id": "4bf92f", "Tenant": "blue"},
    {"Trace-Id": "", "Tenant": " kept by the server "},
    {"Città": "no token"},
    {"City": "Città", "tab": "a\tb", "Time": "12:30:00"},
    {"Many": ["1", "2"], "One": "3"},
    {"Nats-Msg-Id": "own"},
    {"a": "1", "A": "2"},
    {},
    {"Line": "1\r\nNats-Rollup: all"},
]


@pytest.mark.parametrize("msg_id", [None, "id-1", "äöü"])
@pytest.mark.parametrize("headers", HEADERS)
async def test_headers_as_by_publish(
    js: Any, tap: Proxy, stream: OwnStream, headers: Any, msg_id: Any
) -> None:
    """What `publish` sends or refuses, `Publisher.publish` sends or refuses, byte for byte."""

    async def one_by_one(pub: Any) -> None:
        await js.publish(stream.subject("x"), b"1", headers=headers, msg_id=msg_id)

    async def in_window(pub: Any) -> None:
        await (await pub.publish(stream.subject("x"), b"1", headers=headers, msg_id=msg_id))

    results = []
    async with js.publisher() as pub:
        for send in (one_by_one, in_window):
            refused, before = None, len(tap.frames)
            try:
                await send(pub)
            except (jsclient.ConfigError, jsclient.InvalidNameError) as error:
                refused = (type(error), str(error))
            sent = [(f.headers, f.payload) for f in tap.frames[before:] if f.subject == stream.subject("x")]
            results.append((refused, sent))
    assert results[0] == results[1]
    assert bool(results[0][0]) != bool(results[0][1])


async def test_one_header_of_a_message(js: Any, stream: OwnStream) -> None:
    await js.publish(
        stream.subject("x"), b"1", headers={"Trace-Id": " 4bf92f ", "City": "Città", "Many": ["1", "2"]}
    )
    sub = await js.subscribe(stream.all, ordered=True)
    msg = await sub.next(timeout=30)
    one_by_one = {name: msg.header(name) for name in ("Trace-Id", "City", "Many", "trace-id", "None")}
    assert one_by_one == {"Trace-Id": "4bf92f", "City": "Città", "Many": "1", "trace-id": None, "None": None}
    assert one_by_one == {name: msg.headers.get(name) for name in one_by_one}
    assert msg.header("None", "default") == "default"


@pytest.mark.parametrize("tasks", [1, 20])
async def test_ten_thousand_in_order(
    server: Any, connect: Any, oracle: Oracle, make_stream: Any, tasks: int
) -> None:
    """Also when more tasks publish than there is room for: each in the order of its calls."""
    stream = await make_stream(max_msgs_per_subject=-1)
    js = await connect(server)
    each = 10_000 // tasks
    called: list[bytes] = []

    async def work(pub: Any) -> None:
        for _ in range(each):
            payload = b"%d" % len(called)
            called.append(payload)
            await pub.publish(stream.subject("x"), payload)

    async with js.publisher(max_in_flight=50 if tasks > 1 else 4000, timeout=60) as pub:
        await asyncio.gather(*(work(pub) for _ in range(tasks)))
    sub = await js.subscribe(stream.all, ordered=True)
    actual = [(await sub.next(timeout=60)).data for _ in range(10_000)]
    assert actual == called


async def test_leaving_waits_for_every_ack(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)

    async def publish() -> Any:
        async with js.publisher() as pub:
            return [await pub.publish(stream.subject("x"), b"1") for _ in range(5)]

    task = asyncio.create_task(publish())
    await held.wait(5)
    await never(task.done, 0.2, "leaving with acks missing")
    held.release()
    futures = await within(30, task, "leaving")
    assert sorted(future.result().seq for future in futures) == [1, 2, 3, 4, 5]


async def test_flush_waits_for_sent(js: Any, tap: Proxy, stream: OwnStream) -> None:
    async with js.publisher(timeout=90) as pub:
        first = await pub.publish(stream.subject("x"), b"1")
        await first
        held = tap.hold_frames(match.is_publish_ack)
        await within(40, pub.flush(), "a flush of nothing")  # before the timeout of a publish
        await pub.publish(stream.subject("x"), b"2")
        flush = asyncio.create_task(pub.flush())
        await held.wait(1)
        third = await pub.publish(stream.subject("x"), b"3")
        await held.wait(2)
        assert not flush.done()
        held.release()
        await within(30, flush, "the flush")
        assert (await third).seq == 3


async def test_headers_like_publish(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Row 128: each expectation goes with it."""
    calls: list[dict[str, Any]] = [
        {"data": b""},
        {"data": bytearray(b"x"), "headers": {"A": ["1", "2"], "b": "ü"}},
        {"data": memoryview(b"y"), "msg_id": "plain"},
        {"data": b"z", "msg_id": "an id with ü"},
        {"data": b"z", "headers": {"Nats-Msg-Id": "given"}},
        {"expected_stream": stream.name, "expected_last_msg_id": "given"},
        {"expected_last_seq": 6, "headers": {"C": "d"}, "msg_id": "e"},
        {"expected_last_subject_seq": 7},
    ]
    for call in calls:
        await js.publish(stream.subject("x"), **call)
    one_by_one = [(m.payload, m.headers) for m in await stream.messages()]
    await stream.purge()
    calls[6]["expected_last_seq"], calls[7]["expected_last_subject_seq"] = 14, 15
    for call in calls:
        if "msg_id" in call:
            call["msg_id"] += "!"
    calls[4]["headers"] = {"Nats-Msg-Id": "given!"}
    calls[5]["expected_last_msg_id"] = "given!"
    async with js.publisher() as pub:
        for call in calls:
            await (await pub.publish(stream.subject("x"), **call))
    again = [(m.payload, m.headers) for m in await stream.messages()]
    assert [
        (p, h.replace(b"!", b"").replace(b": 14", b": 6").replace(b": 15", b": 7")) for p, h in again
    ] == (one_by_one)
    frames = tap.sent(stream.all)
    half = len(frames) // 2
    assert [frame.op for frame in frames[:half]] == [frame.op for frame in frames[half:]]


@pytest.mark.row(131)
async def test_one_inbox_then_gone(
    js: Any, tap: Proxy, server: Any, oracle: Oracle, stream: OwnStream
) -> None:
    """Row 131."""
    await js.account_info()
    before = len(tap.subs())
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        for _ in range(3):
            async with js.publisher() as pub:
                for _ in range(10):
                    await pub.publish(stream.subject("x"))
    opened = tap.subs()[before:]
    assert len(opened) == 3
    replies = [frame.reply or "" for frame in tap.sent(stream.all)]
    inboxes = [(frame.subject or "").removesuffix("*") for frame in opened]
    assert [reply.removeprefix(inboxes[n // 10]) for n, reply in enumerate(replies)] == [
        str(n % 10 + 1) for n in range(30)
    ]
    assert len(tap.unsubs()) == 3
    assert js._context.open == set()
    assert js._connection.denied == [js._context.requests._fail_denied]
    assert len(js._connection._listeners) == 1
    unused = js.publisher()
    async with unused:
        pass
    assert len(tap.subs()) == before + 3


async def test_may_not_go_on_wire_refused_before(js: Any, tap: Proxy, stream: OwnStream) -> None:
    async with js.publisher() as pub:
        await (await pub.publish(stream.subject("x")))
        since = len(tap.frames)
        refused: list[Any] = [
            ({"subject": subject}, jsclient.InvalidNameError)
            for subject in (
                "",
                ".",
                "a..b",
                "a b",
                "a.*",
                "a.>",
                "a\r\nPUB x 0\r\n",
                "\ud800",
                7,
                ["a"],
                None,
            )
        ]
        refused += [
            ({"data": "text"}, jsclient.ConfigError),
            ({"data": None}, jsclient.ConfigError),
            ({"msg_id": ""}, jsclient.ConfigError),
            ({"msg_id": 7}, jsclient.ConfigError),
            ({"msg_id": "a\r\nb"}, jsclient.ConfigError),
            ({"msg_id": "a", "headers": {"Nats-Msg-Id": "b"}}, jsclient.ConfigError),
            ({"headers": {"A": "a\r\nB: 1"}}, jsclient.InvalidNameError),
            ({"expected_last_seq": -1}, jsclient.ConfigError),
            ({"ttl": 0.5}, jsclient.ConfigError),
            ({"timeout": 0}, jsclient.ConfigError),
            ({"timeout": "1"}, jsclient.ConfigError),
        ]
        for arguments, error in refused:
            with pytest.raises(error):
                await pub.publish(**{"subject": stream.subject("x"), **arguments})
        await js.ping()
        assert traffic(tap, since) == []
        assert (pub.in_flight, pub.published) == (0, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0}, {"max_in_flight": 1.5}, {"max_in_flight": True}, {"max_bytes": 0}, {"timeout": 0},
        {"timeout": float("nan")}, {"room_timeout": -1}, {"room_timeout": "1"},
    ],
)  # fmt: skip
async def test_options_out_of_range_refused(js: Any, options: dict[str, Any]) -> None:
    with pytest.raises(jsclient.ConfigError):
        js.publisher(**options)


async def test_max_payload_refused(
    own_server: Any, oracle_for: Any, make_stream: Any, proxy: Any, connect: Any
) -> None:
    own = await own_server(config={"max_payload": 700})
    stream = await make_stream(oracle=await oracle_for(own))
    tap = await proxy(own)
    js = await connect(tap)
    async with js.publisher() as pub:
        since = len(tap.frames)
        for data, msg_id in ((bytes(701), None), (bytes(690), "id")):
            with pytest.raises(jsclient.MaxPayloadError):
                await pub.publish(stream.subject("x"), data, msg_id=msg_id)
        await js.ping()
        assert traffic(tap, since) == []
        assert (await (await pub.publish(stream.subject("x"), bytes(700)))).seq == 1


# --- the window ------------------------------------------------------------------------------------------


@pytest.mark.row(130, 135)
async def test_full_window_waits(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Rows 130, 135."""
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=10) as pub:
        for n in range(10):
            await pub.publish(stream.subject("x"), b"%d" % n)
        waiting = [asyncio.create_task(pub.publish(stream.subject("x"), b"%d" % n)) for n in range(10, 15)]
        await held.wait(10)
        await never(lambda: any(task.done() for task in waiting), 0.2, "a publish into a full window")
        assert (pub.in_flight, pub.waiting) == (10, 5)
        assert len(tap.sent(stream.all)) == 10
        held.release()
        for task in waiting:
            await within(30, task, "the publish that waited")
    assert [int(frame.payload) for frame in tap.sent(stream.all)] == list(range(15))


@pytest.mark.row(130, 135)
@pytest.mark.parametrize("timeout", [0, 0.3])
async def test_full_window_error(js: Any, tap: Proxy, stream: OwnStream, timeout: float) -> None:
    """Rows 130, 135: the window is full for ever. It recovers when the acks come."""
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=3, room_timeout=timeout) as pub:
        for _ in range(3):
            await pub.publish(stream.subject("x"))
        started = time.monotonic()
        for _ in range(2):
            with pytest.raises(TooManyInFlightError):
                await within(30, pub.publish(stream.subject("x"), b"never"), "the publish")
        assert time.monotonic() - started >= 2 * timeout - 0.01  # timers of uvloop count milliseconds
        assert (pub.in_flight, pub.waiting, pub.published) == (3, 0, 3)
        held.release()
        await pub.flush()
        await (await pub.publish(stream.subject("x"), b"again"))
    assert [frame.payload for frame in tap.sent(stream.all)] == [b"", b"", b"", b"again"]


@pytest.mark.row(130)
async def test_full_window_recovers_after_restart(
    own_server: Any, oracle_for: Any, connect: Any, events: list[Any]
) -> None:
    """Row 130: with a server that hangs, then dies, then is back."""
    own = await own_server()
    stream = await OwnStream.create(await oracle_for(own), "full", storage="file")
    js = await connect(own, **PATIENT)
    async with js.publisher(max_in_flight=3, room_timeout=0.2, timeout=30) as pub:
        await (await pub.publish(stream.subject("x"), b"before"))
        own.pause()
        futures = [await pub.publish(stream.subject("x"), msg_id=f"{n}" if n else None) for n in range(3)]
        for _ in range(2):
            with pytest.raises(TooManyInFlightError):
                await pub.publish(stream.subject("x"), b"never")
        await own.kill()
        await own.start()
        await wait_for_event(Reconnected, events)
        first, *others = await results(futures)
        assert isinstance(first, DisconnectedError)
        assert {type(ack) for ack in others} == {jsclient.PubAck}
        await (await pub.publish(stream.subject("x"), b"after"))
    assert (pub.published, pub.in_flight) == (5, 0)


async def test_window_bounded_in_bytes_too(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_bytes=1000, room_timeout=0) as pub:
        # What is larger than the bound goes out alone.
        large = await pub.publish(stream.subject("x"), bytes(5000))
        with pytest.raises(TooManyInFlightError):
            await pub.publish(stream.subject("x"), b"1")
        await held.wait(1)
        held.release()
        await large
        held = tap.hold_frames(match.is_publish_ack)
        for _ in range(10):
            await pub.publish(stream.subject("x"), bytes(100))
        assert pub.in_flight_bytes == 1000
        with pytest.raises(TooManyInFlightError):
            await pub.publish(stream.subject("x"), b"1")
        await held.wait(10)
        held.release()
        await pub.flush()
        assert pub.in_flight_bytes == 0


async def test_publishing_waits_while_wire_slower(
    connect: Any, tap: Proxy, oracle: Oracle, make_stream: Any
) -> None:
    """Not more than the bound of the write buffer is kept, though the window has room for more."""
    stream = await make_stream(max_bytes=200 << 20)
    js = await connect(tap)  # its PINGs, after all that, may take their time
    tap.rate(20 << 20, TO_SERVER)
    async with js.publisher(max_bytes=None) as pub:
        most = 0
        for _ in range(100):
            await pub.publish(stream.subject("x"), bytes(256 * 1024))
            most = max(most, js._connection.outbox.size + js._connection.outbox.backlog)
        tap.rate(None, TO_SERVER)
    assert most < 5 << 20
    assert pub.stored == 100


async def test_loop_gets_its_turn(server: Any, connect: Any, stream: OwnStream) -> None:
    """Else nothing would be written and nothing read until the window is full, and all would time out."""
    js = await connect(server)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with js.publisher(timeout=2.0) as pub:
        await (await pub.publish(stream.subject("x")))
        counting = asyncio.create_task(count())
        for _ in range(20):
            time.sleep(0.12)  # what the user computes, longer than the timeout in all
            await pub.publish(stream.subject("x"))
        counting.cancel()
    assert pub.stored == 21
    assert turns >= 15
