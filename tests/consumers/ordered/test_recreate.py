"""Every message comes once and in order, through any number of consumers."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import (
    ApiError,
    PermissionDeniedError,
    PullLimitError,
    RequestTimeoutError,
    StreamNotFoundError,
)
from jsclient.protocol.events import ConsumerReset, ErrorRaised, HeartbeatMissed, StreamReset
from tests.consumers.ordered.kit import arrives, creates, read_inboxes, sequences, start_next, taken
from tests.support.fake import STREAM, Refusal, connected
from tests.support.strategies import data, heartbeat, status
from tests.support.virtual import settle, virtual


@virtual
@pytest.mark.covers("J92", "J93")
async def test_gap_recreates_consumer():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        first, old = oc.consumer, connection.pulls()[-1].reply
        arrives(connection, data(3, 1), data(4, 2), data(9, 5))
        await settle(60)
        again = creates(connection)[1]
        assert (again["deliver_policy"], again["opt_start_seq"]) == ("by_start_sequence", 5)
        assert connection.deleted() == [first]
        assert oc.consumer != first
        assert connection.pulls()[-1].subject.endswith(oc.consumer)
        assert len(read_inboxes(connection)) == 1
        connection.deliver(old, [data(99, 3)])
        arrives(connection, data(5, 1), data(6, 2))
        assert [*sequences([await waiting]), *await taken(oc, 3)] == [3, 4, 5, 6]
        (reset,) = connection.told(ConsumerReset)
        assert (reset.resume_stream_seq, reset.consumer) == (5, oc.consumer)


@virtual
async def test_missed_heartbeats_make_new_consumer():
    """Row 99."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        arrives(connection, data(1))
        connection.api.last_seq = 1
        await waiting
        await asyncio.sleep(3.5)
        assert len(creates(connection)) == 1
        await asyncio.sleep(1)
        assert [config.get("opt_start_seq") for config in creates(connection)] == [None, 2]
        assert len(connection.told(HeartbeatMissed)) == 1
        arrives(connection, data(2, 1), heartbeat(1, 2))
        assert await taken(oc, 1) == [2]


@virtual
async def test_idle_reconnect_recreates():
    """Rows 95, 105."""
    async with connected() as (js, connection):
        connection.api.delivered = connection.api.last_seq = 100
        oc = await js.ordered_consumer(STREAM, deliver_policy="new")
        connection.disconnect()
        await asyncio.sleep(3)
        connection.reconnect()
        await settle(60)
        config = creates(connection)[-1]
        assert (config["deliver_policy"], config["opt_start_seq"]) == ("by_start_sequence", 101)
        waiting = await start_next(oc)
        arrives(connection, data(101, 1))
        assert sequences([await waiting]) == [101]


@virtual
async def test_pause_keeps_buffer():
    """Row 106."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        reader = oc.messages(max_messages=4)
        waiting = await start_next(reader)
        arrives(connection, *[data(number) for number in range(1, 5)])
        connection.api.last_seq = 4
        await waiting
        await asyncio.sleep(3600)
        assert connection.events == []
        assert await taken(reader, 1) == [2], "which asks for more"
        await settle(60)
        assert creates(connection)[-1]["opt_start_seq"] == 5
        arrives(connection, data(5, 1))
        assert await taken(reader, 3) == [3, 4, 5]
        assert connection.told(HeartbeatMissed) == []


@virtual
async def test_failed_create_retried():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        connection.api.on("CONSUMER.CREATE", *[Refusal(10008, 503)] * 5)
        arrives(connection, data(1, 2))
        await asyncio.sleep(4.5)
        assert len(creates(connection)) == 7
        assert len(connection.told(ErrorRaised)) == 1
        arrives(connection, data(1, 1))
        assert sequences([await waiting]) == [1]


@virtual
async def test_repeated_loss_backs_off():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        for _ in range(200):
            arrives(connection, status(503))
            await asyncio.sleep(0.01)
        assert 3 < len(creates(connection)) < 12
        await asyncio.sleep(10)
        arrives(connection, data(1, 1))
        assert sequences([await waiting]) == [1]


@virtual
@pytest.mark.parametrize("read", ["next", "fetch", "async for"])
async def test_after_so_many_attempts_abandoned(read):
    """Row 110."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM, max_reset_attempts=3)
        waiting = await start_next(oc)
        connection.api.on("CONSUMER.CREATE", *[Refusal(10008, 503)] * 5)
        arrives(connection, data(1, 1), data(2, 2), data(5, 5))
        await asyncio.sleep(8)
        assert len(creates(connection)) == 4
        assert sequences([await waiting]) == [1]
        assert oc.is_closed
        uses = {"next": oc.next, "fetch": lambda: oc.fetch(1), "async for": lambda: anext(aiter(oc))}
        await uses[read]()
        for _ in range(2):
            with pytest.raises(ApiError):
                await uses[read]()
        assert read_inboxes(connection) == []
        await oc.stop()


@virtual
async def test_stream_deleted_ends_behind_waits():
    """Row 96."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        connection.api.on("CONSUMER.CREATE", *[Refusal(10059, 404, "stream not found")] * 50)
        arrives(connection, data(1, 1), status(409, "Consumer Deleted"))
        fetched = await waiting
        with pytest.raises(RequestTimeoutError):
            await oc.next(timeout=4)
        with pytest.raises(StreamNotFoundError):
            await oc.next(timeout=60)
        assert sequences([fetched]) == [1]
        assert [event async for event in oc.events()]


@virtual
async def test_stream_recreated_read_from_start():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        await settle(60)
        waiting = await start_next(oc)
        arrives(connection, data(1, 1), data(2, 2))
        await waiting
        connection.api.stream_created = "2026-06-01T00:00:00Z"
        connection.api.last_seq = 50
        arrives(connection, status(409, "Consumer Deleted"))
        await settle(120)
        (event,) = connection.told(StreamReset)
        assert event.last_stream_seq == 2
        assert creates(connection)[-1]["opt_start_seq"] == 1
        arrives(connection, data(1, 1))
        assert await taken(oc, 2) == [2, 1]
        assert len(connection.deleted()) == 2


@virtual
async def test_refused_pull_ends_reader():
    """Row 103."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM, max_batch=10)
        reader = oc.messages()
        waiting = await start_next(reader)
        arrives(connection, status(409, "Exceeded MaxRequestBatch of 10"))
        with pytest.raises(PullLimitError):
            await waiting
        assert reader.is_closed
        waiting = await start_next(oc.messages(max_messages=10))
        arrives(connection, data(1))
        assert sequences([await waiting]) == [1]
        assert len(creates(connection)) == 1


@virtual
async def test_denied_pull_raises():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        connection.deny("publish", connection.pulls()[-1].subject)
        with pytest.raises(PermissionDeniedError):
            await waiting
        with pytest.raises(PermissionDeniedError):
            await oc.fetch(1)
        await settle(60)
        assert connection.deleted() == [oc.consumer]
        assert read_inboxes(connection) == []
