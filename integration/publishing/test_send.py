"""`Publisher.send`: a publish as a plain call, which raises when `publish` would wait. Source: ADR-22."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from integration.kit.servers.nats_server import ServerUnderTest
from jsclient import (
    ClosedError,
    Disconnected,
    DisconnectedError,
    NoRespondersError,
    PublishesFailedError,
    Reconnected,
    TooManyInFlightError,
    WrongLastSequenceError,
    WrongLoopError,
)


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, **PATIENT)


async def results(futures: list[Any]) -> list[Any]:
    """The outcome of each future, an ack or an error."""
    return await within(60, asyncio.gather(*futures, return_exceptions=True), "the futures")


@pytest.mark.smoke
async def test_sent_at_once_and_in_call_order(js: Any, tap: Proxy, stream: OwnStream) -> None:
    async with js.publisher() as pub:
        futures = [pub.send(stream.subject("x"), b"%d" % n, msg_id=f"id-{n}") for n in range(300)]
        assert (pub.published, pub.in_flight) == (300, 300)
        futures.append(await pub.publish(stream.subject("y"), b"300"))
        futures.append(pub.send(stream.subject("x"), b"301"))
    acks = [future.result() for future in futures]
    assert [ack.seq for ack in acks] == list(range(1, 303))
    assert [message.payload for message in await stream.messages()] == [b"%d" % n for n in range(302)]


async def test_same_bytes_and_refusals_as_publish(js: Any, tap: Proxy, stream: OwnStream) -> None:
    calls: list[dict[str, Any]] = [
        {},
        {"headers": {"A": "1", "B": ["2", "3"]}, "msg_id": "one"},
        {"expected_stream": stream.name, "expected_last_subject_seq": 7, "ttl": "never", "rollup": "sub"},
        {"expected_last_msg_id": "x"},
        {"data": bytearray(b"2")},
        {"subject": "a b"}, {"subject": 7}, {"data": "text"}, {"msg_id": ""}, {"headers": {"A": "\r\n"}},
        {"expected_last_seq": -1}, {"ttl": 0.5}, {"timeout": 0}, {"data": bytes(2 * 1024 * 1024)},
    ]  # fmt: skip

    async def plain(pub: Any, **call: Any) -> Any:
        return pub.send(**call)

    async def waiting(pub: Any, **call: Any) -> Any:
        return await pub.publish(**call)

    for call in calls:
        values = []
        for way in (waiting, plain):
            refused, since = None, len(tap.frames)
            async with js.publisher() as pub:
                try:
                    await results([await way(pub, **{"subject": stream.subject("x"), "data": b"1", **call})])
                except jsclient.JetStreamError as error:
                    refused = (type(error), str(error))
            await js.ping()
            sent = [(f.headers, f.payload) for f in tap.sent(stream.all) if f in tap.frames[since:]]
            values.append((refused, sent))
        assert values[0] == values[1], call
        assert bool(values[0][0]) != bool(values[0][1]), call


async def test_full_window_raises_and_recovers(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=3) as pub:
        futures = [pub.send(stream.subject("x"), b"%d" % n) for n in range(3)]
        with pytest.raises(TooManyInFlightError, match="nothing was sent"):
            pub.send(stream.subject("x"), b"never")
        waiting = asyncio.create_task(pub.publish(stream.subject("x"), b"3"))
        await eventually(lambda: pub.waiting == 1, what="the publish that waits")
        await held.wait(3)
        held.release()
        await within(30, futures[0], "the first ack")
        await results([await within(30, waiting, "the publish that waited")])
        await results([pub.send(stream.subject("x"), b"4")])
    assert [message.payload for message in await stream.messages()] == [b"0", b"1", b"2", b"3", b"4"]


async def test_not_before_a_publish_that_waits(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_bytes=1000) as pub:
        pub.send(stream.subject("x"), bytes(600))
        large = asyncio.create_task(pub.publish(stream.subject("x"), bytes(601)))
        await eventually(lambda: pub.waiting == 1, what="the publish that waits")
        # it would fit, but messages are sent in the order of the calls
        with pytest.raises(TooManyInFlightError):
            pub.send(stream.subject("x"), b"1")
        await held.wait(1)
        held.release()
        await results([await within(30, large, "the publish that waited")])
    assert pub.stored == 2


async def test_outage_raises_and_in_flight_go_again(
    js: Any, tap: Proxy, stream: OwnStream, events: list[Any]
) -> None:
    acks = tap.drop_frames(match.is_publish_ack)
    async with js.publisher(timeout=60) as pub:
        known = pub.send(stream.subject("x"), b"1", msg_id="1")
        unknown = pub.send(stream.subject("x"), b"2")
        await acks.wait(2)
        acks.remove()
        tap.refuse()
        tap.cut()
        await wait_for_event(Disconnected, events)
        with pytest.raises(DisconnectedError, match="nothing was sent"):
            pub.send(stream.subject("x"), b"never")
        await tap.accept()
        await wait_for_event(Reconnected, events)
        after = pub.send(stream.subject("x"), b"3")
        ack, error, last = await results([known, unknown, after])
    assert (ack.seq, ack.duplicate, last.seq) == (1, True, 3)
    assert isinstance(error, DisconnectedError)
    assert [message.payload for message in await stream.messages()] == [b"1", b"2", b"3"]


async def test_failures_raised_at_the_end(js: Any, stream: OwnStream) -> None:
    with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
        async with js.publisher() as pub:
            pub.send(stream.subject("x"), b"good")
            pub.send(stream.subject("x"), b"bad", expected_last_seq=7)
    assert [type(error) for _, error in caught.value.failures] == [WrongLastSequenceError]


async def test_cancelled_future_keeps_place(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    async with js.publisher(max_in_flight=1) as pub:
        pub.send(stream.subject("x"), b"1").cancel()
        with pytest.raises(TooManyInFlightError):
            pub.send(stream.subject("x"), b"2")
        await held.wait(1)
        held.release()
    assert (pub.stored, pub.failed) == (1, 0)


async def test_closed(js: Any, tap: Proxy, stream: OwnStream) -> None:
    tap.drop_frames(match.is_publish_ack)
    pub = js.publisher()
    future = pub.send(stream.subject("x"))
    await within(30, pub.close(), "close")
    assert isinstance((await results([future]))[0], ClosedError)
    unused = js.publisher()
    await js.close()
    for closed in (pub, unused):
        with pytest.raises(ClosedError):
            closed.send(stream.subject("x"))


async def test_wrong_thread_and_connection_refused(js: Any, natspy_js: Any, stream: OwnStream) -> None:
    async with js.publisher() as pub, natspy_js.publisher() as natspy_pub:
        with pytest.raises(WrongLoopError):
            await asyncio.to_thread(pub.send, stream.subject("x"))
        with pytest.raises(jsclient.ConfigError, match="await `publish`"):
            natspy_pub.send(stream.subject("x"))
        assert (pub.published, natspy_pub.published) == (0, 0)


def test_wrong_loop_refused(server: ServerUnderTest) -> None:
    """A plain call may come while another event loop runs, or none."""
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def opened() -> tuple[Any, Any, Any]:
        js = await jsclient.connect(server.url)
        used = js.publisher()
        with pytest.raises(NoRespondersError):
            await used.send("no.stream")
        return js, used, js.publisher()

    async def refused(pub: Any) -> None:
        with pytest.raises(WrongLoopError):
            pub.send("no.stream")

    js, used, unused = first.run_until_complete(opened())
    for pub, published in ((used, 1), (unused, 0)):
        with pytest.raises(WrongLoopError):
            pub.send("no.stream")
        second.run_until_complete(refused(pub))
        assert (pub.published, pub.in_flight) == (published, 0)
    first.run_until_complete(within(30, js.close(), "close"))
    first.close()
    second.close()
