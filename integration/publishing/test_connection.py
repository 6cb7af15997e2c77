"""A publisher whose connection is lost, cut or slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.calls.publisher import UNKNOWN, results
from integration.kit.clients.foreign import Client
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.oracle import Oracle
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from jsclient import (
    Disconnected,
    DisconnectedError,
    PublishesFailedError,
    Reconnected,
    RequestTimeoutError,
    WrongLastSequenceError,
)


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, **PATIENT)


@pytest.mark.row(129)
async def test_lost_connection_no_id(js: Any, tap: Proxy, stream: OwnStream, events: list[Any]) -> None:
    """Row 129: ResetPendingOnReconnect. R2: in nats-py up to 40 % are never answered."""
    acks = tap.drop_frames(match.is_publish_ack)
    async with js.publisher(timeout=60) as pub:
        futures = [await pub.publish(stream.subject("x"), b"%d" % n) for n in range(50)]
        await acks.wait(50)
        acks.remove()
        tap.cut()
        outcomes = await results(futures)
        assert {type(error) for error in outcomes} == {DisconnectedError}
        assert (pub.in_flight, pub.failed) == (0, 50)
        await wait_for_event(Reconnected, events)
        assert (await (await pub.publish(stream.subject("x"), b"after"))).seq == 51
    assert len(tap.sent(stream.all)) == 51


async def test_cut_is_ack_or_unknown(
    js: Any, tap: Proxy, oracle: Oracle, make_stream: Any, events: list[Any]
) -> None:
    """R1, R2: acked messages are stored, each once, and a message that was stored without an ack is unknown."""
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
        await eventually(lambda: len(futures) > 700 * cut, 60, "publishes before the cut")  # noqa: B023
        tap.cut()
        await eventually(lambda: len(of(Reconnected, events)) >= cut, 60, "the reconnect")  # noqa: B023
    await within(90, task, "the publisher")
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
    js = await connect(tap, **PATIENT)
    futures: list[Any] = []

    async def publish() -> None:
        async with js.publisher(max_in_flight=500, timeout=40) as pub:
            for n in range(4000):
                futures.append(await pub.publish(stream.subject("x"), b"%d" % n, msg_id=f"id-{n}"))
                # the fault meets messages in every state
                if n % 20 == 0:
                    await asyncio.sleep(0.001)
            await results(futures, 60)
            print(f"{end}: {pub.resent} sent again")

    task = asyncio.create_task(publish())
    await eventually(lambda: len(futures) > 1000, 60, "publishes before the fault")
    if end == "stop":
        await own.restart()
    elif end == "kill":
        await own.kill()
        await asyncio.sleep(0.2)
        await own.start()
    else:
        for cut in range(1, 6):
            tap.cut()
            await eventually(lambda: len(of(Reconnected, events)) >= cut, 60, "the reconnect")  # noqa: B023
            await eventually(lambda: len(futures) > 1000 + 500 * cut, 20, "publishes")  # noqa: B023
    await within(70, task, "the publisher")
    assert of(Reconnected, events)
    await eventually(lambda: oracle.nc.is_connected, 60, "the oracle's connection")
    assert [int(message.payload) for message in await stream.messages()] == list(range(4000))
    assert [future.result().seq for future in futures] == list(range(1, 4001))


async def test_offline_publish_waits(js: Any, tap: Proxy, stream: OwnStream, events: list[Any]) -> None:
    """R2, R3: a publish that timed out is not sent later."""
    async with js.publisher(timeout=60) as pub:
        await (await pub.publish(stream.subject("x"), b"before"))
        tap.refuse()
        tap.cut()
        await wait_for_event(Disconnected, events)
        patient = [asyncio.create_task(pub.publish(stream.subject("x"), b"%d" % n)) for n in range(5)]
        with pytest.raises(RequestTimeoutError, match="nothing was sent"):
            await within(30, pub.publish(stream.subject("x"), b"never", timeout=0.3), "the publish")
        assert pub.waiting == 5
        await tap.accept()
        await within(60, asyncio.gather(*patient), "the publishes that waited")
    assert [m.payload for m in await stream.messages()] == [b"before", b"0", b"1", b"2", b"3", b"4"]


async def test_over_connection_of_nats_py(natspy_js: Any, stream: OwnStream) -> None:
    with pytest.raises(PublishesFailedError) as caught:  # noqa: PT012
        async with natspy_js.publisher(max_in_flight=20) as pub:
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
        async with js.publisher(timeout=60) as pub:
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
