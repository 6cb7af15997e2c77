"""Every way to be refused: what the error says, in one table."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import nkeys
import pytest
import trustme
from nats.aio.client import RawCredentials

import jsclient
from integration.connection.test_tls import certificate, context
from integration.kit.judge.waiting import within
from integration.kit.servers.creds import USER, Key, Operator
from integration.kit.servers.ports import free_port
from jsclient import AuthenticationError, ConnectError

pytestmark = pytest.mark.full

USERS = {"authorization": {"users": [{"user": "ann", "password": "canary-one"}]}}
LONG_AGO = datetime(2025, 6, 7, 8, 9, tzinfo=UTC)


@dataclass
class Site:
    """Where a case starts its server."""

    own_server: Callable[..., Awaitable[Any]]
    folder: Path
    stack: AsyncExitStack

    def __post_init__(self) -> None:
        self.ca, self.operator, self.user = trustme.CA(), Operator.make(), Key.make(USER)

    async def url(self, config: dict[str, Any]) -> str:
        return str((await self.own_server(config=config)).url)

    async def with_tls(self, *names: str, **block: Any) -> str:
        created = {**certificate(self.ca, self.folder, *(names or ("127.0.0.1",))), **block}
        return (await self.url({"tls": created})).replace("tls://", "nats://")

    async def with_websocket(self, *, tls: bool) -> int:
        port, block = free_port(), certificate(self.ca, self.folder, "127.0.0.1")
        pair = {name: block[name] for name in ("cert_file", "key_file")}
        await self.url({"websocket": {"port": port, **({"tls": pair} if tls else {"no_tls": True})}})
        return port

    def creds(
        self,
        user: Key | None = None,
        seed: bytes = b"",
        operator: Operator | None = None,
        expires: float = 0.0,
    ) -> Any:
        user = user or self.user
        file = self.folder / "user.creds"
        (operator or self.operator).write(file, user, expires or None)
        text = file.read_text()
        return RawCredentials(text.replace(user.seed.decode(), seed.decode()) if seed else text)

    async def answering(self, said: bytes) -> str:
        """A server of something else, which says this and then nothing."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        await self.stack.enter_async_context(server)
        return f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


class Refused(NamedTuple):
    """A connect, and what its error says."""

    connect: Callable[[Site], Awaitable[tuple[str, dict[str, Any]]]]
    kind: type[ConnectError]
    says: str


CASES: dict[str, Refused] = {}


def case(name: str, kind: type[ConnectError], says: str) -> Callable[[Any], Any]:
    def add(connect: Any) -> Any:
        CASES[name] = Refused(connect, kind, says)
        return connect

    return add


REFUSED = "refused the credentials: 'Authorization Violation'"


