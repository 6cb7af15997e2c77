"""The cost of an update of a notifier: one request and two turns of the event loop, and the cost for a reader."""

from __future__ import annotations

import asyncio

from jsclient._runtime.context import Context
from jsclient.protocol.topics.record import Kind
from jsclient.protocol.topics.value_codec import JsonCodec
from jsclient.protocol.wire.api import Api
from jsclient.topics.memory_log import MemoryLog
from jsclient.topics.notifiers.descriptors import NotifierDescriptor
from jsclient.topics.notifiers.log_iteration import Newest
from jsclient.topics.notifiers.log_producer import LogProducer
from jsclient.topics.notifiers.newest import newest_log
from tests.support.calls import Calls
from tests.support.fake import FakeConnection
from tests.support.virtual import virtual

UPDATES = 100


class RequestLog(MemoryLog):
    """Stores a value by a request on a fake connection, as the log of a stream does."""

    def __init__(self, context: Context) -> None:
        super().__init__("a")
        self.context = context

    def append_now(self, data, *, expected, msg_id, timeout, stored):
        return self.context.requests.ask_now(
            self.own_subject(None),
            data,
            header=b"",
            timeout=timeout,
            what="publish",
            answered=lambda _: stored(expected + 1),
        )


class Outbox:
    is_full = False


class Turns:
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = -1
        self._next()

    def _next(self) -> None:
        self.count += 1
        self.handle = asyncio.get_running_loop().call_soon(self._next)


@virtual
async def test_update():
    connection = FakeConnection()
    connection.outbox = Outbox()
    connection.belong_here()
    connection.api.answer = lambda _: b"stored"
    context = Context(connection, Api(), 5.0)
    await context.requests.ask("a", timeout=1.0)  # opens the inbox
    producer = LogProducer(RequestLog(context), Newest(None, 0), JsonCodec())
    await producer.publish(Kind.VALUE, 0)
    turns = Turns()
    tasks = len(asyncio.all_tasks())
    with Calls() as calls:
        for number in range(UPDATES):
            member = producer.publish(Kind.VALUE, number)
            assert len(asyncio.all_tasks()) == tasks
            await member
    assert calls.each(UPDATES) < 30, calls
    assert turns.count <= 2 * UPDATES + 1
    turns.handle.cancel()


BLOCK = (
    b"NATS/1.0\r\nNats-Msg-Id: jsc-a:1\r\nNats-Stream: S\r\nNats-Subject: a\r\nNats-Sequence: 8\r\n"
    b"Nats-Time-Stamp: 2026-01-31T12:00:00.5Z\r\nNats-Last-Sequence: 7\r\n\r\n"
)


@virtual
async def test_pushed_record():
    """The headers of a republished record have one form, which is read without an object for each of them."""
    connection, arrived = FakeConnection(), []
    at = NotifierDescriptor(
        stream="S", subject="a", codec="json", api_prefix="$JS.API", republished="again.a"
    )
    log = newest_log(Context(connection, Api(), 5.0), at, quiet=10.0)
    await log.open_pushes(arrived.append)
    log.wait_for_newer(7)
    for _ in range(2):  # the first pass resolves types and caches
        with Calls() as calls:
            connection.deliver("again.a", [(b"again.a", b"", BLOCK, b"1")])
    assert [record.seq for record in arrived] == [8, 8]
    assert calls.by_name.total() < 8, calls
    await log.close()
