"""Servers that speak nonsense at a step of the handshake, or too much of it: an error in time, and nothing kept."""

from __future__ import annotations

import asyncio
import resource
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
import trustme

import jsclient
from integration.connection.test_tls import certificate, context
from integration.kit.judge.leaks import running_tasks
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.waiting import eventually
from integration.kit.servers.fake_server import DEFAULT_INFO, FakeServer
from jsclient import (
    AuthenticationError,
    ConnectError,
    Disconnected,
    ErrorRaised,
    LameDuck,
    Reconnected,
    ServersChanged,
)

CANARY = "canary-hostile"
FAST = {"reconnect_time_wait": 0.05, "connect_timeout": 20.0}
MEGABYTES = 1 << 20


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def refused(url: str, **options: Any) -> ConnectError:
    """Connect to a hostile server, and return the error, which has no secret in it."""
    options = {"connect_timeout": 20.0, "user": "ann", "password": CANARY, **options}
    before = running_tasks()
    with pytest.raises(ConnectError) as caught:
        await jsclient.connect(url, **options)
    assert CANARY not in str(caught.value)
    await eventually(lambda: not running_tasks() - before, what="no task left")
    return caught.value


# --- INFO ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["without end", "with end"])
async def test_info_of_ten_megabytes(end: bytes) -> None:
    before = memory()
    async with FakeServer(greeting=b'INFO {"x":"' + b"x" * 10 * MEGABYTES + b'"}' + end) as fake:
        error = await refused(fake.url)
        assert fake.lines == []
    assert "more than 65,536 bytes" in str(error)
    assert memory() - before < 60, "the server of the test takes 20"


async def test_info_that_never_ends() -> None:
    """A piece of it every moment, so that the connection is never silent."""
    async with FakeServer(greeting=b"INFO {") as fake:
        connecting = asyncio.create_task(refused(fake.url))
        await eventually(lambda: fake.clients and fake.clients[0].up, what="the connection")
        poured = await fake.pour(b" " * 1000, 100 * MEGABYTES)
        assert "bytes" in str(await connecting)
        assert poured < 20 * MEGABYTES
        assert fake.lines == []


async def test_slow_info_takes_no_longer_than_allowed() -> None:
    async with FakeServer(greeting=b"INFO {") as fake:
        started = time.monotonic()
        connecting = asyncio.create_task(refused(fake.url, connect_timeout=0.5))
        await eventually(lambda: fake.clients and fake.clients[0].up, what="the connection")
        while not connecting.done() and fake.clients[0].up:
            fake.clients[0].write(b" ")
            await asyncio.sleep(0.02)
        assert "no answer within" in str(await connecting)
        assert time.monotonic() - started < 10


async def test_info_every_millisecond(connect: Any, events: list[Any]) -> None:
    """Each announces other servers and another limit. The connection works, and reads on."""
    async with FakeServer() as fake:
        js = await connect(fake.url, **FAST)
        sub = await js.core.subscribe("a")
        await js.ping()
        for turn in range(500):
            fake.send_info(connect_urls=[f"127.0.0.1:{1000 + turn}"], max_payload=1000 + turn)
            await asyncio.sleep(0.001)
        fake.send_message("a", b"still here")
        assert (await sub.next(timeout=60)).data == b"still here"
        assert len(js._connection._connector.pool.servers) == 2
        assert js._connection.max_payload == 1499
        assert of(Disconnected, events) == []
        assert len(of(ServersChanged, events)) <= 500


async def test_limit_of_newer_info_holds(connect: Any) -> None:
    async with FakeServer() as fake:
        js = await connect(fake.url)
        fake.send_info(max_payload=100)
        await js.ping()
        with pytest.raises(jsclient.MaxPayloadError):
            await js.core.publish("a", b"x" * 101)
        fake.send_info(max_payload=200)
        await js.ping()
        await js.core.publish("a", b"x" * 101)


