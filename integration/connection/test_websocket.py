"""WebSockets that lead elsewhere, and WebSockets of a server that no longer reads."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

import jsclient
from integration.connection.test_tls import certificate, context
from integration.kit.clients.readers import FAST
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.waiting import eventually
from integration.kit.servers.ports import free_port
from jsclient import ConnectError, Disconnected, Reconnected

CANARY = "canary-redirected"


async def test_redirect_is_refused(tmp_path: Path) -> None:
    """It would lead from TLS to clear text, with the headers and the password."""
    received = bytearray()

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(1000))
        writer.close()

    clear = await asyncio.start_server(record, "127.0.0.1", 0)
    location = f"http://127.0.0.1:{clear.sockets[0].getsockname()[1]}/"

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    ca = trustme.CA()
    files = certificate(ca, tmp_path, "127.0.0.1")
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(files["cert_file"], files["key_file"])
    server = await asyncio.start_server(redirect, "127.0.0.1", 0, ssl=secure)
    async with clear, server:
        url = f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        headers = {"X-Token": [CANARY]}
        with pytest.raises(ConnectError, match="redirects") as caught:
            await jsclient.connect(url, tls=context(ca), ws_connection_headers=headers)
    assert CANARY not in str(caught.value)
    assert received == b""


async def test_unsent_bytes_are_discarded(own_server: Any, connect: Any, events: list[Any]) -> None:
    """A server that does not read keeps no socket and no bytes, which would reach it after the reconnect."""
    port = free_port()
    own = await own_server(config={"websocket": {"host": "127.0.0.1", "port": port, "no_tls": True}})
    js = await connect(f"ws://127.0.0.1:{port}", **FAST)
    raw = js._connection.transport._transport.get_extra_info("socket")
    own.pause()
    try:
        for _ in range(30):
            js._connection.send("nobody", b"x" * 1_000_000)
        await wait_for_event(Disconnected, events)
        await eventually(lambda: raw.fileno() < 0, timeout=15, what="the end of the socket")
    finally:
        own.resume()
    await wait_for_event(Reconnected, events)
    await js.account_info()
