"""Each kind of authentication over each transport: who the server takes us for, and what it refuses.

With ``-m ""`` and ``--server-version`` this is the conformance of the handshake. `check` runs each kind over TCP, and
each transport once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nkeys
import pytest
import trustme
from nats.aio.client import RawCredentials

import jsclient
from integration.connection.test_secrets import texts
from integration.connection.test_tls import certificate, context
from integration.kit.clients.readers import FAST as QUICK
from integration.kit.judge.reading import wait_for_event
from integration.kit.servers.creds import USER, Key, Operator
from integration.kit.servers.ports import free_port
from jsclient import AuthenticationError, Reconnected

FAST = {**QUICK, "connect_timeout": 20.0}

SECRET = "canary-one"


@dataclass
class Case:
    """How a server is configured, and how a client is accepted and refused."""

    config: dict[str, Any]
    accepted: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, Any] | None = None
    user: str = ""  # as the server names it
    user_info: str = ""  # for the URL


def accounts(**settings: Any) -> dict[str, Any]:
    users = [{"user": "ann", "password": SECRET}, {"user": "guest", "password": "guest"}]
    return {"accounts": {"A": {"users": users, "jetstream": "enabled"}}, **settings}


def signing(seed: bytes) -> Callable[[str], bytes]:
    return lambda nonce: base64.b64encode(nkeys.from_seed(bytearray(seed)).sign(nonce.encode()))


def nobody(folder: Path) -> Case:
    return Case({})


def password(folder: Path) -> Case:
    return Case(accounts(), {"user": "ann", "password": SECRET}, {"user": "ann", "password": "x"}, "ann")


def password_in_url(folder: Path) -> Case:
    return Case(accounts(), refused={"user": "ann", "password": "x"}, user="ann", user_info=f"ann:{SECRET}@")


def default_user(folder: Path) -> Case:
    """The server requires nothing, and would take who says nothing for its default user."""
    given = {"user": "ann", "password": SECRET}
    return Case(accounts(no_auth_user="guest"), given, {"user": "ann", "password": "x"}, "ann")


def token(folder: Path) -> Case:
    return Case({"authorization": {"token": SECRET}}, {"token": SECRET}, {"token": "x"})


def token_callback(folder: Path) -> Case:
    return Case({"authorization": {"token": SECRET}}, {"token": lambda: SECRET}, {"token": lambda: "x"})


def nkey(folder: Path) -> Case:
    user = Key.make(USER)
    seeds = {"nkeys_seed_str": user.seed.decode()}, {"nkeys_seed_str": Key.make(USER).seed.decode()}
    return Case({"authorization": {"users": [{"nkey": user.public}]}}, *seeds, user.public)


def nkey_file(folder: Path) -> Case:
    user, file = Key.make(USER), folder / "user.nk"
    file.write_bytes(user.seed + b"\n")
    return Case(
        {"authorization": {"users": [{"nkey": user.public}]}}, {"nkeys_seed": str(file)}, {}, user.public
    )


def credentials_file(folder: Path) -> Case:
    operator, user, file = Operator.make(), Key.make(USER), folder / "user.creds"
    operator.write(file, user)
    other = folder / "other.creds"
    Operator.make().write(other, user)
    return Case(operator.config(), {"user_credentials": file}, {"user_credentials": other}, user.public)


def jwt_callbacks(folder: Path) -> Case:
    case = credentials_file(folder)
    text = case.accepted["user_credentials"].read_text().splitlines()
    jwt, seed = text[1].encode(), text[5].encode()
    forged = {"user_jwt_cb": lambda: jwt, "signature_cb": signing(Key.make(USER).seed)}
    return Case(case.config, {"user_jwt_cb": lambda: jwt, "signature_cb": signing(seed)}, forged, case.user)


def credentials_text(folder: Path) -> Case:
    case = credentials_file(folder)
    text = case.accepted["user_credentials"].read_text()
    return Case(case.config, {"user_credentials": RawCredentials(text)}, {}, case.user)


CASES = [
    nobody, password, password_in_url, default_user, token, token_callback, nkey, nkey_file, credentials_file,
    credentials_text, jwt_callbacks,
]  # fmt: skip
TRANSPORTS = ["tcp", "tls", "tls first", "ws", "wss"]


def row(kind: Callable[[Path], Case], transport: str) -> Any:
    core = transport == "tcp" or kind is credentials_file
    return pytest.param(
        kind, transport, id=f"{kind.__name__}-{transport}", marks=() if core else pytest.mark.full
    )


MATRIX = [row(kind, transport) for kind in CASES for transport in TRANSPORTS]


async def serve(own_server: Any, transport: str, case: Case, folder: Path) -> tuple[Any, str, dict[str, Any]]:
    """Start the server of a case, and return it with its URL and the options for its transport."""
    ca, config = trustme.CA(), dict(case.config)
    block = certificate(ca, folder, "127.0.0.1")
    options: dict[str, Any] = {} if transport in {"tcp", "ws"} else {"tls": context(ca)}
    port = free_port()
    if transport in {"ws", "wss"}:
        pair = {"tls": {name: block[name] for name in ("cert_file", "key_file")}}
        config["websocket"] = {"port": port, **({"no_tls": True} if transport == "ws" else pair)}
    elif transport != "tcp":
        config["tls"] = block if transport == "tls" else {**block, "handshake_first": True}
        options["tls_handshake_first"] = transport == "tls first"
    own = await own_server(config=config)
    url = f"{transport}://127.0.0.1:{port}" if transport in {"ws", "wss"} else own.url
    return own, url.replace("://", f"://{case.user_info}"), options


@pytest.mark.core_cases(5)
@pytest.mark.parametrize(("kind", "transport"), MATRIX)
async def test_accepted_and_refused(
    kind: Callable[[Path], Case],
    transport: str,
    own_server: Any,
    connect: Any,
    tmp_path: Path,
    events: list[Any],
    background: Any,
) -> None:
    """Connected, connected again after a restart, and refused without a word of the secret."""
    background.allow("SSL")
    case = kind(tmp_path)
    own, url, options = await serve(own_server, transport, case, tmp_path)
    js = await connect(url, **options, **case.accepted, **FAST)
    assert await user_of(js) == case.user
    await own.kill()
    await own.start()
    await wait_for_event(Reconnected, events)
    assert await user_of(js) == case.user
    if case.refused is not None:
        with pytest.raises(AuthenticationError) as caught:
            await jsclient.connect(
                url.replace(case.user_info, ""), connect_timeout=20.0, **options, **case.refused
            )
        assert [text for text in texts(caught.value) if SECRET in text] == []


async def user_of(js: Any) -> str:
    """Whom the server takes the client for. Who has a token has no name, and 2.10 tells the token."""
    answer = await js.core.request("$SYS.REQ.USER.INFO", b"", timeout=20.0)
    name = json.loads(answer.data)["data"].get("user", "")
    return "" if name in {"[REDACTED]", "[TOKEN]", SECRET} else name
