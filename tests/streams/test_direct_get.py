"""Many stored messages with one request, on a fake connection in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jsclient.errors import ClosedError, DisconnectedError, PermissionDeniedError, RequestTimeoutError
from jsclient.protocol.consumers.status import Ending
from tests.protocol.streams.test_direct_get import end, message
from tests.support.fake import SILENCE, FakeConnection, connected
from tests.support.virtual import settle, virtual

API = "$JS.API.DIRECT.GET.ORDERS"


async def opened(js: Any, connection: FakeConnection) -> Any:
    connection.api.on("STREAM.INFO", info(), info())
    return await js.stream("ORDERS")


def info() -> dict[str, Any]:
    return {
        "config": {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True},
        "created": "2026-01-01T00:00:00Z",
        "state": {"messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0, "consumer_count": 0},
    }


async def read(batch: Any, seqs: list[int]) -> None:
    async for stored in batch:
        seqs.append(stored.seq)  # noqa: PERF401  what came before an error counts


async def start_reading(
    connection: FakeConnection, batch: Any, seqs: list[int]
) -> tuple[asyncio.Task[None], str]:
    """A batch that is being read, and the list that receives its messages."""
    reading = asyncio.ensure_future(read(batch, seqs))
    await settle()
    return reading, connection.to(API)[-1].reply


@virtual
async def test_message_restarts_timeout():
    async with connected() as (js, connection):
        stream, actual = await opened(js, connection), list[int]()
        batch = stream.get_batch(10, timeout=2.0)
        connection.api.script["DIRECT.GET"] = [SILENCE, SILENCE]
        reading, reply = await start_reading(connection, batch, actual)
        for seq in (1, 2, 3):
            await asyncio.sleep(1.5)
            connection.deliver(reply, [message(seq)])
        with pytest.raises(RequestTimeoutError):
            await reading
        assert (actual, batch.ending, batch.last_seq) == ([1, 2, 3], Ending.SILENT, 3)
        assert connection.listening == []


@virtual
@pytest.mark.parametrize("late", [False, True])
async def test_lost_request_is_sent_again(late):
    """Once, after a quarter of the timeout. A late answer to the first request counts, and only once."""
    async with connected() as (js, connection):
        stream, actual = await opened(js, connection), list[int]()
        connection.api.script["DIRECT.GET"] = [SILENCE, SILENCE]
        reading, first = await start_reading(connection, stream.get_batch(10, timeout=2.0), actual)
        await asyncio.sleep(0.4)
        assert len(connection.to(API)) == 1
        await asyncio.sleep(0.2)
        one, other = connection.to(API)
        assert (one.payload, one.reply != other.reply) == (other.payload, True)
        answered, ignored = (first, other.reply) if late else (other.reply, first)
        connection.deliver(answered, [message(1), message(2)])
        await settle()
        connection.deliver(ignored, [message(1), end(last=1)])
        connection.deliver(answered, [end(last=2)])
        await reading
        assert (actual, len(connection.to(API)), connection.listening) == ([1, 2], 2, [])


@virtual
@pytest.mark.parametrize(
    ("what", "error"),
    [("disconnect", DisconnectedError), ("close", ClosedError), ("deny", PermissionDeniedError)],
)
async def test_messages_before_error_come_first(what, error):
    async with connected() as (js, connection):
        stream, actual = await opened(js, connection), list[int]()
        connection.api.script["DIRECT.GET"] = [SILENCE]
        reading, reply = await start_reading(connection, stream.get_batch(10), actual)
        connection.deliver(reply, [message(1), message(2)])
        if what == "disconnect":
            connection.disconnect()
        elif what == "deny":
            connection.deny("publish", "another")
            connection.deny("publish", API)
        else:
            await connection.close()
        with pytest.raises(error):
            await reading
        assert actual == [1, 2]


@virtual
async def test_frames_together_or_apart():
    async with connected() as (js, connection):
        stream, actual = await opened(js, connection), list[int]()
        batch = stream.get_batch(3)
        connection.api.script["DIRECT.GET"] = [SILENCE]
        reading, reply = await start_reading(connection, batch, actual)
        connection.deliver(reply, [message(1)])
        await settle()
        connection.deliver(reply, [message(2), message(3), end(3, 9), message(4)])
        await reading
        assert (actual, batch.ending, batch.num_pending) == ([1, 2, 3], Ending.FULL, 9)
        assert connection.listening == []
