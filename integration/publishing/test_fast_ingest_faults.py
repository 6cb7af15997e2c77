"""Fast ingest over a connection that loses messages, and answers that make no sense."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.calls.fast_ingest import codes, control, filled, numbered, operation, stored
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import of
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from jsclient.publishing import ingest_channel

pytestmark = pytest.mark.server(">=2.14")


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def near(tap: Proxy, connect: Any, oracle: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.fixture
async def stream(oracle: Any, make_stream: Any) -> OwnStream:
    return await make_stream(allow_batched=True)


# --- what is lost on the way -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 7, 30])
async def test_lost_message_ends_it(tap: Proxy, near: Any, stream: OwnStream, number: int) -> None:
    lost = tap.drop_frames(operation(number, 1))
    ingest = near.fast_ingest(ack_every=4)
    with pytest.raises(jsclient.IngestError) as caught:
        await _all_of(ingest, stream, 30)
    assert lost.count == 1
    assert (caught.value.stored, caught.value.complete) == (number - 1, True)
    assert (ingest.acked, ingest.ack.count) == (number - 1, number - 1)
    assert await stored(stream) == numbered(1, number - 1)


async def _all_of(ingest: Any, stream: OwnStream, count: int) -> None:
    await filled(ingest, stream, count)
    await ingest.commit()


@pytest.mark.parametrize("number", [2, 7, 30])
async def test_gaps_lost_reported(
    tap: Proxy, near: Any, stream: OwnStream, events: list[Any], number: int
) -> None:
    tap.drop_frames(operation(number, 1))
    ingest = near.fast_ingest(ack_every=4, gap="ok")
    await _all_of(ingest, stream, 30)
    assert [(event.first, event.last) for event in of(jsclient.IngestGap, events)] == [(number, number)]
    assert (ingest.lost, ingest.refused, ingest.acked, ingest.ack.count) == (1, 0, 30, 30)
    assert await stored(stream) == numbered(1, number - 1) + numbered(number + 1, 30)


async def test_acks_lost_asked_for(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_channel, "PING_AFTER", 0.05)
    lost = tap.drop_frames(lambda frame: control("ack")(frame) and not frame.subject.endswith(".4.$FI"))
    async with near.fast_ingest(ack_every=4) as ingest:
        await within(60, filled(ingest, stream, 20), "publishing without acks")
    assert lost.count >= 3
    assert ingest.ack.count == 20


async def test_final_ack_lost_leaves_end_unknown(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_channel, "PING_AFTER", 0.05)
    tap.drop_frames(control("final"), count=1)
    ingest = near.fast_ingest(ack_every=5)
    with pytest.raises(jsclient.IngestError) as caught:
        await _all_of(ingest, stream, 12)
    assert (caught.value.sent, caught.value.stored, caught.value.complete) == (12, 10, False)
    assert await stored(stream) == numbered(1, 12)


async def test_end_lost_sent_again(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_channel, "PING_AFTER", 0.05)
    tap.drop_frames(operation(6, 3), count=2)
    async with near.fast_ingest() as ingest:
        await filled(ingest, stream, 5)
    assert ingest.ack.count == 5


async def test_last_message_lost_found_out(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_channel, "PING_AFTER", 0.05)
    tap.drop_frames(operation(6, 2))
    ingest = near.fast_ingest()
    await filled(ingest, stream, 5)
    with pytest.raises(jsclient.IngestError) as caught:
        await ingest.commit(stream.subject("a"), b"6")
    assert (caught.value.sent, caught.value.stored, caught.value.complete) == (6, 5, True)


async def test_server_falls_silent_timeout(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest(ack_every=4, timeout=2.0)
    await filled(ingest, stream, 1)
    tap.drop_frames(match.delivered("_INBOX.>"))
    with pytest.raises(jsclient.IngestError) as caught:
        await _many(ingest, stream)
    assert isinstance(caught.value.__cause__, jsclient.RequestTimeoutError)
    assert not caught.value.complete
    first = near.fast_ingest(timeout=0.3)
    with pytest.raises(jsclient.IngestError):
        await first.publish(stream.subject("a"))
    with pytest.raises(jsclient.IngestError):
        await first.publish(stream.subject("a"))


async def _many(ingest: Any, stream: OwnStream) -> None:
    for _ in range(100):
        await ingest.publish(stream.subject("a"))


async def test_an_idle_one_is_kept_alive(
    tap: Proxy, near: Any, stream: OwnStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgets an ingest after 10 s without a message."""
    monkeypatch.setattr(ingest_channel, "KEEP_ALIVE", 0.05)
    async with near.fast_ingest() as ingest:
        await filled(ingest, stream, 3)
        await eventually(lambda: codes(tap).count("3.4") >= 3, what="pings")
        await filled(ingest, stream, 2, first=4)
    assert ingest.ack.count == 5