# --- TLS -----------------------------------------------------------------------------------------------------


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
    """The server of a broken upgrade: INFO that requires TLS, and then something else than TLS."""
    writer.write(b'INFO {"tls_required":true,"tls_verify":false}\r\n')
    hello = await reader.read(100)
    assert hello[:1] in {b"\x16", b""}, "TLS is all that the client sends"
    if what == "half a record":
        writer.write(b"\x16\x03\x03\x00\x7a\x02")
    elif what == "clear text":
        writer.write(b"PONG\r\n" * 10)
    elif what == "silence":
        await reader.read()
    writer.close()


@pytest.mark.parametrize("what", ["half a record", "clear text", "silence", "end"])
async def test_tls_refused_half_way(what: str, background: Any) -> None:
    """The client sends no credentials in clear text, and the attempt ends in time."""
    background.allow("SSL")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(reader, writer, what)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started = time.monotonic()
        await refused(url, connect_timeout=1.0, tls=ssl.create_default_context())
        assert time.monotonic() - started < 10


async def test_clear_text_between_info_and_tls_is_refused() -> None:
    """It comes from anyone on the way, and would be read as if the server had encrypted it."""
    greeting = b'INFO {"tls_required":true}\r\n' + b"PONG\r\n"
    async with FakeServer(greeting=greeting) as fake:
        assert "between INFO and TLS" in str(await refused(fake.url))
        assert fake.lines == []


