"""WebSockets through an HTTP proxy, and the headers of the request that opens them."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import trustme

import jsclient
from integration.connection.test_secrets import texts
from integration.connection.test_tls import certificate, context
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import of, wait_for_event
from integration.kit.judge.waiting import eventually, within
from integration.kit.network.connect_proxy import ConnectProxy
from integration.kit.servers.ports import HOST, free_port
from jsclient import ConfigError, ConnectError, Disconnected, ErrorRaised, JetStreamError, Reconnected

CANARY = "canary9a3e"


async def websocket(own_server: Any, tls: dict[str, Any] | None = None) -> tuple[int, Any]:
    """The port of a server's WebSocket, and the server."""
    port = free_port()
    block = {"tls": tls} if tls is not None else {"no_tls": True}
    own = await own_server(config={"websocket": {"host": "127.0.0.1", "port": port, **block}})
    return port, own


def pair(ca: trustme.CA, folder: Path, wrong: str = "") -> dict[str, Any]:
    """Write a certificate for "localhost" and its key, and return their paths. The certificate may be wrong."""
    dates = {"not_after": datetime(2020, 1, 1, tzinfo=UTC)} if wrong == "dates" else {}
    issuer = trustme.CA() if wrong == "authority" else ca
    written = certificate(issuer, folder, "example.org" if wrong == "name" else "localhost", **dates)
    return {name: written[name] for name in ("cert_file", "key_file")}


WRONG_CERTIFICATES = [
    ("authority", "comes from an authority that is not trusted here"),
    ("name", "is not for 'localhost'"),
    ("dates", "certificate expired: the server needs a new one"),
]


async def uses(js: Any) -> None:
    """Send and receive payloads of sizes for which a frame has another head."""
    await js.ensure_stream("S", subjects=["s.>"], storage="memory")
    sub = await js.subscribe("s.>", ordered=True)
    payloads = [bytes([size % 251]) * size for size in (0, 1, 80, 110, 125, 126, 65_400, 65_536, 900_000)]
    for payload in payloads:
        await js.publish("s.a", payload)
    assert [(await sub.next(timeout=60)).data for _ in payloads] == payloads
    await sub.unsubscribe()


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_connection_leads_through_the_proxy(
    scheme: str, own_server: Any, connect: Any, events: list[Any], tmp_path: Path
) -> None:
    ca, tls = trustme.CA(), scheme == "wss"
    options = {"tls": context(ca)} if tls else {}
    port, _ = await websocket(own_server, pair(ca, tmp_path) if tls else None)
    async with ConnectProxy("ann:p@ss") as proxy:
        js = await connect(
            f"{scheme}://localhost:{port}", proxy=proxy.url_with_credentials, **options, **PATIENT
        )
        await uses(js)
        assert [request.split("\r\n")[0] for request in proxy.requests] == [
            f"CONNECT localhost:{port} HTTP/1.1"
        ]
        assert proxy.passed > 1_800_000
        proxy.cut()
        await wait_for_event(Reconnected, events)
        await uses(js)
        assert len(proxy.requests) >= 2
        await js.close()


@pytest.mark.parametrize(("wrong", "says"), WRONG_CERTIFICATES)
async def test_wrong_certificate_behind_the_proxy(
    wrong: str, says: str, own_server: Any, tmp_path: Path
) -> None:
    """It is an error at once. No second connection goes past the proxy, and no credentials reach the server."""
    ca = trustme.CA()
    port, _ = await websocket(own_server, pair(ca, tmp_path, wrong))
    async with ConnectProxy(f"ann:{CANARY}") as proxy:
        connecting = jsclient.connect(
            f"wss://localhost:{port}",
            proxy=proxy.url_with_credentials,
            tls=context(ca),
            connect_timeout=60.0,
        )
        with pytest.raises(ConnectError, match=says) as caught:
            await within(30, connecting, "the error")
        assert len(proxy.requests) == 1
    assert [text for text in texts(caught.value) if CANARY in text] == []


