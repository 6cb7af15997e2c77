"""Odd messages that a real server stores and delivers: no reader dies of them (F4).

They are published with a plain socket: clients refuse to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import pytest

from integration.kit.clients.traffic import Tally
from integration.kit.judge.reading import of, take
from integration.kit.judge.streams import OwnStream
from integration.kit.judge.waiting import eventually, within
from jsclient import ConsumerConfig, Disconnected, JetStreamError

POISON: list[tuple[str, bytes, bytes]] = [
    # name, last token of the subject, header block
    ("not UTF-8", b"\xff\xfe", b""),
    ("half a character", b"\xc3", b""),
    ("a surrogate", b"\xed\xa0\x80", b""),
    ("UTF-8", "né".encode(), b""),
    ("C1 control", b"a\x81b", b""),
    ("two bytes of headers", b"x", b"NA"),
    ("a version and no line", b"x", b"NATS/1.0"),
    ("a version and one line", b"x", b"NATS/1.0\r\n"),
    ("another version", b"x", b"NATS/7.7\r\n\r\n"),
    ("a status line", b"x", b"NATS/1.0 409 Consumer Deleted\r\n\r\n"),
    ("a status as header", b"x", b"NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n"),
    ("headers not UTF-8", b"x", b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n"),
    ("no colon", b"x", b"NATS/1.0\r\nabc\r\n\r\n"),
    (
        "heartbeat headers",
        b"x",
        b"NATS/1.0\r\nNats-Last-Consumer: 1\r\nNats-Consumer-Stalled: $JS.API.x\r\n\r\n",
    ),
]


async def store_raw(url: str, messages: Iterable[tuple[bytes, bytes, bytes]]) -> None:
    """Publish (subject, header block, payload) as raw bytes."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    await reader.readline()
    writer.write(
        b"CONNECT " + json.dumps({"verbose": False, "headers": True, "lang": "raw"}).encode() + b"\r\n"
    )
    for subject, block, payload in messages:
        size = len(block) + len(payload)
        line = b"HPUB %b %d %d" % (subject, len(block), size) if block else b"PUB %b %d" % (subject, size)
        writer.write(line + b"\r\n" + block + payload + b"\r\n")
    writer.write(b"PING\r\n")
    assert await within(5, reader.readline(), "the answer to a PING") == b"PONG\r\n"
    writer.close()
    await writer.wait_closed()


async def poisoned(server: Any, stream: OwnStream, token: bytes, block: bytes) -> list[bytes]:
    """Store 20 messages of which the tenth is odd. Their payloads."""
    plain = stream.subject("x").encode()
    odd = stream.prefix.encode() + b"." + token
    payloads = [str(number).encode() for number in range(1, 21)]
    await store_raw(
        server.url,
        [(odd, block, data) if data == b"10" else (plain, b"", data) for data in payloads],
    )
    await eventually(lambda: _stored(stream), what="20 stored messages")
    return payloads


async def _stored(stream: OwnStream) -> bool:
    return bool((await stream.state())["messages"] == 20)


READERS = ["push", "ordered", "callback", "fetch", "messages"]


@pytest.mark.parametrize("kind", READERS)
async def test_every_reader_survives_every_poison(
    kind: str, server: Any, oracle: Any, connect: Any, make_stream: Any, events: list[Any]
) -> None:
    """F4: 3 of 14 kill every kind of reader of nats-py, again after each reconnect."""
    js = await connect(server)
    for name, token, block in POISON:
        stream = await make_stream()
        payloads = await poisoned(server, stream, token, block)
        messages = await _read(kind, js, stream)
        assert [message.data for message in messages] == payloads, name
        tally = Tally()
        for message in messages:
            tally.take(message)
            assert message.subject
            dict(message.headers)
            repr(message)
            await message.ack()
        assert tally.counts(20) == {"lost": 0, "repeated": 0, "disordered": 0, "untold": 0}
        # The odd message survived: not cut, not rewritten.
        assert messages[9].subject.encode("utf-8", "surrogateescape").endswith(b"." + token), name
    assert of(Disconnected, events) == []


async def _read(kind: str, js: Any, stream: OwnStream) -> list[Any]:
    if kind == "fetch":
        psub = await js.pull_subscribe(stream.all)
        results = []
        while len(results) < 20:
            results += list(await psub.fetch(20 - len(results), expires=3.0))
        return results
    if kind == "messages":
        return await take((await js.pull_subscribe(stream.all)).messages(), 20)
    # no message is acked, so that a skipped message would be missing
    if kind == "callback":
        got: asyncio.Queue[Any] = asyncio.Queue()
        await js.subscribe(stream.all, callback=got.put, auto_ack=False)
        return [await within(5, got.get(), "a message") for _ in range(20)]
    config = ConsumerConfig(idle_heartbeat=5.0)
    options: dict[str, Any] = {"ordered": True, "config": config} if kind == "ordered" else {}
    return await take(await js.subscribe(stream.all, **options), 20)


async def test_poison_read_by_sequence(server: Any, oracle: Any, js: Any, make_stream: Any) -> None:
    """F4: direct and API gets give the message or a named error, and the connection lives."""
    for name, token, block in POISON:
        stream = await make_stream(allow_direct=True)
        await poisoned(server, stream, token, block)
        handle = await js.stream(stream.name)
        for ask in (handle.get_message(10), handle.get_last_message(stream.subject("x"))):
            try:
                actual = await within(6, ask, name)
            except JetStreamError as error:
                print(name, type(error).__name__, str(error)[:80])
            else:
                assert actual.data in {b"10", b"20"}, name
        assert (await handle.get_message(11)).data == b"11"
