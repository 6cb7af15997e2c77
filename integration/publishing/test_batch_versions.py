"""Servers that do not know batches are refused before anything is sent: they would store each message on its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import jsclient
from integration.kit.judge.streams import OwnStream
from integration.kit.network.proxy import Proxy
from integration.kit.servers.fake_server import FakeServer


@pytest.fixture
async def old(request: pytest.FixtureRequest) -> AsyncIterator[FakeServer]:
    async with FakeServer({"version": request.param}) as server:
        yield server


@pytest.mark.parametrize("old", ["2.10.25", "2.11.9"], indirect=True)
async def test_an_atomic_batch_needs_2_12(old: FakeServer, connect: Any) -> None:
    js = await connect(old)
    for call in (js.batch().publish("a"), js.batch().commit("a"), js.batch().__aenter__()):
        with pytest.raises(jsclient.ConfigError, match=r"2\.12"):
            await call
    assert old.sent() == []


@pytest.mark.parametrize("old", ["2.10.25", "2.12.8", "2.13.0"], indirect=True)
async def test_a_fast_ingest_needs_2_14(old: FakeServer, connect: Any) -> None:
    js = await connect(old)
    ingest = js.fast_ingest()
    for call in (
        ingest.publish("a"),
        ingest.publish_many("a", [b"1"]),
        ingest.commit("a"),
        ingest.__aenter__(),
    ):
        with pytest.raises(jsclient.ConfigError, match=r"2\.14"):
            await call
    assert old.sent() == []
    assert old.subs() == []


@pytest.mark.server("<2.12")
async def test_old_server_stores_no_batch(proxy: Any, connect: Any, oracle: Any, make_stream: Any) -> None:
    tap: Proxy = await proxy()
    js = await connect(tap)
    stream: OwnStream = await make_stream(allow_direct=True)
    await stream.publish(3)
    sent = len(tap.sent(stream.all))
    with pytest.raises(jsclient.ConfigError, match=r"2\.12"):
        await js.batch().commit(stream.subject("a"))
    with pytest.raises(jsclient.ConfigError, match=r"2\.14"):
        await js.fast_ingest().publish(stream.subject("a"))
    assert len(tap.sent(stream.all)) == sent
    assert (await stream.state())["messages"] == 3


@pytest.mark.server(">=2.12, <2.14")
async def test_old_server_stores_no_ingest(js: Any, stream: OwnStream) -> None:
    with pytest.raises(jsclient.ConfigError, match=r"2\.14"):
        await js.fast_ingest().publish(stream.subject("a"))
    assert (await stream.state())["messages"] == 0


@pytest.mark.server("<2.11")
async def test_batch_of_stored_messages_needs_2_11(
    proxy: Any, connect: Any, oracle: Any, make_stream: Any
) -> None:
    tap: Proxy = await proxy()
    js = await connect(tap)
    own: OwnStream = await make_stream(allow_direct=True)
    await own.publish(3)
    stream = await js.stream(own.name)
    for batch in (stream.get_batch(2), stream.get_last_messages(own.all)):
        with pytest.raises(jsclient.ConfigError, match=r"2\.11"):
            assert [message async for message in batch]
    assert tap.sent("$JS.API.DIRECT.GET.>") == []
    assert (await stream.get_message(2, direct=True)).seq == 2


@pytest.mark.server("<2.11")
async def test_old_leaf_detected(
    connect: Any, server: Any, oracle: Any, make_stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a leaf node or in another domain, the version of the connected server does not decide."""
    js = await connect(server)
    own: OwnStream = await make_stream(allow_direct=True)
    await own.publish(3)
    stream = await js.stream(own.name)
    monkeypatch.setattr(type(js._connection), "server_version", property(lambda self: "2.15.1"))
    with pytest.raises(jsclient.ProtocolError, match=r"2\.11"):
        assert [message async for message in stream.get_batch(2)]
    batch = js.batch()
    await batch.publish(own.subject("a"), b"1")
    with pytest.raises(jsclient.BatchNotAtomicError):
        await batch.publish(own.subject("a"), b"2")
    with pytest.raises(jsclient.IngestError):
        await js.fast_ingest().publish(own.subject("a"))
