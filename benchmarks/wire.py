"""A blocking socket that implements only the necessary part of the protocol, for the limit and for filling streams."""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from benchmarks.job import HEADERS, Job, payload

__all__ = ["JSACK", "SUBJECTS", "Tail", "Wire", "acks", "message", "publish_many", "sequence"]

JSACK = b"$JS.ACK."
SUBJECTS = 500  # number of subjects that a ``*`` in the subject of a job stands for
_JOINED = 512 * 1024  # Bytes that are joined for one call. Larger messages are sent separately.
_SPARE = 512  # number of bytes that is larger than a control line
_SILENCE = 20  # seconds without a byte until the connection fails


class Wire:
    """A connection to a nats-server."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket: socket.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Not settimeout(), which polls before every call.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _SILENCE, 0))
        self._tail = Tail()
        self._until_line()
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
        while self._until_line() != b"PONG\r\n":
            pass

    @classmethod
    def of(cls, job: Job) -> Self:
        """Connect to the server of a job."""
        return cls(job.host, job.port, job.tls())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Write all of it."""
        self.socket.sendall(data)

    def read(self) -> bytes:
        """Return the bytes that have arrived, at least one byte."""
        data = self.socket.recv(1024 * 1024)
        if not data:
            raise EOFError("the server closed the connection")
        return data

    def _until_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\r\n"):
            line += self.socket.recv(1)
        return line

    def call(self, subject: str, body: Any) -> dict[str, Any]:
        """Send a request to the API. No other message may arrive meanwhile."""
        data = json.dumps(body).encode()
        self.send(
            b"SUB _INBOX.api 9\r\nUNSUB 9 1\r\nPUB %b _INBOX.api %d\r\n%b\r\n"
            % (subject.encode(), len(data), data)
        )
        line = b""
        while not line.startswith((b"MSG _INBOX.api", b"HMSG _INBOX.api")):
            line = self._until_line()
        answer = b""
        size = int(line.split()[-1]) + 2
        while len(answer) < size:
            answer += self.socket.recv(size - len(answer))
        results: dict[str, Any] = json.loads(answer)
        if "error" in results:
            raise RuntimeError(f"{subject}: {results['error']}")
        return results

    def count(self) -> tuple[int, int]:
        """Read more. Return the stream and consumer sequence of the last complete control line, (0, 0) without one."""
        got = self.socket.recv_into(self._tail.room())
        if not got:
            raise EOFError("the server closed the connection")
        return self._tail.filled(got)


class Tail:
    """Finds the last control line in the bytes read, wherever a read ends. It does not parse payloads."""

    def __init__(self, size: int = 1024 * 1024) -> None:
        self._buffer = bytearray(_SPARE + size)
        self._view = memoryview(self._buffer)
        self._end = _SPARE

    def room(self) -> memoryview:
        """Return the memory to read into. The previous end precedes it, because it may be part of a control line."""
        self._view[:_SPARE] = self._view[self._end - _SPARE : self._end]
        self._end = _SPARE
        return self._view[_SPARE:]

    def filled(self, got: int) -> tuple[int, int]:
        """Record that ``got`` bytes were read. Return the sequences of the last complete control line, or (0, 0)."""
        buffer = self._buffer
        end = self._end = _SPARE + got
        while (result := buffer.rfind(JSACK, 0, end)) >= 0:
            space = buffer.find(b" ", result, self._end)
            if space >= 0 and buffer.find(b"\r\n", space, self._end) >= 0:
                tokens = buffer[result:space].split(b".")
                return int(tokens[5]), int(tokens[6])
            end = result
        return 0, 0


def message(job: Job, reply: bytes) -> bytes:
    """Return one message as it is sent over the wire."""
    data, subject = payload(job), job.subject.encode()
    if not job.headers:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data)
    block = "NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()) + "\r\n"
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (
        subject,
        reply,
        len(block),
        len(block) + len(data),
        block.encode(),
        data,
    )


def acks(data: bytes) -> int:
    """Return how many publish acks end in these bytes."""
    if b'"error"' in data:
        raise RuntimeError(data.decode())
    return data.count(b"}")


def publish_many(wire: Wire, job: Job, count: int) -> int:
    """Publish ``count`` messages with a window. Return the last sequence. ``*`` stands for 500 subjects in turn."""
    names = [f"s{number}" for number in range(SUBJECTS)] if "*" in job.subject else ["*"]
    messages = [message(replace(job, subject=job.subject.replace("*", name)), b"acks") for name in names]
    half = max(1, job.window // 2)
    piece = max(1, _JOINED // len(messages[0]))
    stored = sent = 0
    tail = b""
    while stored < count:
        # Refill the window when half of it is acked, so that writes are large and the server is never idle.
        while sent < count and sent - stored <= half:
            some = min(half, count - sent)
            end = sent + some
            for start in range(sent, end, piece):
                numbers = range(start, min(start + piece, end))
                wire.send(b"".join([messages[number % len(messages)] for number in numbers]))
            sent = end
        data = wire.read()
        stored += acks(data)
        # A read may end inside an ack, so keep enough bytes for the whole last ack.
        tail = (tail + data)[-200:]
    return sequence(tail)


def sequence(data: bytes) -> int:
    """Return the sequence in the last publish ack."""
    return int(re.split(rb"[,}]", data[data.rindex(b'"seq":') + 6 :], maxsplit=1)[0])