FORGETFUL = "jetstream { limits { batch { timeout: 3s } } }"  # in place of 10 s


async def test_keepalive_outlives_timeout(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await own_server(config=FORGETFUL)
    js = await connect(own)
    stream = await make_stream(oracle=await oracle_for(own), allow_batched=True)
    monkeypatch.setattr(ingest_channel, "KEEP_ALIVE", 30.0)
    forgotten = js.fast_ingest(gap="ok")
    await filled(forgotten, stream, 3)
    monkeypatch.setattr(ingest_channel, "KEEP_ALIVE", 0.1)
    saved = js.fast_ingest()
    await filled(saved, stream, 3)
    with pytest.raises(jsclient.IngestError) as caught:
        await eventually(forgotten.ping, 60, "the server's patience to end", interval=3.5)
    assert caught.value.__cause__.err_code == 10208
    await filled(saved, stream, 3, first=4)
    assert (await saved.commit()).count == 6


# --- the connection ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_harmless_reconnect(
    tap: Proxy, near: Any, stream: OwnStream, gap: str, events: list[Any]
) -> None:
    async with near.fast_ingest(gap=gap, ack_every=5) as ingest:
        await filled(ingest, stream, 8)
        await ingest.ping()
        tap.cut()
        await tap.wait_links(2)
        await eventually(lambda: near.is_connected, what="the reconnect")
        await filled(ingest, stream, 30, first=9)
    assert (ingest.ack.count, ingest.lost) == (38, 0)
    assert of(jsclient.IngestGap, events) == []
    assert await stored(stream) == numbered(1, 38)


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_lost_with_connection_reported(
    tap: Proxy, near: Any, stream: OwnStream, gap: str, events: list[Any]
) -> None:
    ingest = near.fast_ingest(gap=gap, ack_every=50)
    await filled(ingest, stream, 8)
    await ingest.ping()
    lost = tap.drop_frames(match.published(stream.all))
    await filled(ingest, stream, 4, first=9)
    await lost.wait(4)
    lost.remove()
    tap.cut()
    await tap.wait_links(2)
    await eventually(lambda: near.is_connected, what="the reconnect")
    if gap == "ok":
        await filled(ingest, stream, 4, first=13)
        await ingest.commit()
        assert ingest.lost == 4
        assert sum(event.last - event.first + 1 for event in of(jsclient.IngestGap, events)) == 4
        assert await stored(stream) == numbered(1, 8) + numbered(13, 16)
    else:
        await eventually(lambda: ingest.is_closed, what="the server's answer to the ping after the reconnect")
        with pytest.raises(jsclient.IngestError) as caught:
            await ingest.publish(stream.subject("a"))
        assert (caught.value.sent, caught.value.stored, caught.value.complete) == (12, 8, True)
        assert await stored(stream) == numbered(1, 8)


