"""TLS that was asked for is had, or there is no connection (X1, X13)."""

from __future__ import annotations

import asyncio
import ssl
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

import jsclient
from integration.connection.test_secrets import texts
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import wait_for_event
from integration.kit.judge.waiting import eventually, never
from integration.kit.servers.fake_server import FakeServer
from integration.kit.servers.monitor import monitor_json
from integration.kit.servers.ports import free_port
from jsclient import AuthenticationError, ConfigError, ConnectError, Disconnected, JetStreamError, Reconnected


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def context(ca: trustme.CA) -> ssl.SSLContext:
    created = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    ca.configure_trust(created)
    return created


def certificate(ca: trustme.CA, directory: Path, *names: str, **dates: Any) -> dict[str, Any]:
    """The server's tls block, with a certificate for these names."""
    issued = ca.issue_cert(*names, **dates)
    cert, key, root = (directory / name for name in ("cert.pem", "key.pem", "ca.pem"))
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    ca.cert_pem.write_to_path(str(root))
    return {"cert_file": str(cert), "key_file": str(key), "ca_file": str(root), "timeout": 5}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second connection, on which a client finds out why the first one failed, may take as long as it needs."""
    for limit in ("_LIMIT", "_LIMIT_CLEAR", "_LIMIT_FIRST"):
        monkeypatch.setattr(f"jsclient._runtime.connection.certificates.{limit}", 20.0)


@pytest.mark.parametrize("way", ["scheme", "context", "both", "handshake first"])
async def test_server_without_tls_sent_no_connect(way: str) -> None:
    """X1: 0 of 4 strips. The client sends no credentials in clear text."""
    async with FakeServer() as fake:
        url = fake.url
        options: dict[str, Any] = {"user": "ann", "password": "canary"}
        if way in {"scheme", "both"}:
            url = url.replace("nats://", "tls://")
        if way in {"context", "both", "handshake first"}:
            options["tls"] = ssl.create_default_context()
        if way == "handshake first":
            options["tls_handshake_first"] = True
        with pytest.raises(ConnectError):
            await jsclient.connect(url, connect_timeout=1.0, **options)
        assert fake.find(lambda frame: frame.op in {"CONNECT", "PUB", "SUB"}) == []
        assert b"canary" not in b"".join(fake.lines)


async def test_tls_with_certificate_fits(
    own_server: Any, connect: Any, ca: trustme.CA, tmp_path: Path
) -> None:
    """X1: the control of this file."""
    own = await own_server(config={"tls": certificate(ca, tmp_path, "127.0.0.1", "localhost")})
    js = await connect(own.url.replace("nats://", "tls://"), tls=context(ca))
    await js.create_stream("S", subjects=["s"], storage="memory")
    assert (await js.publish("s", b"x" * 100_000)).seq == 1
    sub = await js.subscribe("s")
    assert len((await sub.next(timeout=30)).data) == 100_000


@pytest.mark.core_cases(1)
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("end", ["of this client's patience", "of the server's patience"])
@pytest.mark.parametrize("verify", [False, True], ids=["any client", "client certificates"])
async def test_server_that_begins_with_tls_is_reported(
    end: str, verify: bool, own_server: Any, ca: trustme.CA, tmp_path: Path
) -> None:
    """It waits for TLS, and a client that waits for INFO only heard that nothing came."""
    block = {**certificate(ca, tmp_path, "127.0.0.1"), "handshake_first": True, "verify": verify}
    ours = end == "of this client's patience"
    own = await own_server(config={"tls": {**block, "timeout": 60 if ours else 3}})
    with pytest.raises(ConnectError, match="begins with TLS: pass tls_handshake_first=True"):
        await jsclient.connect(own.url, tls=context(ca), connect_timeout=3.0 if ours else 60.0)


async def test_silent_server_gets_no_hint() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ConnectError, match=r"no answer within 0\.3 s") as caught:
            await jsclient.connect(url, connect_timeout=0.3)
    assert "TLS" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["nats", "tls"])
async def test_server_with_optional_tls(
    scheme: str, own_server: Any, connect: Any, proxy: Any, ca: trustme.CA, tmp_path: Path, caplog: Any
) -> None:
    """A server with ``allow_non_tls`` offers TLS and does not require it."""
    own = await own_server(config={"tls": certificate(ca, tmp_path, "127.0.0.1"), "allow_non_tls": True})
    tap = await proxy(own, frames=False)
    events: list[Any] = []
    js = await connect(tap.url.replace("nats", scheme), tls=context(ca), on_event=events.append)
    tap.close()
    await eventually(lambda: any(isinstance(one, Reconnected) for one in events), 60, "a reconnect")
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []
    await js.ping()
    answer = await monitor_json(own.monitor, "/connz")
    versions = [one.get("tls_version") for one in answer["connections"]]
    assert versions, "the server lists no connection"
    assert all(versions), versions
    plain = await connect(own.url)
    await plain.ping()


@pytest.mark.parametrize("wrong", ["CA", "host", "option"])
async def test_certificate_does_not_fit_refused(
    wrong: str, own_server: Any, ca: trustme.CA, tmp_path: Path, background: Any
) -> None:
    """X1."""
    background.allow("SSL|certificate")
    names = ["elsewhere.example"] if wrong == "host" else ["127.0.0.1"]
    own = await own_server(config={"tls": certificate(ca, tmp_path, *names)})
    options: dict[str, Any] = {"tls": context(trustme.CA() if wrong == "CA" else ca)}
    if wrong == "option":
        options["tls_hostname"] = "elsewhere.example"
    with pytest.raises(ConnectError) as caught:
        await jsclient.connect(own.url.replace("nats://", "tls://"), connect_timeout=20.0, **options)
    assert "certificate" in str(caught.value).lower()


async def test_path_of_authority(own_server: Any, connect: Any, ca: trustme.CA, tmp_path: Path) -> None:
    own = await own_server(config={"tls": certificate(ca, tmp_path, "127.0.0.1")})
    js = await connect(own.url, tls=str(tmp_path / "ca.pem"))
    await js.ping()
    assert js._connection.transport.is_secure()
    with pytest.raises(ConnectError, match="not trusted here"):
        await jsclient.connect(own.url, tls=True)


@pytest.mark.parametrize("tls", ["absent.pem", "empty.pem", 1, ["ca.pem"]])
async def test_bad_tls_option_refused(tls: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    arguments = str(tmp_path / tls) if isinstance(tls, str) else tls
    with pytest.raises(ConfigError, match="tls"):
        await jsclient.connect("nats://127.0.0.1:1", tls=arguments)


KEY = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    "given", [KEY, KEY.encode(), [KEY], "MIGHAgEAMBMGByqGSM49\0"], ids=lambda given: type(given).__name__
)
async def test_text_instead_of_a_path_is_not_shown(given: Any) -> None:
    """What is passed as ``tls`` by mistake may have a private key in it."""
    with pytest.raises(
        ConfigError, match=r"pass ssl.create_default_context\(cadata=text\)|tls is (bytes|list)"
    ) as caught:
        await jsclient.connect("nats://127.0.0.1:1", tls=given)
    assert "MIGH" not in "".join(texts(caught.value))


@pytest.mark.core_cases(2)
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("scheme", ["tls", "wss"])
@pytest.mark.parametrize("wrong", ["expired", "not yet", "name", "authority"])
async def test_certificate_reported(
    wrong: str, scheme: str, own_server: Any, ca: trustme.CA, tmp_path: Path, background: Any
) -> None:
    """Which check failed, and the date of the certificate. An expired one does not read as refused credentials."""
    background.allow("SSL|certificate")
    past, future = datetime(2024, 1, 2, tzinfo=UTC), datetime(2061, 2, 3, 4, 5, tzinfo=UTC)
    dates: dict[str, Any] = {}
    if wrong == "expired":
        dates = {"not_before": past, "not_after": datetime(2025, 6, 7, 8, 9, tzinfo=UTC)}
    elif wrong == "not yet":
        dates = {"not_before": future, "not_after": datetime(2062, 1, 1, tzinfo=UTC)}
    block = certificate(ca, tmp_path, "elsewhere.example" if wrong == "name" else "127.0.0.1", **dates)
    port = free_port()
    pair = {key: block[key] for key in ("cert_file", "key_file")}
    config = {"tls": block} if scheme == "tls" else {"websocket": {"port": port, "tls": pair}}
    own = await own_server(config=config)
    port = own.port if scheme == "tls" else port
    trust = ssl.create_default_context() if wrong == "authority" else context(ca)
    words = {
        "expired": "expired on 2025-06-07 08:09 UTC",
        "not yet": "not valid before 2061-02-03 04:05 UTC",
        "name": "not for '127.0.0.1'",
        "authority": "not trusted here",
    }
    started = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        await jsclient.connect(f"{scheme}://127.0.0.1:{port}", tls=trust, user="a", password="b", wait=0.6)
    assert words[wrong] in str(caught.value)
    assert not isinstance(caught.value, AuthenticationError)
    assert time.monotonic() - started > 0.2, "it goes on trying for as long as it was told to"


async def test_tls_reconnects_and_timeouts(
    own_server: Any,
    proxy: Any,
    connect: Any,
    ca: trustme.CA,
    tmp_path: Path,
    background: Any,
    events: list[Any],
) -> None:
    """X1, R19: reconnects are checked as the first connect is, and closing meanwhile does not hang."""
    background.allow("SSL|certificate")
    own = await own_server(config={"tls": certificate(ca, tmp_path, "127.0.0.1")})
    tap = await proxy(own, frames=False)
    js = await connect(tap.url.replace("nats://", "tls://"), tls=context(ca), **PATIENT)
    await js.create_stream("S", subjects=["s"], storage="memory")
    tap.cut()
    await wait_for_event(Reconnected, events)
    assert (await js.publish("s", b"1")).seq == 1
    # A certificate of someone else from now on.
    (tmp_path / "other").mkdir()
    own.reload({"tls": certificate(trustme.CA(), tmp_path / "other", "127.0.0.1")})
    await eventually(lambda: "Reloaded" in own.log, what="the new certificate")
    links = len(tap.links)
    tap.cut()
    await eventually(lambda: len(tap.links) > links + 2, what="attempts that are refused")
    assert not js.is_connected
    started = time.monotonic()
    await js.close()
    assert time.monotonic() - started < 15


async def test_server_lost_tls_not_reconnected_to(
    own_server: Any, connect: Any, ca: trustme.CA, tmp_path: Path, events: list[Any]
) -> None:
    """X1, X13: `tls://` applies to every reconnect, to any server."""
    own = await own_server(config={"tls": certificate(ca, tmp_path, "127.0.0.1")})
    js = await connect(own.url.replace("nats://", "tls://"), tls=context(ca), **PATIENT)
    own.process.config = own._with({})
    await own.restart()
    await wait_for_event(Disconnected, events)
    await never(lambda: js.is_connected, 0.7, "a connection in the clear")
    with pytest.raises(JetStreamError):
        await js.publish("s", b"secret", timeout=0.3)


# --- what else can be wrong ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("way", ["tls", "handshake first", "wss"])
async def test_full_server_says_so(
    way: str, own_server: Any, ca: trustme.CA, tmp_path: Path, background: Any
) -> None:
    """The server refuses before TLS, in the clear, and closes: its reason is reported, not a lost connection."""
    background.allow("SSL")
    block = certificate(ca, tmp_path, "127.0.0.1")
    config: dict[str, Any] = {"max_connections": 1}
    options: dict[str, Any] = {"tls": context(ca)}
    if way == "wss":
        port = free_port()
        config["websocket"] = {"port": port, "tls": {name: block[name] for name in ("cert_file", "key_file")}}
    else:
        options["tls_handshake_first"] = way == "handshake first"
        config["tls"] = {**block, "handshake_first": options["tls_handshake_first"]}
    own = await own_server(config=config)
    url = f"wss://127.0.0.1:{port}" if way == "wss" else own.url
    async with jsclient.connect(url, wait=10, **options) as js:
        for _ in range(5):
            with pytest.raises(
                ConnectError, match=r"takes no more connections: .*maximum connections exceeded"
            ):
                await jsclient.connect(url, **options)
        await js.ping()


async def test_full_server_announced_before_tls(ca: trustme.CA) -> None:
    """The refusal arrived together with the INFO: no second look is needed."""
    info = b'INFO {"server_id":"X","version":"2.15.1","max_payload":1048576,"tls_required":true}\r\n'
    async with FakeServer(greeting=info + b"-ERR 'maximum connections exceeded'\r\n") as fake:
        with pytest.raises(ConnectError, match="takes no more connections"):
            await jsclient.connect(fake.url, tls=context(ca), connect_timeout=20.0)
        assert len(fake.clients) == 1


ISSUERS = {"none": "load_cert_chain", "foreign": "does not know the authority", "expired": "has expired"}


@pytest.mark.core_cases(3)
@pytest.mark.parametrize("scheme", ["tls", "wss"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("shown", ISSUERS)
async def test_client_certificate_reported(
    shown: str,
    version: ssl.TLSVersion,
    scheme: str,
    own_server: Any,
    connect: Any,
    ca: trustme.CA,
    tmp_path: Path,
    background: Any,
) -> None:
    """Required and not given, of an authority that the server does not know, or expired: which, and what to do."""
    background.allow("SSL")
    block, port = certificate(ca, tmp_path, "127.0.0.1"), free_port()
    pair = {key: block[key] for key in ("cert_file", "key_file")}
    authority = {"ca_file": block["ca_file"], "verify": True}
    config: dict[str, Any] = {"tls": {**pair, **authority, "timeout": 5}}
    if scheme == "wss":
        config = {"websocket": {"port": port, "tls": {**pair, **authority}}}
    own = await own_server(config=config)
    url = f"wss://127.0.0.1:{port}" if scheme == "wss" else f"tls://127.0.0.1:{own.port}"
    trust = context(ca)
    trust.maximum_version = version
    if shown == "foreign":
        trustme.CA().issue_cert("me@example.org").configure_cert(trust)
    elif shown == "expired":
        ca.issue_cert("me@example.org", not_after=datetime(2025, 6, 7, tzinfo=UTC)).configure_cert(trust)
    with pytest.raises(ConnectError, match=ISSUERS[shown]) as caught:
        await jsclient.connect(url, tls=trust, wait=0.3)
    assert "client certificate" in str(caught.value)
    assert "a server that is starting" not in str(caught.value)
    right = context(ca)
    ca.issue_cert("me@example.org").configure_cert(right)
    assert await (await connect(url, tls=right)).ping() < 30
