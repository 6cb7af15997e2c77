"""The management of streams: what is requested, and what becomes of a race between clients."""

from __future__ import annotations

import pytest

from jsclient import StreamConfig
from jsclient.errors import (
    ApiError,
    ConfigError,
    ConfigMismatchError,
    InvalidNameError,
    StreamExistsError,
    StreamNotFoundError,
)
from jsclient.streams.api import StreamManager
from tests.support.fake import FakeConnection, Refusal, connected
from tests.support.virtual import virtual

MISSING = Refusal(10059, 404, "stream not found")
IN_USE = Refusal(10058, 400, "stream name already in use with a different configuration")
OVERLAP = Refusal(10065, 400, "subjects overlap with an existing stream")


def stream(**config) -> dict:
    return {
        "config": {"name": "S", "subjects": ["s"], **config},
        "created": "2026-01-01T00:00:00Z",
        "state": {},
    }


def verbs(connection: FakeConnection) -> list[str]:
    return [sent.subject.split(".")[3] for sent in connection.sent]


@virtual
async def test_create_and_update_send_the_configuration():
    async with connected() as (js, connection):
        assert isinstance(js, StreamManager)
        connection.api.on("STREAM.CREATE", stream())
        connection.api.on("STREAM.UPDATE", stream(max_msgs=5))
        assert (await js.create_stream("S", subjects=["s"])).name == "S"
        assert (await js.update_stream(StreamConfig(name="S", max_msgs=5))).config.max_msgs == 5
        assert [sent.json for sent in connection.sent] == [
            {"name": "S", "subjects": ["s"]},
            {"name": "S", "max_msgs": 5},
        ]


@pytest.mark.parametrize(
    ("arguments", "fields", "error"),
    [
        (("",), {}, ConfigError),
        (("a.b",), {}, InvalidNameError),
        (("S", ["a b"]), {}, InvalidNameError),
        (("S", "s"), {}, ConfigError),
        (("S",), {"max_messages": 5}, TypeError),
        ((StreamConfig(name="S"), ["s"]), {}, ConfigError),
    ],
)
@virtual
async def test_invalid_configuration_is_not_sent(arguments, fields, error):
    async with connected() as (js, connection):
        for call in (js.create_stream, js.update_stream, js.create_or_update_stream, js.ensure_stream):
            with pytest.raises(error):
                await call(*arguments, **fields)
        assert connection.sent == []


@virtual
async def test_refused_name_says_what_differs():
    async with connected() as (js, connection):
        connection.api.on("STREAM.CREATE", IN_USE)
        connection.api.on("STREAM.INFO", stream(max_msgs=5))
        with pytest.raises(StreamExistsError, match="max_msgs") as caught:
            await js.create_stream("S", subjects=["s"], max_msgs=6)
        assert 'ensure_stream(on_drift="update")' in str(caught.value)


@virtual
async def test_refused_subject_names_the_other_stream():
    async with connected() as (js, connection):
        connection.api.on("STREAM.CREATE", OVERLAP)
        connection.api.streams = ["OTHER"]
        with pytest.raises(ApiError, match="'s' is in stream 'OTHER'"):
            await js.create_stream("S", subjects=["s"])


@pytest.mark.parametrize(("on_drift", "actual"), [("error", None), ("ignore", 5), ("update", 6)])
@virtual
async def test_ensured_stream_that_differs(on_drift, actual):
    async with connected() as (js, connection):
        connection.api.on("STREAM.INFO", stream(max_msgs=5, max_bytes=7))
        connection.api.on("STREAM.UPDATE", stream(max_msgs=6, max_bytes=7))
        ensuring = js.ensure_stream("S", ["s"], max_msgs=6, on_drift=on_drift)
        if actual is None:
            with pytest.raises(ConfigMismatchError) as caught:
                await ensuring
            assert caught.value.mismatches == [("max_msgs", 6, 5)]
        else:
            assert (await ensuring).config.max_msgs == actual
        updates = connection.to("$JS.API.STREAM.UPDATE")
        assert [sent.json["max_bytes"] for sent in updates] == ([7] if on_drift == "update" else [])


@virtual
async def test_race_to_create_is_won_by_either():
    async with connected() as (js, connection):
        connection.api.on("STREAM.INFO", MISSING, stream())
        connection.api.on("STREAM.CREATE", Refusal(10058, 400, "in use"))
        connection.api.on("STREAM.INFO", stream())
        assert (await js.ensure_stream("S", ["s"])).name == "S"
        connection.sent.clear()
        connection.api.script.clear()
        connection.api.on("STREAM.UPDATE", MISSING, stream())
        connection.api.on("STREAM.CREATE", Refusal(10058, 400, "in use"))
        connection.api.on("STREAM.INFO", stream())
        await js.create_or_update_stream("S", ["s"])
        assert [verb for verb in verbs(connection) if verb != "INFO"] == ["UPDATE", "CREATE", "UPDATE"]


@virtual
async def test_unknown_word_for_drift_is_refused():
    async with connected() as (js, connection):
        with pytest.raises(ConfigError, match="on_drift"):
            await js.ensure_stream("S", on_drift="fix")
        assert connection.sent == []


@virtual
async def test_lookups_and_lists():
    async with connected() as (js, connection):
        connection.api.on("STREAM.INFO", stream(), MISSING)
        assert (await js.stream("S")).config.subjects == ["s"]
        with pytest.raises(StreamNotFoundError):
            await js.stream("S")
        connection.api.on("STREAM.LIST", {"total": 1, "offset": 0, "limit": 256, "streams": [stream()]})
        assert [info.name async for info in js.streams("s")] == ["S"]
        assert connection.sent[-1].json["subject"] == "s"
        connection.api.on("STREAM.NAMES", {"total": 2, "offset": 0, "limit": 1024, "streams": ["A", "B"]})
        assert [name async for name in js.stream_names()] == ["A", "B"]
        connection.api.streams = ["S"]
        assert await js.stream_name_by_subject("s") == ["S"]
        connection.api.on("STREAM.DELETE", {"success": True}, MISSING)
        await js.delete_stream("S")
        with pytest.raises(StreamNotFoundError):
            await js.delete_stream("S")


@virtual
async def test_account():
    async with connected() as (js, connection):
        connection.api.on("INFO", {"streams": 3, "domain": "hub"})
        info = await js.account_info()
        assert (info.streams, info.domain) == (3, "hub")