async def test_lost_after_tls(tmp_path: Path, background: Any) -> None:
    """The server ends in the moment in which TLS is there, as one that crashes does."""
    background.allow("SSL")
    ca = trustme.CA()
    block = certificate(ca, tmp_path, "127.0.0.1")
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(block["cert_file"], block["key_file"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"tls_required":true}\r\n')
        await writer.start_tls(secure)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await refused(url, tls=context(ca))


# --- the answer to CONNECT -----------------------------------------------------------------------------------

ANSWERS = {
    "Authorization Violation": AuthenticationError,
    "Authorization Timeout": AuthenticationError,
    "Authentication Timeout": AuthenticationError,
    "User Authentication Expired": AuthenticationError,
    "User Authentication Revoked": AuthenticationError,
    "Account Authentication Expired": AuthenticationError,
    "Maximum Connections Exceeded": ConnectError,
    "Maximum Account Active Connections Exceeded": ConnectError,
    "Secure Connection - TLS Required": ConnectError,
    "Unknown Protocol Operation": ConnectError,
    "Attempted To Connect To Route Port": ConnectError,
    "Attempted To Connect To Leaf Node Port": ConnectError,
    "Maximum Control Line Exceeded": ConnectError,
    "Parser Error": ConnectError,
    "Connection Throttled": ConnectError,
    "No Responders Requires Headers Support": ConnectError,
    "Failed Account Registration": ConnectError,
    "Stale Connection": ConnectError,
    "Slow Consumer": ConnectError,
    "": ConnectError,
    "\x00\x1b[2J": ConnectError,
}


@pytest.mark.parametrize("text", ANSWERS)
async def test_error_as_answer_to_connect(text: str) -> None:
    async with FakeServer(answer_pings=False) as fake:
        fake.answer_connect = f"-ERR '{text}'\r\n".encode()
        error = await refused(fake.url)
        assert type(error) is ANSWERS[text]
        assert text in str(error)


@pytest.mark.parametrize(
    "answer",
    [
        b"+OK\r\n" * 1000,
        b"PING\r\n" * 10_000,
        b"INFO {}\r\n" * 1000,
        b"MSG a 1 5\r\nhello\r\n",
        b"PO",
        b"\r\n",
    ],
    ids=lambda answer: repr(answer[:10]),
)
async def test_nonsense_as_answer_to_connect(answer: bytes) -> None:
    async with FakeServer(answer_pings=False) as fake:
        fake.answer_connect = answer
        # On a busy machine the time of an attempt may be over before it sends CONNECT.
        while not any(client.greeted for client in fake.clients):
            await refused(fake.url, connect_timeout=0.5)


# --- during the connection -----------------------------------------------------------------------------------


async def test_flood_of_pings(connect: Any, events: list[Any]) -> None:
    """Each is answered, as the server counts them, and messages come through."""
    async with FakeServer() as fake:
        js = await connect(fake.url, **FAST)
        sub = await js.core.subscribe("a")
        await js.ping()
        for _ in range(20):
            fake.send(b"PING\r\n" * 5000)
            await asyncio.sleep(0)
        fake.send_message("a", b"still here")
        assert (await sub.next(timeout=60)).data == b"still here"
        pongs = lambda: len(fake.find(lambda frame: frame.op == "PONG"))  # noqa: E731
        await eventually(lambda: pongs() == 100_000, 100, "the PONGs")
        assert of(Disconnected, events) == []


async def test_pings_that_nobody_reads_the_pongs_of(
    connect: Any, monkeypatch: pytest.MonkeyPatch, events: list[Any]
) -> None:
    """The server pings and does not read: the PONGs that wait to be sent are bounded. It reads again, and gets some."""
    monkeypatch.setattr("jsclient._runtime.connection.wire.HIGH_WATER", 4096)
    async with FakeServer() as fake:
        js = await connect(fake.url)
        sub = await js.core.subscribe("end")
        await fake.wait_sub("end", 60)
        client, out = fake.clients[0], js._connection.outbox
        client.transport.pause_reading()
        for _ in range(12):  # more than the sockets can buffer
            js._connection.send("filled", b"x" * 1_000_000)
        for _ in range(100):
            client.write(b"PING\r\n" * 1000)
            await asyncio.sleep(0.001)
        await eventually(lambda: out.is_full, what="a full buffer")
        waiting = out.size + js._connection.transport.backlog()
        client.write(b"PING\r\n" * 100_000)
        client.write(b"PONG\r\n")
        fake.send_message("end")
        await sub.next(timeout=60)  # all PINGs have been read
        assert out.size + js._connection.transport.backlog() <= waiting + 10_000
        client.transport.resume_reading()
        await js.ping(60)
        client.write(b"PING\r\n")
        before = len(fake.find(lambda frame: frame.op == "PONG"))
        client.write(b"PING\r\n")
        await eventually(lambda: len(fake.find(lambda frame: frame.op == "PONG")) > before, what="a PONG")
        assert of(Disconnected, events) == []


async def test_lame_duck_without_successors(connect: Any, events: list[Any]) -> None:
    """The only server says that it stops, announces none, and closes: the client waits for it, and reports so."""
    async with FakeServer() as fake:
        js = await connect(fake.url, **FAST)
        fake.send_info(ldm=True, connect_urls=[])
        event = await wait_for_event(LameDuck, events)
        assert (event.others, event.severity) == (0, "warning")
        fake.greeting = b"-ERR 'lame duck'\r\n"
        fake.drop()
        await wait_for_event(Disconnected, events)
        await eventually(lambda: "lame duck" in js._connection.problem, what="attempts")
        fake.greeting = None
        await wait_for_event(Reconnected, events)


async def test_greeting_changes_at_each_reconnect(connect: Any, events: list[Any]) -> None:
    """What no first connect would take leads to the next attempt, and is forgotten with it."""
    greetings = [b"INFO {", b"", b"INFO []\r\n", b"SSH-2.0\r\n", b"INFO " + b"x" * 100_000, b"\x00" * 100]
    async with FakeServer() as fake:
        js = await connect(fake.url, **{**FAST, "connect_timeout": 1.0})
        for greeting in greetings:
            fake.greeting = greeting
            before = len(fake.clients)
            fake.drop()
            await eventually(lambda: len(fake.clients) > before + 1, 60, "attempts")  # noqa: B023
            fake.greeting = None
            await eventually(lambda: js.is_connected, 60, "the connection")
            assert await js.ping() < 5
        assert of(ErrorRaised, events) == []
        assert DEFAULT_INFO["version"] == js.server_version
