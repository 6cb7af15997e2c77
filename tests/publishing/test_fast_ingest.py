"""A fast ingest on a fake connection, in virtual time: its questions when no answer comes, and when it fails."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from jsclient.errors import (
    IngestError,
    NoRespondersError,
)
from tests.support.fake import FakeConnection, connected
from tests.support.virtual import settle, virtual


def answer(connection: FakeConnection, payload: dict[str, Any], at: int = -1) -> None:
    """The answer of the server to the message sent last, or to another message."""
    reply = connection.to("s.")[at].reply
    connection.deliver(reply, [(reply.encode(), b"", b"", json.dumps(payload).encode())])


def flow(seq: int, msgs: int = 2) -> dict[str, Any]:
    return {"type": "ack", "seq": seq, "msgs": msgs}


def codes(connection: FakeConnection) -> list[str]:
    return [".".join(sent.reply.split(".")[-3:-1]) for sent in connection.to("s.")]


async def started(js: Any, connection: FakeConnection, msgs: int = 2, **options: Any) -> Any:
    ingest = js.fast_ingest(**options)
    first = asyncio.ensure_future(ingest.publish("s.a", b"1"))
    await settle()
    answer(connection, flow(0, msgs))
    assert await first == 1
    return ingest


async def fill(ingest: Any, until: int) -> int:
    while ingest.sent < until:
        await ingest.publish("s.a", b"x")
    return int(ingest.sent)


@virtual
async def test_close_tells_server():
    async with connected() as (js, connection):
        ingest = await started(js, connection)
        await ingest.publish("s.a", b"2")
        waiting = asyncio.ensure_future(fill(ingest, 10))
        await settle()
        await js.close()
        with pytest.raises(IngestError, match="closed"):
            await waiting
        assert codes(connection)[-1] == "5.3"


@virtual
async def test_unanswered_commit_count():
    async with connected() as (js, connection):
        ingest = await started(js, connection, timeout=2.5)
        await fill(ingest, 3)
        answer(connection, flow(2))
        with pytest.raises(IngestError) as caught:
            await ingest.commit("s.a", b"4")
        assert (caught.value.sent, caught.value.stored, caught.value.complete) == (4, 2, False)
        assert codes(connection)[3] == "4.2"
        assert codes(connection)[4:].count("5.3") >= 2  # the end is said again


@virtual
async def test_failure_has_last_counts():
    async with connected() as (js, connection):
        ingest = await started(js, connection, ack_every=100, msgs=100)
        await fill(ingest, 5)
        await settle()
        answer(connection, {"type": "gap", "last_seq": 4, "seq": 5})
        failing = asyncio.ensure_future(ingest.publish("s.a", b"6"))
        await asyncio.sleep(1.5)
        assert not failing.done()
        assert "6.1" not in codes(connection)
        assert codes(connection).count("6.3") == 2  # the server is asked to end it, and again
        answer(connection, {"stream": "S", "seq": 9, "batch": ingest.id, "count": 3})
        with pytest.raises(IngestError) as caught:
            await failing
        assert (caught.value.sent, caught.value.stored, caught.value.complete) == (5, 3, True)


def no_stream(connection: FakeConnection) -> None:
    """The answer of a server that has no stream on the subject of the latest message."""
    reply = connection.to("s.")[-1].reply
    connection.deliver(reply, [(reply.encode(), b"", b"NATS/1.0 503\r\n\r\n", b"")])


async def election(connection: FakeConnection, seconds: float) -> None:
    """No stream answers for these seconds."""
    until, sent = asyncio.get_running_loop().time() + seconds, -1
    while asyncio.get_running_loop().time() < until:
        if sent != len(connection.to("s.")):
            sent = len(connection.to("s."))
            no_stream(connection)
        await asyncio.sleep(0.05)
    async with asyncio.timeout(1.5):  # until the next attempt, which is answered
        while len(connection.to("s.")) == sent:
            await asyncio.sleep(0.05)


@virtual
async def test_ingest_can_begin_during_election():
    async with connected() as (js, connection):
        js._context.answered.add(b"s.a")
        ingest = js.fast_ingest(timeout=20.0)
        first = asyncio.ensure_future(ingest.publish("s.a", b"1"))
        await settle()
        await election(connection, 8.0)
        answer(connection, flow(0))
        assert await first == 1
        assert set(codes(connection)) == {"1.0"}  # a ping would begin an ingest without its first message
        assert await ingest.publish("s.a", b"2") == 2


@virtual
async def test_single_survives_election():
    async with connected() as (js, connection):
        js._context.answered.add(b"s.a")
        ingest = js.fast_ingest(timeout=20.0)
        committing = asyncio.ensure_future(ingest.commit("s.a", b"1"))
        await settle()
        await election(connection, 8.0)
        assert set(codes(connection)) == {"1.2"}
        answer(connection, {"stream": "S", "seq": 7, "batch": ingest.id, "count": 1})
        assert (await committing).seq == 7


@virtual
async def test_unknown_subject_three_tries():
    async with connected() as (js, connection):
        ingest = js.fast_ingest(timeout=20.0)
        first = asyncio.ensure_future(ingest.publish("s.a", b"1"))
        await settle()
        began = asyncio.get_running_loop().time()
        await asyncio.gather(election(connection, 2.0), return_exceptions=True)
        with pytest.raises(NoRespondersError):
            await first
        assert codes(connection).count("1.0") == 3
        assert asyncio.get_running_loop().time() - began < 4.0


@virtual
async def test_cancelled_election_not_started():
    async with connected() as (js, connection):
        js._context.answered.add(b"s.a")
        ingest = js.fast_ingest(timeout=20.0)
        first = asyncio.ensure_future(ingest.publish("s.a", b"1"))
        await settle()
        no_stream(connection)
        await settle()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(NoRespondersError):
            await ingest.publish("s.a", b"2")
