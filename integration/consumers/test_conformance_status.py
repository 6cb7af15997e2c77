"""Statuses, heartbeats and flow control as other clients are held to them. Rows 34 to 50 of docs/conformance.md."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, noting, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match

NEXT = "$JS.API.CONSUMER.MSG.NEXT.>"
WINDOW = 32 << 20
"""Bytes that the server may have in flight to a push consumer."""
BEAT = 0.6
"""Seconds between heartbeats of pull requests. Twice as long the server of a busy machine may be silent."""


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


# --- push ----------------------------------------------------------------------------------------------------


@pytest.mark.row(34, 36, 38)
async def test_idle_ordered_holds_server(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    count, size = 3000, 10_000  # 30 MB
    await stream.publish(count, size=size)
    sub = await near.subscribe(stream.all, ordered=True)
    await tap.wait_for(match.is_flow_control)

    async def stands_still() -> bool:
        before = sub.pending
        await near.ping()
        return bool(sub.pending == before)

    await eventually(stands_still, 10, "the server to wait")
    assert sub.pending < count
    assert tap.find(match.is_flow_control_reply) == []
    most = 0
    async with asyncio.timeout(90):
        for number in range(1, count + 1):
            assert numbers([await sub.next()]) == [number]
            most = max(most, sub.pending_bytes)
    assert most <= WINDOW
    assert sub.dropped == 0
    assert alarms(events) == []
    await sub.unsubscribe()


@pytest.mark.row(39)
@pytest.mark.parametrize("way", ["next", "callback"])
async def test_request_without_flow_control(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    got: list[Any] = []
    sub = await near.subscribe(stream.all, callback=noting(got) if way == "callback" else None)
    for _ in range(3):
        tap.inject_message(sub.subject, status="100 FlowControl Request", reply="$JS.FC.S.C.one")
    await stream.publish(1)
    if way == "next":
        got += await take(sub, 1)
    await eventually(lambda: numbers(got) == [1], what="the message behind them")
    await near.ping()
    assert [frame.subject for frame in tap.find(match.is_flow_control_reply)] == ["$JS.FC.S.C.one"]
    assert alarms(events) == []


@pytest.mark.row(41)
@pytest.mark.parametrize("way", ["asked", "callback", "ordered", "ordered callback"])
async def test_alarm_for_any_reading(js: Any, stream: OwnStream, events: list[Any], way: str) -> None:
    got: list[Any] = []
    options: dict[str, Any] = {"ordered": way.startswith("ordered")}
    if way.endswith("callback"):
        options["callback"] = got.append
    config = jsclient.ConsumerConfig(idle_heartbeat=0.2)
    sub = await js.subscribe(stream.all, config=config, **options)
    missing = sub.consumer
    await stream.delete_consumer(missing)
    missed = await wait_for_event(jsclient.HeartbeatMissed, events)
    assert (missed.stream, missed.consumer) == (stream.name, missing)
    assert missed.silent_for >= 3 * 0.2
    assert got == []
    if options["ordered"]:
        await wait_for_event(jsclient.ConsumerReset, events)
        assert of(jsclient.ConsumerDeleted, events) == []
    else:
        assert (await wait_for_event(jsclient.ConsumerDeleted, events)).consumer == missing
    await sub.unsubscribe()


# --- pull ----------------------------------------------------------------------------------------------------


@pytest.mark.row(44, 50)
@pytest.mark.parametrize("way", ["messages", "fetch", "next"])
async def test_idle_pull_no_alarm(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], way: str
) -> None:
    """The status that the consumer was deleted is lost. Only silence shows it, long before the request expires."""
    sub = await near.pull_subscribe(stream.all)
    if way == "messages":
        call = sub.messages(expires=60, idle_heartbeat=BEAT).next()
    elif way == "fetch":
        call = sub.fetch(3, expires=60, idle_heartbeat=BEAT)
    else:
        call = sub.next(timeout=60)  # with the longest heartbeat, 2 s
    waiting = asyncio.create_task(call)
    await eventually(
        lambda: len(tap.find(match.is_heartbeat)) >= (1 if way == "next" else 4), what="heartbeats"
    )
    assert not waiting.done()
    assert alarms(events) == []
    tap.drop_frames(match.with_status("409"))
    await stream.until_asked(sub.consumer)
    await stream.delete_consumer(sub.consumer)
    if way == "messages":
        with pytest.raises(jsclient.ConsumerDeletedError):
            await within(30, waiting, "the error")
        assert (await wait_for_event(jsclient.HeartbeatMissed, events)).silent_for >= 2 * BEAT
        await wait_for_event(jsclient.ConsumerDeleted, events)
    else:
        with pytest.raises(jsclient.HeartbeatError):
            await within(30, waiting, "the error")


SILENT = ["404 No Messages", "408 Request Timeout", "408 Interest Expired", "409 Batch Completed"]
TOLD = {
    "409 Exceeded MaxWaiting": jsclient.PullLimitError,
    "409 Leadership Change": jsclient.LeadershipChangeError,
    "409 Server Shutdown": jsclient.LeadershipChangeError,
    "409 Something New": jsclient.StatusError,
    "503": jsclient.NoRespondersError,
}
ENDING = {
    "409 Exceeded MaxRequestBatch of 5": jsclient.PullLimitError,
    "409 Exceeded MaxRequestExpires of 1s": jsclient.PullLimitError,
    "409 Exceeded MaxRequestMaxBytes of 10": jsclient.PullLimitError,
    "409 Consumer Deleted": jsclient.ConsumerDeletedError,
    "409 Consumer is push based": jsclient.PushBasedError,
    "400 Bad Request - Priority Group missing": jsclient.BadRequestError,
    "599 Nobody Knows": jsclient.StatusError,
}


@pytest.mark.core_cases(5)
@pytest.mark.row(45, 48)
@pytest.mark.parametrize("status", [*SILENT, *TOLD, *ENDING])
async def test_pull_follows_status_table(
    tap: Any, near: Any, stream: OwnStream, events: list[Any], status: str
) -> None:
    sub = await near.pull_subscribe(stream.all)
    reader = sub.messages(max_messages=4)
    waiting = asyncio.create_task(reader.next(timeout=10))
    request = await tap.wait_for(match.published(NEXT))
    tap.inject_message(request.reply, status=status)
    if status in ENDING:
        with pytest.raises(jsclient.StatusError) as raised:
            await within(5, waiting, "the error")
        assert type(raised.value) is ENDING[status]
        assert raised.value.description == status.partition(" ")[2]
        await near.ping()
        assert len(tap.sent(NEXT)) == 1
        assert alarms(events) == []
    else:
        await tap.wait_for(match.published(NEXT), since=request.number + 1)
        await stream.publish(2)
        assert numbers([await waiting, await reader.next(timeout=5)]) == [1, 2]
        assert [type(event.error) for event in of(jsclient.ErrorRaised, events)] == (
            [TOLD[status]] if status in TOLD else []
        )
        assert len(alarms(events)) == len(of(jsclient.ErrorRaised, events))
    await reader.stop()


@pytest.mark.row(47)
@pytest.mark.parametrize(
    ("limit", "ask"),
    [
        ({"max_batch": 5}, {"max_messages": 6}),
        ({"max_expires": 10**9}, {"expires": 1.1}),
        ({"max_bytes": 1000}, {"max_bytes": 1001}),
    ],
    ids=["max_batch", "max_expires", "max_bytes"],
)
async def test_exceeded_limit_named(
    near: Any, stream: OwnStream, limit: dict[str, Any], ask: dict[str, Any]
) -> None:
    await stream.publish(1)
    await stream.create_consumer("limited", **limit)
    sub = await near.pull_subscribe(stream=stream.name, consumer="limited")
    with pytest.raises(jsclient.PullLimitError, match="Exceeded Max"):
        await within(5, sub.messages(**ask).next(), "the error")
    # The attempt has removed no message.
    assert numbers([await sub.messages(max_messages=5, expires=0.9).next(timeout=5)]) == [1]
