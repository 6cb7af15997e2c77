"""The end of a subscription's consumer: what is requested first, and what is reported."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.consumers.ending import delete_created, warn_of_deletion
from jsclient.errors import ApiError, DisconnectedError
from jsclient.protocol.consumers.subscribe import Binding
from jsclient.protocol.events import ConsumerNotKept, DurableDeleted
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.strategies import info
from tests.support.virtual import virtual

NAMED = Binding(stream="ORDERS", consumer="d", info=info("d", durable_name="d"), created=True, is_named=True)
EPHEMERAL = Binding(stream="ORDERS", consumer="e", info=info("e"), created=True)
BOUND = Binding(stream="ORDERS", consumer="d", info=info("d", durable_name="d"), created=False, is_named=True)


def state(**fields) -> dict:
    return {"stream_name": "ORDERS", "name": "d", "config": {}, **fields}


@pytest.mark.parametrize(
    ("binding", "chosen", "warns"),
    [
        (NAMED, None, True),
        (NAMED, True, False),
        (NAMED, False, False),
        (EPHEMERAL, None, False),
        (BOUND, None, False),
    ],
)
def test_unchosen_deletion_is_warned_of(binding, chosen, warns):
    events = []
    warn_of_deletion(binding, events.append, delete_on_close=chosen)
    assert [type(event) for event in events] == [ConsumerNotKept] * warns


@virtual
async def test_deletion_of_a_named_consumer_says_what_was_in_it():
    async with connected() as (js, connection):
        events = []
        connection.api.on("CONSUMER.INFO", state(num_pending=3, num_ack_pending=2))
        await delete_created(js._context, NAMED, "d", events.append, chosen=True)
        (event,) = events
        assert isinstance(event, DurableDeleted)
        assert (event.pending, event.unacked, event.chosen) == (3, 2, True)


@virtual
async def test_acks_on_their_way_are_counted_first():
    async with connected() as (js, connection):
        events = []
        connection.api.on("CONSUMER.INFO", state(num_ack_pending=2), state(num_ack_pending=0))
        await delete_created(js._context, NAMED, "d", events.append, chosen=False)
        assert (events[0].pending, events[0].unacked) == (0, 0)


@virtual
async def test_ephemeral_consumer_is_deleted_without_a_word():
    async with connected() as (js, connection):
        events = []
        await delete_created(js._context, EPHEMERAL, "e", events.append, chosen=False)
        assert (events, connection.deleted()) == ([], ["e"])
        assert connection.to("$JS.API.CONSUMER.INFO") == []


@pytest.mark.parametrize("answer", [SILENCE, Refusal(10039, 503, "not enabled")])
@virtual
async def test_state_may_be_unknown(answer):
    async with connected() as (js, connection):
        events = []
        connection.api.on("CONSUMER.INFO", *[answer] * 5)
        start = asyncio.get_running_loop().time()
        await delete_created(js._context, NAMED, "d", events.append, chosen=False)
        assert events[0].pending is None
        assert asyncio.get_running_loop().time() - start <= 2.5, "half of a timeout"


@virtual
async def test_consumer_that_did_not_exist_is_not_reported():
    async with connected() as (js, connection):
        events = []
        connection.api.on("CONSUMER.DELETE", Refusal(10014, 404, "consumer not found"))
        await delete_created(js._context, NAMED, "d", events.append, chosen=False)
        connection.api.on("CONSUMER.DELETE", Refusal(10008, 503))
        with pytest.raises(ApiError):
            await delete_created(js._context, NAMED, "d", events.append, chosen=False)
        assert events == []


@virtual
async def test_lost_connection_is_waited_for_a_second():
    async with connected() as (js, connection):
        connection.disconnect()
        start = asyncio.get_running_loop().time()
        with pytest.raises(DisconnectedError):
            await delete_created(js._context, EPHEMERAL, "e", lambda _: None, chosen=False)
        assert asyncio.get_running_loop().time() - start == 1.0
        deleting = asyncio.ensure_future(
            delete_created(js._context, EPHEMERAL, "e", lambda _: None, chosen=False)
        )
        await asyncio.sleep(0.5)
        connection.reconnect()
        await deleting
        assert connection.deleted() == ["e"]
