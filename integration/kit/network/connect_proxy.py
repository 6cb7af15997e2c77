"""An HTTP proxy that knows CONNECT only, as company networks have them."""

from __future__ import annotations

import asyncio
import base64
from types import TracebackType
from typing import Self
from urllib.parse import quote

from integration.kit.servers.ports import HOST


class ConnectProxy:
    """Opens tunnels on a port of loopback. It keeps the requests, and counts the bytes of its tunnels.

    Attributes:
        credentials: ``user:password`` that it requires, or "".
        answer: What it says instead of opening a tunnel, or b"".
        requests: The request of each client.
        passed: The number of bytes that went through tunnels.
    """

    def __init__(self, credentials: str = "", answer: bytes = b"") -> None:
        self.credentials, self.answer = credentials, answer
        self.requests: list[str] = []
        self.passed = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def url_with_credentials(self) -> str:
        """The URL for clients that have the credentials required now."""
        return f"http://{quote(self.credentials, ':')}@{HOST}:{self.port}"

    def cut(self) -> None:
        """End all tunnels."""
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(writer)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(request)
        expected = base64.b64encode(self.credentials.encode()).decode()
        method, to, _ = request.split("\r\n")[0].split(" ")
        if self.answer or method != "CONNECT":
            writer.write(self.answer or b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
        elif self.credentials and f"Proxy-Authorization: Basic {expected}\r\n" not in request:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        else:
            await self._tunnel(to, reader, writer)
            return
        await writer.drain()
        writer.close()

    async def _tunnel(self, to: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = to.rpartition(":")
        try:
            other_reader, other = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            await writer.drain()
            return
        self._open.add(other)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        pumps = [asyncio.create_task(self._pump(*pair)) for pair in ((reader, other), (other_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._open.discard(other)
            other.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
