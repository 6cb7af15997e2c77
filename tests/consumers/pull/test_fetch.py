"""Fetching on a fake connection: how it ends, what it counts, and that cancelling loses nothing."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient import Ending
from jsclient.errors import (
    ClosedError,
    ConfigError,
    ConsumerDeletedError,
    DisconnectedError,
    HeartbeatError,
    NoRespondersError,
    PullLimitError,
    RequestTimeoutError,
    StatusError,
)
from jsclient.protocol.events import DeleteFailed, ForeignMessage
from tests.support.fake import PullServer, Refusal, connected
from tests.support.strategies import data, foreign, heartbeat, status
from tests.support.virtual import settle, virtual


def now() -> float:
    return asyncio.get_running_loop().time()


def numbers(messages) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


class fetching:  # noqa: N801  reads as: async with fetching(sub, connection, 3) as fetch
    """A fetch under way, and the means to answer it."""

    def __init__(self, sub, connection, batch, **options) -> None:
        self.connection = connection
        self._call = sub.fetch(batch, **options)

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self._call)
        await settle()
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.wait({self.task})

    def arrives(self, *frames) -> None:
        self.connection.deliver(self.connection.pulls()[-1].reply, list(frames))


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
async def test_nobody_answers_asked_again(first):
    """The consumer exists: three more requests, and no more."""
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
async def test_statuses_end_own_request():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        first = asyncio.ensure_future(sub.fetch(2, expires=5))
        await settle()
        second = asyncio.ensure_future(sub.fetch(2, expires=5))
        await settle()
        one, two = [pull.reply for pull in connection.pulls()]
        assert one != two
        connection.deliver(two, [status(408, "Request Timeout")])
        assert (await second).ending is Ending.EXPIRED
        connection.deliver(one, [data(1), data(2)])
        assert numbers(await first) == [1, 2]


@virtual
async def test_inboxes_are_used_again():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        for number in range(5):
            async with fetching(sub, connection, 1) as fetch:
                fetch.arrives(data(number + 1))
                await fetch.task
        assert len(connection.listening) == 1


@virtual
async def test_reconnect_requests_the_rest():
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


@virtual
async def test_cancelled_fetch_keeps_messages():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3, expires=30.0) as fetch:
            fetch.arrives(data(1))
            await settle()
        assert sub.pending == 1
        connection.deliver(connection.pulls()[0].reply, [data(2)])
        async with fetching(sub, connection, 3, expires=30.0) as fetch:
            assert len(connection.pulls()) == 1, "the request that lives is taken over"
            fetch.arrives(data(3))
            assert numbers(await fetch.task) == [1, 2, 3]


@virtual
async def test_cancelled_fetches_lose_nothing():
    for seed in range(60):
        chance = random.Random(seed)
        async with connected() as (js, connection):
            sub = await js.pull_subscribe("orders.new")
            server = PullServer(connection, 60, chance)
            got: list[int] = []

            async def read(*, sub=sub, got=got, chance=chance):
                while True:
                    batch = await sub.fetch(chance.randint(1, 10), expires=chance.choice([0.3, 1.9]))
                    got += numbers(batch)

            while len(got) < 60:
                reader = asyncio.ensure_future(read())
                await asyncio.sleep(chance.choice([0, 0.01, 0.1, 1.0, 3.0]))
                reader.cancel()
                await asyncio.wait({reader})
                assert reader.cancelled(), reader
            await server.stop()
            assert got == list(range(1, 61)), seed


# --- the end -------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J108", "J112", "J113")
async def test_unsubscribe_deletes_own_only():
    async with connected() as (js, connection):
        connection.api.has("d")
        for how, deleted in [({}, 1), ({"durable": "e"}, 1), ({"durable": "d"}, 0), ({"consumer": "d"}, 0)]:
            before = len(connection.deleted())
            sub = await js.pull_subscribe("orders.new", **how)
            await sub.unsubscribe()
            await sub.unsubscribe()
            assert len(connection.deleted()) - before == deleted
            with pytest.raises(ClosedError):
                await sub.fetch(1)


@virtual
@pytest.mark.covers("J23")
async def test_pulls_without_lookup():
    async with connected() as (js, connection):
        connection.api.on("CONSUMER.INFO", Refusal(10014, 404))
        sub = await js.pull_subscribe("orders.new", consumer="mine")
        async with fetching(sub, connection, 1) as fetch:
            assert connection.pulls()[0].subject.endswith(".ORDERS.mine")
            fetch.arrives(data(1))
            assert numbers(await fetch.task) == [1]
        await sub.unsubscribe()
        assert connection.deleted() == []


@virtual
@pytest.mark.covers("J111")
async def test_failed_deletion_is_event():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        connection.api.on("CONSUMER.DELETE", Refusal(10008, 503))
        await sub.drain()
        await settle()
        assert len(connection.told(DeleteFailed)) == 1


@virtual
async def test_close_returns_untaken():
    async with connected() as (js, connection):
        connection.api.has("d")
        sub = await js.pull_subscribe("orders.new", durable="d")
        async with fetching(sub, connection, 3, expires=30.0) as fetch:
            await sub.unsubscribe()
            with pytest.raises(ClosedError):
                await fetch.task
        sub = await js.pull_subscribe("orders.new", durable="d")
        async with fetching(sub, connection, 3, expires=30.0) as fetch:
            fetch.arrives(data(1))
        await sub.unsubscribe()
        assert connection.acks() == [b"-NAK"]
        assert connection.listening == []
