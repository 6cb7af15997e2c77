"""The requests of a handle and their inboxes: each has its own, and none loses a message."""

from __future__ import annotations

import asyncio
import random

import pytest

from jsclient import Ending
from jsclient.consumers.pull.puller import Puller, ReaderInbox
from jsclient.errors import (
    ClosedError,
    PermissionDeniedError,
)
from jsclient.protocol.consumers.fetch import Pull
from jsclient.protocol.consumers.priority import GroupRequest
from tests.consumers.pull.kit import fetching, numbers
from tests.support.fake import PullServer, connected
from tests.support.strategies import CONSUMER, STREAM, data, status
from tests.support.virtual import settle, virtual


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


def request(batch: int) -> Pull:
    return Pull(batch, 5.0, idle_heartbeat=1.0)


@virtual
async def test_abandoned_request_is_handed_over():
    """Its messages go to the next caller."""
    async with connected() as (js, connection):
        puller = Puller(js._context, STREAM, CONSUMER, None)
        slot = await puller.request(request(3))
        assert puller.adopt(3, None) == [], "it has a caller"
        slot.receive_frames([data(1)])
        puller.abandon_request(slot)
        slot.receive_frames([data(2)])
        assert [frame[1] for frame in puller.leftover] == [data(1)[1], data(2)[1]]
        assert puller.adopt(3, GroupRequest("other")) == []
        assert puller.adopt(0, None) == []
        assert puller.adopt(3, None) == [slot]
        slot.receive_frames([data(3)])
        assert (len(slot.frames), puller.arrived) == (1, 3)
        await puller.close(give_back=False)
        assert connection.listening == []


@virtual
async def test_inbox_of_an_ended_request_is_used_again_and_a_silent_one_dropped():
    async with connected() as (js, connection):
        puller = Puller(js._context, STREAM, CONSUMER, None)
        ended, silent = await puller.request(request(1)), await puller.request(request(1))
        ended.receive_frames([status(404, "No Messages")])
        for slot in (ended, silent):
            puller.abandon_request(slot)
        assert await puller.request(request(1)) is ended
        await asyncio.sleep(30)
        assert await puller.request(request(1)) is not silent
        await settle()
        assert len(connection.listening) == 2
        await puller.close(give_back=False)


@virtual
async def test_lost_connection_ends_all_requests():
    async with connected() as (js, connection):
        puller = Puller(js._context, STREAM, CONSUMER, None)
        slots = [await puller.request(request(1)) for _ in range(2)]
        puller.abandon_request(slots[1])
        connection.disconnect()
        assert [slot.request.ending for slot in slots] == [Ending.DISCONNECTED] * 2
        connection.reconnect()
        await puller.close(give_back=False)


@virtual
async def test_missing_permission_ends_the_requests_it_is_about():
    async with connected() as (js, connection):
        puller = Puller(js._context, STREAM, CONSUMER, None)
        first, second = [await puller.request(request(1)) for _ in range(2)]
        connection.deny("subscribe", second.inbox.subject)
        assert (first.request.ending, second.request.ending) == (None, Ending.REFUSED)
        connection.deny("publish", connection.pulls()[0].subject)
        assert isinstance(first.request.error, PermissionDeniedError)
        await puller.close(give_back=False)


@virtual
async def test_closed_handle_returns_what_nobody_took():
    async with connected() as (js, connection):
        puller = Puller(js._context, STREAM, CONSUMER, None)
        puller.leftover.append(data(1))
        slot = await puller.request(request(2))
        connection.under_way.append((slot.inbox.subject, [data(2)]))
        puller.abandon_request(slot)
        await puller.close(give_back=True)
        assert connection.acks() == [b"-NAK"] * 2
        with pytest.raises(ClosedError, match="subscribe again"):
            puller.check_open()


@virtual
async def test_close_waits_until_the_server_has_served_the_requests():
    """A request that was just sent may not be served yet when the server answers a PING."""
    async with connected() as (js, connection):
        puller = Puller(js._context, STREAM, CONSUMER, None)
        slot = await puller.request(request(2))
        puller.abandon_request(slot)
        closing = asyncio.create_task(puller.close(give_back=True))
        await asyncio.sleep(0.1)
        assert not [how for how, _ in connection.log if how in {"unsub", "drain"}]
        _, barrier = connection.inboxes[-2:]
        connection.deliver(slot.inbox.subject, [data(1)])
        connection.deliver(barrier.subject, [data(2)])
        await closing
        assert connection.acks() == [b"-NAK"] * 2
        assert connection.listening == []


@virtual
async def test_close_does_not_ask_again_after_an_old_request():
    async with connected() as (js, connection):
        puller = Puller(js._context, STREAM, CONSUMER, None)
        slot = await puller.request(request(2))
        puller.abandon_request(slot)
        await asyncio.sleep(1.1)
        inboxes = len(connection.inboxes)
        await puller.close(give_back=True)
        assert len([one for how, one in connection.log if how == "sub"]) == inboxes


@virtual
@pytest.mark.parametrize("give_back", [True, False])
async def test_close_that_is_cancelled_ends_all_inboxes(give_back):
    """At every step of the event loop. Another call waits until they have ended."""
    for steps in range(12):
        async with connected() as (js, connection):
            puller = Puller(js._context, STREAM, CONSUMER, None)
            slots = [await puller.request(request(2)) for _ in range(3)]
            puller.abandon_request(slots[0])
            connection.under_way.append((slots[0].inbox.subject, [data(1)]))
            closing = asyncio.create_task(puller.close(give_back=give_back))
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait({closing})
            await puller.close(give_back=give_back)
            assert connection.listening == [], steps
            assert connection.acks() == ([b"-NAK"] if give_back else [])


@virtual
async def test_answers_of_a_reader_have_the_number_of_the_request():
    async with connected() as (_, connection):
        received = []
        inbox = ReaderInbox(connection, received.extend)
        await inbox.open_inbox()
        for number in (1, 2):
            connection.deliver(inbox.reply(number), [data(number)])
        assert len(received) == 2
        await inbox.close()
        await inbox.close()
        assert connection.listening == []