async def test_offline_publish_waits(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest(ack_every=5) as ingest:
        await filled(ingest, stream, 3)
        await ingest.ping()
        tap.refuse()
        tap.cut()
        await eventually(lambda: not near.is_connected, what="the disconnect")
        publishing = asyncio.create_task(filled(ingest, stream, 40, first=4))
        await eventually(lambda: ingest.sent >= 5, what="messages that wait")
        await tap.accept()
        await within(60, publishing, "publishing over a reconnect")
    assert ingest.ack.count == 43
    assert await stored(stream) == numbered(1, 43)


async def test_connection_does_not_come_back_ends(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest(ack_every=5, timeout=2.0)
    await filled(ingest, stream, 7)
    await ingest.ping()
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected, what="the disconnect")
    with pytest.raises(jsclient.IngestError) as caught:
        await _all_of_more(ingest, stream)
    assert isinstance(caught.value.__cause__, jsclient.DisconnectedError)
    assert (caught.value.stored, caught.value.complete) == (5, False)
    await tap.accept()
    await eventually(lambda: near.is_connected, what="the reconnect")
    await near.ping()
    assert await stored(stream) == numbered(1, 7)


async def _all_of_more(ingest: Any, stream: OwnStream) -> None:
    await filled(ingest, stream, 100, first=8)


async def test_connection_lost_in_commit_created_good(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest()
    await filled(ingest, stream, 5)
    await ingest.ping()
    lost = tap.drop_frames(operation(6, 3), count=1)
    committing = asyncio.create_task(ingest.commit())
    await lost.wait()
    tap.cut()
    ack = await within(60, committing, "the commit over a reconnect")
    assert ack.count == 5


async def test_restart_forgets_ingest(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any
) -> None:
    own = await own_server()
    js = await connect(own)
    stream = await make_stream(oracle=await oracle_for(own), allow_batched=True, storage="file")
    ingest = js.fast_ingest(ack_every=10, gap="ok", timeout=60)
    await filled(ingest, stream, 25)
    await ingest.ping()
    await own.kill()
    await own.start()
    with pytest.raises(jsclient.IngestError) as caught:
        await within(60, _many(ingest, stream), "publishing over a restart")
    assert caught.value.__cause__.err_code == 10208
    assert (caught.value.stored, caught.value.complete) == (20, False)
    async with js.fast_ingest() as ingest:
        await filled(ingest, stream, 2)
    assert ingest.ack.count == 2


# --- cancelling and leaving --------------------------------------------------------------------------------


async def test_exception_in_block_keeps_sent(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async def work() -> None:
        async with near.fast_ingest() as ingest:
            await filled(ingest, stream, 5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await work()
    await tap.wait_for(operation(6, 3))
    await eventually(lambda: _is(stream, 5), what="five messages")


async def _is(stream: OwnStream, count: int) -> bool:
    return bool((await stream.state())["messages"] == count)


async def test_cancelled_publish_unsent(tap: Proxy, near: Any, stream: OwnStream) -> None:
    async with near.fast_ingest(ack_every=2) as ingest:
        await filled(ingest, stream, 1)
        held = tap.hold_frames(control("ack"))
        publishing = asyncio.create_task(filled(ingest, stream, 50, first=2))
        await held.wait()
        await eventually(lambda: ingest.sent == 4, what="a full window")
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert ingest.sent == 4
        held.release()
        await filled(ingest, stream, 6, first=5)
    assert ingest.ack.count == 10
    assert await stored(stream) == numbered(1, 10)


async def test_cancelled_start_loses_nothing(tap: Proxy, near: Any, stream: OwnStream) -> None:
    held = tap.hold_frames(control("ack"))
    ingest = near.fast_ingest()
    starting = asyncio.create_task(ingest.publish(stream.subject("a"), b"1"))
    await held.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    held.release()
    await filled(ingest, stream, 3, first=2)
    assert (await ingest.commit()).count == 4


async def test_cancelled_commit_repeatable(tap: Proxy, near: Any, stream: OwnStream) -> None:
    ingest = near.fast_ingest()
    await filled(ingest, stream, 3)
    held = tap.hold_frames(control("final"))
    committing = asyncio.create_task(ingest.commit())
    await held.wait()
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    with pytest.raises(jsclient.ClosedError):
        await ingest.publish(stream.subject("a"))
    held.release()
    assert (await ingest.commit()).count == 3


async def test_cancelled_leaving_leaves_no_channel(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """It stayed subscribed, and was kept alive by a ping every 3 s."""
    held = tap.hold_frames(control("final"))

    async def ingest() -> None:
        async with near.fast_ingest() as ingest:
            await filled(ingest, stream, 3)

    working = asyncio.create_task(ingest())
    await held.wait()
    assert near._context.open
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert not near._context.open
    held.release()
    await eventually(lambda: _is(stream, 3), what="three messages")


async def test_closing_connection_ends(connect: Any, tap: Proxy, stream: OwnStream) -> None:
    js = await connect(tap)
    ingest = js.fast_ingest(ack_every=2)
    await filled(ingest, stream, 3)
    await js.close()
    with pytest.raises((jsclient.IngestError, jsclient.ClosedError)):
        await ingest.publish(stream.subject("a"))
    await eventually(lambda: _is(stream, 3), what="three messages")


async def _linger(js: Any, stream: OwnStream) -> None:
    async with js.fast_ingest() as ingest:
        await ingest.publish(stream.subject("a"), b"x")
        await asyncio.sleep(60)


async def test_nothing_stays_behind(
    near: Any, stream: OwnStream, make_stream: Any, oracle: Any, server: Any
) -> None:
    plain = await make_stream()
    await near.publish(plain.subject("a"))
    connection = near._connection
    listeners = len(connection._listeners), len(connection.denied), len(near._context.open)
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        async with near.fast_ingest() as ingest:
            await filled(ingest, stream, 3)
        with pytest.raises(jsclient.BatchNotEnabledError):
            await near.fast_ingest().publish(plain.subject("a"))
        ingest = near.fast_ingest()
        await ingest.publish(stream.subject("a"), b"x")
        await ingest.publish(stream.subject("a"), b"x", expected_last_seq=999)
        with pytest.raises(jsclient.IngestError):
            await ingest.commit()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_linger(near, stream), 0.05)
    assert (len(connection._listeners), len(connection.denied), len(near._context.open)) == listeners


# --- answers that make no sense ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [b"", b"nonsense", b"[]", b"{}", b'{"type":"ack"}', b'{"type":"ack","seq":-1,"msgs":1}', b'{"type":"x"}'],
)
async def test_channel_nonsense_ignored(
    tap: Proxy, near: Any, stream: OwnStream, events: list[Any], payload: bytes
) -> None:
    async with near.fast_ingest() as ingest:
        await filled(ingest, stream, 3)
        tap.inject_message(f"{tap.sent(stream.all)[0].reply}", payload)
        await eventually(lambda: of(jsclient.ErrorRaised, events), what="the event")
        await filled(ingest, stream, 3, first=4)
    assert ingest.ack.count == 6
    assert all(isinstance(event.error, jsclient.ProtocolError) for event in of(jsclient.ErrorRaised, events))


async def test_single_store_detected(tap: Proxy, near: Any, stream: OwnStream) -> None:
    """Beyond a leaf node or in another domain, the stream's server may be older than the connected server."""
    tap.modify_frames(
        control("ack"), lambda frame: frame.but(payload=b'{"stream":"OLD","seq":7}').raw, count=1
    )
    with pytest.raises(jsclient.IngestError) as caught:
        await near.fast_ingest().publish(stream.subject("a"))
    assert isinstance(caught.value.__cause__, jsclient.ProtocolError)
    assert (caught.value.sent, caught.value.stored) == (1, 1)
