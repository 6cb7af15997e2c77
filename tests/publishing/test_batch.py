"""An atomic batch on a fake connection, in virtual time: messages go out in order, whichever call has to wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jsclient.errors import (
    BatchAbandonedError,
    BatchIncompleteError,
    ClosedError,
    NoRespondersError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from jsclient.protocol.publishing import batch as tracker_module
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


def no_stream(connection: FakeConnection) -> None:
    """The answer of a server that has no stream on the subject of the latest message."""
    reply = connection.to("s.")[-1].reply
    connection.deliver(reply, [(reply.encode(), b"", b"NATS/1.0 503\r\n\r\n", b"")])


INCOMPLETE = b'{"error":{"code":400,"err_code":10176,"description":"batch publish is incomplete"}}'


async def lost_in_an_election(connection: FakeConnection, seconds: float) -> None:
    """No stream answers the latest message for these seconds. The new leader does not know the batch."""
    until = asyncio.get_running_loop().time() + seconds
    sent = -1
    while asyncio.get_running_loop().time() < until:
        if sent != len(connection.to("s.")):
            sent = len(connection.to("s."))
            no_stream(connection)
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)
    answer(connection, INCOMPLETE)
    await asyncio.sleep(0.3)


def ack(batch: object, count: int) -> bytes:
    return b'{"stream":"S","seq":9,"batch":"%b","count":%d}' % (batch.id.encode(), count)  # type: ignore[attr-defined]


@virtual
async def test_sent_in_number_order():
    async with connected() as (js, connection):
        batch = js.batch()
        await batch.publish("s.a")
        tasks = [asyncio.ensure_future(batch.publish("s.a"))]
        await settle()
        connection.publishing = 5  # the next publish waits for room, the publishes after it would not
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
async def test_cancelled_publish_abandons():
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
async def test_cancelled_waiter_harmless():
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
async def test_silence_stores_nothing():
    async with connected() as (js, connection):
        batch = js.batch(timeout=3.0)
        await batch.publish("s.a")
        with pytest.raises(BatchAbandonedError, match="nothing was stored") as caught:
            await batch.publish("s.a")
        assert isinstance(caught.value.__cause__, RequestTimeoutError)
        assert numbers(connection) == ["1"]


@virtual
async def test_commit_denied_stored_nothing():
    async with connected() as (js, connection):
        batch = js.batch()
        committing = asyncio.ensure_future(batch.commit("s.a"))
        await settle()
        connection.deny("publish", "s.a")
        with pytest.raises(PermissionDeniedError):
            await committing
        assert "abandoned" in repr(batch)


@virtual
async def test_cancelled_commit_unknown():
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
async def test_single_waits_for_connection():
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
async def test_no_commit_offline():
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


async def start_batch(js: Any, connection: FakeConnection, count: int = 3, **options: Any) -> Any:
    """A batch of which the server has confirmed the first message."""
    batch = js.batch(**options)
    await batch.publish("s.a", b"1")
    adding = asyncio.ensure_future(batch.publish("s.a", b"2"))
    await settle()
    answer(connection)
    await adding
    for number in range(3, count + 1):
        await batch.publish("s.a", b"%d" % number)
    return batch


@virtual
async def test_batch_lost_in_election_sent_again():
    async with connected() as (js, connection):
        batch = await start_batch(js, connection, timeout=20.0)
        committing = asyncio.ensure_future(batch.commit())
        await settle()
        await lost_in_an_election(connection, 6.0)
        assert numbers(connection)[-1] == "1"
        answer(connection)
        await settle()
        assert numbers(connection)[-3:] == ["1", "2", "3c"]
        answer(connection, ack(batch, 3))
        assert (await committing).count == 3
        assert [sent.payload for sent in connection.to("s.")[-3:]] == [b"1", b"2", b"3"]


@virtual
async def test_answered_middle_survives():
    async with connected() as (js, connection):
        batch = await start_batch(js, connection, 3, ack_every=3, timeout=20.0)
        adding = asyncio.ensure_future(batch.publish("s.a", b"4"))
        await settle()
        await lost_in_an_election(connection, 6.0)
        answer(connection)
        await settle()
        assert numbers(connection)[-3:] == ["1", "2", "3"]
        answer(connection)
        assert await adding == 4
        committing = asyncio.ensure_future(batch.commit())
        await settle()
        answer(connection, ack(batch, 4))
        assert (await committing).count == 4


@virtual
async def test_silent_resend_stores_nothing():
    async with connected() as (js, connection):
        batch = await start_batch(js, connection, timeout=20.0)
        committing = asyncio.ensure_future(batch.commit())
        await settle()
        await lost_in_an_election(connection, 6.0)
        with pytest.raises(BatchAbandonedError, match="nothing was stored"):
            await committing
        assert batch.is_closed


@virtual
async def test_cancelled_resend_abandons():
    async with connected() as (js, connection):
        batch = await start_batch(js, connection, timeout=20.0)
        committing = asyncio.ensure_future(batch.commit())
        await settle()
        await lost_in_an_election(connection, 6.0)
        committing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await committing
        assert "abandoned" in repr(batch)


@virtual
async def test_incomplete_is_error():
    async with connected() as (js, connection):
        batch = await start_batch(js, connection)
        committing = asyncio.ensure_future(batch.commit())
        await settle()
        answer(connection, INCOMPLETE)
        with pytest.raises(BatchIncompleteError):
            await committing
        assert numbers(connection) == ["1", "2", "3c"]


@virtual
async def test_large_batch_not_resent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracker_module, "MAX_KEPT", 2)
    async with connected() as (js, connection):
        batch = await start_batch(js, connection, timeout=20.0)
        committing = asyncio.ensure_future(batch.commit())
        await settle()
        await lost_in_an_election(connection, 6.0)
        with pytest.raises(BatchIncompleteError):
            await committing


@virtual
async def test_unknown_subject_three_tries():
    async with connected() as (js, connection):
        batch = js.batch(timeout=20.0)
        committing = asyncio.ensure_future(batch.commit("s.a"))
        for _ in range(3):
            await settle()
            no_stream(connection)
            await asyncio.sleep(0.25)
        with pytest.raises(NoRespondersError):
            await committing
        assert numbers(connection) == ["1c"] * 3