@pytest.mark.parametrize(("wrong", "says"), WRONG_CERTIFICATES)
async def test_wrong_certificate_at_a_reconnect(
    wrong: str,
    says: str,
    own_server: Any,
    connect: Any,
    events: list[Any],
    background: Any,
    tmp_path: Path,
    caplog: Any,
) -> None:
    """Each attempt goes through the proxy and is refused, until the server has a right certificate again."""
    background.allow("SSL|certificate")
    caplog.set_level(logging.DEBUG)
    ca = trustme.CA()
    port, own = await websocket(own_server, pair(ca, tmp_path))
    async with ConnectProxy(f"ann:{CANARY}") as proxy:
        js = await connect(
            f"wss://localhost:{port}",
            proxy=proxy.url_with_credentials,
            tls=context(ca),
            user="bob",
            password=CANARY,
            **{**PATIENT, "connect_timeout": 60.0},
        )
        pair(ca, tmp_path, wrong)
        await own.restart()
        await eventually(lambda: says in js._connection.problem, what="an attempt that is refused")
        attempts = len(proxy.requests)
        await eventually(lambda: len(proxy.requests) > attempts + 2, what="further attempts")
        assert not js.is_connected
        assert of(Reconnected, events) == []
        with pytest.raises(JetStreamError, match=says) as caught:
            await js.publish("s.a", b"x", timeout=0.5)
        pair(ca, tmp_path)
        await own.restart()
        await wait_for_event(Reconnected, events)
        await uses(js)
        await js.close()
    shown = [*texts(caught.value), *map(repr, events), caplog.text]
    assert [text for text in shown if CANARY in text] == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "opens no tunnel, with the HTTP status 403"),
        (b"HTTP/1.0 302 Found\r\nLocation: http://a/\r\n\r\n", "opens no tunnel, with the HTTP status 302"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak HTTP"),
        (b"INFO {}\r\n", "a NATS server answers there"),
        (b"HTTP/1.1 200 fine\r\nX: " + b"x" * 100_000, "does not speak HTTP"),
        (b"HTTP/1.1 200 fine\r\n\r\nHTTP/1.1 101 Switching\r\n\r\n", "sent something after its answer"),
        (b"HTTP/1.1", "closed the connection, without an answer"),
        (b"", "requires credentials: check those in its URL"),
    ],
)
async def test_proxy_that_opens_no_tunnel(answer: bytes, says: str, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    async with ConnectProxy("ann:other", answer) as proxy:
        url = proxy.url.replace("//", f"//ann:{CANARY}@")
        with pytest.raises(ConnectError, match=says) as caught:
            await jsclient.connect("ws://127.0.0.1:1", proxy=url)
        assert f"the proxy {proxy.url}" in str(caught.value)
    shown = [*texts(caught.value), caplog.text]
    assert [text for text in shown if CANARY in text] == []


async def test_proxy_that_is_down():
    port = free_port()
    with pytest.raises(ConnectError, match=rf"the proxy http://127.0.0.1:{port} cannot be used"):
        await jsclient.connect("ws://127.0.0.1:1", proxy=f"http://ann:{CANARY}@127.0.0.1:{port}")


async def test_credentials_of_the_proxy_are_shown_nowhere(
    own_server: Any, connect: Any, events: list[Any], caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    port, _ = await websocket(own_server)
    async with ConnectProxy(f"ann:{CANARY}") as proxy:
        js = await connect(f"ws://127.0.0.1:{port}", proxy=proxy.url_with_credentials, **PATIENT)
        proxy.credentials = "ann:changed"
        proxy.cut()
        await wait_for_event(ErrorRaised, events)
        proxy.credentials = f"ann:{CANARY}"
        await wait_for_event(Reconnected, events)
        connection = js._connection
        shown = [repr(one) for one in (js, connection, connection._connector, connection.transport, proxy)]
        await js.close()
    reported = [event.error for event in of(ErrorRaised, events)]
    assert "requires credentials" in str(reported[0])
    shown += [repr(event) for event in events] + [text for error in reported for text in texts(error)]
    assert [text for text in [*shown, caplog.text] if CANARY in text] == []


@pytest.mark.parametrize(
    ("proxy", "says"),
    [
        ("", "proxy is an empty text"),
        (7, "proxy is int"),
        ("127.0.0.1:3128", "not a valid URL"),
        (f"http://ann:{CANARY}/x@host:1", "percent-encoded"),
        (f"http://ann:{CANARY}#x@host:1", "percent-encoded"),
        (f"http://ann:{CANARY}\n@host:1", "percent-encoded"),
        (f"http://host:{CANARY}", "percent-encoded"),
        ("https://host:1", "only http:// is supported"),
        ("socks5://host:1", "only http:// is supported"),
        ("http://host:1/path", "more than a host and a port"),
    ],
)
async def test_proxy_that_cannot_be_used(proxy: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        await jsclient.connect("ws://127.0.0.1:1", proxy=proxy)
    assert [text for text in texts(caught.value) if CANARY in text] == []


async def test_proxy_needs_a_websocket():
    """It is refused before anything is dialled."""
    async with ConnectProxy() as proxy:
        with pytest.raises(ConfigError, match="proxy is used for WebSockets only"):
            await jsclient.connect("nats://127.0.0.1:1", proxy=proxy.url)
        assert proxy.requests == []


# --- headers ------------------------------------------------------------------------------------------------


class Gate:
    """Stands before the server's WebSocket and keeps the requests. It lets in who has the newest token.

    Attributes:
        token: The newest token.
        requests: The request of each client.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self.requests: list[str] = []
        self.token = "1"
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.url = f"ws://{HOST}:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    @property
    def headers(self) -> dict[str, str]:
        """The headers with which it lets a client in now."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def client(self) -> asyncio.StreamWriter:
        """The connection to the first client."""
        return self._writers[0]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(request.decode())
        self._writers.append(writer)
        if f"\r\nAuthorization: Bearer {self.token}\r\n" not in request.decode():
            writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        back, to = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(to)
        to.write(request)
        await asyncio.gather(self._pump(reader, to), self._pump(back, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        writer.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@pytest.fixture
async def gate(own_server: Any) -> AsyncIterator[Gate]:
    port, _ = await websocket(own_server)
    async with Gate(port) as gate:
        yield gate


@pytest.mark.parametrize("form", ["function", "coroutine function"])
async def test_headers_are_asked_for_at_each_attempt(
    form: str, gate: Gate, connect: Any, events: list[Any]
) -> None:
    """A token that expires; a function that raises is told, and asked again."""
    fails = False

    def headers() -> dict[str, Any]:
        if fails:
            raise LookupError("no token yet")
        return {**gate.headers, "X-Several": ["a", "b"]}

    async def later() -> dict[str, Any]:
        await asyncio.sleep(0)
        return headers()

    given = headers if form == "function" else later
    js = await connect(f"{gate.url}/path?query=1", ws_connection_headers=given, **PATIENT)
    await js.ping()
    fails, gate.token = True, "2"
    gate.cut()
    error = (await wait_for_event(ErrorRaised, events)).error
    assert "ws_connection_headers raised LookupError('no token yet')" in str(error)
    fails = False
    await wait_for_event(Reconnected, events)
    await js.ping()
    assert "GET /path?query=1 HTTP/1.1\r\n" in gate.requests[-1]
    assert "\r\nX-Several: a\r\nX-Several: b\r\n" in gate.requests[-1]
    assert len(of(ErrorRaised, events)) == 1


async def test_refused_headers_are_told(gate: Gate) -> None:
    with pytest.raises(ConnectError, match="HTTP status 401: check ws_connection_headers") as caught:
        await jsclient.connect(gate.url, ws_connection_headers={"Authorization": f"Bearer {CANARY}"})
    assert [text for text in texts(caught.value) if CANARY in text] == []


BAD_HEADERS = [
    (7, "int"),
    ("Authorization: x", "str"),
    ({"": "x"}, "not valid in HTTP"),
    ({"A B": "x"}, "not valid in HTTP"),
    ({"A\r\nB": "x"}, "not valid in HTTP"),
    ({7: "x"}, "not valid in HTTP"),
    ({"Upgrade": "x"}, "the client sets itself"),
    ({"sec-websocket-key": "x"}, "the client sets itself"),
    ({"A": 7}, "int as the value of A"),
    ({"A": None}, "NoneType as the value of A"),
    ({"A": ["x", b"y"]}, "bytes as the value of A"),
    ({"A": f"{CANARY}\r\nB: y"}, "line break"),
    ({"A": f"{CANARY}\u20ac"}, "latin-1"),
]


@pytest.mark.parametrize(("headers", "says"), BAD_HEADERS)
@pytest.mark.parametrize("returned", [False, True])
async def test_headers_that_cannot_be_sent(returned: bool, headers: Any, says: str) -> None:
    given = (lambda: headers) if returned else headers
    kind: Any = ConnectError if returned else ConfigError
    with pytest.raises(kind, match=says) as caught:
        await jsclient.connect("ws://127.0.0.1:1", ws_connection_headers=given)
    assert "ws_connection_headers" in str(caught.value)
    assert [text for text in texts(caught.value) if CANARY in text] == []


async def test_function_of_headers_takes_no_argument():
    with pytest.raises(ConfigError, match="called with no argument"):
        await jsclient.connect("ws://127.0.0.1:1", ws_connection_headers=lambda url: {})


async def test_function_of_headers_is_bounded_in_time():
    async def never() -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    with pytest.raises(ConnectError, match=r"no answer within 0\.2 s"):
        await jsclient.connect("ws://127.0.0.1:1", ws_connection_headers=never, connect_timeout=0.2)


# --- what a hostile server does -----------------------------------------------------------------------------


async def test_huge_frame_is_an_error_and_no_memory(gate: Gate, connect: Any, events: list[Any]) -> None:
    """A frame is passed on as it arrives, so that its announced size costs nothing: the protocol in it has bounds."""
    js = await connect(gate.url, ws_connection_headers=gate.headers, **PATIENT)
    client = gate.client
    client.write(b"\x82\x7f" + (2**62).to_bytes(8) + b"x" * 1_000_000)
    lost = await wait_for_event(Disconnected, events)
    assert "control line" in lost.reason
    await wait_for_event(Reconnected, events)
    reader = js._connection.reader
    assert sum(map(len, reader._parts)) == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"\x81\x01x",
        b"\xc2\x01x",
        b"\x82\x81mask",
        b"\x89\x7e\x01\x00",
        b"\x09\x00",
        b"\x83\x00",
        b"\x80\x00",
        b"\x02\x00\x82\x00",
        b"\x82\x7f" + (2**63).to_bytes(8),
    ],
    ids=[
        "text",
        "extension",
        "masked",
        "long ping",
        "half a ping",
        "unknown",
        "end without a beginning",
        "a message within a message",
        "a size of 64 bits",
    ],
)
async def test_malformed_frames_end_the_connection(
    sent: bytes, gate: Gate, connect: Any, events: list[Any]
) -> None:
    js = await connect(gate.url, ws_connection_headers=gate.headers, **PATIENT)
    gate.client.write(sent)
    assert "WebSocket" in (await wait_for_event(Disconnected, events)).reason
    await wait_for_event(Reconnected, events)
    await js.ping()


async def test_endless_frame_costs_no_memory(gate: Gate, connect: Any, events: list[Any]) -> None:
    """Messages in it are received as they arrive, however many bytes the frame still announces."""
    js = await connect(gate.url, ws_connection_headers=gate.headers, ping_interval=60)
    client, reader = gate.client, js._connection.reader
    message = b"MSG nobody 999 60000\r\n%b\r\n" % bytes(60_000)
    client.write(b"\x82\x7f" + (2**62).to_bytes(8))
    before = reader.bytes_read
    tracemalloc.start()
    try:
        for _ in range(500):
            client.write(message)
            await client.drain()
        await eventually(
            lambda: reader.bytes_read - before >= 500 * len(message), what="the whole flood", timeout=60
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024 * 1024
    assert of(Disconnected, events) == []


async def test_messages_before_a_malformed_frame_are_received(
    gate: Gate, connect: Any, events: list[Any]
) -> None:
    """They arrive in the same read as the frame that ends the connection."""
    js = await connect(gate.url, ws_connection_headers=gate.headers, **PATIENT)
    sub = await js.core.subscribe("a")
    await js.core.flush()
    *_, sid = js._connection.reader.sinks
    message = b"MSG a %b 1\r\nx\r\n" % sid
    gate.client.write(b"\x82%c%b\x81\x01x" % (len(message), message))
    assert "WebSocket" in (await wait_for_event(Disconnected, events)).reason
    assert (await sub.next(timeout=30)).data == b"x"
    await wait_for_event(Reconnected, events)


async def test_close_and_pings_of_the_server(gate: Gate, connect: Any, events: list[Any]) -> None:
    js = await connect(gate.url, ws_connection_headers=gate.headers, **PATIENT)
    # A ping in two pieces between two messages, an empty frame, and a pong.
    for piece in (b"\x89\x03a", b"bc\x82\x00", b"\x8a\x00"):
        gate.client.write(piece)
        await asyncio.sleep(0.05)
    await js.ping()
    assert of(Disconnected, events) == []
    gate.client.write(b"\x88\x02\x03\xe9")
    assert "closed" in (await wait_for_event(Disconnected, events)).reason
    await eventually(lambda: js.is_connected, what="the reconnect")
