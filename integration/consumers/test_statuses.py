"""Statuses are handled, reported or raised, and never handed over. Source: ADR-15 §Automatic Status Management."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.judge.reading import alarms, noting, numbers, of, take, wait_for_event
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from integration.kit.network import match

QUIET = ["100 Idle Heartbeat", "404 No Messages", "408 Request Timeout", "409 Batch Completed"]
ERRORS = {
    "409 Consumer Deleted": jsclient.ConsumerDeletedError,
    "409 Consumer is push based": jsclient.PushBasedError,
    "409 Exceeded MaxWaiting": jsclient.PullLimitError,
    "409 Leadership Change": jsclient.LeadershipChangeError,
    "409 Something New": jsclient.StatusError,
    "400 Bad Request": jsclient.BadRequestError,
    "503": jsclient.NoRespondersError,
    "599 Nobody Knows": jsclient.StatusError,
    "777": jsclient.StatusError,
}
CONFIG = jsclient.ConsumerConfig(flow_control=True, idle_heartbeat=0.2)


@pytest.fixture
async def tap(proxy: Any) -> Any:
    return await proxy()


@pytest.fixture
async def near(tap: Any, connect: Any) -> Any:
    """A jsclient connection through the proxy."""
    return await connect(tap)


def code_of(status: str) -> int:
    return int(status.partition(" ")[0])


async def inject_between(tap: Any, stream: OwnStream, subject: str, statuses: list[str]) -> None:
    """Store one message before each status, and one at the end. Each arrives before the next is sent."""
    for number, status in enumerate([*statuses, ""], start=1):
        seq = await stream.publish(1, first=number)
        await tap.wait_for(match.is_message(seq))
        if status:
            tap.inject_message(subject, status=status)


@pytest.mark.covers("J81", "J105", "J106", "J107")
async def test_p25_callback_errors_as_events(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    """P25: a 409 on the deliver subject called the callback with an empty message."""
    got: list[Any] = []
    sub = await near.subscribe(stream.all, config=CONFIG, callback=noting(got))
    statuses = [*QUIET, *ERRORS]
    await inject_between(tap, stream, sub.subject, statuses)
    tap.inject_message(sub.subject, status="100 FlowControl Request", reply="$JS.FC.S.C.one")
    await eventually(lambda: len(got) == len(statuses) + 1, what="the messages")
    await tap.wait_for(match.is_flow_control_reply)
    await tap.wait_for(match.is_heartbeat)
    assert numbers(got) == list(range(1, len(statuses) + 2))
    await eventually(lambda: len(of(jsclient.ErrorRaised, events)) == len(ERRORS), what="the errors")
    raised = of(jsclient.ErrorRaised, events)
    assert [(type(e.error), e.error.code) for e in raised] == [
        (kind, code_of(status)) for status, kind in ERRORS.items()
    ]
    assert {event.consumer for event in raised} == {sub.consumer}


@pytest.mark.covers("J81", "J105", "J106", "J107")
async def test_p25_next_raises_in_place(tap: Any, near: Any, stream: OwnStream) -> None:
    """P25: a 409 on the deliver subject came out as an empty message."""
    sub = await near.subscribe(stream.all, config=CONFIG)
    statuses = [*QUIET, *ERRORS]
    await inject_between(tap, stream, sub.subject, statuses)
    for number, status in enumerate(statuses, start=1):
        message = await sub.next(timeout=5)
        assert numbers([message]) == [number]
        if status in ERRORS:
            with pytest.raises(jsclient.StatusError) as raised:
                await sub.next(timeout=5)
            assert type(raised.value) is ERRORS[status]
            assert raised.value.code == code_of(status)
            assert raised.value.description == status.partition(" ")[2] or status == "503"
    assert numbers(await take(sub, 1)) == [len(statuses) + 1]
    with pytest.raises(jsclient.RequestTimeoutError):
        await sub.next(timeout=0.5)


@pytest.mark.covers("J107")
async def test_unknown_100_reported_once(tap: Any, near: Any, stream: OwnStream, events: list[Any]) -> None:
    """It is a sign of life, and the messages around it arrive."""
    sub = await near.subscribe(stream.all, config=CONFIG)
    await inject_between(tap, stream, sub.subject, ["100 Something New", "100 Something New", "100"])
    assert numbers(await take(sub, 4)) == [1, 2, 3, 4]
    await wait_for_event(jsclient.ErrorRaised, events)
    assert [str(e.error) for e in of(jsclient.ErrorRaised, events)] == ["status 100 Something New"]


@pytest.mark.covers("J81", "J105", "J107")
@pytest.mark.parametrize("way", ["async for", "batches"])
async def test_iteration_raises_and_resumes(tap: Any, near: Any, stream: OwnStream, way: str) -> None:
    sub = await near.subscribe(stream.all, config=CONFIG)
    await inject_between(tap, stream, sub.subject, [*QUIET, "409 Something New", "777"])
    got: list[Any] = []
    codes: list[int] = []

    async def read() -> None:
        while len(got) < 7:
            try:
                # an error ends the loop, and a new loop continues after it
                if way == "async for":
                    async for message in sub:
                        got.append(message)
                        if len(got) == 7:
                            break
                else:
                    async for batch in sub.batches():
                        got.extend(batch)
                        if len(got) == 7:
                            break
            except jsclient.StatusError as error:
                codes.append(error.code)

    await within(10, read(), "reading on")
    assert numbers(got) == list(range(1, 8))
    assert codes == [409, 777]


@pytest.mark.covers("J81")
async def test_user_headers_look_like_status_data(
    tap: Any, near: Any, stream: OwnStream, events: list[Any]
) -> None:
    sub = await near.subscribe(stream.all, config=CONFIG.replace(idle_heartbeat=5.0))
    headers = {"Status": "409", "Description": "Consumer Deleted", "Nats-Consumer-Stalled": "$JS.API.INFO"}
    await stream.oracle.publish(stream.subject(), b"1", headers=headers)
    (first,) = await take(sub, 1)
    tap.inject_message(
        sub.subject, b"2", status="409 Consumer Deleted", reply="$JS.ACK.S.C.1.2.2.1700000000123456789.0"
    )
    (second,) = await take(sub, 1)
    assert (first.data, first.headers.get("Status")) == (b"1", "409")
    assert second.data == b"2"
    assert alarms(events) == []


@pytest.mark.core_cases(6)
@pytest.mark.row(45, 61)
@pytest.mark.covers("J105", "J106", "J107")
@pytest.mark.parametrize("status", ERRORS)
@pytest.mark.parametrize("call", ["next", "fetch"])
async def test_error_status_ends_pull_with_error(
    tap: Any, near: Any, stream: OwnStream, call: str, status: str
) -> None:
    sub = await near.pull_subscribe(stream.all)
    waiting = asyncio.create_task(sub.next(timeout=20) if call == "next" else sub.fetch(5, expires=20))
    requests, passing = 0, {jsclient.LeadershipChangeError, jsclient.NoRespondersError}
    for _ in range(4 if ERRORS[status] in passing else 1):
        # A consumer that moves, or has no leader, is asked again. If that lasts, it is an error.
        request = await tap.wait_for(match.published("$JS.API.CONSUMER.MSG.NEXT.>"), since=requests)
        requests = request.number + 1
        tap.inject_message(request.reply, status=status)
    with pytest.raises(jsclient.StatusError) as raised:
        await within(5, waiting, "the pull")
    assert type(raised.value) is ERRORS[status]
    assert (raised.value.code, raised.value.description) == (code_of(status), status.partition(" ")[2])


async def test_pull_goes_on_when_consumer_moves(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    waiting = asyncio.create_task(sub.fetch(2, expires=20))
    request = await tap.wait_for(match.published("$JS.API.CONSUMER.MSG.NEXT.>"))
    tap.inject_message(request.reply, status="409 Leadership Change")
    await tap.wait_for(match.published("$JS.API.CONSUMER.MSG.NEXT.>"), since=request.number + 1)
    await stream.publish(2)
    assert numbers(await within(5, waiting, "the fetch")) == [1, 2]


@pytest.mark.covers("J107")
async def test_unknown_status_ends_pull(tap: Any, near: Any, stream: OwnStream) -> None:
    sub = await near.pull_subscribe(stream.all)
    await stream.publish(2)
    reader = sub.messages()
    assert numbers([await reader.next(timeout=5)]) == [1]
    request = tap.sent("$JS.API.CONSUMER.MSG.NEXT.>")[-1]
    tap.inject_message(request.reply, status="599 Nobody Knows")
    assert numbers([await reader.next(timeout=5)]) == [2]
    with pytest.raises(jsclient.StatusError) as raised:
        await reader.next(timeout=5)
    assert raised.value.code == 599


@pytest.mark.covers("J81", "J105")
async def test_statuses_on_user_connection(proxy: Any, stream: OwnStream, events: list[Any]) -> None:
    from integration.kit.clients.foreign import client

    tap = await proxy()
    async with client(tap) as nc:
        js = jsclient.JetStream(nc, on_event=events.append)
        got: list[Any] = []
        sub = await js.subscribe(stream.all, config=CONFIG, callback=noting(got))
        await inject_between(tap, stream, sub.subject, [*QUIET, "409 Consumer Deleted", "777"])
        tap.inject_message(sub.subject, status="100 FlowControl Request", reply="$JS.FC.S.C.one")
        await tap.wait_for(match.is_flow_control_reply)
        await tap.wait_for(match.is_heartbeat)
        await eventually(lambda: len(got) == 7, what="seven messages")
        assert numbers(got) == list(range(1, 8))
        await wait_for_event(jsclient.ErrorRaised, events, lambda e: e.error.code == 777)
        assert [e.error.code for e in of(jsclient.ErrorRaised, events)] == [409, 777]
        await js.close()
