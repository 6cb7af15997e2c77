"""Reads a stream through a socket, without any client library, and checks every row.

It creates a pull consumer, separates the frames by their announced lengths, and takes the row's number and a checksum
from each payload.
"""

from __future__ import annotations

import json
import re
import socket
import zlib
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Recount", "recount"]

_FRAME = re.compile(rb"(HMSG|MSG) (\S+) \d+ (?:\S+ )?(?:(\d+) )?(\d+)\r\n")
_PULL = 20_000  # messages per request, two of which are in flight


@dataclass
class Recount:
    """The result of counting the messages of a stream."""

    messages: int  # number of messages received
    distinct: int  # number of different row numbers, which start at 0
    checksum: int  # sum of the CRC-32 of all payloads


class _Raw:
    """A connection that receives frames."""

    def __init__(self, url: str) -> None:
        position = urlsplit(url)
        self._socket = socket.create_connection(
            (position.hostname or "127.0.0.1", position.port or 4222), 30.0
        )
        self._data = b""
        self.send(
            b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB recount.api 1\r\nSUB recount.rows 2\r\n'
        )

    def close(self) -> None:
        self._socket.close()

    def send(self, command: bytes) -> None:
        self._socket.sendall(command)

    def publish(self, subject: str, reply: str, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(data), data))

    def frames(self) -> list[tuple[bytes, bytes]]:
        """Return the next frames: the subject and the payload of each, which is empty for a status."""
        results: list[tuple[bytes, bytes]] = []
        while not results:
            read = self._socket.recv(1 << 20)
            if not read:
                raise RuntimeError("the server closed the connection")
            data = self._data + read
            at, size, match = 0, len(data), _FRAME.match
            while at < size:
                # Only MSG frames carry a payload. Any other line is a control line, which ends with CR LF.
                line = match(data, at)
                if line is None:
                    end = data.find(b"\r\n", at)
                    if end < 0:
                        break
                    if data.startswith(b"PING", at):
                        self.send(b"PONG\r\n")
                    elif data.startswith(b"-ERR", at):
                        raise RuntimeError(data[at:end].decode())
                    at = end + 2
                    continue
                body = line.end()
                end = body + int(line[4])
                # The payload has not arrived completely: keep the frame for the next read.
                if end + 2 > size:
                    break
                results.append((line[2], data[body + int(line[3] or 0) : end]))
                at = end + 2
            self._data = data[at:]
        return results

    def request(self, subject: str, body: Any = None) -> Any:
        self.publish(subject, "recount.api", body)
        while True:
            for to, payload in self.frames():
                if to == b"recount.api":
                    answer = json.loads(payload)
                    if "error" in answer:
                        raise RuntimeError(f"{subject}: {answer['error']}")
                    return answer


def recount(url: str, stream: str, rows: int) -> Recount:
    """Read all messages of a stream. Payloads begin with ``{"id":<number>,``, with numbers below ``rows``."""
    raw = _Raw(url)
    try:
        total = raw.request(f"$JS.API.STREAM.INFO.{stream}")["state"]["messages"]
        config = {
            "name": "recount",
            "ack_policy": "none",
            "mem_storage": True,
            "inactive_threshold": 60_000_000_000,
        }
        raw.request(
            f"$JS.API.CONSUMER.CREATE.{stream}.recount",
            {"stream_name": stream, "config": config, "action": "create"},
        )
        seen, received, requests, checksum = bytearray(rows), 0, 0, 0
        while received < total:
            # Keep one request in reserve, so that the server never waits for the next request.
            while requests < total and requests - received <= _PULL:
                raw.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.recount", "recount.rows", {"batch": _PULL})
                requests += _PULL
            for _, payload in raw.frames():
                if not payload.startswith(b'{"id":'):
                    raise RuntimeError(f"not a row: {payload[:80]!r}")
                received += 1
                checksum += zlib.crc32(payload)
                seen[int(payload[6 : payload.index(b",")])] = 1
        return Recount(received, sum(seen), checksum)
    finally:
        raw.close()
