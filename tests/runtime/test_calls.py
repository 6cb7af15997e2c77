"""Requests that several rooms share: which subject, which body, and what an answer means."""

from __future__ import annotations

import pytest

from jsclient._runtime import calls
from jsclient.errors import ConfigError, NoMatchingStreamError, ProtocolError
from jsclient.protocol.models.consumer import ConsumerConfig
from jsclient.protocol.models.stream_config import StreamConfig
from tests.support.fake import SILENCE, Refusal, connected
from tests.support.strategies import data, foreign
from tests.support.virtual import virtual

NO_CONSUMER = Refusal(10014, 404, "consumer not found")
NO_STREAM = Refusal(10059, 404, "stream not found")


@pytest.mark.parametrize(
    ("config", "subject", "action"),
    [
        (ConsumerConfig(durable_name="d"), "CONSUMER.DURABLE.CREATE.S.d", "create"),
        (ConsumerConfig(name="n", filter_subject="a.*"), "CONSUMER.CREATE.S.n.a.*", "create"),
        (ConsumerConfig(name="n"), "CONSUMER.CREATE.S.n", "create"),
        (ConsumerConfig(), "CONSUMER.CREATE.S", None),
    ],
)
@virtual
async def test_named_consumer_is_created_and_never_changed(config, subject, action):
    async with connected() as (js, connection):
        await calls.create_consumer(js._context, "S", config)
        (sent,) = connection.sent
        assert sent.subject == f"$JS.API.{subject}"
        assert sent.json.get("action") == action
        assert sent.json["stream_name"] == "S"


@pytest.mark.parametrize(
    ("version", "config"),
    [
        ("2.9.0", ConsumerConfig(filter_subjects=["a", "b"])),
        ("2.10.29", ConsumerConfig(priority_groups=["A"], priority_policy="overflow")),
    ],
)
@virtual
async def test_field_that_an_old_server_would_ignore(version, config, monkeypatch):
    async with connected() as (js, connection):
        monkeypatch.setattr(type(connection), "server_version", version)
        with pytest.raises(ConfigError, match="of a consumer"):
            calls.check_known(js._context, config)
        with pytest.raises(ConfigError, match="allow_msg_ttl of a stream"):
            calls.check_known_to_stream(js._context, StreamConfig(name="S", allow_msg_ttl=True))
        calls.check_known(js._context, ConsumerConfig())


@pytest.mark.parametrize(
    ("answer", "existed"), [({"success": True}, True), (NO_CONSUMER, False), (NO_STREAM, False)]
)
@virtual
async def test_deletion_says_whether_there_was_one(answer, existed):
    async with connected() as (js, connection):
        connection.api.on("CONSUMER.DELETE", answer)
        assert await calls.delete_consumer(js._context, "S", "c") is existed


@pytest.mark.parametrize(
    ("answer", "gone"),
    [(NO_CONSUMER, True), (NO_STREAM, True), (SILENCE, False), (Refusal(10039, 503), False)],
)
@virtual
async def test_only_the_server_can_say_that_it_is_gone(answer, gone):
    async with connected() as (js, connection):
        connection.api.on("CONSUMER.INFO", *[answer] * 5)
        assert await calls.is_gone(js._context, "S", "c") is gone


@virtual
async def test_info_checks_its_timeout_first():
    async with connected() as (js, connection):
        with pytest.raises(ConfigError, match="timeout"):
            await calls.consumer_info(js._context, "S", "c", timeout=0)
        assert connection.sent == []


@virtual
async def test_unread_messages_are_returned_and_others_are_not():
    async with connected() as (_, connection):
        await calls.nak_all(connection, [data(1), foreign(), data(2)])
        assert connection.settled == [(b"-NAK", False)] * 2
        connection.disconnect()
        await calls.nak_all(connection, [data(3)])


@virtual
async def test_pages_until_the_last_item():
    async with connected() as (js, connection):
        connection.api.on(
            "STREAM.LIST",
            {"total": 3, "offset": 0, "limit": 2, "streams": [1, 2]},
            {"total": 3, "offset": 2, "limit": 2, "streams": [3]},
        )
        assert [
            item async for item in calls.pages(js._context, js._context.api.stream_list(), "streams")
        ] == [1, 2, 3]
        assert [sent.json.get("offset", 0) for sent in connection.sent] == [0, 2]
        connection.api.on("STREAM.LIST", {"streams": 7})
        with pytest.raises(ProtocolError):
            [item async for item in calls.pages(js._context, js._context.api.stream_list(), "streams")]


@virtual
async def test_subjects_come_in_pages():
    async with connected() as (js, connection):
        first = {
            "config": {"name": "S"},
            "state": {"subjects": {"a": 1, "b": 2}},
            "total": 3,
            "offset": 0,
            "limit": 2,
        }
        second = first | {"state": {"subjects": {"c": 3}}, "offset": 2}
        connection.api.on("STREAM.INFO", first, second)
        pages = [page.state.subjects async for page in calls.subject_pages(js._context, "S", ">")]
        assert pages == [{"a": 1, "b": 2}, {"c": 3}]
        assert [sent.json for sent in connection.sent] == [
            {"subjects_filter": ">"},
            {"subjects_filter": ">", "offset": 2},
        ]


@virtual
async def test_streams_of_a_subject():
    async with connected() as (js, connection):
        connection.api.on("STREAM.NAMES", {"streams": ["A", "B"]}, {"streams": None}, {"streams": [7]})
        assert await calls.find_streams(js._context, "a.*") == ["A", "B"]
        assert await calls.find_streams(js._context, "a.*") == []
        with pytest.raises(NoMatchingStreamError):
            await calls.find_streams(js._context, "a.*")
