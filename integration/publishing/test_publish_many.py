"""`publish_many`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import jsclient
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import within
from integration.kit.network import match
from integration.kit.network.proxy import Proxy
from jsclient import (
    DisconnectedError,
    NoRespondersError,
    RequestTimeoutError,
)


@pytest.fixture
async def tap(proxy: Any) -> Proxy:
    return await proxy()


@pytest.fixture
async def js(connect: Any, tap: Proxy) -> Any:
    return await connect(tap, **PATIENT)


async def test_many_are_stored_in_order(js: Any, stream: OwnStream) -> None:
    ids = [f"id-{n}" for n in range(3000)]
    payloads = [b"%d" % n for n in range(3000)]
    actual = await js.publish_many(
        stream.subject("x"), iter(payloads), msg_ids=iter(ids), headers={"A": "1"}, max_in_flight=100
    )
    assert (actual.stored, actual.duplicates, actual.first_seq, actual.last_seq) == (3000, 0, 1, 3000)
    stored = await stream.messages()
    assert [message.payload for message in stored] == payloads
    again = await js.publish_many(stream.subject("x"), payloads, msg_ids=ids)
    assert (again.stored, again.duplicates, again.first_seq, again.last_seq) == (3000, 3000, 0, 0)
    assert (await js.publish_many(stream.subject("x"), [])).stored == 0


async def test_many_without_stream_names_failures(js: Any) -> None:
    with pytest.raises(jsclient.PublishManyError) as caught:
        await within(60, js.publish_many("nowhere.at.all", [b"1", b"2"]), "publish_many")
    error = caught.value
    assert [(index, type(why)) for index, why in error.failures] == [
        (0, NoRespondersError),
        (1, NoRespondersError),
    ]
    assert (error.sent, error.stored) == (2, 0)


async def test_many_with_odd_payload_known_outcomes(js: Any, stream: OwnStream) -> None:
    """The payloads of the chunk before are stored. The one that cannot be sent has the last index."""
    with pytest.raises(jsclient.PublishManyError) as caught:
        await js.publish_many(stream.subject("x"), [*[b"x"] * 1000, b"y", bytes(3_000_000), b"z"])
    error = caught.value
    assert [(index, type(why)) for index, why in error.failures] == [(1001, jsclient.MaxPayloadError)]
    assert (error.sent, error.stored) == (1001, 1001)
    assert len(await stream.messages()) == 1001
    for arguments in ({"msg_ids": ["a"]}, {"headers": {"A": "1"}, "msg_ids": ["a"]}):
        with pytest.raises(jsclient.PublishManyError) as caught:
            await js.publish_many(stream.subject("x"), [b"1", b"2"], **arguments)
        assert isinstance(caught.value.__cause__, jsclient.ConfigError)
        assert (caught.value.sent, caught.value.stored) == (0, 0)
    with pytest.raises(jsclient.InvalidNameError):
        await js.publish_many(stream.subject("x"), [b"1"], headers={"no token": "1"})


async def test_many_over_a_cut(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """With ids all are stored once although answers are lost with the connection."""
    held = tap.hold_frames(match.is_publish_ack)
    ids = [f"id-{n}" for n in range(500)]
    task = asyncio.create_task(js.publish_many(stream.subject("x"), [b"x"] * 500, msg_ids=ids, timeout=60))
    await held.wait(1)
    tap.cut()
    held.release()
    actual = await within(60, task, "publish_many")
    assert actual.stored == 500
    assert len(await stream.messages()) == 500


async def test_many_on_frozen_connection_end(js: Any, tap: Proxy, stream: OwnStream) -> None:
    """The server stops reading, so the write buffer fills up, and the call ends with its timeout."""
    tap.stall()
    sending = js.publish_many(stream.subject("x"), [bytes(100_000)] * 1000, timeout=1.0)
    with pytest.raises(jsclient.PublishManyError) as caught:
        await within(60, sending, "publish_many")
    assert {type(why) for _, why in caught.value.failures} == {RequestTimeoutError}
    assert js.is_connected
    tap.unstall()


async def test_many_without_ids_over_a_cut(js: Any, tap: Proxy, stream: OwnStream) -> None:
    held = tap.hold_frames(match.is_publish_ack)
    task = asyncio.create_task(js.publish_many(stream.subject("x"), [b"x"] * 50))
    await held.wait(1)
    tap.cut()
    held.release()
    with pytest.raises(jsclient.PublishManyError) as caught:
        await within(60, task, "publish_many")
    error = caught.value
    assert error.sent == 50 == error.stored + len(error.failures)
    assert {type(why) for _, why in error.failures} == {DisconnectedError}
