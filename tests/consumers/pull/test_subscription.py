"""A pull subscription on a fake connection: how it begins and ends, and what becomes of the consumer."""

from __future__ import annotations

import pytest

from jsclient.consumers.pull.subscription import PullSubscription
from jsclient.errors import (
    ClosedError,
)
from jsclient.protocol.events import ConsumerNotKept, DeleteFailed
from tests.consumers.pull.kit import fetching, numbers
from tests.support.fake import Refusal, connected
from tests.support.strategies import data
from tests.support.virtual import settle, virtual


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


@virtual
async def test_it_names_its_consumer_and_is_open():
    async with connected() as (js, _):
        sub = await js.pull_subscribe("orders.new", durable="d")
        assert isinstance(sub, PullSubscription)
        assert (sub.stream, sub.consumer, sub.created, sub.pending, sub.is_closed) == (
            "ORDERS",
            "d",
            True,
            0,
            False,
        )
        assert repr(sub) == "<PullSubscription ORDERS/d>"
        assert (await sub.consumer_info()).name == "d"
        await sub.unsubscribe()
        assert sub.is_closed


@virtual
@pytest.mark.parametrize(("chosen", "deleted"), [(None, True), (True, True), (False, False)])
async def test_created_consumer_is_deleted_unless_the_caller_keeps_it(chosen, deleted):
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new", durable="d", delete_on_close=chosen)
        await settle()
        assert bool(connection.told(ConsumerNotKept)) is (chosen is None), "it was not chosen"
        await sub.unsubscribe()
        assert connection.deleted() == (["d"] if deleted else [])


@virtual
@pytest.mark.parametrize(("durable", "deleted"), [(None, 1), ("d", 0)])
async def test_closing_client_deletes_ephemeral_consumers_only(durable, deleted):
    async with connected() as (js, connection):
        await js.pull_subscribe("orders.new", durable=durable)
        await js.close()
        assert len(connection.deleted()) == deleted


@virtual
async def test_messages_of_cancelled_calls_are_counted():
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        async with fetching(sub, connection, 3, expires=30.0) as fetch:
            fetch.arrives(data(1), data(2))
        assert sub.pending == 2
        assert numbers(await sub.fetch(2, no_wait=True)) == [1, 2]
        assert sub.pending == 0
