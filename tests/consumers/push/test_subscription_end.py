"""How a push subscription ends: unsubscribe, drain, close, and what becomes of the consumer."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import ApiError, ClosedError, RequestTimeoutError
from jsclient.protocol.events import DeleteFailed
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.strategies import data, flow_control
from tests.support.virtual import noting, settle, virtual


def numbers(messages) -> list[int]:
    return [message.metadata.stream_seq for message in messages]


@virtual
@pytest.mark.covers("J52", "J108", "J113")
@pytest.mark.parametrize("how", [{}, {"durable": "d"}, {"queue": "q"}])
async def test_unsubscribe_then_delete(how):
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", **how)
        await sub.unsubscribe()
        info = [("pub", f"$JS.API.CONSUMER.INFO.ORDERS.{sub.consumer}")] if how else []  # what is left in it
        assert connection.log[-2 - len(info) :] == [
            ("unsub", sub.subject),
            *info,
            ("pub", f"$JS.API.CONSUMER.DELETE.ORDERS.{sub.consumer}"),
        ]
        await sub.unsubscribe()
        assert len(connection.deleted()) == 1
        with pytest.raises(ClosedError):
            await sub.next()


@virtual
@pytest.mark.covers("J112")
@pytest.mark.parametrize("end", ["unsubscribe", "drain"])
async def test_consumer_stays_without_delete_on_close(end):
    async with connected() as (js, connection):
        connection.api.has("d", deliver_subject="_INBOX.there")
        for sub in [
            await js.subscribe("orders.new", durable="d"),
            await js.subscribe("orders.new", durable="e", delete_on_close=False),
        ]:
            await getattr(sub, end)()
            assert sub.is_closed
        await settle()
        assert connection.deleted() == []


@virtual
@pytest.mark.covers("J108")
@pytest.mark.parametrize("stays", [True, False])
async def test_lost_interest_is_known_if_consumer_stays(stays):
    """The next subscriber may come at once: `unsubscribe` returns when the server knows. A deletion says it as well."""
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new", durable="d", delete_on_close=not stays)
        await sub.unsubscribe()
        ends = [entry for entry in connection.log if entry[1] == sub.subject and entry[0] != "sub"]
        assert ends == [("drain" if stays else "unsub", sub.subject)]


@virtual
@pytest.mark.covers("J109")
@pytest.mark.parametrize(
    ("answer", "error"), [(Refusal(10008, 503), ApiError), (SILENCE, RequestTimeoutError)]
)
async def test_failed_deletion_is_raised(answer, error):
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        connection.api.on("CONSUMER.DELETE", answer)
        with pytest.raises(error):
            await sub.unsubscribe()
        assert sub.is_closed
        assert connection.listening == []
        assert connection.told(DeleteFailed) == []


@virtual
async def test_consumer_deleted_already_as_wished():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        connection.api.on("CONSUMER.DELETE", Refusal(10014, 404))
        await sub.unsubscribe()


@virtual
@pytest.mark.covers("J110", "J113")
async def test_drain_deletes_after_last():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        connection.deliver(sub.subject, [data(1)])
        connection.under_way = [(sub.subject, [data(2)]), (sub.subject, [data(3)])]
        await sub.drain()
        assert connection.log[-1] == ("drain", sub.subject)
        assert connection.deleted() == []
        assert numbers([message async for message in sub]) == [1, 2, 3]
        await settle()
        assert connection.deleted() == [sub.consumer]
        assert sub.is_closed


@virtual
@pytest.mark.covers("J110")
async def test_drain_serves_waiting_reader():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")

        async def read():
            return numbers([message async for message in sub])

        reader = asyncio.ensure_future(read())
        await settle()
        connection.under_way = [(sub.subject, [data(number)]) for number in range(1, 6)]
        await sub.drain()
        assert await reader == [1, 2, 3, 4, 5]
        await settle()
        order = [entry for entry in connection.log if entry[0] == "drain" or "DELETE" in entry[1]]
        assert [kind for kind, _ in order] == ["drain", "pub"]


@virtual
@pytest.mark.covers("J110")
async def test_drain_serves_idle_callback():
    async with connected() as (js, connection):
        handled = []
        sub = await js.subscribe("orders.new", callback=noting(handled))
        await settle()
        connection.under_way = [(sub.subject, [data(number)]) for number in range(1, 6)]
        await sub.drain()
        assert numbers(handled) == [1, 2, 3, 4, 5]
        assert connection.acks() == [b"+ACK"] * 5


@virtual
@pytest.mark.covers("J110")
async def test_drain_waits_for_callback():
    async with connected() as (js, connection):
        handled = []

        async def handle(message):
            assert connection.deleted() == []
            await asyncio.sleep(2)
            handled.append(message.metadata.stream_seq)

        sub = await js.subscribe("orders.new", callback=handle)
        connection.deliver(sub.subject, [data(1), data(2)])
        connection.under_way = [(sub.subject, [data(3)]), (sub.subject, [data(4)])]
        await sub.drain()
        assert handled == [1, 2, 3, 4]
        assert connection.acks() == [b"+ACK"] * 4
        assert connection.deleted() == [sub.consumer]


@virtual
async def test_hanging_callback_ends_drain():
    async with connected() as (js, connection):
        connection.api.has("d", deliver_subject="_INBOX.there")

        async def hang(_):
            await asyncio.Event().wait()

        sub = await js.subscribe("orders.new", durable="d", callback=hang)
        connection.deliver(sub.subject, [data(1), data(2), data(3)])
        with pytest.raises(RequestTimeoutError, match="drain"):
            await sub.drain(timeout=60)
        assert sub.is_closed
        assert connection.acks() == [b"-NAK", b"-NAK"]


@virtual
async def test_callback_may_drain_own_subscription():
    async with connected() as (js, connection):

        async def handle(message):
            await sub.drain()

        sub = await js.subscribe("orders.new", callback=handle)
        connection.deliver(sub.subject, [data(1), data(2)])
        await asyncio.sleep(10)
        assert sub.is_closed
        assert connection.deleted() == [sub.consumer]
        assert connection.acks() == [b"+ACK", b"+ACK"]


@virtual
@pytest.mark.covers("J111")
async def test_failed_deletion_is_event():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        connection.api.on("CONSUMER.DELETE", Refusal(10008, 503, "no quorum"))
        await sub.drain()
        await settle()
        (event,) = connection.told(DeleteFailed)
        assert event.error.err_code == 10008
        assert event.consumer == sub.consumer


@virtual
async def test_unread_messages_returned_if_consumer_stays():
    async with connected() as (js, connection):
        connection.api.has("d", deliver_subject="_INBOX.there")
        sub = await js.subscribe("orders.new", durable="d")
        connection.deliver(sub.subject, [data(1), flow_control(1), data(2)])
        await sub.unsubscribe()
        assert connection.acks() == [b"-NAK", b"-NAK"]
        assert connection.to("$JS.FC.") == []


@virtual
async def test_close_deletes_ephemeral_only():
    async with connected() as (js, connection):
        one = await js.subscribe("orders.new")
        await js.subscribe("orders.new", durable="d")
        waiting = asyncio.ensure_future(one.next())
        await settle()
    assert connection.deleted() == [one.consumer]
    assert connection.inboxes == []
    with pytest.raises(ClosedError):
        await waiting


@virtual
async def test_buffer_outlives_connection():
    async with connected() as (js, connection):
        sub = await js.subscribe("orders.new")
        connection.deliver(sub.subject, [data(1), data(2)])
        await connection.close()
        assert numbers([message async for message in sub]) == [1, 2]
