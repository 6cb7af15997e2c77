"""An ordered pull consumer on a fake connection: how it is opened, and how it is read."""

from __future__ import annotations

import asyncio
import gc

import pytest

from jsclient import OrderedConsumer
from jsclient.errors import (
    ApiError,
    ClosedError,
    ConcurrentReadError,
    ConfigError,
    InvalidNameError,
    StreamNotFoundError,
)
from tests.consumers.ordered.kit import (
    arrives,
    asked,
    batches,
    creates,
    read_inboxes,
    sequences,
    taken,
)
from tests.support.fake import STREAM, Refusal, connected
from tests.support.strategies import data, status
from tests.support.virtual import settle, virtual

# --- opening -------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.covers("J93")
async def test_consumer_follows_adr_17():
    """Row 104."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        assert isinstance(oc, OrderedConsumer)
        (config,) = creates(connection)
        prefix, _, number = config.pop("name").rpartition("_")
        assert len(prefix) == 22
        assert (oc.consumer, number) == (f"{prefix}_1", "1")
        assert config == {
            "ack_policy": "none",
            "deliver_policy": "all",
            "inactive_threshold": 300_000_000_000,
            "max_deliver": 1,
            "mem_storage": True,
            "num_replicas": 1,
            "replay_policy": "instant",
        }
        assert connection.pulls() == [], "nothing is asked for before somebody reads"


@virtual
async def test_reset_keeps_filters():
    """Row 104, and what is carried over."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(
            STREAM,
            filter_subjects=["a", "b.>"],
            headers_only=True,
            inactive_threshold=60.0,
            replay_policy="original",
            name_prefix="audit",
            description="mine",
            metadata={"who": "me"},
        )
        await asked(oc)
        arrives(connection, data(7, 1), data(9, 3))
        await settle(60)
        first, second = creates(connection)
        assert (first.pop("name"), second.pop("name")) == ("audit_1", "audit_2")
        assert first["filter_subjects"] == ["a", "b.>"]
        assert first["metadata"].pop("jsclient.reader")
        assert first["metadata"] == {"who": "me"}
        second["metadata"].pop("jsclient.reader")
        assert second.pop("opt_start_seq") == 8
        assert second == first | {"deliver_policy": "by_start_sequence"}


@virtual
async def test_one_filter_in_subject():
    async with connected() as (js, connection):
        async with js.ordered_consumer(STREAM, filter_subject="orders.*", name_prefix="p") as oc:
            assert oc.consumer == "p_1"
        (sent,) = connection.to("$JS.API.CONSUMER.CREATE.")
        assert sent.subject == f"$JS.API.CONSUMER.CREATE.{STREAM}.p_1.orders.*"


@virtual
async def test_context_exit_deletes_consumer():
    async with connected() as (js, connection):
        async with js.ordered_consumer(STREAM) as oc:
            name = oc.consumer
            waiting = await asked(oc)
            assert len(read_inboxes(connection)) == 1
        assert connection.deleted() == [name]
        assert read_inboxes(connection) == []
        assert oc.is_closed
        with pytest.raises(ClosedError):
            await waiting
        await oc.stop()
        await oc.drain()
        assert connection.deleted() == [name]
        with pytest.raises(ClosedError):
            await oc.fetch(1)
        assert [message async for message in oc] == []


@virtual
async def test_missing_stream_fails_at_once():
    """Row 110."""
    async with connected() as (js, connection):
        for refusal, error in ((Refusal(10059, 404), StreamNotFoundError), (Refusal(10008, 503), ApiError)):
            connection.api.on("CONSUMER.CREATE", refusal, refusal)
            with pytest.raises(error):
                await js.ordered_consumer("NO")
            with pytest.raises(error):
                async with js.ordered_consumer("NO"):
                    pass
        assert read_inboxes(connection) == []
        assert len(connection.inboxes) == 1


