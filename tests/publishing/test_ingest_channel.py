"""The channel of a fast ingest: pings, the server's limit, and the connection."""

from __future__ import annotations

import asyncio

import pytest

from jsclient.errors import (
    DisconnectedError,
    IngestError,
    PermissionDeniedError,
    RequestTimeoutError,
)
from jsclient.protocol.publishing.fast_ingest import IngestTracker
from jsclient.publishing.ingest_channel import CHUNK, IngestChannel
from tests.publishing.test_fast_ingest import answer, codes, fill, flow, started
from tests.support.fake import connected
from tests.support.virtual import settle, virtual


@virtual
async def test_silence_pings_then_ends():
    async with connected() as (js, connection):
        ingest = await started(js, connection, timeout=4.0)
        loop = asyncio.get_running_loop()
        for number in (2, 3, 4):
            assert await ingest.publish("s.a", b"x") == number
        began = loop.time()
        with pytest.raises(IngestError) as caught:
            await ingest.publish("s.a", b"5")
        assert isinstance(caught.value.__cause__, RequestTimeoutError)
        assert loop.time() - began == pytest.approx(4.0, abs=0.5)
        assert codes(connection)[:4] == ["1.0", "2.1", "3.1", "4.1"]
        assert codes(connection).count("4.4") == 3
        assert codes(connection)[-1] == "5.3"  # the server learns that the ingest is over
        assert ingest.sent == 4


@virtual
async def test_ack_progress_restarts_timeout():
    async with connected() as (js, connection):
        ingest = await started(js, connection, timeout=3.0, ack_every=1, max_outstanding_acks=1, msgs=1)
        loop = asyncio.get_running_loop()
        began, waiting = loop.time(), asyncio.ensure_future(fill(ingest, 12))
        for number in range(1, 12):
            await asyncio.sleep(2.5)
            answer(connection, flow(number, 1))
        assert await waiting == 12
        assert loop.time() - began > 20
        await ingest.__aexit__(ValueError, ValueError(), None)


@virtual
async def test_ping_allows_one_message():
    async with connected() as (js, connection):
        ingest = await started(js, connection, timeout=4.0)
        waiting = asyncio.ensure_future(fill(ingest, 10))
        await asyncio.sleep(1.1)
        assert (ingest.sent, codes(connection)[-1]) == (4, "4.4")
        answer(connection, flow(0))
        await settle()
        assert (ingest.sent, codes(connection)[-1]) == (5, "5.1")
        await asyncio.sleep(1.1)
        answer(connection, flow(0))
        await settle()
        assert ingest.sent == 5
        answer(connection, flow(5, 2))
        await settle()
        assert ingest.sent == 9
        waiting.cancel()
        await ingest.__aexit__(ValueError, ValueError(), None)


@virtual
async def test_idle_keepalive_each_3_s():
    async with connected() as (js, connection):
        ingest = await started(js, connection, ack_every=100, msgs=100)
        await asyncio.sleep(10)
        assert codes(connection)[1:] == ["1.4"] * 2  # with answers and without
        answer(connection, flow(0, 100))
        await asyncio.sleep(3)
        assert codes(connection)[1:] == ["1.4"] * 3
        for _ in range(10):
            await asyncio.sleep(1)
            await ingest.publish("s.a", b"x")
        await settle()
        assert codes(connection).count("1.4") == 3
        assert len(codes(connection)) == 14
        await ingest.__aexit__(ValueError, ValueError(), None)
        sent = len(connection.sent)
        await asyncio.sleep(60)
        assert len(connection.sent) == sent


@virtual
async def test_reconnect_followed_by_question():
    async with connected() as (js, connection):
        ingest = await started(js, connection, ack_every=100, msgs=100)
        connection.disconnect()
        assert await ingest.publish("s.a", b"2") == 2
        await settle()
        assert codes(connection) == ["1.0"]
        connection.reconnect()
        await settle()
        assert codes(connection) == ["1.0", "2.1", "2.4"]
        await ingest.__aexit__(ValueError, ValueError(), None)


@virtual
async def test_offline_timeout_sends_none():
    async with connected() as (js, connection):
        connection.disconnect()
        ingest = js.fast_ingest(timeout=3.0)
        with pytest.raises(IngestError) as caught:
            await ingest.publish("s.a", b"1")
        assert isinstance(caught.value.__cause__, DisconnectedError)
        connection.reconnect()
        await settle()
        assert connection.sent == []
        assert connection.listening == []


@virtual
@pytest.mark.parametrize("operation", ["publish", "subscribe"])
async def test_right_missing_named(operation):
    async with connected() as (js, connection):
        ingest = js.fast_ingest()
        starting = asyncio.ensure_future(ingest.publish("s.a", b"1"))
        await settle()
        subject = "s.a" if operation == "publish" else connection.inboxes[-1].subject
        connection.deny("publish", "s.other")
        connection.deny(operation, subject)
        with pytest.raises((PermissionDeniedError, IngestError)) as caught:
            await starting
        # Without the right to hear answers the message may be stored.
        denied = caught.value if operation == "publish" else caught.value.__cause__
        assert isinstance(denied, PermissionDeniedError)
        assert denied.subject == subject
        assert connection.listening == []
        assert connection.denied == [js._context.requests._fail_denied]


@virtual
async def test_lost_end_repeated():
    async with connected() as (js, connection):
        ingest = await started(js, connection)
        committing = asyncio.ensure_future(ingest.commit())
        await settle()
        connection.disconnect()
        await asyncio.sleep(0.1)
        connection.reconnect()
        await settle()
        assert codes(connection) == ["1.0", "2.3", "2.3"]
        answer(connection, {"stream": "S", "seq": 9, "batch": ingest.id, "count": 1})
        assert (await committing).count == 1


def channel(js, timeout: float = 4.0) -> IngestChannel:
    return IngestChannel(js._context, IngestTracker("_INBOX.token", 2), timeout)


@virtual
async def test_messages_of_a_turn_are_written_together():
    async with connected() as (js, connection):
        ingest, written = channel(js), []
        connection.send_frames = written.append
        await ingest.open_inbox()
        await ingest.open_inbox()
        assert connection.listening == ["_INBOX.token.>"]
        for payload in (b"1", b"2"):
            ingest.write(b"s.a", b"", b"", payload)
        assert written == []
        await settle()
        assert [[frame[3] for frame in frames] for frames in written] == [[b"1", b"2"]]
        assert ingest.unsent == 2
        await ingest.close()
        assert connection.listening == []
        await ingest.close()


@virtual
async def test_what_was_written_while_disconnected_is_sent_after_the_reconnect():
    async with connected() as (js, connection):
        ingest, written = channel(js), []
        connection.send_frames = written.extend
        await ingest.open_inbox()
        connection.disconnect()
        ingest.write_many([(b"s.a", b"", b"", b"1")], 1)
        await settle()
        assert written == []
        connection.reconnect()
        assert [frame[3] for frame in written] == [b"1"]
        await ingest.close()


@virtual
async def test_full_write_buffer_is_waited_for():
    async with connected() as (js, connection):
        ingest, waits = channel(js), []

        async def wait_for_space():
            waits.append(1)

        connection.send_frames, connection.wait_for_space = lambda frames: None, wait_for_space
        await ingest.open_inbox()
        ingest.write(b"s.a", b"", b"", b"x" * CHUNK)
        await ingest.room()
        assert waits == []
        ingest.write(b"s.a", b"", b"", b"x")
        await ingest.room()
        assert (waits, ingest.unsent) == ([1], 0)
        await ingest.close()
