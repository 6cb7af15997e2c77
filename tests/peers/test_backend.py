"""The parts that all systems of peers share: attributes as JSON, answers to queries, pauses."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given

from jsclient.errors import ConfigError, ProtocolError
from jsclient.peers.backend import (
    Stopping,
    backoff,
    pack,
    read_answer,
    read_attrs,
    refusal,
    reply,
    unpack,
    with_id,
)
from jsclient.peers.errors import QueryRefusedError
from jsclient.protocol.events import ErrorRaised
from tests.protocol.models.kit import JSON
from tests.support.virtual import settle, virtual


@given(JSON)
def test_attributes_are_a_json_object(value):
    if isinstance(value, dict):
        assert unpack(pack(value)) == value
    assert read_answer(reply(value)) == value


@pytest.mark.parametrize("attrs", [{1: 2}, {"a": object()}, {"a": {1, object()}}])
def test_other_attributes_are_refused(attrs):
    with pytest.raises(ConfigError, match="JSON object"):
        pack(attrs)


@pytest.mark.parametrize(
    ("data", "attrs"), [(b"", {}), (b"[]", None), (b"?", None), (b"1", None), (b'{"a":1}', {"a": 1})]
)
def test_payload_of_a_stranger(data, attrs):
    assert unpack(data) == attrs


def test_copy_within_the_size_of_an_event():
    attrs = {"a": (1, 2)}
    assert read_attrs(attrs, 100) == {"a": [1, 2]}
    with pytest.raises(ConfigError, match="max_event_size is 5"):
        read_attrs(attrs, 5)
    assert with_id(None, attrs) is attrs
    assert with_id("x", attrs) == {"a": (1, 2), "Id": "x"}


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (refusal("POLICY"), QueryRefusedError, "POLICY"),
        (refusal("FAILED", "bad"), QueryRefusedError, "FAILED: bad"),
        (b"{}", ProtocolError, "not an answer"),
        (b"?", ProtocolError, "not an answer"),
        (b'{"refusal":7}', ProtocolError, "not an answer"),
    ],
)
def test_answer_that_has_no_value(data, error, words):
    with pytest.raises(error, match=words):
        read_answer(data)


def test_pauses_double_up_to_the_longest():
    assert [backoff(attempt) for attempt in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert backoff(10**6) == 30.0
    assert backoff(3, 1.0, 2.0) == 2.0


@virtual
async def test_closing_ends_every_pause():
    stopping, loop = Stopping(), asyncio.get_running_loop()
    start = loop.time()
    assert await stopping.pause(2.0)
    assert loop.time() - start == 2.0
    pauses = [asyncio.ensure_future(stopping.pause(100.0)) for _ in range(2)]
    await settle()
    stopping.begin_closing()
    assert await asyncio.gather(*pauses) == [False, False]
    assert loop.time() - start == 2.0
    assert not await stopping.pause(1.0)


def test_defect_in_a_background_task_becomes_an_event():
    from jsclient.peers.local_backend import LocalBackend
    from jsclient.protocol.peers.options import EngineOptions

    events = []
    backend = LocalBackend.__new__(LocalBackend)
    backend.options, backend.emit = EngineOptions(), events.append
    cause = ZeroDivisionError("x")
    backend.report_error(cause)
    backend.report_error(ConfigError("bad"))
    assert [type(event) for event in events] == [ErrorRaised] * 2
    assert events[0].error.__cause__ is cause
    assert "ZeroDivisionError: x" in str(events[0])
