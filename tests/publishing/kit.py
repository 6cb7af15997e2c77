"""A publisher on a fake connection, and a server that answers it."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from jsclient._runtime.connection.wire import Outbox
from tests.support.fake import FakeConnection, Sent

COMMAND = re.compile(rb"(PUB|HPUB) (\S+) (\S+) (?:(\d+) )?(\d+)\r\n")


def now() -> float:
    return asyncio.get_running_loop().time()


class Transport:
    """The transport of an outbox, which takes publishes apart."""

    def __init__(self, connection: FakeConnection) -> None:
        self.connection = connection
        self.writes = 0
        self.partial = b""  # the beginning of a command
        self.waiting = 0  # bytes that are not written
        self.drained = asyncio.Event()

    def backlog(self) -> int:
        return self.waiting

    @property
    def transport(self) -> Transport | None:
        """Whether the outbox sees the transport as gone, as it does without a connection."""
        return self if self.connection.is_connected else None

    async def drain(self) -> None:
        while self.waiting:
            await self.drained.wait()

    def write(self, data: bytes) -> None:
        self.writes += 1
        data = self.partial + data
        position = 0
        while position < len(data):
            head = COMMAND.match(data, position)
            assert head is not None, data[position : position + 60]
            headers, total = int(head[4] or 0), int(head[5])
            end = head.end() + total + 2
            if end > len(data):
                break  # a large payload is written in a separate call
            body = data[head.end() : end - 2]
            assert (head[1] == b"HPUB") == bool(headers)
            sent = Sent(head[2].decode(), body[headers:], head[3].decode(), body[:headers])
            self.connection.sent.append(sent)
            position = end
            assert data[position - 2 : position] == b"\r\n"
        self.partial = data[position:]


def add_outbox(connection: FakeConnection) -> Transport:
    """From now on the connection has an outbox, as one that jsclient opens."""
    transport = Transport(connection)
    outbox = Outbox(transport)
    connection.outbox = outbox

    async def wait_for_space() -> None:
        await outbox.drain()

    connection.wait_for_space = wait_for_space
    return transport


both = pytest.mark.parametrize("outbox", [False, True], ids=["publish", "outbox"])


def published(connection) -> list[Sent]:
    return [sent for sent in connection.sent if not sent.subject.startswith("$JS.")]


def payloads(connection) -> list[bytes]:
    return [sent.payload for sent in published(connection)]


def answer(connection, sent: Sent, body=None) -> None:
    """The server answers a publish, by default with an ack."""
    body = {"stream": "ORDERS", "seq": 1} if body is None else body
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.deliver(sent.reply, [(sent.reply.encode(), b"", b"", payload)])


def refuse(connection, sent: Sent, err_code: int = 10077) -> None:
    answer(connection, sent, {"error": {"code": 503, "err_code": err_code, "description": "no"}})


def ack_all(connection) -> None:
    for sent in published(connection):
        answer(connection, sent)
