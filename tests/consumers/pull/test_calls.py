"""The Python calls of a fetch whose messages all arrive, and what its one timer must not break."""

from __future__ import annotations

import asyncio
import gc

import msgspec

from jsclient import Ending
from tests.support.calls import Calls
from tests.support.fake import FakeConnection, Sent, connected
from tests.support.strategies import data, heartbeat
from tests.support.virtual import settle, virtual

FETCHES = 20


def write_at_once(connection: FakeConnection) -> None:
    """Let requests be written without waiting, like a connection whose buffer has space."""

    def request_at_once(subject: str, reply: bytes, header: bytes, payload: bytes) -> bool:
        connection.send(subject, payload, reply=reply.decode(), header=header)
        return True

    connection.request_at_once = request_at_once
    connection.publish = None


class Server:
    """Answer each pull request with all its messages, in the given number of reads."""

    def __init__(self, connection: FakeConnection, reads: int = 1) -> None:
        self.connection, self.reads, self.seq = connection, reads, 0
        self._answer = connection.api.answer
        connection.api.answer = self.answer

    def answer(self, request: Sent) -> object:
        if request in self.connection.pulls():
            loop, count = asyncio.get_running_loop(), request.json["batch"] // self.reads
            for _ in range(self.reads):
                frames = [data(self.seq + number) for number in range(1, count + 1)]
                self.seq += count
                loop.call_soon(self.connection.deliver, request.reply, frames)
        return self._answer(request)


@virtual
async def test_fetch_of_ten():
    """Half of them are the request, its answer and the wait. A message adds no call."""
    async with connected() as (js, connection):
        Server(connection)
        sub = await js.pull_subscribe("orders.new")
        await sub.fetch(10)
        write_at_once(connection)
        with Calls() as calls:
            for _ in range(FETCHES):
                assert len(await sub.fetch(10)) == 10
        assert calls.each(FETCHES) < 29.5, calls


@virtual
async def test_fetch_without_acks():
    """A drain need not wait for messages of a consumer with ack policy none, so nothing is recorded about them."""
    async with connected() as (js, connection):
        Server(connection)
        sub = await js.pull_subscribe("orders.new")
        sub._puller.channel = msgspec.structs.replace(sub._puller.channel, silent=True)
        await sub.fetch(10)
        write_at_once(connection)
        gc.collect()  # the messages of other tests
        with Calls() as calls:
            for _ in range(FETCHES):
                assert len(await sub.fetch(10)) == 10
        assert not [name for name in calls.by_name if "in_hand.py" in name], calls
        assert calls.each(FETCHES) < 28.5, calls


@virtual
async def test_caller_wakes_at_last_message():
    """Messages in five reads wake it once: each wake-up would be a turn of the loop."""
    async with connected() as (js, connection):
        Server(connection, reads=5)
        sub = await js.pull_subscribe("orders.new")
        await sub.fetch(10)
        with Calls() as calls:
            batch = await sub.fetch(10)
        assert (len(batch), batch.ending) == (10, Ending.FULL)
        assert calls.by_name["_runtime/tasks.py: Signal.set"] == 1
        assert len(connection.pulls()) == 2


@virtual
async def test_timer_of_earlier_fetch_does_not_end_it():
    """The timer is set for the first fetch, which would have been silent after 2.5 s, and fires in the second."""
    async with connected() as (js, connection):
        sub = await js.pull_subscribe("orders.new")
        loop = asyncio.get_running_loop()
        first = asyncio.ensure_future(sub.fetch(1, expires=5.0))
        await settle()
        connection.deliver(connection.pulls()[-1].reply, [data(1)])
        assert len(await first) == 1
        await asyncio.sleep(2.0)
        began = loop.time()
        second = asyncio.ensure_future(sub.fetch(2, expires=5.0))
        await settle()
        reply = connection.pulls()[-1].reply
        for _ in range(3):
            await asyncio.sleep(1.25)
            assert not second.done()
            connection.deliver(reply, [(reply.encode(), *heartbeat()[1:])])
        connection.deliver(reply, [data(2)])
        await asyncio.sleep(0.5)
        connection.deliver(reply, [data(3)])
        assert [message.metadata.stream_seq for message in await second] == [2, 3]
        assert loop.time() - began == 4.25
        assert len(connection.pulls()) == 2
