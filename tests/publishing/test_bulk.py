"""Publishing columns on a fake connection: failures with their rows."""

from __future__ import annotations

import asyncio
import json

import pytest

from jsclient._runtime.connection.wire import LARGE_WRITE
from jsclient.errors import MaxPayloadError, PublishManyError, RequestTimeoutError
from jsclient.publishing.bulk import BulkPublisher
from tests.publishing.kit import add_outbox, answer, published
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


async def publish_each(js, payloads: list[bytes]) -> None:
    async with js.publisher(max_in_flight=100) as pub:
        for payload in payloads:
            await pub.publish("s.a", payload)


@pytest.mark.parametrize("size", [16, 1024, 16 * 1024, 64 * 1024, 512 * 1024])
@virtual
async def test_no_more_writes_than_publisher(size):
    writes = []
    for publishing in (
        lambda js, payloads: js.publish_many("s.a", payloads, max_in_flight=100),
        publish_each,
    ):
        async with connected() as (js, connection):
            transport = add_outbox(connection)
            task = asyncio.ensure_future(publishing(js, [b"x" * size] * 40))
            await settle()
            assert [len(sent.payload) for sent in published(connection)] == [size] * 40
            for sent in published(connection):
                answer(connection, sent)
            await task
            writes.append(transport.writes)
    many, one_by_one = writes
    assert many <= one_by_one


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
            actual = [(sent.subject, sent.header, sent.payload) for sent in published(connection)[-3:]]
            assert actual == list(zip(["s.a", "s.b", "s.a"], headers, [b"1", b"", b"333"], strict=True))
        assert len({sent.reply for sent in published(connection)}) == 9
        await bulk.close()


@virtual
async def test_large_payloads_are_not_copied():
    """Each is a separate burst, and is written as the object that the caller passed."""
    header, large = b"NATS/1.0\r\nA: 1\r\n\r\n", b"x" * LARGE_WRITE
    async with connected() as (js, connection):
        transport = add_outbox(connection)
        pieces, write = [], transport.transport.write
        transport.transport.write = lambda data: (pieces.append(data), write(data))
        bulk = BulkPublisher(js._context, max_in_flight=10, max_bytes=1 << 20, timeout=5.0, repeatable=False)
        await bulk.send(range(4), [b"s.a"] * 4, [b"", header, b"", b""], [b"1", large, large, b"2"])
        await settle()
        assert [sent.payload for sent in published(connection)] == [b"1", large, large, b"2"]
        assert [sent.header for sent in published(connection)] == [b"", header, b"", b""]
        assert sum(piece is large for piece in pieces) == 2
        await bulk.close()


@virtual
async def test_connection_that_takes_no_bytes_ends_call():
    """A frozen peer fills the write buffer: the call ends when its timeout is over, and says so."""
    async with connected() as (js, connection):
        transport = add_outbox(connection)
        loop = asyncio.get_running_loop()

        def payloads():
            yield from [bytes(1 << 10)] * 1000
            transport.waiting = 10 << 20  # from now on the peer reads nothing
            for _ in range(3):
                yield from [bytes(1 << 20)] * 1000

        began = loop.time()
        calling = asyncio.ensure_future(
            js.publish_many("orders.new", payloads(), max_in_flight=5000, timeout=5.0)
        )
        await asyncio.sleep(4.9)
        assert not calling.done()
        await asyncio.sleep(0.2)
        assert calling.done(), f"it waits after {loop.time() - began} s of 5"
        with pytest.raises(PublishManyError) as raised:
            await calling
        assert isinstance(raised.value.__cause__, RequestTimeoutError)
        transport.waiting = 0
        transport.drained.set()


@virtual
async def test_full_write_buffer_says_what_it_is():
    async with connected() as (js, connection):
        transport = add_outbox(connection)
        bulk = BulkPublisher(js._context, max_in_flight=10, max_bytes=5 << 20, timeout=5.0, repeatable=True)
        await bulk.send([0], [b"s.a"], [b""], [bytes(1 << 20)])
        transport.waiting = 10 << 20
        sending = asyncio.ensure_future(bulk.send([1], [b"s.a"], [b""], [b"x"]))
        await asyncio.sleep(3.0)
        answer(connection, published(connection)[0])
        await asyncio.sleep(2.1)
        assert sending.done()
        with pytest.raises(RequestTimeoutError, match=r"'s.a': the connection took no more bytes for 5 s"):
            await sending
        assert not bulk.failures
        transport.waiting = 0
        transport.drained.set()
        await bulk.close()
