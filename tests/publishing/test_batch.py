"""An atomic batch on a fake connection, in virtual time: the order of what goes out, whoever has to wait."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import BatchAbandonedError, ClosedError, PermissionDeniedError, RequestTimeoutError
from jsclient.protocol.wire.headers import parse_headers
from tests.support.fake import FakeConnection, Sent, connected
from tests.support.virtual import settle, virtual


def number(sent: Sent) -> str:
    fields = parse_headers(sent.header)[1]
    return fields["Nats-Batch-Sequence"] + ("c" if "Nats-Batch-Commit" in fields else "")


def numbers(connection: FakeConnection) -> list[str]:
    return [number(sent) for sent in connection.to("s.")]


def answer(connection: FakeConnection, payload: bytes = b"") -> None:
    """What the server says to the message sent last."""
    reply = connection.to("s.")[-1].reply
    connection.deliver(reply, [(reply.encode(), b"", b"", payload)])


def ack(batch: object, count: int) -> bytes:
    return b'{"stream":"S","seq":9,"batch":"%b","count":%d}' % (batch.id.encode(), count)  # type: ignore[attr-defined]


@virtual
async def test_messages_go_out_in_the_order_of_their_numbers_even_where_one_has_to_wait():
    async with connected() as (js, connection):
        batch = js.batch()
        await batch.publish("s.a")
        tasks = [asyncio.ensure_future(batch.publish("s.a"))]
        await settle()
        connection.publishing = 5  # the next publish waits for room, those behind it would not
        answer(connection)
        tasks += [asyncio.ensure_future(batch.publish("s.a"))]
        for _ in range(3):
            await asyncio.sleep(0)
        connection.publishing = 0
        tasks += [asyncio.ensure_future(batch.publish("s.a")) for _ in range(3)]
        committing = asyncio.ensure_future(batch.commit("s.a"))
        assert await asyncio.gather(*tasks) == [2, 3, 4, 5, 6]
        await settle()
        assert numbers(connection) == ["1", "2", "3", "4", "5", "6", "7c"]
        answer(connection, ack(batch, 7))
        assert (await committing).count == 7


@virtual
async def test_a_publish_that_is_cancelled_while_it_waits_for_room_abandons_the_batch():
    async with connected() as (js, connection):
        batch = js.batch()
        await batch.publish("s.a")
        second = asyncio.ensure_future(batch.publish("s.a"))
        await settle()
        answer(connection)
        await second
        connection.publishing = 1000
        third = asyncio.ensure_future(batch.publish("s.a"))
        await settle()
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        assert numbers(connection) == ["1", "4"]  # out of turn: the server drops it
        with pytest.raises(ClosedError):
            await batch.commit()


@virtual
async def test_one_that_waits_behind_another_is_cancelled_without_harm():
    async with connected() as (js, connection):
        batch = js.batch()
        await batch.publish("s.a")
        second, third = (asyncio.ensure_future(batch.publish("s.a")) for _ in range(2))
        await settle()
        third.cancel()
        await settle()
        answer(connection)
        await second
        assert (len(batch), batch.is_closed) == (2, False)
        await batch.abandon()


@virtual
async def test_silence_before_the_commit_means_nothing_is_stored():
    async with connected() as (js, connection):
        batch = js.batch(timeout=3.0)
        await batch.publish("s.a")
        with pytest.raises(BatchAbandonedError, match="nothing was stored") as caught:
            await batch.publish("s.a")
        assert isinstance(caught.value.__cause__, RequestTimeoutError)
        assert numbers(connection) == ["1"]


@virtual
async def test_a_commit_that_is_denied_has_stored_nothing():
    async with connected() as (js, connection):
        batch = js.batch()
        committing = asyncio.ensure_future(batch.commit("s.a"))
        await settle()
        connection.deny("publish", "s.a")
        with pytest.raises(PermissionDeniedError):
            await committing
        assert "abandoned" in repr(batch)


@virtual
async def test_a_cancelled_commit_is_unknown():
    async with connected() as (js, _connection):
        batch = js.batch()
        committing = asyncio.ensure_future(batch.commit("s.a"))
        await settle()
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        assert "unknown" in repr(batch)
        assert batch.ack is None


@virtual
async def test_a_batch_of_one_waits_for_a_connection_and_is_not_sent_without():
    async with connected() as (js, connection):
        connection.disconnect()
        began = asyncio.get_running_loop().time()
        with pytest.raises(BatchAbandonedError, match="nothing was stored"):
            await js.batch(timeout=3.0).commit("s.a")
        assert asyncio.get_running_loop().time() - began == pytest.approx(3.0)
        batch = js.batch()
        committing = asyncio.ensure_future(batch.commit("s.a"))
        await asyncio.sleep(1)
        connection.reconnect()
        await settle()
        answer(connection, ack(batch, 1))
        assert (await committing).count == 1
        assert numbers(connection) == ["1c"]


@virtual
async def test_what_was_begun_is_not_committed_without_a_connection():
    async with connected() as (js, connection):
        batch = js.batch()
        await batch.publish("s.a")
        second = asyncio.ensure_future(batch.publish("s.a"))
        await settle()
        answer(connection)
        await second
        connection.disconnect()
        began = asyncio.get_running_loop().time()
        with pytest.raises(BatchAbandonedError, match="nothing was stored"):
            await batch.commit()
        assert asyncio.get_running_loop().time() == began
        assert numbers(connection) == ["1"]