@virtual
@pytest.mark.parametrize(
    "options",
    [
        {"durable_name": "d"},
        {"ack_policy": "explicit"},
        {"max_deliver": 3},
        {"deliver_subject": "s"},
        {"filter_subjects": "orders.>"},
        {"name": "n"},
        {"name_prefix": "a.b"},
        {"name_prefix": "p" * 240},
        {"max_reset_attempts": 0},
        {"max_reset_attempts": True},
        {"opt_start_seq": 0},
        {"no_such_field": 1},
    ],
)
async def test_bad_arguments_refused(options):
    """Row 93."""
    async with connected() as (js, connection):
        with pytest.raises((ConfigError, TypeError)):
            js.ordered_consumer(STREAM, **options)
        with pytest.raises(InvalidNameError):
            js.ordered_consumer("no stream")
        assert connection.log == []


# --- reading -------------------------------------------------------------------------------------------------


@virtual
async def test_mixed_reads_skip_nothing():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await asked(oc)
        arrives(connection, *[data(number) for number in range(1, 31)])
        assert sequences([await waiting]) == [1]
        assert await taken(oc, 2) == [2, 3]
        assert sequences(await oc.fetch(3)) == [4, 5, 6]
        async for message in oc:
            if message.metadata.stream_seq == 10:
                break
        assert sequences(await oc.fetch(2)) == [11, 12]
        async with oc.messages(max_messages=50) as reader:
            assert await taken(reader, 3) == [13, 14, 15]
            assert (reader.pending, oc.pending, oc.position) == (15, 15, 15)
        fetching = asyncio.ensure_future(oc.fetch(100, no_wait=True))
        await settle()
        arrives(connection, status(404, "No Messages"))
        assert sequences(await fetching) == list(range(16, 31))
        assert batches(connection) == [500, 85]


@virtual
async def test_one_way_to_read_at_a_time():
    """Row 100."""
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        fetching = asyncio.ensure_future(oc.fetch(2))
        await settle()
        for use in (oc.fetch(1), oc.next(), anext(aiter(oc)), anext(oc.messages())):
            with pytest.raises(ConcurrentReadError):
                await use
        arrives(connection, data(1), data(2), data(3), data(4))
        assert sequences(await fetching) == [1, 2]
        loop = aiter(oc)
        assert sequences([await anext(loop)]) == [3]
        for use in (oc.fetch(1), anext(aiter(oc)), anext(oc.messages())):
            with pytest.raises(ConcurrentReadError):
                await use
        assert sequences([await oc.next()]) == [4], "one of the same iteration"
        del loop
        gc.collect()
        waiting = await asked(oc)
        with pytest.raises(ConcurrentReadError):
            await oc.fetch(1)
        arrives(connection, data(5), data(6))
        assert sequences([await waiting]) == [5]
        assert sequences(await oc.fetch(1)) == [6]


@virtual
async def test_stop_and_drain_leave_rest():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        reader = oc.messages(max_messages=10)
        waiting = await asked(reader)
        arrives(connection, *[data(number) for number in range(1, 6)])
        await waiting
        await reader.stop()
        with pytest.raises(ClosedError):
            await reader.next()
        assert reader.is_closed
        other = oc.messages(max_messages=10)
        assert await taken(other, 2) == [2, 3]
        await other.drain()
        assert [message.metadata.stream_seq async for message in other] == [4, 5]
        asked_for = sum(batches(connection))
        arrives(connection, data(6))
        assert await taken(oc, 1) == [6]
        assert sum(batches(connection)) > asked_for
        assert not oc.is_closed
        unread = oc.messages()
        await unread.drain()
        assert [message async for message in unread] == []


@virtual
async def test_forgotten_loop_asks_for_no_more():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)

        async def first():
            async for _ in oc:
                break

        waiting = asyncio.ensure_future(first())
        await settle()
        arrives(connection, data(1))
        await waiting
        gc.collect()
        arrives(connection, status(408, "Request Timeout", Nats_Pending_Messages=499, Nats_Pending_Bytes=0))
        await asyncio.sleep(100)
        assert batches(connection) == [500]
        assert creates(connection)[1:] == []
