"""The publisher: many publishes under way, each with an outcome. Source: ADR-22; features.md rows 129 to 131, 135."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest

import jsclient
from integration.kit.clients.foreign import Client, flushed
from integration.kit.clients.readers import FAST
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import of, told
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, never, within
from integration.kit.network import match
from integration.kit.network.asking import traffic
from integration.kit.network.proxy import Proxy
from integration.kit.network.wire import TO_SERVER
from jsclient import (
    ApiError,
    ClosedError,
    Disconnected,
    DisconnectedError,
    NoRespondersError,
    PermissionDeniedError,
    PublishesFailedError,
    PublishFailed,
    Reconnected,
    RequestTimeoutError,
    TooManyInFlightError,
    WrongLastSequenceError,
)

UNKNOWN = (DisconnectedError, RequestTimeoutError)


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, **FAST)


def ids(frames: Any) -> list[str | None]:
    return [frame.header("Nats-Msg-Id") for frame in frames]


async def results(futures: list[Any], timeout: float = 20.0) -> list[Any]:
    """What each future ended with, an ack or an error."""
    return await within(timeout, asyncio.gather(*futures, return_exceptions=True), "the futures")


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

    found = []
    async with js.publisher() as pub:
        for send in (one_by_one, in_window):
            refused, before = None, len(tap.frames)
            try:
                await send(pub)
            except (jsclient.ConfigError, jsclient.InvalidNameError) as error:
                refused = (type(error), str(error))
            sent = [(f.headers, f.payload) for f in tap.frames[before:] if f.subject == stream.subject("x")]
            found.append((refused, sent))
    assert found[0] == found[1]
    assert bool(found[0][0]) != bool(found[0][1])


async def test_one_header_of_a_message(js: Any, stream: OwnStream) -> None:
    await js.publish(
        stream.subject("x"), b"1", headers={"Trace-Id": " 4bf92f ", "City": "Città", "Many": ["1", "2"]}
    )
    sub = await js.subscribe(stream.all, ordered=True)
    msg = await sub.next(timeout=5)
    one_by_one = {name: msg.header(name) for name in ("Trace-Id", "City", "Many", "trace-id", "None")}
    assert one_by_one == {"Trace-Id": "4bf92f", "City": "Città", "Many": "1", "trace-id": None, "None": None}
    assert one_by_one == {name: msg.headers.get(name) for name in one_by_one}
    assert msg.header("None", "default") == "default"


@pytest.mark.parametrize("tasks", [1, 20])
async def test_ten_thousand_in_order(
    server: Any, connect: Any, oracle: Oracle, make_stream: Any, tasks: int
) -> None:
    """Also where many tasks publish, more than there is room for: each in the order of its calls."""
    stream = await make_stream(max_msgs_per_subject=-1)
    js = await connect(server)
    each = 10_000 // tasks
    called: list[bytes] = []

    async def work(pub: Any) -> None:
        for _ in range(each):
            payload = b"%d" % len(called)
            called.append(payload)
            await pub.publish(stream.subject("x"), payload)

    async with js.publisher(max_in_flight=50 if tasks > 1 else 4000) as pub:
        await asyncio.gather(*(work(pub) for _ in range(tasks)))
    sub = await js.subscribe(stream.all, ordered=True)
    found = [(await sub.next(timeout=5)).data for _ in range(10_000)]
    assert found == called


async def test_leaving_waits_for_every_ack(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)

    async def publish() -> Any:
        async with js.publisher() as pub:
            return [await pub.publish(stream.subject("x"), b"1") for _ in range(5)]

    task = asyncio.create_task(publish())
    await held.wait(5)
    await never(task.done, 0.2, "leaving with acks missing")
    held.release()
    futures = await within(5, task, "leaving")
    assert sorted(future.result().seq for future in futures) == [1, 2, 3, 4, 5]


async def test_flush_waits_for_sent(js: Any, tap: Proxy, stream: OwnStream) -> None:
    async with js.publisher() as pub:
        first = await pub.publish(stream.subject("x"), b"1")
        await first
        held = tap.hold_frames(match.is_publish_ack)
        await within(4, pub.flush(), "a flush of nothing")  # before the timeout of a publish
        await pub.publish(stream.subject("x"), b"2")
        flush = asyncio.create_task(pub.flush())
        await held.wait(1)
        third = await pub.publish(stream.subject("x"), b"3")
        await held.wait(2)
        assert not flush.done()
        held.release()
        await within(5, flush, "the flush")
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
    assert js._connection.denied == [js._context.requests._denied]
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
            await within(5, task, "the publish that waited")
    assert [int(frame.payload) for frame in tap.sent(stream.all)] == list(range(15))


@pytest.mark.row(130, 135)
@pytest.mark.parametrize("patience", [0, 0.3])
async def test_full_window_error(js: Any, tap: Proxy, stream: OwnStream, patience: float) -> None:
    """Rows 130, 135: the window is full for ever; it recovers when the acks come."""
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=3, room_timeout=patience) as pub:
        for _ in range(3):
            await pub.publish(stream.subject("x"))
        started = time.monotonic()
        for _ in range(2):
            with pytest.raises(TooManyInFlightError):
                await within(5, pub.publish(stream.subject("x"), b"never"), "the publish")
        assert time.monotonic() - started >= 2 * patience - 0.01  # timers of uvloop count milliseconds
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
    js = await connect(own, **FAST)
    async with js.publisher(max_in_flight=3, room_timeout=0.2, timeout=30) as pub:
        await (await pub.publish(stream.subject("x"), b"before"))
        own.pause()
        futures = [await pub.publish(stream.subject("x"), msg_id=f"{n}" if n else None) for n in range(3)]
        for _ in range(2):
            with pytest.raises(TooManyInFlightError):
                await pub.publish(stream.subject("x"), b"never")
        await own.kill()
        await own.start()
        await told(Reconnected, events)
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
    js = await connect(tap)  # whose PINGs, behind all that, may take their time
    tap.rate(20 << 20, TO_SERVER)
    async with js.publisher(max_bytes=None) as pub:
        most = 0
        for _ in range(100):
            await pub.publish(stream.subject("x"), bytes(256 * 1024))
            most = max(most, js._connection.outbox.size + js._connection.outbox._backlog)
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

    async with js.publisher(timeout=0.5) as pub:
        await (await pub.publish(stream.subject("x")))
        counting = asyncio.create_task(count())
        for _ in range(20):
            time.sleep(0.04)  # what the user computes
            await pub.publish(stream.subject("x"))
        counting.cancel()
    assert pub.stored == 21
    assert turns >= 15


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.row(129)
async def test_unseen_failures_raised(js: Any, oracle: Oracle, make_stream: Any, events: list[Any]) -> None:
    """Row 129; R2: nats-py never answers 50 of 50."""
    stream = await make_stream(max_msgs=5, discard="new")
    with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            futures = [await pub.publish(stream.subject(n), b"%d" % n) for n in range(50)]
            with pytest.raises(ApiError) as seen:
                await futures[5]
            assert isinstance(futures[6].exception() if futures[6].done() else seen.value, ApiError)
    assert seen.value.err_code == 10077
    assert [future.result().seq for future in futures[:5]] == [1, 2, 3, 4, 5]
    failures = caught.value.failures
    assert {type(error) for _, error in failures} == {ApiError}
    assert [subject for subject, _ in failures][-40:] == [stream.subject(n) for n in range(10, 50)]
    assert stream.subject(5) not in {subject for subject, _ in failures}
    assert caught.value.told == 0
    assert (pub.stored, pub.failed) == (5, 45)
    assert of(PublishFailed, events) == []
    assert isinstance(caught.value.__cause__, ApiError)


async def test_seen_failures_not_raised(js: Any, stream: OwnStream) -> None:
    async with js.publisher() as pub:
        awaited = await pub.publish(stream.subject("a"), expected_last_seq=7)
        gathered = await pub.publish(stream.subject("b"), expected_last_subject_seq=7)
        called = await pub.publish(stream.subject("c"), expected_stream="another")
        numbers: list[int] = []
        called.add_done_callback(lambda future: numbers.append(future.exception().err_code))
        asked = await pub.publish(stream.subject("d"), expected_last_msg_id="another")
        with pytest.raises(WrongLastSequenceError):
            await awaited
        [error] = await asyncio.gather(gathered, return_exceptions=True)
        assert isinstance(error, WrongLastSequenceError)
        await asyncio.wait([asked])
        assert asked.exception().err_code == 10070
    assert numbers == [10060]
    assert pub.failed == 4


async def test_flush_raises_failures_once(js: Any, stream: OwnStream) -> None:
    async with js.publisher() as pub:
        await pub.publish(stream.subject("a"), expected_last_seq=7)
        await pub.publish(stream.subject("a"), b"good")
        with pytest.raises(PublishesFailedError) as caught:
            await pub.flush()
        [(subject, error)] = caught.value.failures
        assert (subject, type(error)) == (stream.subject("a"), WrongLastSequenceError)
        await pub.flush()


async def test_failure_behind_error_of_block_told(js: Any, stream: OwnStream, events: list[Any]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            for _ in range(3):
                await pub.publish(stream.subject("a"), expected_last_seq=7)
            raise ZeroDivisionError
    [note] = caught.value.__notes__
    assert note.startswith(
        f"3 other publishes failed, or their outcome is unknown, the first: {stream.subject('a')!r}: "
    )
    assert "wrong last sequence" in note
    event = await told(PublishFailed, events)
    assert (event.subject, type(event.error), event.count) == (stream.subject("a"), WrongLastSequenceError, 3)
    assert pub.is_closed


async def test_error_of_block_without_failures_has_no_note(js: Any, stream: OwnStream) -> None:
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            await pub.publish(stream.subject("a"))
            seen = await pub.publish(stream.subject("a"), expected_last_seq=7)
            await asyncio.wait([seen])
            assert isinstance(seen.exception(), WrongLastSequenceError)
            raise ZeroDivisionError
    assert not hasattr(caught.value, "__notes__")


async def test_outage_longer_than_timeout_names_lost_ones(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """The publish that finds no connection raises; those in flight, whose outcome is unknown, are in its note."""
    with pytest.raises(RequestTimeoutError, match="not connected") as caught:  # noqa: PT012
        async with js.publisher(timeout=0.5) as pub:
            await (await pub.publish(stream.subject("a"), b"0"))
            tap.drop_frames(match.is_publish_ack)
            for number in range(3):
                await pub.publish(stream.subject("a"), b"%d" % number, msg_id=f"id-{number}")
            tap.refuse()
            tap.cut()
            await eventually(lambda: not js.is_connected, what="the outage")
            await within(5, pub.publish(stream.subject("b"), b"late"), "the publish without a connection")
    [note] = caught.value.__notes__
    assert note.startswith(
        f"3 other publishes failed, or their outcome is unknown, the first: {stream.subject('a')!r}: "
    )
    assert pub.published == 4


async def test_failures_identify_their_messages(js: Any, stream: OwnStream) -> None:
    with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            await pub.publish(stream.subject("a"), msg_id="first")
            await pub.publish(stream.subject("a"), msg_id="second", expected_last_seq=7)
            await pub.publish(stream.subject("b"), headers={"Nats-Msg-Id": "third"}, expected_last_seq=7)
            await pub.publish(stream.subject("c"), headers={"Other": "1"}, expected_last_seq=7)
            await pub.publish("nowhere")
            assert pub.published == 5
    failures = caught.value.failures
    assert [(one.number, one.msg_id) for one in failures] == [
        (2, "second"),
        (3, "third"),
        (4, None),
        (5, None),
    ]
    assert [one.subject for one in failures] == [*map(stream.subject, "abc"), "nowhere"]
    assert [(subject, error) for subject, error in failures] == [(one.subject, one.error) for one in failures]


@pytest.mark.row(129)
async def test_unanswered_frees_place(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Row 129: AckTimeout."""
    tap.drop_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=2, timeout=0.3) as pub:
        short = await pub.publish(stream.subject("x"), b"1")
        long = await pub.publish(stream.subject("x"), b"2", timeout=2.0)
        started = time.monotonic()
        third = await within(5, pub.publish(stream.subject("x"), b"3"), "a place")
        assert time.monotonic() - started > 0.25
        assert short.done()
        assert not long.done()
        assert [type(found) for found in await results([short, long, third])] == [RequestTimeoutError] * 3
    assert len(tap.sent(stream.all)) == 3
    assert (await stream.state())["messages"] == 3


