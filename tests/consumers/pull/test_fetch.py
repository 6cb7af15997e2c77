"""Fetching on a fake connection: how it ends, what it counts, and that cancelling loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from jsclient import Ending
from jsclient.errors import (
    ConfigError,
    ConsumerDeletedError,
    DisconnectedError,
    HeartbeatError,
    NoRespondersError,
    PullLimitError,
    RequestTimeoutError,
    StatusError,
)
from jsclient.protocol.events import ForeignMessage
from tests.consumers.pull.kit import fetching, now, numbers
from tests.support.fake import connected
from tests.support.strategies import data, foreign, heartbeat, status
from tests.support.virtual import settle, virtual


@virtual
@pytest.mark.covers("J1", "J46")
async def test_fetch_is_one_request():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3, expires=2.0) as fetch:
            (pull,) = connection.pulls()
            assert pull.subject == f"$JS.API.CONSUMER.MSG.NEXT.ORDERS.{sub.consumer}"
            assert pull.json == {"batch": 3, "expires": 2_000_000_000, "idle_heartbeat": 500_000_000}
            fetch.arrives(data(1), data(2))
            await settle()
            assert not fetch.task.done()
            fetch.arrives(data(3))
            batch = await fetch.task
        assert numbers(batch) == [1, 2, 3]
        assert (batch.ending, batch.error, len(batch)) == (Ending.FULL, None, 3)
        assert numbers(batch[1:]) == [2, 3]


@virtual
@pytest.mark.covers("J103", "J104")
@pytest.mark.parametrize(
    ("frame", "ending"),
    [
        (status(404, "No Messages"), Ending.NO_MESSAGES),
        (status(408, "Request Timeout"), Ending.EXPIRED),
        (status(408, "Requests Pending"), Ending.EXPIRED),
        (status(409, "Message Size Exceeds MaxBytes"), Ending.MAX_BYTES),
    ],
)
async def test_ordinary_end_is_silent(frame, ending):
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3) as fetch:
            fetch.arrives(data(1), frame)
            batch = await fetch.task
        assert (numbers(batch), batch.ending, batch.error) == ([1], ending, None)
        async with fetching(sub, connection, 3) as fetch:
            fetch.arrives(frame)
            assert len(await fetch.task) == 0


@virtual
@pytest.mark.covers("J105", "J106", "J107")
@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (status(409, "Consumer Deleted"), ConsumerDeletedError),
        (status(409, "Exceeded MaxWaiting"), PullLimitError),
        (status(409, "Something New"), StatusError),
        (status(777, "New"), StatusError),
    ],
)
async def test_error_raised_or_in_batch(frame, error):
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3) as fetch:
            fetch.arrives(frame)
            with pytest.raises(error):
                await fetch.task
        async with fetching(sub, connection, 3) as fetch:
            fetch.arrives(data(1), frame)
            batch = await fetch.task
        assert numbers(batch) == [1]
        assert type(batch.error) is error


@virtual
@pytest.mark.covers("J106")
@pytest.mark.parametrize("first", [[], [data(1)]], ids=["nothing", "one message"])
async def test_no_responders_is_retried(first):
    """The consumer exists, so exactly three more requests are sent."""
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3) as fetch:
            fetch.arrives(*first, status(503))
            for count in (2, 3, 4):
                await asyncio.sleep(0.11)
                assert len(connection.pulls()) == count
                assert connection.pulls()[-1].json["batch"] == 3 - len(first)
                fetch.arrives(status(503))
            if first:
                batch = await fetch.task
                assert (numbers(batch), batch.ending) == ([1], Ending.NO_RESPONDERS)
                assert isinstance(batch.error, NoRespondersError)
            else:
                with pytest.raises(NoRespondersError):
                    await fetch.task
        assert len(connection.pulls()) == 4


@virtual
@pytest.mark.covers("J81", "J102")
async def test_heartbeats_stay_inside():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 1) as fetch:
            fetch.arrives(heartbeat(), foreign(), status(100, "FlowControl Request", b"fc.1"), data(1))
            assert numbers(await fetch.task) == [1]
        assert connection.to("fc.") == []
        await settle()
        assert len(connection.told(ForeignMessage)) == 1


@virtual
async def test_silent_server_ends_fetch():
    async with connected() as (js, _connection):
        sub = await js.pull_subscribe("orders.new")
        started = now()
        batch = await sub.fetch(3, expires=1.0)
        assert (len(batch), batch.ending) == (0, Ending.EXPIRED)
        assert now() - started == pytest.approx(1.5)
        with pytest.raises(RequestTimeoutError):
            await sub.next(timeout=1.0)
        with pytest.raises(HeartbeatError):
            await sub.fetch(1, expires=3600.0)


@virtual
async def test_cannot_work_refused_before_sent():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        for options in (
            {"batch": 0},
            {"expires": 0},
            {"expires": "1"},
            {"max_bytes": 0},
            {"idle_heartbeat": 4.0},
        ):
            with pytest.raises(ConfigError):
                await sub.fetch(**({"batch": 1} | options))
        assert connection.pulls() == []


@virtual
async def test_without_waiting_one_takes_there():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3, no_wait=True) as fetch:
            assert connection.pulls()[0].json == {"batch": 3, "no_wait": True}
            fetch.arrives(data(1), status(404, "No Messages"))
            assert numbers(await fetch.task) == [1]


@virtual
async def test_silence_does_not_say_nothing_there():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        with pytest.raises(RequestTimeoutError):
            await sub.fetch(3, no_wait=True)
        async with fetching(sub, connection, 3, no_wait=True) as fetch:
            fetch.arrives(data(1))
            batch = await fetch.task
            assert (numbers(batch), batch.ending) == ([1], Ending.SILENT)
            assert isinstance(batch.error, RequestTimeoutError)


@virtual
async def test_reconnect_requests_remaining_messages():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3, expires=10.0) as fetch:
            fetch.arrives(data(1))
            await asyncio.sleep(4)
            fetch.arrives(heartbeat())
            connection.disconnect()
            await asyncio.sleep(0.5)
            connection.reconnect()
            await settle()
            again = connection.pulls()[-1].json
            assert again["batch"] == 2
            assert again["expires"] == pytest.approx(5.5e9)
            fetch.arrives(data(2), data(3))
            assert numbers(await fetch.task) == [1, 2, 3]


@virtual
async def test_long_outage_ends_fetch():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3, expires=60.0) as fetch:
            connection.disconnect()
            started = now()
            with pytest.raises(DisconnectedError):
                await fetch.task
            assert now() - started < 2.0
        connection.reconnect()
