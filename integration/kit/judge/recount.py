"""A recount: the content of a stream, read over a plain socket, against the content it should have.

It uses no line of jsclient or of another client.
"""

from __future__ import annotations

import base64
import json
import secrets
import socket
import ssl
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

_ALL = "all"  # the subscription to the messages, which come with the subjects under which they are stored
_PATIENCE = 60.0  # seconds without a byte


@dataclass(frozen=True)
class Recount:
    """Rows that were expected, against rows that were found.

    Attributes:
        where: The stream or table.
        expected: How many different rows there should be.
        found: How many rows there are.
        missing: Rows that are not there.
        twice: Rows that are stored more than once, each further copy counted.
        foreign: Rows that should not be there at all.
        between: The first and the last of the missing rows.
    """

    where: str
    expected: int
    found: int
    missing: int
    twice: int
    foreign: int
    between: tuple[Any, ...] = ()

    @classmethod
    def of(cls, where: str, expected: Iterable[Any], found: Iterable[Any]) -> Self:
        target, there = set(expected), Counter(found)
        known = sum(count for row, count in there.items() if row in target)
        kinds = len(target & there.keys())
        total = sum(there.values())
        missing = sorted(target - there.keys())
        between = (missing[0], missing[-1]) if missing else ()
        return cls(where, len(target), total, len(missing), known - kinds, total - known, between)

    @property
    def is_exact(self) -> bool:
        return not (self.missing or self.twice or self.foreign)


def payloads(url: str, stream: str, subject: str = ">", **rights: Any) -> list[bytes]:
    """The payloads stored in a stream, in order. With the arguments of `messages`."""
    return [payload for _, payload in messages(url, stream, subject, **rights)]


def messages(url: str, stream: str, subject: str = ">", **rights: Any) -> list[tuple[str, bytes]]:
    """Subject and payload of each message stored in a stream, in order.

    Args:
        url: Of the server.
        stream: The name of the stream.
        subject: Of this subject only.
        rights: ``tls``, ``user`` and ``password``, or ``user_credentials``, as for the oracle.
    """
    with _connected(url, **rights) as wire:
        inbox = f"_INBOX.{secrets.token_hex(8)}"
        config = {"deliver_subject": f"{inbox}.all", "ack_policy": "none", "mem_storage": True}
        config["filter_subject"] = subject
        wire.send(f"SUB {inbox}.all {_ALL}")
        wire.send(f"SUB {inbox}.api api")
        request = {"stream_name": stream, "config": config}
        wire.publish(f"$JS.API.CONSUMER.CREATE.{stream}", json.dumps(request).encode(), f"{inbox}.api")
        count, actual = None, list[tuple[str, bytes]]()
        while count is None or len(actual) < count:
            where, sid, payload = wire.message()
            if sid == _ALL:
                actual.append((where, payload))
                continue
            answer = json.loads(payload)
            if "error" in answer:
                raise AssertionError(f"the recount of {stream}: {answer['error']}")
            count = answer["num_pending"] + answer["delivered"]["consumer_seq"]
        wire.publish(f"$JS.API.CONSUMER.DELETE.{stream}.{answer['name']}", b"", f"{inbox}.api")
        wire.message()
    return actual


class _Wire:
    """The lines of the NATS protocol on a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")

    def send(self, line: str, payload: bytes | None = None) -> None:
        self.sock.sendall(line.encode() + b"\r\n" + (b"" if payload is None else payload + b"\r\n"))

    def publish(self, subject: str, payload: bytes, reply: str) -> None:
        self.send(f"PUB {subject} {reply} {len(payload)}", payload)

    def line(self) -> list[str]:
        line = self.file.readline().decode()
        if not line or line.startswith("-ERR"):
            raise AssertionError(f"the recount's connection ended: {line!r}")
        return line.split()

    def message(self) -> tuple[str, str, bytes]:
        """Subject, subscription and payload of the next message."""
        while True:
            op, *arguments = self.line()
            if op == "PING":
                self.send("PONG")
            elif op in {"MSG", "HMSG"}:
                size = int(arguments[-1])
                headers = int(arguments[-2]) if op == "HMSG" else 0
                return arguments[0], arguments[1], self.file.read(size + 2)[headers:size]


@contextmanager
def _connected(url: str, tls: ssl.SSLContext | None = None, **rights: Any) -> Iterator[_Wire]:
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 4222
    with socket.create_connection((host, port), _PATIENCE) as plain:
        greeting = _greeting(plain)
        sock = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        with sock:
            wire = _Wire(sock)
            options = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
            wire.send(f"CONNECT {json.dumps({**options, **_proof(greeting, **rights)})}")
            wire.send("PING")
            while wire.line() != ["PONG"]:
                pass
            with wire.file:
                yield wire


def _greeting(sock: socket.socket) -> Mapping[str, Any]:
    """The INFO of the server, read byte by byte, since TLS may begin right after it."""
    line = b""
    while not line.endswith(b"\n"):
        line += sock.recv(1)
    greeting: Mapping[str, Any] = json.loads(line.removeprefix(b"INFO "))
    return greeting


def _proof(
    greeting: Mapping[str, Any],
    user: str | None = None,
    password: str | None = None,
    user_credentials: str | None = None,
) -> dict[str, Any]:
    """The fields with which a client introduces itself."""
    if user_credentials is None:
        return {} if user is None else {"user": user, "pass": password}
    import nkeys

    lines = Path(user_credentials).read_text(encoding="ascii").splitlines()
    signed, seed = (lines[at + 1] for at, line in enumerate(lines) if line.startswith("-----BEGIN"))
    signature = nkeys.from_seed(bytearray(seed.encode())).sign(greeting["nonce"].encode())
    return {"jwt": signed, "sig": base64.urlsafe_b64encode(signature).decode().rstrip("=")}
