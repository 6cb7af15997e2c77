"""The watch of a topic reader that gets no records, on a fake connection and in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import ConnectError, PermissionDeniedError
from jsclient.protocol.events import ConsumerResumed, ConsumerStalled
from jsclient.topics.stall_watch import StreamStallWatch
from tests.support.fake import SILENCE, STREAM, Refusal, connected
from tests.support.virtual import virtual

AFTER = 25.0
LEADERLESS = Refusal(10008, 503, "no leader")


class Reader:
    """A reader that waits for records, with its watch."""

    def __init__(self, js, connection, *, after: float | None = AFTER) -> None:
        self.connection = connection
        self.records, self.is_waiting, self.error = 0, True, None
        js._context.stall_after = after
        self.watch = StreamStallWatch(
            js._context,
            STREAM,
            progress=lambda: self.records,
            waits=lambda: self.is_waiting,
            failure=lambda: self.error,
        )
        self.watch.asked()

    @property
    def checks(self) -> int:
        return len(self.connection.to(f"$JS.API.STREAM.INFO.{STREAM}"))

    @property
    def events(self):
        reported = [
            event for event in self.connection.events if isinstance(event, ConsumerStalled | ConsumerResumed)
        ]
        return [(type(event).__name__, event.reason) for event in reported]


@virtual
async def test_healthy_stream():
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        await asyncio.sleep(24)
        assert reader.checks == 0
        await asyncio.sleep(80)
        assert reader.checks == 4
        assert reader.events == []
        reader.watch.close()


@virtual
async def test_records_arrive():
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        for _ in range(20):
            await asyncio.sleep(20)
            reader.records += 1
        assert reader.checks == 0
        reader.watch.close()


@virtual
async def test_watch_is_off():
    async with connected() as (js, connection):
        reader = Reader(js, connection, after=None)
        reader.watch.asked()
        await asyncio.sleep(1000)
        assert reader.checks == 0
        assert reader.watch._handle is None


@virtual
async def test_no_leader_and_its_end():
    async with connected() as (js, connection):
        connection.api.on("STREAM.INFO", *[LEADERLESS] * 9)
        reader = Reader(js, connection)
        await asyncio.sleep(100)
        assert reader.events == [("ConsumerStalled", "no_leader")]
        (event,) = connection.told(ConsumerStalled)
        assert (event.stream, event.consumer, event.stood_for) == (STREAM, "", pytest.approx(AFTER, abs=3))
        reader.records += 1
        await asyncio.sleep(5)
        assert reader.events == [("ConsumerStalled", "no_leader"), ("ConsumerResumed", "no_leader")]
        reader.watch.close()


@virtual
async def test_history_cannot_be_read():
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        reader.error = ConnectError("refused")
        await asyncio.sleep(30)
        (event,) = connection.told(ConsumerStalled)
        assert event.reason == "no_answer"
        assert "ConnectError: refused" in event.evidence
        reader.watch.close()


@virtual
async def test_record_arrives_meanwhile():
    async with connected() as (js, connection):
        reader = Reader(js, connection)

        def arrives(_):
            reader.records += 1
            return LEADERLESS

        connection.api.on("STREAM.INFO", arrives)
        await asyncio.sleep(30)
        assert (reader.checks, reader.events) == (1, [])
        reader.watch.close()


@virtual
async def test_one_request_at_a_time():
    async with connected(timeout=300.0) as (js, connection):
        connection.api.on("STREAM.INFO", *[SILENCE] * 99)
        reader = Reader(js, connection)
        tasks = []
        for _ in range(10):
            await asyncio.sleep(25)
            tasks += [task for task in asyncio.all_tasks() if "look why" in task.get_name()]
        assert len(set(tasks)) == 1
        reader.watch.close()


@virtual
async def test_next_check_after_no_answer():
    async with connected(timeout=5.0) as (js, connection):
        connection.api.on("STREAM.INFO", *[SILENCE] * 99)
        reader = Reader(js, connection)
        await asyncio.sleep(33)
        assert reader.events == [("ConsumerStalled", "no_answer")]
        before = reader.checks
        connection.api.script.clear()
        await asyncio.sleep(60)
        assert reader.checks > before
        assert reader.events == [("ConsumerStalled", "no_answer"), ("ConsumerResumed", "no_answer")]
        reader.watch.close()


@virtual
async def test_denied():
    """Each further request would be denied, too."""
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        with connection.broken(PermissionDeniedError("publish", "$JS.API.STREAM.INFO.ORDERS")):
            await asyncio.sleep(30)
        assert reader.events == [("ConsumerStalled", "could_not_look")]
        reader.watch.asked()
        await asyncio.sleep(300)
        assert reader.checks == 0


@virtual
async def test_no_connection():
    """The time without a connection does not count. Another event reports it."""
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        connection.disconnect()
        await asyncio.sleep(20)
        connection.reconnect()
        await asyncio.sleep(20)
        assert (reader.checks, reader.events) == (0, [])
        await asyncio.sleep(10)
        assert reader.checks == 1
        reader.watch.close()


@virtual
async def test_connection_is_lost_during_a_check():
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        connection.api.on("STREAM.INFO", *[SILENCE] * 9)
        while not reader.checks:
            await asyncio.sleep(0.1)
        connection.api.script.clear()
        connection.disconnect()
        connection.reconnect()
        await asyncio.sleep(60)
        assert reader.events == []
        assert reader.checks >= 3, "the next checks follow"
        reader.watch.close()


@virtual
async def test_program_does_something_else():
    """Polling ends, and begins again with the next wait."""
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        reader.is_waiting = False
        await asyncio.sleep(40)
        assert reader.watch._handle is None
        assert reader.checks == 0
        reader.is_waiting = True
        reader.watch.asked()
        await asyncio.sleep(60)
        assert reader.checks == 2
        reader.watch.close()


@virtual
async def test_short_waits():
    """A loop of short waits is one long wait, although no poll sees one of them."""
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        reader.is_waiting = False
        for _ in range(30):
            reader.watch.asked()
            await asyncio.sleep(1)
        assert reader.checks == 1
        reader.watch.close()


@virtual
async def test_closed_watch():
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        await asyncio.sleep(20)
        timer = reader.watch._handle
        reader.watch.close()
        assert timer.cancelled()
        reader.watch.asked()
        await asyncio.sleep(100)
        assert reader.checks == 0
        assert reader.watch._handle is None


@virtual
async def test_closed_during_a_check():
    async with connected() as (js, connection):
        reader = Reader(js, connection)

        def closes(_):
            reader.watch.close()
            return LEADERLESS

        connection.api.on("STREAM.INFO", closes)
        await asyncio.sleep(60)
        assert (reader.checks, reader.events) == (1, [])


@virtual
async def test_closed_connection():
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        connection.abort()
        await asyncio.sleep(5)
        assert (reader.checks, reader.watch._handle) == (0, None)


@virtual
async def test_connection_is_closed_during_a_check():
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        connection.api.on("STREAM.INFO", *[SILENCE] * 9)
        while not reader.checks:
            await asyncio.sleep(0.1)
        connection.abort()
        await asyncio.sleep(5)
        assert reader.events == []


@virtual
async def test_short_waits_without_a_connection():
    async with connected() as (js, connection):
        reader = Reader(js, connection)
        connection.disconnect()
        for _ in range(30):
            reader.watch.asked()
            await asyncio.sleep(1)
        connection.reconnect()
        reader.watch.asked()
        await asyncio.sleep(23)
        assert reader.checks == 0
        await asyncio.sleep(5)
        assert reader.checks == 1
        reader.watch.close()
