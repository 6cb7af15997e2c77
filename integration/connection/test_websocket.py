"""WebSockets that lead elsewhere, and WebSockets of a server that no longer reads."""

from __future__ import annotations

import asyncio
import gc
import random
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme

import jsclient
from integration.connection.test_tls import certificate, context
from integration.kit.clients.readers import FAST
from integration.kit.judge.leaks import running_tasks
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.waiting import eventually
from integration.kit.servers.monitor import connections
from integration.kit.servers.ports import free_port
from jsclient import ConnectError, Disconnected, Reconnected
from jsclient._runtime.connection.tcp_transport import TcpTransport
from jsclient._runtime.connection.websocket.transport import WebSocketTransport

CANARY = "canary-redirected"


class Server:
    """A server with a WebSocket, with TLS or without.

    Attributes:
        own: The server.
        port: The port of its WebSocket.
        options: The options with which a client trusts it.
    """

    def __init__(self, scheme: str, folder: Path, **config: Any) -> None:
        self.port, self.options, tls = free_port(), {}, {"no_tls": True}
        if scheme == "wss":
            ca = trustme.CA()
            files = certificate(ca, folder, "127.0.0.1")
            tls = {"tls": {name: files[name] for name in ("cert_file", "key_file")}}
            self.options = {"tls": context(ca)}
        self.config = {"websocket": {"host": "127.0.0.1", "port": self.port, **tls}, **config}


@pytest.mark.core_cases(1)
@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_large_payloads(scheme: str, own_server: Any, connect: Any, tmp_path: Path) -> None:
    """8 MB to the server and back, as a plain message and through a stream."""
    size = 8 * 1024 * 1024
    server = Server(scheme, tmp_path, max_payload=size)
    await own_server(config=server.config)
    js = await connect(f"{scheme}://127.0.0.1:{server.port}", **server.options, timeout=60.0)
    payload = random.Random(scheme).randbytes(size)
    sub = await js.core.subscribe("a")
    await js.core.publish("a", payload)
    assert (await sub.next(timeout=60)).data == payload
    stream = await js.create_stream("S", subjects=["s"], storage="memory")
    await js.publish("s", payload)
    assert (await stream.get_message(1)).data == payload


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_reconnects_leave_nothing(
    scheme: str, own_server: Any, connect: Any, proxy: Any, tmp_path: Path
) -> None:
    """200 connections are lost, by RST and by FIN. Messages are received on each, and nothing else stays."""
    server = Server(scheme, tmp_path)
    own = await own_server(config=server.config)
    tap = await proxy(server.port, frames=False)
    options = {"reconnect_time_wait": 0.002, "connect_timeout": 30.0, "on_event": lambda _: None}
    js = await connect(f"{scheme}://127.0.0.1:{tap.port}", name="many", **server.options, **options)
    sub = await js.core.subscribe("a")
    before = (0, 0, 0, 0)
    for number in range(1, 201):
        (tap.cut if number % 2 else tap.close)()
        await eventually(lambda: js.stats().reconnects == number, 60, "the reconnect", interval=0.002)  # noqa: B023
        tap.links[:] = tap.open_links  # it keeps every link for its tests
        await js.core.publish("a", b"%d" % number)
        assert (await sub.next(timeout=60)).data == b"%d" % number
        if number == 50:
            before = await _figures(js)
    after = await _figures(js)
    assert after[:3] == before[:3], "tasks, files or transports"
    assert (after[3] - before[3]) / 150 < BLOCKS
    await eventually(lambda: _is_alone(own), 10, "the end of the lost connections")


BLOCKS = 6.0  # allocated blocks that a reconnect may leave, while caches fill


async def _figures(js: Any) -> tuple[int, int, int, int]:
    """The tasks, open files, transports and allocated blocks."""
    await js.ping()
    gc.collect()
    transports = [one for one in gc.get_objects() if isinstance(one, TcpTransport | WebSocketTransport)]
    count, files = len(transports), len([*Path("/proc/self/fd").iterdir()])
    del transports
    return len(running_tasks()), files, count, sys.getallocatedblocks()


async def _is_alone(own: Any) -> bool:
    """Whether the server has one connection of the client, with one subscription beside the inbox."""
    ours = [subjects for name, subjects in (await connections(own.monitor)).values() if name == "many"]
    return [[one for one in subjects if not one.startswith("_INBOX")] for subjects in ours] == [["a"]]


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
    raw = js._connection.transport._tcp._transport.get_extra_info("socket")
    own.pause()
    try:
        for _ in range(30):
            js._connection.send("nobody", b"x" * 1_000_000)
        await wait_for_event(Disconnected, events)
        await eventually(lambda: raw.fileno() < 0, what="the end of the socket")
    finally:
        own.resume()
    await wait_for_event(Reconnected, events)
    await js.account_info()
