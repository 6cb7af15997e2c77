"""A publisher whose publishes are in slots: which are, which are not, and what it says about them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from jsclient._runtime.connection.speedups import Choice
from jsclient.errors import ClosedError, DisconnectedError, MaxPayloadError, TooManyInFlightError
from jsclient.publishing import slot_acks
from tests.publishing.kit import ack_all, add_outbox, answer, payloads, published, refuse
from tests.support.fake import connected
from tests.support.slots import Slots
from tests.support.virtual import settle, virtual


@pytest.fixture(autouse=True)
def with_slots(monkeypatch):
    monkeypatch.setattr(slot_acks, "chosen", lambda: Choice(None, "slots", slots=Slots))


ACK = b'{"stream":"ORDERS", "seq":1}'  # as a server writes it


def in_slots(publisher) -> list[int]:
    return list(publisher._slots.publishes)


@virtual
async def test_ordinary_publishes_are_in_slots():
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as publisher:
            futures = [await publisher.publish("a", b"%d" % number) for number in range(3)]
            futures += [publisher.send("a", b"3", msg_id="3"), publisher.send("a", b"4", headers={"A": "1"})]
            assert in_slots(publisher) == [1, 2, 3, 4, 5]
            assert (publisher.in_flight, publisher.published, publisher.failed) == (5, 5, 0)
            assert publisher.in_flight_bytes == publisher._window.size > 5
            connection.outbox.flush()
            assert payloads(connection) == [b"%d" % number for number in range(5)]
            assert published(connection)[3].header == b"NATS/1.0\r\nNats-Msg-Id: 3\r\n\r\n"
            ack_all(connection)
            assert [(await future).seq for future in futures] == [1] * 5
            assert (publisher.in_flight, publisher.in_flight_bytes, publisher.stored) == (0, 0, 5)


@virtual
async def test_full_window_waits_or_raises():
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher(max_in_flight=2) as publisher:
            await publisher.publish("a", b"0")
            publisher.send("a", b"1")
            with pytest.raises(TooManyInFlightError):
                publisher.send("a", b"2")
            third = asyncio.ensure_future(publisher.publish("a", b"2"))
            await settle()
            assert (publisher.waiting, publisher.in_flight, payloads(connection)) == (1, 2, [b"0", b"1"])
            answer(connection, published(connection)[0], ACK)
            await settle()
            assert (in_slots(publisher), third.done()) == ([2, 3], True)
            ack_all(connection)


@virtual
async def test_bytes_are_limited():
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher(max_bytes=100) as publisher:
            await publisher.publish("a", b"x" * 60)
            with pytest.raises(TooManyInFlightError):
                publisher.send("a", b"x" * 41)
            publisher.send("a", b"x" * 40)
            assert (publisher.in_flight_bytes, in_slots(publisher)) == (100, [1, 2])
            connection.outbox.flush()
            ack_all(connection)


@virtual
async def test_large_message_has_a_record():
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as publisher:
            await publisher.publish("a", b"0")
            publisher.send("a", b"1" * 100_000)
            publisher.send("a", b"2" * 2_000)
            assert ([entry.number for entry in publisher._window.in_flight.values()]) == [1, 2]
            assert (in_slots(publisher), publisher.in_flight) == ([3], 3)
            with pytest.raises(MaxPayloadError):
                publisher.send("a", b"3" * 2_000_000)
            connection.limit = 3_000
            with pytest.raises(MaxPayloadError):
                publisher.send("a", b"3" * 3_001)
            await settle()
            assert [len(payload) for payload in payloads(connection)] == [1, 100_000, 2_000]
            ack_all(connection)


@virtual
async def test_refused_and_acked_out_of_order():
    async with connected() as (js, connection):
        add_outbox(connection)
        publisher = js.publisher()
        futures = [await publisher.publish("a", b"%d" % number) for number in range(4)]
        await settle()
        sent = published(connection)
        answer(connection, sent[2], ACK)
        assert in_slots(publisher) == [1, 2, 4]
        refuse(connection, sent[0])
        assert (in_slots(publisher), publisher.in_flight, publisher.failed) == ([], 2, 1)
        answer(connection, sent[3])
        answer(connection, sent[1])
        assert [future.exception() is None for future in futures] == [False, True, True, True]
        publisher.send("a", b"4")
        assert (in_slots(publisher), publisher.in_flight) == ([], 1), "after trouble the slots rest"
        await publisher.close()


@virtual
async def test_reconnect_sends_what_has_an_id():
    async with connected() as (js, connection):
        add_outbox(connection)
        publisher = js.publisher()
        plain, identified = await publisher.publish("a", b"0"), await publisher.publish("a", b"1", msg_id="1")
        await settle()
        connection.disconnect()
        assert isinstance(plain.exception(), DisconnectedError)
        with pytest.raises(DisconnectedError):
            publisher.send("a", b"2")
        connection.reconnect()
        await settle()
        assert payloads(connection) == [b"0", b"1", b"1"]
        answer(connection, published(connection)[-1])
        assert (await identified).seq == 1
        publisher.send("a", b"2")
        assert publisher.in_flight == 1
        await publisher.close()


@virtual
async def test_cancelled_future_counts_until_its_ack():
    async with connected() as (js, connection):
        add_outbox(connection)
        async with js.publisher() as publisher:
            future = await publisher.publish("a", b"0")
            future.cancel()
            assert publisher.in_flight == 1
            await settle()
            ack_all(connection)
            assert (publisher.in_flight, publisher.stored, future.cancelled()) == (0, 1, True)


@virtual
async def test_closing_fails_what_is_in_flight(caplog):
    async with connected() as (js, connection):
        add_outbox(connection)
        publisher = js.publisher()
        future = await publisher.publish("orders", b"0")
        assert "1 message waits for its ack, the first on 'orders'" in publisher.describe_rest()
        with caplog.at_level(logging.ERROR):
            await publisher.close()
        assert isinstance(future.exception(), ClosedError)
        assert publisher.describe_rest() == ""


@virtual
async def test_flush_waits_for_slots():
    async with connected() as (js, connection):
        add_outbox(connection)
        publisher = js.publisher()
        await publisher.publish("a", b"0")
        flushed = asyncio.ensure_future(publisher.flush())
        await settle()
        assert not flushed.done()
        publisher.send("a", b"1")
        answer(connection, published(connection)[0], ACK)
        await settle()
        assert (flushed.done(), in_slots(publisher)) == (True, [2])
        await publisher.close()


@virtual
async def test_deadline_of_the_earliest():
    async with connected() as (js, connection):
        add_outbox(connection)
        publisher = js.publisher(timeout=5.0)
        late = await publisher.publish("a", b"0")
        early = publisher.send("a", b"1", timeout=1.0)
        await asyncio.sleep(1.1)
        assert (early.done(), late.done()) == (True, False)
        await asyncio.sleep(4.0)
        assert late.done()
        assert (early.exception(), late.exception()) != (None, None)
        await publisher.close()


@virtual
async def test_connection_without_outbox_has_no_slots():
    async with connected() as (js, _):
        publisher = js.publisher()
        assert publisher._slots is None
        await publisher.close()
