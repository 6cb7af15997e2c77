"""Publishing columns on a fake connection: failures with their rows."""

from __future__ import annotations

import asyncio
import json

import pytest

from jsclient.errors import MaxPayloadError
from jsclient.publishing.bulk import BulkPublisher
from tests.publishing.test_publisher import add_outbox, answer, published
from tests.support.fake import FakeConnection, connected
from tests.support.virtual import settle, virtual

REFUSAL = json.dumps({"error": {"code": 400, "err_code": 10071, "description": "no"}}).encode()


def refuse_latest(connection: FakeConnection) -> None:
    reply = published(connection)[-1].reply
    connection.deliver(reply, [(reply.encode(), b"", b"", REFUSAL)])


@virtual
async def test_failures_arrive_after_list_replaced():
    async with connected() as (js, connection):
        add_outbox(connection)
        bulk = BulkPublisher(js._context, max_in_flight=10, max_bytes=1000, timeout=5.0, repeatable=False)
        for row in (7, 8):
            await bulk.send([row], [b"s.a"], [b""], [b"x"])
            await settle()
            refuse_latest(connection)
            assert [(failed.row, failed.error.err_code) for failed in bulk.failures] == [(row, 10071)]
            bulk.failures = []
        await bulk.close()


@virtual
async def test_messages_before_one_that_is_too_large_are_sent():
    async with connected() as (js, connection):
        add_outbox(connection)
        connection.limit = 5
        bulk = BulkPublisher(js._context, max_in_flight=10, max_bytes=1000, timeout=5.0, repeatable=False)
        with pytest.raises(MaxPayloadError):
            await bulk.send([1, 2, 3, 4], [b"s.a"] * 4, [b""] * 4, [b"12345", b"1", b"123456", b"1"])
        await settle()
        assert (bulk.sent, bulk.in_flight) == (2, 2)
        assert [sent.payload for sent in published(connection)] == [b"12345", b"1"]
        for sent in published(connection):
            answer(connection, sent)
        await bulk.settle()
        await bulk.close()
        assert bulk.tally.stored == 2


@virtual
async def test_limits_of_a_burst():
    async with connected() as (js, connection):
        add_outbox(connection)
        bulk = BulkPublisher(js._context, max_in_flight=3, max_bytes=10, timeout=5.0, repeatable=True)
        data = [b"1234", b"56", b"7", b"8", b"123456", b"12345", b"", b"a" * 30, b"b"]
        sending = asyncio.ensure_future(bulk.send(range(9), [b"s.a"] * 9, [b""] * 9, data))
        waves = []
        known = 0
        while bulk.tally.stored < len(data):
            await settle()
            wave, known = published(connection)[known:], len(published(connection))
            waves.append([sent.payload for sent in wave])
            for sent in wave:
                answer(connection, sent)
        await sending
        assert waves == [data[:3], data[3:5], data[5:7], data[7:8], data[8:]]
        await bulk.close()


@virtual
async def test_rows_with_and_without_headers():
    header = b"NATS/1.0\r\nA: 1\r\n\r\n"
    async with connected() as (js, connection):
        add_outbox(connection)
        bulk = BulkPublisher(js._context, max_in_flight=10, max_bytes=1000, timeout=5.0, repeatable=False)
        for headers in ([header, b"", header], [header] * 3, [b""] * 3):
            await bulk.send(range(3), [b"s.a", b"s.b", b"s.a"], headers, [b"1", b"", b"333"])
            await settle()
            found = [(sent.subject, sent.header, sent.payload) for sent in published(connection)[-3:]]
            assert found == list(zip(["s.a", "s.b", "s.a"], headers, [b"1", b"", b"333"], strict=True))
        assert len({sent.reply for sent in published(connection)}) == 9
        await bulk.close()
