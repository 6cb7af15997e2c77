"""A stream as a handle: the requests about its messages and consumers."""

from __future__ import annotations

import pytest

from jsclient.errors import (
    ConfigError,
    ConfigMismatchError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    InvalidNameError,
    MessageNotFoundError,
)
from jsclient.streams.stream import Stream
from tests.support.fake import FakeConnection, Refusal, connected
from tests.support.virtual import virtual

MESSAGE = {"message": {"subject": "orders.new", "seq": 7, "data": "eA==", "time": "2026-11-23T00:00:00Z"}}
NO_MESSAGE = Refusal(10037, 404, "no message found")


async def opened(js) -> Stream:
    stream = await js.stream("ORDERS")
    assert isinstance(stream, Stream)
    js._connection.sent.clear()
    return stream


def bodies(connection: FakeConnection, verb: str) -> list[dict]:
    return [sent.json for sent in connection.to(f"$JS.API.{verb}.ORDERS")]


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        ({}, {}),
        ({"subject": "orders.new"}, {"filter": "orders.new"}),
        ({"seq": 5}, {"seq": 5}),
        ({"keep": 3}, {"keep": 3}),
    ],
)
@virtual
async def test_purge_counts_what_it_removed(arguments, body):
    async with connected() as (js, connection):
        stream = await opened(js)
        connection.api.on("STREAM.PURGE", {"success": True, "purged": 4})
        assert await stream.purge(**arguments) == 4
        assert bodies(connection, "STREAM.PURGE") == [body]


@pytest.mark.parametrize(
    "arguments", [{"seq": 5, "keep": 3}, {"seq": -1}, {"keep": True}, {"subject": "a b"}]
)
@virtual
async def test_impossible_purge_is_refused_first(arguments):
    async with connected() as (js, connection):
        stream = await opened(js)
        with pytest.raises(ConfigError):
            await stream.purge(**arguments)
        assert connection.sent == []


@pytest.mark.parametrize(
    ("call", "body"),
    [
        (lambda stream: stream.get_message(7), {"seq": 7}),
        (lambda stream: stream.get_last_message("orders.new"), {"last_by_subj": "orders.new"}),
        (lambda stream: stream.get_next_message("orders.*", 3), {"seq": 3, "next_by_subj": "orders.*"}),
    ],
)
@virtual
async def test_message_of_the_leader(call, body):
    async with connected() as (js, connection):
        stream = await opened(js)
        connection.api.on("STREAM.MSG", MESSAGE, NO_MESSAGE)
        message = await call(stream)
        assert (message.seq, message.subject, message.data) == (7, "orders.new", b"x")
        assert bodies(connection, "STREAM.MSG.GET") == [body]
        with pytest.raises(MessageNotFoundError, match="ORDERS"):
            await call(stream)


@virtual
async def test_deleted_message_is_overwritten_if_wished():
    async with connected() as (js, connection):
        stream = await opened(js)
        connection.api.on("STREAM.MSG", *[{"success": True}] * 2)
        await stream.delete_message(7)
        await stream.delete_message(7, secure=True)
        assert bodies(connection, "STREAM.MSG.DELETE") == [{"seq": 7, "no_erase": True}, {"seq": 7}]


@virtual
async def test_direct_get_needs_a_stream_that_allows_it():
    async with connected() as (js, _):
        stream = await opened(js)
        with pytest.raises(ConfigError, match="allow_direct"):
            await stream.get_message(7, direct=True)


@virtual
async def test_info_is_remembered():
    async with connected() as (js, connection):
        stream = await opened(js)
        assert stream.cached_info.state.last_seq == 0
        connection.api.last_seq = 9
        await stream.info()
        assert (stream.cached_info.state.last_seq, stream.name, repr(stream)) == (
            9,
            "ORDERS",
            "<Stream ORDERS>",
        )


@virtual
async def test_consumers_are_created_and_looked_up():
    async with connected() as (js, _):
        stream = await opened(js)
        created = await stream.create_consumer(durable_name="d", max_deliver=3)
        assert (created.name, created.config.max_deliver) == ("d", 3)
        assert (await stream.consumer("d")).name == "d"
        await stream.delete_consumer("d")
        with pytest.raises(ConsumerNotFoundError):
            await stream.consumer("d")
        with pytest.raises(InvalidNameError):
            await stream.create_consumer(durable_name="a.b")
        with pytest.raises(TypeError, match="max_deliver"):
            await stream.create_consumer(durable_name="d", max_deliveries=3)


@virtual
async def test_ensured_consumer_differs_only_as_the_caller_allows():
    async with connected() as (js, connection):
        stream = await opened(js)
        assert (await stream.ensure_consumer(durable_name="d", max_deliver=3)).config.max_deliver == 3
        with pytest.raises(ConfigMismatchError) as caught:
            await stream.ensure_consumer(durable_name="d", max_deliver=4)
        assert caught.value.mismatches == [("max_deliver", 4, 3)]
        ignored = await stream.ensure_consumer(durable_name="d", max_deliver=4, on_drift="ignore")
        assert ignored.config.max_deliver == 3
        await stream.ensure_consumer(durable_name="d", max_deliver=4, on_drift="update")
        assert connection.api.consumers["d"]["max_deliver"] == 4


@virtual
async def test_consumer_that_another_client_created_at_the_same_time():
    async with connected() as (js, connection):
        stream = await opened(js)
        connection.api.on("CONSUMER.DURABLE.CREATE", Refusal(10148, 400, "consumer already exists"))
        connection.api.on("CONSUMER.CREATE", Refusal(10148, 400, "consumer already exists"))
        connection.api.on("CONSUMER.INFO", Refusal(10014, 404, "consumer not found"))
        connection.api.has("d", max_deliver=3)
        assert (await stream.ensure_consumer(durable_name="d", max_deliver=3)).name == "d"
        connection.api.script.clear()
        for verb in ("CONSUMER.DURABLE.CREATE", "CONSUMER.CREATE"):
            connection.api.on(verb, Refusal(10148, 400, "consumer already exists"))
        with pytest.raises(ConsumerExistsError):
            await stream.create_consumer(durable_name="d", max_deliver=9)


@virtual
async def test_list_of_consumers():
    async with connected() as (js, connection):
        stream = await opened(js)
        items = [connection.api.info(name, {"ack_policy": "explicit"}) for name in "ab"]
        connection.api.on("CONSUMER.LIST", {"total": 2, "offset": 0, "limit": 256, "consumers": items})
        assert [info.name async for info in stream.consumers()] == ["a", "b"]
