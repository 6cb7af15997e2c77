"""Unsubscribing: what is deleted, when, and what its errors become. Source: ADR-15 §Unsubscribe."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

import jsclient
from integration.kit.judge.leaks import no_leaks
from integration.kit.judge.reading import alarms, numbers, of, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match
from integration.kit.network.deletes import DELETES, NO_DELETE
from integration.kit.network.recording import in_order

KINDS = ["ephemeral", "durable", "queue", "ordered", "callback", "pull", "durable pull"]


async def subscribe(js: Any, stream: OwnStream, kind: str, **options: Any) -> Any:
    """A subscription of one of the kinds. It creates its consumer."""
    if kind == "pull":
        return await js.pull_subscribe(stream.all, **options)
    if kind == "durable pull":
        return await js.pull_subscribe(stream.all, durable="d", **options)
    extra: dict[str, Any] = {
        "ephemeral": {},
        "durable": {"durable": "d"},
        "queue": {"queue": "q"},
        "ordered": {"ordered": True},
        "callback": {"callback": lambda message: None},
    }[kind]
    return await js.subscribe(stream.all, **extra, **options)


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


@pytest.mark.row(119)
@pytest.mark.covers("J52", "J108", "J113")
@pytest.mark.parametrize("kind", KINDS)
async def test_deletes_after_unsubscribe(tap: Any, near: Any, stream: OwnStream, kind: str) -> None:
    sub = await subscribe(near, stream, kind)
    assert sub.created
    name = sub.consumer
    assert await stream.consumer_names() == [name]
    inbox = getattr(sub, "subject", "")
    await sub.unsubscribe()
    assert await stream.consumer_names() == []
    assert sub.is_closed
    [deleted] = tap.sent(DELETES)
    assert deleted.subject == f"$JS.API.CONSUMER.DELETE.{stream.name}.{name}"
    if inbox:
        [created] = [frame for frame in tap.subs() if frame.subject == inbox]
        [ended] = [frame for frame in tap.unsubs() if frame.sid == created.sid]
        assert in_order(created, ended, deleted)
    await sub.unsubscribe()
    assert len(tap.sent(DELETES)) == 1


@pytest.mark.row(119)
@pytest.mark.covers("J112")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@pytest.mark.parametrize("kind", ["push", "queue", "pull", "durable found"])
async def test_consumer_not_created_never_deleted(
    tap: Any, near: Any, stream: OwnStream, kind: str, end: str
) -> None:
    deliver = {"deliver_subject": f"deliver.{stream.prefix}"}
    config = {"queue": {**deliver, "deliver_group": "g"}, "pull": {}}.get(kind, deliver)
    await stream.create_consumer("there", **config)
    if kind == "pull":
        sub = await near.pull_subscribe(stream=stream.name, consumer="there")
    elif kind == "durable found":
        sub = await near.subscribe(stream=stream.name, durable="there")
    else:
        options = {"queue": "g"} if kind == "queue" else {}
        sub = await near.subscribe(stream=stream.name, consumer="there", delete_on_close=True, **options)
    assert not sub.created
    await getattr(sub, end)()
    await near.ping()
    assert tap.sent(DELETES) == []
    assert await stream.consumer_names() == ["there"]


@pytest.mark.covers("J113")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
@pytest.mark.parametrize("kind", ["ephemeral", "durable", "queue", "pull", "durable pull"])
async def test_delete_on_close_off_keeps_created(near: Any, stream: OwnStream, kind: str, end: str) -> None:
    sub = await subscribe(near, stream, kind, delete_on_close=False)
    await getattr(sub, end)()
    assert await stream.consumer_names() == [sub.consumer]


@pytest.mark.row(121)
@pytest.mark.covers("J109")
@pytest.mark.parametrize("kind", ["ephemeral", "durable", "pull"])
async def test_deletion_error_raised(
    own_server: Any, oracle_for: Any, make_stream: Any, connect: Any, kind: str
) -> None:
    own = await own_server(config=NO_DELETE)
    oracle = await oracle_for(own, user="oracle", password="o")
    stream = await make_stream(oracle=oracle)
    js = await connect(own, user="u", password="p")
    sub = await subscribe(js, stream, kind)
    with pytest.raises(jsclient.PermissionDeniedError) as raised:
        await sub.unsubscribe()
    assert raised.value.subject == f"$JS.API.CONSUMER.DELETE.{stream.name}.{sub.consumer}"
    assert sub.is_closed
    assert await stream.consumer_names() == [sub.consumer]
    await sub.unsubscribe()


@pytest.mark.covers("J109")
async def test_api_error_of_deletion_raised(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.subscribe(stream.all)
    answer = {"type": "t", "error": {"code": 500, "err_code": 10001, "description": "no"}}

    def fail(frame: Any) -> bytes:
        return frame.but(payload=json.dumps(answer).encode()).raw

    request = tap.hold_frames(match.published(DELETES), count=1)

    def is_its_answer(frame: Any) -> bool:
        return any(match.delivered(r.reply)(frame) for r in request.frames)

    tap.modify_frames(is_its_answer, fail)
    ending = asyncio.create_task(sub.unsubscribe())
    await request.wait()
    request.release()
    with pytest.raises(jsclient.ApiError) as raised:
        await ending
    assert raised.value.err_code == 10001
    assert sub.is_closed


@pytest.mark.covers("J109")
async def test_consumer_deleted_already_no_error(js: Any, stream: OwnStream) -> None:
    sub = await js.subscribe(stream.all)
    await stream.delete_consumer(sub.consumer)
    await sub.unsubscribe()
    sub = await js.pull_subscribe(stream.all)
    await stream.delete()
    await sub.unsubscribe()


@pytest.mark.covers("J108")
async def test_after_unsubscribe_nothing_returned(js: Any, stream: OwnStream) -> None:
    sub = await js.subscribe(stream.all)
    await stream.publish(5)
    await eventually(lambda: sub.pending == 5, what="five messages wait")
    await sub.unsubscribe()
    assert sub.pending == 0
    with pytest.raises(jsclient.ClosedError):
        await sub.next(timeout=5)
    assert [message async for message in sub] == []


@pytest.mark.core_cases(2)
@pytest.mark.covers("J108")
@pytest.mark.parametrize("kind", KINDS)
async def test_many_leave_nothing(
    server: Any, oracle: Any, js: Any, stream: OwnStream, events: list[Any], kind: str
) -> None:
    await stream.publish(3)
    await js.ping()
    await js.stream_names(stream.all).__anext__()
    async with no_leaks(oracle=oracle, streams=[stream.name], monitor=server.monitor):
        for number in range(20):
            sub = await subscribe(js, stream, kind, delete_on_close=True)
            if kind in ("ephemeral", "durable", "ordered"):
                assert numbers(await take(sub, 1)) == [1]
            elif "pull" in kind:
                assert numbers(await sub.fetch(2)) == [1, 2]
            await (sub.unsubscribe() if number % 2 else sub.drain())
            if number % 2 == 0 and kind in ("ephemeral", "durable", "queue", "ordered"):
                async for _ in sub:  # buffered messages. The deletion follows them
                    pass
                await eventually(lambda sub=sub: sub.is_closed, what="closed")
                await eventually(lambda: _none(stream), what="the consumer is deleted")
    expected = (jsclient.ConsumerReset, jsclient.events.DurableDeleted)
    assert [e for e in alarms(events) if not isinstance(e, expected)] == []


async def _none(stream: OwnStream) -> bool:
    return await stream.consumer_names() == []


@pytest.mark.row(120, 125)
@pytest.mark.covers("J113")
async def test_exits_delete_ephemeral(
    server: Any, connect: Any, stream: OwnStream, events: list[Any]
) -> None:
    js = await connect(server)
    async with await js.subscribe(stream.all):
        assert len(await stream.consumer_names()) == 1
    assert await stream.consumer_names() == []
    await js.subscribe(stream.all)
    await js.pull_subscribe(stream.all)
    await js.subscribe(stream.all, ordered=True)
    await js.subscribe(stream.all, durable="kept")
    assert len(await stream.consumer_names()) == 4
    await js.close()
    assert await stream.consumer_names() == ["kept"]
    assert of(jsclient.DeleteFailed, events) == []


@pytest.mark.covers("J81", "J108")
async def test_p26_heartbeats_not_counted(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """P26: heartbeats were counted, so a subscription for five messages ended after five heartbeats."""
    sub = await near.subscribe(stream.all, config=jsclient.ConsumerConfig(idle_heartbeat=0.5))
    await eventually(lambda: len(tap.find(match.is_heartbeat)) >= 6, what="six heartbeats")
    assert sub.pending == 0
    await stream.publish(5)
    assert numbers(await take(sub, 5)) == [1, 2, 3, 4, 5]
    assert alarms(events) == []


async def test_durables_end_without_a_timeout_while_the_server_is_lost(own_server: Any, connect: Any) -> None:
    """The question about messages left and the deletion waited for a timeout each."""
    own = await own_server()
    js = await connect(own, timeout=30.0)
    await js.create_stream("S", ["s"])
    subs = [await js.subscribe("s", durable=f"push{number}") for number in range(2)]
    pulls = [await js.pull_subscribe("s", durable=f"pull{number}") for number in range(2)]
    await own.kill()
    await eventually(lambda: not js.is_connected, what="the connection is lost")
    started = time.monotonic()
    ends = [subs[0].unsubscribe(), subs[1].drain(), pulls[0].unsubscribe(), pulls[1].drain()]
    results = await within(20, asyncio.gather(*ends, return_exceptions=True), "the ends")
    assert time.monotonic() - started < 15
    assert [type(result) for result in results] == [jsclient.DisconnectedError, type(None)] * 2


@pytest.mark.core_cases(2)
@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_while_the_server_is_away(tap: Any, near: Any, stream: OwnStream, kind: str) -> None:
    """The deletion fails, and the block is cancelled anyway: else a loop that tries again would never end."""
    sub = await subscribe(near, stream, kind, delete_on_close=True)
    entered = asyncio.Event()

    async def read() -> None:
        async with sub:
            entered.set()
            await asyncio.Event().wait()

    reading = asyncio.create_task(read())
    await entered.wait()
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected, 10, "the connection is lost")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(30, reading)
    assert sub.is_closed


async def test_exception_of_the_block_first(tap: Any, near: Any, stream: OwnStream) -> None:
    """The failed deletion is a note of it."""

    async def fail() -> None:
        async with await subscribe(near, stream, "ephemeral"):
            tap.refuse()
            tap.cut()
            await eventually(lambda: not near.is_connected, 10, "the connection is lost")
            raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake") as caught:
        await fail()
    assert "not connected to a server" in caught.value.__notes__[0]


@pytest.mark.parametrize("kind", ["ephemeral", "durable", "pull"])
async def test_ends_while_it_reconnects(tap: Any, near: Any, stream: OwnStream, kind: str) -> None:
    """The deletion of an unnamed consumer failed at once when the connection was on its way back."""
    sub = await subscribe(near, stream, kind, delete_on_close=True)
    tap.refuse()
    tap.cut()
    await eventually(lambda: not near.is_connected, 10, "the connection is lost")
    ending = asyncio.create_task(sub.unsubscribe())
    await asyncio.sleep(0)
    await tap.accept()
    await within(30, ending)
    assert await stream.consumer_names() == []
