"""The Python calls of an entry that is read with many others. They are what it costs, so they must not grow unnoticed.

A step of a loop is one call. The calls that are made once for all messages that have arrived together are added to it.
"""

from __future__ import annotations

import asyncio
from itertools import count, islice
from typing import Any

import pytest

from jsclient.buckets.key_value.key_value import KeyValue
from jsclient.protocol.buckets.keys import KeySpace
from jsclient.protocol.topics.value_codec import JsonCodec
from tests.support.calls import Calls
from tests.support.fake import SILENCE, FakeConnection, connected
from tests.support.virtual import virtual

KEYS = 2000
TOGETHER = 250  # messages that arrive together
REST = 0.5  # calls for one of so many messages that are made for all of them together
UPDATED = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 7\r\n\r\n"


class Bucket:
    """A bucket on a fake connection. Its consumers deliver all entries, as fast as they are requested."""

    def __init__(self, js: Any, connection: FakeConnection, *, block: bytes = b"", codec: Any = None) -> None:
        self.connection, self.block = connection, block
        self.kv = KeyValue(js._context, "KV_b", KeySpace("b", "$KV.b.", "$KV.b.", codec=codec), None)
        self.frames = (self.delivered(number) for number in count(1))
        connection.api.on("CONSUMER.CREATE", self.create)
        self.send, connection.send = connection.send, self.serve

    def create(self, request: Any) -> Any:
        self.consumer = request.json["config"]["name"]
        return self.connection.api._consumer_create(request) | {"num_pending": KEYS}

    def serve(self, subject: str, payload: bytes = b"", *, reply: str = "", **options: Any) -> None:
        self.send(subject, payload, reply=reply, **options)
        if ".MSG.NEXT." in subject:
            batch = self.connection.pulls()[-1].json["batch"]
            for _ in range(batch // TOGETHER):
                frames = [*islice(self.frames, TOGETHER)]
                asyncio.get_running_loop().call_soon(self.connection.deliver, reply, frames)

    def delivered(self, number: int) -> Any:
        reply = f"$JS.ACK.KV_b.{self.consumer}.1.{number}.{number}.17{number:017}.{max(KEYS - number, 0)}"
        return f"$KV.b.w.{number}".encode(), reply.encode(), self.block, b"1"

    def answers_directly(self, request: Any) -> Any:
        """The answer to a request for the last messages."""
        blocks = [
            f"NATS/1.0\r\nNats-Stream: KV_b\r\nNats-Subject: $KV.b.w.{number}\r\nNats-Sequence: {number}\r\n"
            f"Nats-Time-Stamp: 2026-01-01T00:00:00.{number}Z\r\nNats-Num-Pending: {1000 - number}\r\n"
            f"Nats-Last-Sequence: {number - 1}\r\n\r\n"
            for number in range(1, 1001)
        ]
        end = "NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 1000\r\nNats-UpTo-Sequence: 1000\r\n\r\n"
        frames = [(request.reply.encode(), b"", block.encode(), b"1") for block in blocks]
        frames.append((request.reply.encode(), b"", end.encode(), b""))
        asyncio.get_running_loop().call_soon(self.connection.deliver, request.reply, frames)
        return SILENCE


@pytest.mark.parametrize(
    ("options", "calls_each"),
    [({}, 1), ({"block": UPDATED}, 2), ({"codec": JsonCodec()}, 2)],
    ids=["plain", "with headers", "with a codec"],
)
@virtual
async def test_watch(options, calls_each):
    """One call is the step of the loop. Headers and a codec need another one."""
    async with connected() as (js, connection):
        kv = Bucket(js, connection, **options).kv
        async with kv.watch() as watch:
            with Calls() as calls:
                keys = [(await anext(watch)).key for _ in range(KEYS)]
            assert calls.each(KEYS) <= calls_each + REST, calls
            assert keys == [f"w.{number}" for number in range(1, KEYS + 1)]
            assert watch.is_current
            assert watch.revision == KEYS


@pytest.mark.parametrize("listing", ["keys", "history"])
@virtual
async def test_listing(listing):
    """The call is the step of the loop."""
    async with connected() as (js, connection):
        listed = getattr(Bucket(js, connection).kv, listing)()
        with Calls() as calls:
            entries = [one async for one in listed]
        assert calls.each(KEYS) <= 1 + REST, calls
        keys = [getattr(one, "key", one) for one in entries]
        assert keys == [f"w.{number}" for number in range(1, KEYS + 1)]


@virtual
async def test_get_many():
    """Nothing is called for a key."""
    async with connected() as (js, connection):
        bucket = Bucket(js, connection)
        info = connection.api._stream_info
        allowed = lambda request: info(request) | {"config": {"name": "KV_b", "allow_direct": True}}  # noqa: E731
        connection.api.on("STREAM.INFO", allowed)
        connection.api.on("DIRECT.GET", bucket.answers_directly)
        keys = [f"w.{number}" for number in range(1, 1001)]
        with Calls() as calls:
            entries = await bucket.kv.get_many(keys)
        assert calls.each(1000) <= REST, calls
        assert [*entries] == keys
        assert [entry.delta for entry in entries.values()] == [*range(999, -1, -1)]
