"""A server that speaks just enough NATS to be hostile."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self, cast

from integration.kit.judge.waiting import eventually
from integration.kit.network.links import reset
from integration.kit.network.match import PUBLISH_OPS
from integration.kit.network.recording import Recording
from integration.kit.network.wire import TO_SERVER, Frame, FrameParser, message, subject_matches
from integration.kit.servers.ports import HOST, listening_socket

Answer = bytes | Callable[[Frame], bytes | None]

DEFAULT_INFO: dict[str, Any] = {
    "server_id": "FAKE",
    "server_name": "fake",
    "version": "2.15.1",
    "proto": 1,
    "host": HOST,
    "headers": True,
    "jetstream": True,
    "max_payload": 1 << 20,
}


class FakeServer(Recording):
    """Listens on loopback, answers CONNECT, PING and the requests that a test sets.

    `info` has fields of the INFO that each new connection receives. They replace sensible defaults. None removes a
    field. `greeting` replaces the whole first line: any bytes, or `b""` for silence. `next_greetings` has first lines
    for the next connections only, one for each. `answer_pings` off makes it a server that has died without saying so.
    """

    def __init__(
        self, info: dict[str, Any] | None = None, *, greeting: bytes | None = None, answer_pings: bool = True
    ) -> None:
        super().__init__(enabled=True)
        self.info = info or {}
        self.greeting = greeting
        self.next_greetings: deque[bytes] = deque()
        self.answer_pings = answer_pings
        self.port = 0
        self.clients: list[FakeClient] = []
        """Every connection ever made, oldest first."""
        self._answers: list[tuple[str, Answer]] = []
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        sock = listening_socket()
        self.port = int(sock.getsockname()[1])
        self._server = await asyncio.get_running_loop().create_server(self._welcome, sock=sock)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for client in self.clients:
            if client.transport is not None:
                client.transport.abort()
                await client.gone.wait()

    @property
    def client(self) -> FakeClient:
        """The newest connection that stands."""
        standing = [client for client in self.clients if client.up]
        assert standing, "no client is connected to the fake server"
        return standing[-1]

    @property
    def lines(self) -> list[bytes]:
        """The frames that clients sent, without the last CRLF."""
        return [frame.raw.removesuffix(b"\r\n") for frame in self.frames]

    async def wait_clients(self, count: int, timeout: float = 30.0) -> FakeClient:
        """Return the newest client once `count` have connected in all and it has sent CONNECT."""
        await eventually(
            lambda: len(self.clients) >= count and self.clients[-1].greeted,
            timeout,
            f"{count} clients of the fake server",
        )
        return self.clients[-1]

    async def wait_sub(self, subject: str, timeout: float = 30.0) -> Frame:
        """Return the SUB of a client that would receive `subject`."""

        def fits(frame: Frame) -> bool:
            return frame.op == "SUB" and subject_matches(frame.subject or "", subject)

        return await self.wait_for(fits, timeout)

    # What it says

    def answer(self, pattern: str, answer: Answer) -> None:
        """Answer publishes to a subject: raw bytes, or what a function makes of the frame (None: nothing).

        The newest answer that matches wins.
        """
        self._answers.insert(0, (pattern, answer))

    def answer_message(
        self,
        pattern: str,
        payload: bytes | dict[str, Any] = b"",
        *,
        reply: str | None = None,
        status: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Answer requests to a subject with a message to their reply. A dict is sent as JSON."""
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()

        def make(request: Frame) -> bytes | None:
            sid = self.clients[request.connection].sid_of(request.reply or "")
            if request.reply is None or sid is None:
                return None
            return message(request.reply, sid, body, reply=reply, status=status, headers=headers)

        self.answer(pattern, make)

    def send(self, data: bytes) -> None:
        """Send any bytes to the newest client."""
        self.client.write(data)

    async def send_split(self, data: bytes, sizes: Iterable[int]) -> None:
        """Send bytes in pieces of these sizes, each its own TCP segment, then the rest."""
        sender = self.client
        for size in sizes:
            piece, data = data[:size], data[size:]
            sender.write(piece)
            # Long enough for the receiving side of one machine to read it apart from the next.
            await asyncio.sleep(0.002)
        sender.write(data)

    def send_message(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        reply: str | None = None,
        status: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Send a message to the newest client's subscription that matches `subject`."""
        sid = self.client.sid_of(subject)
        assert sid is not None, f"the client is not subscribed to {subject}"
        self.send(message(subject, sid, payload, reply=reply, status=status, headers=headers))

    def send_info(self, **fields: Any) -> None:
        """Send a further INFO, such as `ldm=True` or `connect_urls=[...]`."""
        self.send(self._info_line(fields))

    def send_error(self, text: str) -> None:
        """Send `-ERR '<text>'`. Real servers close the connection after most errors. This server does not."""
        self.send(f"-ERR '{text}'\r\n".encode())

    def announce(self, subject: str, size: int) -> None:
        """Send only the first line of a message of `size` bytes."""
        sid = self.client.sid_of(subject) or "1"
        self.send(f"MSG {subject} {sid} {size}\r\n".encode())

    async def pour(self, piece: bytes, total: int) -> int:
        """Send `piece` over and over, `total` bytes in all, with back-pressure. Return what was sent.

        Ends early when the client has gone: the number of bytes it took says how patient it was.
        """
        target, sent = self.client, 0
        while sent < total and target.up:
            target.write(piece)
            sent += len(piece)
            await target.writable.wait()
            await asyncio.sleep(0)
        return sent

    def drop(self) -> None:
        """Reset (RST) all connections."""
        for client in self.clients:
            client.drop()

    # Inside

    def _welcome(self) -> FakeClient:
        client = FakeClient(self, len(self.clients))
        self.clients.append(client)
        return client

    def _info_line(self, fields: dict[str, Any]) -> bytes:
        info = {**DEFAULT_INFO, "port": self.port, **self.info, **fields}
        return b"INFO " + json.dumps({k: v for k, v in info.items() if v is not None}).encode() + b"\r\n"

    def _greeting(self) -> bytes:
        if self.next_greetings:
            return self.next_greetings.popleft()
        return self._info_line({}) if self.greeting is None else self.greeting

    def _answer_to(self, frame: Frame) -> bytes | None:
        if frame.op == "PING":
            return b"PONG\r\n" if self.answer_pings else None
        if frame.op not in PUBLISH_OPS:
            return None
        for pattern, answer in self._answers:
            if subject_matches(pattern, frame.subject or ""):
                return answer if isinstance(answer, bytes) else answer(frame)
        return None


class FakeClient(asyncio.Protocol):
    """The fake server's end of one connection."""

    def __init__(self, server: FakeServer, number: int) -> None:
        self._server = server
        self._parser = FrameParser(TO_SERVER, number)
        self.transport: asyncio.Transport | None = None
        self.subs: dict[str, str] = {}
        """Live subscriptions: sid to subject."""
        self.greeted = False
        self.writable = asyncio.Event()
        self.gone = asyncio.Event()
        self.writable.set()

    @property
    def up(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def sid_of(self, subject: str) -> str | None:
        """The first subscription that receives a subject."""
        return next((sid for sid, s in self.subs.items() if subject_matches(s, subject)), None)

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def close(self) -> None:
        """End this connection with FIN, after what was sent."""
        if self.transport is not None:
            self.transport.close()

    def drop(self) -> None:
        """Reset (RST) this connection."""
        reset(self.transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self.transport.write(self._server._greeting())

    def data_received(self, data: bytes) -> None:
        for frame in self._parser.feed(data, time.monotonic()):
            if frame.op == "CONNECT":
                self.greeted = True
            elif frame.op == "SUB" and frame.sid:
                self.subs[frame.sid] = frame.subject or ""
            elif frame.op == "UNSUB" and frame.sid:
                self.subs.pop(frame.sid, None)
            self._server.record(frame)
            answer = self._server._answer_to(frame)
            if answer and self.up:
                self.write(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()