@case("an unknown user", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    return await site.url(USERS), {"user": "bob", "password": "canary-one"}


@case("a wrong password", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    return await site.url(USERS), {"user": "ann", "password": "canary-two"}


@case("no credentials", AuthenticationError, "no credentials were given, and .* requires them")
async def _(site: Site) -> Any:
    return await site.url(USERS), {}


@case("a wrong token", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    return await site.url({"authorization": {"token": "canary-one"}}), {"token": "canary-two"}


@case("an nkey that is not known", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    config = {"authorization": {"users": [{"nkey": site.user.public}]}}
    return await site.url(config), {"nkeys_seed_str": Key.make(USER).seed.decode()}


@case("an expired JWT", AuthenticationError, f"{REFUSED} \\(the JWT in .* expired on 2025-06-07 08:09:00 UTC")
async def _(site: Site) -> Any:
    creds = site.creds(expires=LONG_AGO.timestamp())
    return await site.url(site.operator.config()), {"user_credentials": creds}


@case(
    "an expired JWT of a callback", AuthenticationError, f"{REFUSED} .*user_jwt_cb returned expired on 2025-"
)
async def _(site: Site) -> Any:
    jwt = site.creds(expires=LONG_AGO.timestamp()).data.splitlines()[1].encode()
    key = nkeys.from_seed(bytearray(site.user.seed))
    sign: Callable[[str], bytes] = lambda nonce: base64.b64encode(key.sign(nonce.encode()))  # noqa: E731
    return await site.url(site.operator.config()), {"user_jwt_cb": lambda: jwt, "signature_cb": sign}


@case("a revoked JWT", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    creds = site.creds()
    config = site.operator.config({site.user.public: int(time.time()) + 60})
    return await site.url(config), {"user_credentials": creds}


@case("a JWT of another operator", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    return await site.url(site.operator.config()), {"user_credentials": site.creds(operator=Operator.make())}


@case("a seed of another user than the JWT", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    creds = site.creds(seed=Key.make(USER).seed)
    return await site.url(site.operator.config()), {"user_credentials": creds}


@case("a password where JWTs are needed", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    return await site.url(site.operator.config()), {"user": "ann", "password": "canary-one"}


@case("a JWT where passwords are needed", AuthenticationError, REFUSED)
async def _(site: Site) -> Any:
    return await site.url(USERS), {"user_credentials": site.creds()}


@case("TLS, and the server has none", ConnectError, "TLS was requested, and .* does not offer it")
async def _(site: Site) -> Any:
    return (await site.url({})).replace("nats://", "tls://"), {}


@case("TLS first, and the server begins with INFO", ConnectError, "leave out tls_handshake_first")
async def _(site: Site) -> Any:
    return await site.with_tls(), {"tls": context(site.ca), "tls_handshake_first": True}


@case("INFO first, and the server begins with TLS", ConnectError, "pass tls_handshake_first=True")
async def _(site: Site) -> Any:
    return await site.with_tls(handshake_first=True, timeout=60), {"connect_timeout": 1.0}


@case("an authority that is not trusted", ConnectError, 'authority that is not trusted here .*tls="ca.pem"')
async def _(site: Site) -> Any:
    return await site.with_tls(), {}


@case("a certificate of another host", ConnectError, "not for '127.0.0.1' .*tls_hostname")
async def _(site: Site) -> Any:
    return await site.with_tls("elsewhere.example"), {"tls": context(site.ca)}


@case("an expired certificate", ConnectError, "certificate expired on 2025-06-07 08:09 UTC")
async def _(site: Site) -> Any:
    block = certificate(site.ca, site.folder, "127.0.0.1", not_after=LONG_AGO)
    return await site.url({"tls": block}), {"tls": context(site.ca)}


@case("no client certificate", ConnectError, "requires a client certificate: .*load_cert_chain")
async def _(site: Site) -> Any:
    return await site.with_tls(verify=True), {"tls": context(site.ca)}


@case("a client certificate of another authority", ConnectError, "does not know the authority of the client")
async def _(site: Site) -> Any:
    trust = context(site.ca)
    trustme.CA().issue_cert("me@example.org").configure_cert(trust)
    return await site.with_tls(verify=True), {"tls": trust}


@case("TLS of another version", ConnectError, "no TLS version or cipher in common")
async def _(site: Site) -> Any:
    trust = context(site.ca)
    trust.maximum_version = ssl.TLSVersion.TLSv1_2
    return await site.with_tls(min_version="1.3"), {"tls": trust}


@case("nats:// to the port of a WebSocket", ConnectError, "use ws:// if it is a WebSocket")
async def _(site: Site) -> Any:
    return f"nats://127.0.0.1:{await site.with_websocket(tls=False)}", {"connect_timeout": 1.0}


@case("nats:// to the port of a WebSocket with TLS", ConnectError, "use wss:// if it is a WebSocket")
async def _(site: Site) -> Any:
    return f"nats://127.0.0.1:{await site.with_websocket(tls=True)}", {"connect_timeout": 1.0}


@case("ws:// to the port of NATS", ConnectError, "no WebSocket: use nats://$")
async def _(site: Site) -> Any:
    return (await site.url({})).replace("nats://", "ws://"), {}


@case("ws:// to a WebSocket with TLS", ConnectError, "use wss:// if it has TLS")
async def _(site: Site) -> Any:
    return f"ws://127.0.0.1:{await site.with_websocket(tls=True)}", {}


@case("wss:// to a WebSocket without TLS", ConnectError, "does not begin with TLS: use ws://")
async def _(site: Site) -> Any:
    return f"wss://127.0.0.1:{await site.with_websocket(tls=False)}", {}


@case("a server that is full", ConnectError, "takes no more connections: .*max_connections")
async def _(site: Site) -> Any:
    url = await site.url({"max_connections": 1})
    await site.stack.enter_async_context(jsclient.connect(url, wait=10.0))
    return url, {}


@case("an account that is full", ConnectError, "takes no more connections of this account")
async def _(site: Site) -> Any:
    user = {"user": "ann", "password": "canary-one"}
    config = {"accounts": {"A": {"users": [user], "jetstream": "enabled", "limits": {"max_connections": 1}}}}
    url = await site.url(config)
    await site.stack.enter_async_context(jsclient.connect(url, **user, wait=10.0))
    return url, user


@case("nobody listens", ConnectError, "no server could be reached at .*Connect call failed.*wait=30")
async def _(site: Site) -> Any:
    return f"nats://127.0.0.1:{free_port()}", {}


@case("a host without an address", ConnectError, "no server could be reached at nats://nowhere.invalid")
async def _(site: Site) -> Any:
    return "nats://nowhere.invalid:4222", {}


@case("a server that is silent", ConnectError, r"no answer within 0\.5 s")
async def _(site: Site) -> Any:
    return await site.answering(b""), {"connect_timeout": 0.5}


@case("a server of SSH", ConnectError, "no NATS server: it does not begin with INFO")
async def _(site: Site) -> Any:
    return await site.answering(b"SSH-2.0-OpenSSH_9.6\r\n"), {"connect_timeout": 20.0}


@pytest.mark.parametrize("name", CASES)
async def test_refusal_says(name: str, own_server: Any, tmp_path: Path, background: Any) -> None:
    """The kind of the error, its text, and that nothing secret is in it. Refused credentials end ``wait=``, too."""
    background.allow("SSL")
    arguments = CASES[name]
    async with AsyncExitStack() as stack:
        url, options = await arguments.connect(Site(own_server, tmp_path, stack))
        wait = 600.0 if arguments.kind is AuthenticationError else 0.0
        with pytest.raises(arguments.kind, match=arguments.says) as caught:
            await within(60, _opened(url, wait=wait, **options), "connect")
    assert type(caught.value) is arguments.kind
    assert url.rpartition("/")[2].partition(":")[0] in str(caught.value)
    assert "canary" not in str(caught.value)


async def _opened(url: str, **options: Any) -> Any:
    return await jsclient.connect(url, **options)
