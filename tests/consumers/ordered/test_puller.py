"""The puller of an ordered consumer: its requests, its consumers, and the way it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from jsclient._runtime.handle import State
from jsclient.consumers.ordered.puller import OrderedPuller
from jsclient.errors import (
    ConfigError,
    ConsumerExistsError,
    RequestTimeoutError,
)
from jsclient.protocol.consumers.ordered import ephemeral_config
from jsclient.protocol.events import DeleteFailed
from jsclient.protocol.models.consumer import ConsumerConfig
from tests.consumers.ordered.kit import (
    arrives,
    batches,
    creates,
    read_inboxes,
    sequences,
    start_next,
    unanswered,
)
from tests.support.fake import SILENCE, STREAM, Refusal, connected
from tests.support.strategies import data
from tests.support.virtual import settle, virtual


@virtual
@pytest.mark.parametrize("prefix", ["p", None])
@pytest.mark.parametrize("way", ["cancelled", "no answer"])
async def test_consumer_nobody_waits_for_deleted(way, prefix):
    async with connected() as (js, connection):
        opening = asyncio.ensure_future(js.ordered_consumer(STREAM, name_prefix=prefix).__aenter__())
        if way == "no answer":
            unanswered(connection)
            with pytest.raises(RequestTimeoutError):
                await opening
        else:
            while not creates(connection):
                await asyncio.sleep(0)
            opening.cancel()
            await asyncio.wait({opening})
            assert opening.cancelled()
        await settle(60)
        assert connection.deleted() == [creates(connection)[0]["name"]]
        assert read_inboxes(connection) == []
        assert connection.api.consumers == {}


@virtual
async def test_consumer_of_another_client_not_deleted():
    async with connected() as (js, connection):
        connection.api.has("p_1", durable_name=None)
        connection.api.on("CONSUMER.CREATE", SILENCE)
        with pytest.raises(RequestTimeoutError):
            await js.ordered_consumer(STREAM, name_prefix="p")
        await settle(60)
        assert connection.deleted() == []


@virtual
async def test_reset_deletes_orphan():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        waiting = await start_next(oc)
        unanswered(connection)
        connection.api.on("CONSUMER.DELETE", SILENCE)
        arrives(connection, data(2, 2))
        await settle(60)
        connection.disconnect()
        await settle(60)
        connection.reconnect()
        await settle(200)
        assert set(connection.deleted()) == {config["name"] for config in creates(connection)[:2]}
        assert list(connection.api.consumers) == [oc.consumer] == [creates(connection)[2]["name"]]
        arrives(connection, data(1, 1))
        assert sequences([await waiting]) == [1]


@virtual
async def test_name_somebody_else_passed_over():
    async with connected() as (js, connection):
        connection.api.on("CONSUMER.CREATE", *[Refusal(10148, 400)] * 3)
        oc = await js.ordered_consumer(STREAM, name_prefix="p")
        assert oc.consumer == "p_4"
        connection.api.on("CONSUMER.CREATE", *[Refusal(10148, 400)] * 200)
        with pytest.raises(ConsumerExistsError):
            await js.ordered_consumer(STREAM, name_prefix="p")
        await settle(60)
        assert connection.deleted() == [], "they are somebody else's"


@virtual
async def test_refills_at_half():
    async with connected() as (js, connection):
        oc = await js.ordered_consumer(STREAM)
        reader = oc.messages(max_messages=4)
        waiting = await start_next(reader)
        arrives(connection, *[data(number) for number in range(1, 5)])
        assert sequences([await waiting]) == [1]
        assert batches(connection) == [4]
        assert sequences([await anext(reader)]) == [2]
        assert batches(connection) == [4, 2]
        assert connection.pulls()[-1].json["idle_heartbeat"] == 2_000_000_000


async def opened(js, **options) -> OrderedPuller:
    options = {"name_prefix": None, "max_reset_attempts": None} | options
    puller = OrderedPuller(js._context, STREAM, ephemeral_config(ConsumerConfig(), 60.0), **options)
    await puller.create_first_consumer()
    return puller


@virtual
async def test_name_prefix_marks_the_consumers_of_this_reader():
    async with connected() as (js, connection):
        puller = await opened(js, name_prefix="mine")
        (config,) = creates(connection)
        assert config["name"] == "mine_1"
        assert len(config["metadata"]) == 1
        assert (puller.stream, puller.consumer, puller.state) == (STREAM, "mine_1", State.OPEN)
        await puller.stop_reading()
        assert connection.deleted() == ["mine_1"]
        assert puller.nothing_comes


@virtual
async def test_stop_drops_and_drain_keeps_what_has_arrived():
    for end in ("stop_reading", "drain"):
        async with connected() as (js, connection):
            puller = await opened(js)
            puller._receive_frames([data(1), data(2)])
            assert puller.take_message().metadata.stream_seq == 1
            await getattr(puller, end)()
            assert (puller.take_message() is None) is (end == "stop_reading")
            assert (puller.arrived, puller.state) == (2, State.CLOSED)
            puller._receive_frames([data(3)])
            assert puller.arrived == 2
            assert connection.deleted() == [puller.consumer]


@virtual
async def test_failed_deletion_is_reported():
    async with connected() as (js, connection):
        puller = await opened(js)
        connection.api.on("CONSUMER.DELETE", Refusal(10008, 503))
        await puller.stop_reading()
        await settle()
        assert [event.consumer for event in connection.told(DeleteFailed)] == [puller.consumer]


@virtual
async def test_filter_that_can_match_nothing_creates_no_reader():
    async with connected() as (js, connection):
        connection.outbox = SimpleNamespace(is_full=True)
        connection.api.on("STREAM.MSG", Refusal(10037, 404, "no message found"))
        config = ephemeral_config(ConsumerConfig(filter_subject="other"), 60.0)
        puller = OrderedPuller(js._context, STREAM, config, name_prefix=None, max_reset_attempts=None)
        with pytest.raises(ConfigError, match="'other'"):
            await puller.create_first_consumer()
        await settle()
        assert len(connection.deleted()) == 1
        connection.outbox = None