async def test_lost_answer_with_id_once(js: Any, tap: Proxy, stream: OwnStream) -> None:
    dropped = tap.drop_frames(match.is_publish_ack, count=3)
    async with js.publisher(timeout=15) as pub:
        futures = [await pub.publish(stream.subject("x"), b"%d" % n, msg_id=f"id-{n}") for n in range(5)]
        acks = await results(futures)
    assert dropped.count == 3
    assert sorted(ack.seq for ack in acks) == [1, 2, 3, 4, 5]
    assert sum(ack.duplicate for ack in acks) == 3
    assert (pub.resent, pub.stored) == (3, 5)
    assert (await stream.state())["messages"] == 5
    lost = [frame.reply for frame in tap.sent(stream.all)][5:]
    assert len(lost) == 3
    assert all((reply or "").endswith("-2") for reply in lost)


async def test_no_resend_is_unknown(js: Any, tap: Proxy, stream: OwnStream) -> None:
    tap.drop_frames(match.is_publish_ack)
    async with js.publisher(timeout=2.5, resend=False) as pub:
        with pytest.raises(RequestTimeoutError):
            await (await pub.publish(stream.subject("x"), b"1", msg_id="id"))
    assert len(tap.sent(stream.all)) == 1


async def test_second_try_finds_stored(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Servers judge sequences before ids: the message itself is what its repetition does not expect."""
    tap.drop_frames(match.is_publish_ack, count=1)
    async with js.publisher(timeout=15) as pub:
        future = await pub.publish(stream.subject("x"), b"1", msg_id="id", expected_last_subject_seq=0)
        ack = await within(15, future, "the publish")
    assert (ack.seq, ack.duplicate) == (1, True)
    assert [message.payload for message in await stream.messages()] == [b"1"]


async def test_late_refusal_of_old_try(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Two tries are on the wire; the first one's error must not stand for the second, which may be stored."""
    refusal = b'{"error":{"code":503,"err_code":10077,"description":"full"}}'
    dropped = tap.drop_frames(match.is_publish_ack, count=1)
    hold = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(timeout=15) as pub:
        future = await pub.publish(stream.subject("x"), b"1", msg_id="id")
        await dropped.wait(1)
        await hold.wait(1, timeout=10)
        tap.inject_message(tap.sent(stream.all)[0].reply or "", refusal)
        await js.ping()
        assert not future.done()
        hold.release()
        assert (await within(5, future, "the publish")).duplicate


@pytest.mark.row(129)
async def test_no_stream_told_after_three_tries(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """ADR-22: 250 ms apart; row 129: Retry. Others are not held up."""
    subject = f"{stream.prefix}x.none"
    started = time.monotonic()
    async with js.publisher() as pub:
        futures = [await pub.publish(subject, b"%d" % n) for n in range(100)]
        good = await pub.publish(stream.subject("x"))
        await good
        assert not any(future.done() for future in futures)
        found = await results(futures)
    assert {type(error) for error in found} == {NoRespondersError}
    assert subject in str(found[0])
    assert time.monotonic() - started > 0.49  # timers of uvloop count milliseconds
    sent = [int(frame.payload) for frame in tap.sent(subject)]
    assert sent == [*range(100), *range(100), *range(100)]


@pytest.mark.row(129)
async def test_stream_appears_meanwhile(js: Any, tap: Proxy, stream: OwnStream, oracle: Oracle) -> None:
    """Row 129: Retry."""
    subject = f"{stream.prefix}x.soon"
    async with js.publisher() as pub:
        futures = [await pub.publish(subject, b"%d" % n) for n in range(10)]
        await tap.wait_for(match.with_status("503"))
        await oracle.update_stream(stream.name, subjects=[stream.all, f"{stream.prefix}x.>"])
        acks = await results(futures)
    assert [ack.seq for ack in acks] == list(range(1, 11))


async def test_answer_none_error(js: Any, oracle: Oracle, stream: OwnStream) -> None:
    async def answer(message: Any) -> None:
        await message.respond(b"thank you")

    await oracle.nc.subscribe(f"{stream.prefix}x.service", cb=answer)
    await flushed(oracle.nc)
    async with js.publisher() as pub:
        with pytest.raises(jsclient.ProtocolError):
            await (await pub.publish(f"{stream.prefix}x.service"))


# --- the connection --------------------------------------------------------------------------------------


@pytest.mark.row(129)
async def test_lost_connection_no_id(js: Any, tap: Proxy, stream: OwnStream, events: list[Any]) -> None:
    """Row 129: ResetPendingOnReconnect. R2: in nats-py up to 40 % are never answered."""
    acks = tap.drop_frames(match.is_publish_ack)
    async with js.publisher() as pub:
        futures = [await pub.publish(stream.subject("x"), b"%d" % n) for n in range(50)]
        await acks.wait(50)
        acks.remove()
        tap.cut()
        found = await results(futures)
        assert {type(error) for error in found} == {DisconnectedError}
        assert (pub.in_flight, pub.failed) == (0, 50)
        await told(Reconnected, events)
        assert (await (await pub.publish(stream.subject("x"), b"after"))).seq == 51
    assert len(tap.sent(stream.all)) == 51


async def test_cut_is_ack_or_unknown(
    js: Any, tap: Proxy, oracle: Oracle, make_stream: Any, events: list[Any]
) -> None:
    """R1, R2: what was acked is stored, nothing twice, and what was stored without an ack is unknown."""
    stream = await make_stream()
    futures: list[Any] = []

    async def publish() -> None:
        async with js.publisher(max_in_flight=200, timeout=20) as pub:
            for n in range(3000):
                futures.append(await pub.publish(stream.subject("x"), b"%d" % n))
                if n % 50 == 0:
                    await asyncio.sleep(0)
            await results(futures)

    task = asyncio.create_task(publish())
    for cut in range(1, 4):
        await eventually(lambda: len(futures) > 700 * cut, 20, "publishes before the cut")  # noqa: B023
        tap.cut()
        await eventually(lambda: len(of(Reconnected, events)) >= cut, 10, "the reconnect")  # noqa: B023
    await within(30, task, "the publisher")
    stored = [int(message.payload) for message in await stream.messages()]
    assert stored == sorted(set(stored))
    acked = {n for n, future in enumerate(futures) if future.exception() is None}
    assert acked <= set(stored)
    assert {type(futures[n].exception()) for n in range(3000) if n not in acked} <= set(UNKNOWN)
    print(f"{len(acked)} acked, {len(stored)} stored of 3000")
    assert len(futures) == 3000


@pytest.mark.limit(120)
@pytest.mark.parametrize(
    "end",
    ["kill", pytest.param("stop", marks=pytest.mark.full), pytest.param("cuts", marks=pytest.mark.full)],
)
async def test_ids_stored_once_in_order(
    end: str, own_server: Any, oracle_for: Any, proxy: Any, connect: Any, events: list[Any]
) -> None:
    """R1, R2: through restarts and cuts each message is stored once, in order, and each future is an ack."""
    own = await own_server()
    oracle = await oracle_for(own)
    stream = await OwnStream.create(oracle, "once", storage="file")
    tap = await proxy(own, frames=False)
    js = await connect(tap, **FAST)
    futures: list[Any] = []

    async def publish() -> None:
        async with js.publisher(max_in_flight=500, timeout=40) as pub:
            for n in range(4000):
                futures.append(await pub.publish(stream.subject("x"), b"%d" % n, msg_id=f"id-{n}"))
                if n % 20 == 0:
                    await asyncio.sleep(0.001)
            await results(futures, 60)
            print(f"{end}: {pub.resent} sent again")

    task = asyncio.create_task(publish())
    await eventually(lambda: len(futures) > 1000, 20, "publishes before the fault")
    if end == "stop":
        await own.restart()
    elif end == "kill":
        await own.kill()
        await asyncio.sleep(0.2)
        await own.start()
    else:
        for cut in range(1, 6):
            tap.cut()
            await eventually(lambda: len(of(Reconnected, events)) >= cut, 10, "the reconnect")  # noqa: B023
            await eventually(lambda: len(futures) > 1000 + 500 * cut, 20, "publishes")  # noqa: B023
    await within(70, task, "the publisher")
    assert of(Reconnected, events)
    await eventually(lambda: oracle.nc.is_connected, 10, "the oracle's connection")
    assert [int(message.payload) for message in await stream.messages()] == list(range(4000))
    assert [future.result().seq for future in futures] == list(range(1, 4001))


async def test_offline_publish_waits(js: Any, tap: Proxy, stream: OwnStream, events: list[Any]) -> None:
    """R2, R3: what was given up is not sent later."""
    async with js.publisher(timeout=10) as pub:
        await (await pub.publish(stream.subject("x"), b"before"))
        tap.refuse()
        tap.cut()
        await told(Disconnected, events)
        patient = [asyncio.create_task(pub.publish(stream.subject("x"), b"%d" % n)) for n in range(5)]
        with pytest.raises(RequestTimeoutError, match="nothing was sent"):
            await within(5, pub.publish(stream.subject("x"), b"never", timeout=0.3), "the publish")
        assert pub.waiting == 5
        await tap.accept()
        await within(10, asyncio.gather(*patient), "the publishes that waited")
    assert [m.payload for m in await stream.messages()] == [b"before", b"0", b"1", b"2", b"3", b"4"]


async def test_over_connection_of_nats_py(foreign_js: Any, stream: OwnStream) -> None:
    with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
        async with foreign_js.publisher(max_in_flight=20) as pub:
            for n in range(200):
                await pub.publish(stream.subject("x"), b"%d" % n, headers={"A": ["1", "2"]})
            await pub.publish(stream.subject("y"), b"refused", expected_last_seq=7)
    assert [message.payload for message in await stream.messages()] == [b"%d" % n for n in range(200)]
    assert [type(error) for _, error in caught.value.failures] == [WrongLastSequenceError]
    assert (pub.published, pub.stored, pub.failed, pub.in_flight) == (201, 200, 1, 0)


async def test_nats_py_loss_ends_futures(proxy: Any, events: list[Any], stream: OwnStream) -> None:
    tap = await proxy()

    async def quiet(_: Exception) -> None: ...

    nc = Client()
    await nc.connect(tap.url, reconnect_time_wait=0.05, error_cb=quiet)
    js = jsclient.JetStream(nc, on_event=events.append)
    try:
        acks = tap.drop_frames(match.is_publish_ack)
        async with js.publisher(timeout=10) as pub:
            unknown = await pub.publish(stream.subject("x"), b"1")
            again = await pub.publish(stream.subject("x"), b"2", msg_id="id")
            await acks.wait(2)
            acks.remove()
            tap.cut()
            first, second = await results([unknown, again])
        assert isinstance(first, DisconnectedError)
        assert (second.seq, second.duplicate) == (2, True)
        await js.close()
    finally:
        await nc.close()


# --- rights ----------------------------------------------------------------------------------------------


async def denied(own_server: Any, oracle_for: Any, **rights: Any) -> Any:
    own = await own_server(
        config={
            "authorization": {
                "users": [
                    {"user": "judge", "password": "x"},
                    {"user": "ann", "password": "x", "permissions": rights},
                ]
            }
        }
    )
    oracle = await oracle_for(own.url.replace("nats://", "nats://judge:x@"))
    return own, await OwnStream.create(oracle, "denied")


async def test_denied_subject(own_server: Any, oracle_for: Any, connect: Any) -> None:
    """X3: by name and at once; the others go through."""
    own, stream = await denied(own_server, oracle_for, publish={"deny": ["*.secret.>"]})
    js = await connect(own.url.replace("nats://", "nats://ann:x@"))
    started = time.monotonic()
    async with js.publisher() as pub:
        good = [await pub.publish(stream.subject("x"), b"%d" % n) for n in range(50)]
        bad = [await pub.publish(stream.subject("secret", n % 2), msg_id=f"{n}") for n in range(100)]
        found = await results(bad)
        await results(good)
    assert time.monotonic() - started < 4.5, "before the timeout of a publish"
    assert {type(error) for error in found} == {PermissionDeniedError}
    assert [error.subject for error in found] == [stream.subject("secret", n % 2) for n in range(100)]
    assert (await stream.state())["messages"] == 50


async def test_inbox_this_user_may_not_have(own_server: Any, oracle_for: Any, connect: Any) -> None:
    own, stream = await denied(own_server, oracle_for, subscribe={"deny": ["_INBOX.>"]})
    js = await connect(own.url.replace("nats://", "nats://ann:x@"))
    async with js.publisher() as pub:
        for _ in range(2):
            with pytest.raises(PermissionDeniedError) as caught:
                await within(3, await pub.publish(stream.subject("x")), "the publish")
            assert caught.value.operation == "subscribe"

    async def both() -> bool:
        return (await stream.state())["messages"] == 2

    # The answer cannot be heard, but the messages are stored.
    await eventually(both, what="the messages")


# --- cancelling and ending -------------------------------------------------------------------------------


async def test_cancelled_wait_unsent(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=1) as pub:
        first = await pub.publish(stream.subject("x"), b"1")
        tasks = [asyncio.create_task(pub.publish(stream.subject("x"), b"%d" % n)) for n in (2, 3, 4)]
        await held.wait(1)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        # Cancelled in the very turn in which it gets its place: the place goes to the next one.
        first.add_done_callback(lambda _: tasks[1].cancel())
        held.release()
        fourth = await within(5, tasks[2], "the publish behind those that were cancelled")
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
        gone = await pub.publish(stream.subject("x"), b"1", msg_id="1")
        kept = await pub.publish(stream.subject("x"), b"2", msg_id="2")
        await tap.wait_for(match.is_publish_ack)
        gone.cancel()
        tap.cut()
        await told(Reconnected, events)
        await within(10, kept, "the publish")
    assert ids(tap.sent(stream.all)) == ["1", "2", "2"]
    assert pub.failed == 1


@pytest.mark.row(131)
async def test_close_ends_waiting(js: Any, tap: Proxy, stream: OwnStream, events: list[Any]) -> None:
    """Row 131: what is pending fails."""
    tap.drop_frames(match.is_publish_ack)
    pub = js.publisher(max_in_flight=3)
    awaited, _, dropped = [await pub.publish(stream.subject("x"), b"%d" % n) for n in range(3)]
    waiting = asyncio.create_task(pub.publish(stream.subject("x"), b"never"))
    looking = asyncio.create_task(results([awaited]))
    flushing = asyncio.create_task(pub.flush())
    await asyncio.sleep(0)
    del dropped
    await within(4, pub.close(), "close")
    with pytest.raises(ClosedError, match="nothing was sent"):
        await waiting
    assert isinstance((await looking)[0], ClosedError)
    with pytest.raises(ClosedError):
        await pub.publish(stream.subject("x"))
    with pytest.raises(ClosedError):
        async with pub:
            pass
    await pub.close()
    # Those that nobody waits for are told, by one event or by the flush under way, and asyncio says nothing.
    await asyncio.wait([flushing])
    raised = len(flushing.exception().failures) if flushing.exception() else 0
    assert raised + sum(event.count for event in of(PublishFailed, events)) == 2
    assert (pub.in_flight, pub.in_flight_bytes, pub.waiting, pub.is_closed) == (0, 0, 0, True)
    gc.collect()


async def test_connection_close_gives_time(
    connect: Any, tap: Proxy, server: Any, oracle: Oracle, stream: OwnStream, events: list[Any]
) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    js = await connect(tap, **FAST)
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
    await within(8, closing, "closing the connection")
    assert future.result().seq == 1
    assert isinstance(lost.exception(), ClosedError)
    await told(PublishFailed, events)


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
    await within(10, asyncio.wait([task]), "the block")
    assert task.cancelled()
    event = await told(PublishFailed, events)
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
    await within(10, asyncio.wait([task]), "leaving")
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
    found = [(m.subject, m.payload) for m in await stream.messages()]
    assert sorted(found) == sorted(
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
    assert len(js._connection._nc._subs) == 1
    assert len(js._connection._listeners) == len(js._connection.denied) == 1
    assert js._context.open == set()


# --- publish_many ------------------------------------------------------------------------------------------


async def test_many_are_stored_in_order(js: Any, stream: OwnStream) -> None:
    ids = [f"id-{n}" for n in range(3000)]
    payloads = [b"%d" % n for n in range(3000)]
    found = await js.publish_many(
        stream.subject("x"), iter(payloads), msg_ids=iter(ids), headers={"A": "1"}, max_in_flight=100
    )
    assert (found.stored, found.duplicates, found.first_seq, found.last_seq) == (3000, 0, 1, 3000)
    stored = await stream.messages()
    assert [message.payload for message in stored] == payloads
    again = await js.publish_many(stream.subject("x"), payloads, msg_ids=ids)
    assert (again.stored, again.duplicates, again.first_seq, again.last_seq) == (3000, 3000, 0, 0)
    assert (await js.publish_many(stream.subject("x"), [])).stored == 0


async def test_many_without_stream_names_failures(js: Any) -> None:
    with pytest.raises(jsclient.PublishManyError) as caught:
        await within(10, js.publish_many("nowhere.at.all", [b"1", b"2"]), "publish_many")
    error = caught.value
    assert [(index, type(why)) for index, why in error.failures] == [
        (0, NoRespondersError),
        (1, NoRespondersError),
    ]
    assert (error.sent, error.stored) == (2, 0)


async def test_many_with_odd_payload_known_outcomes(js: Any, stream: OwnStream) -> None:
    """The payloads of the chunk before are stored; the one that cannot be sent has the last index."""
    with pytest.raises(jsclient.PublishManyError) as caught:
        await js.publish_many(stream.subject("x"), [*[b"x"] * 1000, b"y", bytes(3_000_000), b"z"])
    error = caught.value
    assert [(index, type(why)) for index, why in error.failures] == [(1001, jsclient.MaxPayloadError)]
    assert (error.sent, error.stored) == (1001, 1001)
    assert len(await stream.messages()) == 1001
    for arguments in ({"msg_ids": ["a"]}, {"headers": {"A": "1"}, "msg_ids": ["a"]}):
        with pytest.raises(jsclient.PublishManyError) as caught:
            await js.publish_many(stream.subject("x"), [b"1", b"2"], **arguments)
        assert isinstance(caught.value.__cause__, jsclient.ConfigError)
        assert (caught.value.sent, caught.value.stored) == (0, 0)
    with pytest.raises(jsclient.InvalidNameError):
        await js.publish_many(stream.subject("x"), [b"1"], headers={"no token": "1"})


async def test_many_over_a_cut(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """With ids all are stored once although answers are lost with the connection."""
    held = tap.hold_frames(match.is_publish_ack)
    ids = [f"id-{n}" for n in range(500)]
    task = asyncio.create_task(js.publish_many(stream.subject("x"), [b"x"] * 500, msg_ids=ids, timeout=20))
    await held.wait(1)
    tap.cut()
    held.release()
    found = await within(20, task, "publish_many")
    assert found.stored == 500
    assert len(await stream.messages()) == 500


async def test_many_on_frozen_connection_end(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """Nothing is read any more: the write buffer fills up, and the call ends with its timeout."""
    tap.stall()
    sending = js.publish_many(stream.subject("x"), [bytes(100_000)] * 1000, timeout=1.0)
    with pytest.raises(jsclient.PublishManyError) as caught:
        await within(60, sending, "publish_many")
    assert {type(why) for _, why in caught.value.failures} == {RequestTimeoutError}
    assert js.is_connected
    tap.unstall()


async def test_many_without_ids_over_a_cut(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    task = asyncio.create_task(js.publish_many(stream.subject("x"), [b"x"] * 50))
    await held.wait(1)
    tap.cut()
    held.release()
    with pytest.raises(jsclient.PublishManyError) as caught:
        await within(20, task, "publish_many")
    error = caught.value
    assert error.sent == 50 == error.stored + len(error.failures)
    assert {type(why) for _, why in error.failures} == {DisconnectedError}
