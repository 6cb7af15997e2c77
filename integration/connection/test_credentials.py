"""Credentials files: half written, expired, replaced. The error names the file, never what is in it (X2, X10)."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nkeys
import pytest
from nats.aio.client import RawCredentials

import jsclient
from integration.connection.test_secrets import texts
from integration.kit.clients.readers import PATIENT
from integration.kit.judge.reading import of
from integration.kit.judge.waiting import eventually, within
from integration.kit.servers.creds import USER, Key, Operator
from integration.kit.servers.fake_server import FakeServer
from jsclient import (
    AuthenticationError,
    ConfigError,
    ConnectError,
    ErrorRaised,
    JetStreamError,
    RequestTimeoutError,
)


class CredentialFile:
    """A credentials file, and what must not be shown of it."""

    def __init__(self, folder: Path, expires: float | None = None) -> None:
        self.file = folder / "user.creds"
        self.operator, self.user = Operator.make(), Key.make(USER)
        self.write(expires)

    def write(self, expires: float | None = None) -> None:
        self.operator.write(self.file, self.user, expires)
        self.text = self.file.read_text()
        self.jwt, self.seed = self.text.splitlines()[1], self.user.seed.decode()

    def shown_in(self, *errors: BaseException) -> list[str]:
        shown = [text for error in errors for text in texts(error)]
        return [text for text in shown if self.jwt[:60] in text or self.seed[:16] in text]

    def before(self, mark: str, more: int = 0) -> str:
        return self.text[: self.text.index(mark) + more]


@pytest.fixture
def secret(tmp_path: Path) -> CredentialFile:
    return CredentialFile(tmp_path)


MALFORMED: dict[str, Callable[[CredentialFile], str]] = {
    "empty": lambda _: "",
    "blank": lambda _: "\n \n",
    "only the first line": lambda secret: secret.before("eyJ"),
    "no JWT": lambda secret: secret.text.replace(secret.jwt, ""),
    "half a JWT": lambda secret: secret.before("eyJ", 300),
    "a JWT without its end": lambda secret: secret.text.replace(secret.jwt, secret.jwt[:-2]),
    "no seed": lambda secret: secret.before("-----BEGIN USER"),
    "nothing below the seed's title": lambda secret: secret.before(secret.seed),
    "half a seed": lambda secret: secret.before(secret.seed, 30),
    "a misspelt seed": lambda secret: secret.text.replace(
        secret.seed, f"{secret.seed[:20]}22{secret.seed[22:]}"
    ),
    "another file": lambda _: "port: 4222\n",
}


@pytest.mark.parametrize("what", MALFORMED)
@pytest.mark.parametrize("raw", [False, True], ids=["file", "text"])
async def test_malformed_refused_before_the_wire(what: str, raw: bool, secret: CredentialFile) -> None:
    """nats-py reads a file without a JWT for ever, on the event loop, so that no timeout helps."""
    text = MALFORMED[what](secret)
    secret.file.write_text(text)
    name = "the text that was passed|an empty text" if raw else str(secret.file)
    async with FakeServer() as fake:
        with pytest.raises(ConfigError, match=name) as caught:
            await jsclient.connect(fake.url, user_credentials=RawCredentials(text) if raw else secret.file)
        assert fake.clients == []
    assert secret.shown_in(caught.value) == []


class _OtherPath:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __fspath__(self) -> str:
        return str(self._path)


async def test_every_form_is_accepted(
    secret: CredentialFile, own_server: Any, connect: Any, tmp_path: Path
) -> None:
    own = await own_server(config=secret.operator.config())
    jwt, seed, spaced = tmp_path / "user.jwt", tmp_path / "user.nk", tmp_path / "spaced.creds"
    jwt.write_text(f"{secret.jwt}\n")
    seed.write_text(f"\n{secret.seed}\n")
    spaced.write_text(f"# of Ann\r\n\r\n{secret.text.replace(chr(10), chr(13) + chr(10))}")
    forms = [str(secret.file), secret.file, _OtherPath(secret.file), spaced, RawCredentials(secret.text)]
    for form in [*forms, (str(jwt), str(seed)), (secret.file, secret.file)]:
        assert await (await connect(own, user_credentials=form)).ping() < 5


@pytest.mark.parametrize("what", ["text", "jwt", "seed"])
async def test_secret_instead_of_a_path_is_not_shown(what: str, secret: CredentialFile) -> None:
    with pytest.raises(ConfigError, match=r"RawCredentials\(text\)") as caught:
        await jsclient.connect(user_credentials=getattr(secret, what))
    assert secret.shown_in(caught.value) == []
    with pytest.raises(ConfigError, match="use nkeys_seed_str") as caught:
        await jsclient.connect(nkeys_seed=secret.seed)
    assert secret.shown_in(caught.value) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"user.creds", "is bytes: it must be the path"),
        (7, "is int: it must be the path"),
        (["a", "b"], "is list: it must be the path"),
        (("a", "b", "c"), "a tuple of 3"),
        ("no\0where", "not valid"),
        ("/", "directory"),
    ],
    ids=str,
)
async def test_what_is_no_path_refused(value: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await jsclient.connect(user_credentials=value)


@pytest.mark.parametrize("sent", ["from a file", "as text"])
async def test_expired_jwt_refused_with_its_date(
    sent: str, secret: CredentialFile, own_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported at once, also with ``wait=``: waiting brings no new credentials."""
    own = await own_server(config=secret.operator.config())
    secret.write(1_700_000_000.5)
    value = RawCredentials(secret.text) if sent == "as text" else secret.file
    date = r"expired on 2023-11-14 22:13:20 UTC, .* days ago by the clock of this machine"
    with pytest.raises(AuthenticationError, match=f"refused the credentials: .*{date}") as caught:
        await within(30, _opened(own.url, user_credentials=value, wait=600.0), "connect")
    name = "the text that was passed" if sent == "as text" else str(secret.file)
    assert name in str(caught.value)
    assert secret.shown_in(caught.value) == []
    (warning,) = [record.getMessage() for record in caplog.records if "expired" in record.getMessage()]
    assert name in warning


async def test_clock_ahead_refuses_no_valid_jwt(
    secret: CredentialFile,
    own_server: Any,
    connect: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server's clock counts: this machine's is two hours ahead."""
    own = await own_server(config=secret.operator.config())
    secret.write(time.time() + 3600)
    ahead = SimpleNamespace(time=lambda: time.time() + 7200)
    monkeypatch.setattr("jsclient._runtime.connection.credentials.time", ahead)
    assert await (await connect(own, user_credentials=secret.file)).ping() < 60
    (warning,) = [record.getMessage() for record in caplog.records if "expired" in record.getMessage()]
    assert "1 hour ago by the clock of this machine" in warning
    assert "the server decides" in warning


async def _opened(url: str, **options: Any) -> Any:
    return await jsclient.connect(url, **options)


async def test_jwt_that_ends_later_is_no_error(secret: CredentialFile, own_server: Any, connect: Any) -> None:
    own = await own_server(config=secret.operator.config())
    secret.write(time.time() + 3600)
    assert await (await connect(own, user_credentials=secret.file)).ping() < 5


@pytest.mark.parametrize("what", ["half a JWT", "empty", "half a seed"])
async def test_file_cut_between_attempts_ends_them(
    what: str, secret: CredentialFile, own_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As at the call: `connect` with ``wait=`` does not try on with a file that only its owner can mend."""
    own = await own_server(config=secret.operator.config())
    await own.kill()
    opening = asyncio.create_task(_opened(own.url, user_credentials=secret.file, wait=600.0))
    await eventually(lambda: "connecting is repeated" in caplog.text, what="an attempt that fails")
    secret.file.write_text(MALFORMED[what](secret))
    await own.start()
    with pytest.raises(ConfigError, match=f"user_credentials: .*{secret.file}") as caught:
        await within(60, opening, "connect")
    assert secret.shown_in(caught.value) == []


@dataclass
class Callbacks:
    """The callbacks of a program that signs itself."""

    secret: CredentialFile
    jwt: str | None = None

    def user_jwt_cb(self) -> bytes:
        return (self.secret.jwt if self.jwt is None else self.jwt).encode()

    def signature_cb(self, nonce: str) -> bytes:
        key = nkeys.from_seed(bytearray(self.secret.user.seed))
        return base64.b64encode(key.sign(nonce.encode()))

    @property
    def options(self) -> dict[str, Any]:
        return {"user_jwt_cb": self.user_jwt_cb, "signature_cb": self.signature_cb}


async def test_jwt_of_a_callback(secret: CredentialFile, own_server: Any, connect: Any) -> None:
    """The text of a whole credentials file is taken, too."""
    own = await own_server(config=secret.operator.config())
    for jwt in (None, f"{secret.jwt}\n", secret.text):
        assert await (await connect(own, **Callbacks(secret, jwt).options)).ping() < 60


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("half a JWT", "the JWT in what user_jwt_cb returned is malformed"),
        ("empty", "what user_jwt_cb returned has no user JWT"),
        ("a JWT without its end", "the JWT in what user_jwt_cb returned is malformed"),
    ],
)
async def test_malformed_jwt_of_a_callback_is_not_sent(what: str, says: str, secret: CredentialFile) -> None:
    text = MALFORMED[what](secret).removeprefix("-----BEGIN NATS USER JWT-----\n")
    async with FakeServer({"nonce": "abc"}) as fake:
        with pytest.raises(ConnectError, match=f"cannot connect to .*: {says}") as caught:
            await jsclient.connect(fake.url, **Callbacks(secret, text).options)
        assert not any(line.startswith(b"CONNECT") for line in fake.lines)
    assert not isinstance(caught.value, AuthenticationError)
    assert secret.shown_in(caught.value) == []


async def test_expired_jwt_of_a_callback_refused_with_its_date(
    secret: CredentialFile, own_server: Any
) -> None:
    own = await own_server(config=secret.operator.config())
    secret.write(1_700_000_000.5)
    says = "the JWT in what user_jwt_cb returned expired on 2023-11-14 22:13:20 UTC"
    with pytest.raises(AuthenticationError, match=says) as caught:
        await jsclient.connect(own.url, **Callbacks(secret).options)
    assert secret.shown_in(caught.value) == []


async def test_jwt_with_another_signature_is_sent(secret: CredentialFile) -> None:
    """A server's auth callout may take it. Only the server can tell."""
    head = base64.urlsafe_b64encode(b'{"alg":"RS256","typ":"JWT"}').decode().rstrip("=")
    body = secret.jwt.split(".")[1]
    jwt = f"{head}.{body}.{base64.urlsafe_b64encode(bytes(256)).decode().rstrip('=')}"
    async with FakeServer({"nonce": "abc"}) as fake:
        await (await jsclient.connect(fake.url, **Callbacks(secret, jwt).options)).close()
        connect = await fake.wait_for(lambda frame: frame.op == "CONNECT")
    assert json.loads(connect.args)["jwt"] == jwt


SEEDS: dict[str, tuple[Callable[[CredentialFile], str], str]] = {
    "half": (lambda secret: secret.seed[:30], "is malformed"),
    "misspelt": (lambda secret: f"{secret.seed[:20]}22{secret.seed[22:]}", "is malformed"),
    "of an account": (lambda secret: secret.operator.account.seed.decode(), "is that of an account: .* SU"),
    "of an operator": (lambda secret: secret.operator.operator.seed.decode(), "is that of an operator"),
    "a public key": (lambda secret: secret.user.public, "is malformed"),
    "a credentials file": (lambda secret: secret.text, "is malformed"),
}


@pytest.mark.parametrize("what", SEEDS)
async def test_malformed_seed_refused_before_the_wire(
    what: str, secret: CredentialFile, tmp_path: Path
) -> None:
    make, says = SEEDS[what]
    seed, file = make(secret), tmp_path / "user.nk"
    file.write_text(seed)
    async with FakeServer() as fake:
        with pytest.raises(ConfigError, match=f"^nkeys_seed_str {says}") as caught:
            await jsclient.connect(fake.url, nkeys_seed_str=seed)
        assert secret.shown_in(caught.value) == []
        with pytest.raises(ConfigError, match=f"^nkeys_seed: the seed in the file '{file}' {says}") as caught:
            await jsclient.connect(fake.url, nkeys_seed=str(file))
        assert secret.shown_in(caught.value) == []
        assert fake.clients == []


async def test_seed_with_lines_around_it_accepted(secret: CredentialFile, tmp_path: Path) -> None:
    file = tmp_path / "user.nk"
    file.write_text(f"\n{secret.seed}\n")
    async with FakeServer({"nonce": "abc"}) as fake:
        await (await jsclient.connect(fake.url, nkeys_seed=str(file))).close()
        await (await jsclient.connect(fake.url, nkeys_seed_str=f" {secret.seed}\n")).close()


@pytest.mark.parametrize("what", ["half a JWT", "empty", "expired"])
async def test_file_replaced_while_reconnecting(
    what: str, secret: CredentialFile, own_server: Any, connect: Any, proxy: Any, events: list[Any]
) -> None:
    """A file that cannot be used is told once, and the attempts continue until it can. Nats-py stood still for ever."""
    tap = await proxy(await own_server(config=secret.operator.config()))
    js = await connect(tap, user_credentials=secret.file, **PATIENT)
    if what == "expired":
        secret.write(time.time() - 3600)
    else:
        secret.file.write_text(MALFORMED[what](secret))
    tap.cut()
    await eventually(lambda: of(ErrorRaised, events), what="the event")
    since = len(tap.links)
    await eventually(lambda: len(tap.links) > since + 1, what="further attempts")
    (report,) = [event.error for event in of(ErrorRaised, events)]
    assert secret.shown_in(report) == []
    if what == "expired":
        assert isinstance(report, AuthenticationError)  # the server decides: its clock counts
    else:
        assert isinstance(report, ConnectError)
        assert str(secret.file) in str(report)
    secret.write()
    await eventually(lambda: js.is_connected, what="the reconnect")
    assert await js.ping() < 5


async def test_server_with_a_default_user_gets_credentials(secret: CredentialFile) -> None:
    """Its INFO does not say that it needs credentials: without them, it takes the client for the default user."""
    async with FakeServer({"nonce": "abc"}) as fake:
        await (await jsclient.connect(fake.url, user_credentials=secret.file)).close()
        connect = await fake.wait_for(lambda frame: frame.op == "CONNECT")
    sent = json.loads(connect.args)
    assert sent["jwt"] == secret.jwt
    assert sent["sig"]


async def test_credentials_without_nkeys(secret: CredentialFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nkeys", None)
    with pytest.raises(ConnectError, match=r'pip install "jsclient\[nkeys\]"'):
        await jsclient.connect(user_credentials=secret.file)


async def test_errors_after_an_expiry_say_so(
    secret: CredentialFile, own_server: Any, connect: Any, events: list[Any]
) -> None:
    """They said only that there is no connection."""
    own = await own_server(config=secret.operator.config())
    js = await connect(own, user_credentials=secret.file, timeout=20.0, **PATIENT)
    await js.create_stream("S", subjects=["s.>"], storage="memory")
    puller = await js.pull_subscribe("s.>")
    publisher = js.publisher()
    # All that needs the server is open, so the JWT may expire at any moment.
    secret.write(time.time() + 3)
    await js.reconnect(60)
    js._context.timeout = 2.0
    await eventually(lambda: of(ErrorRaised, events) and not js.is_connected, what="the expiry")
    refused = "refused the credentials"  # in the second of the expiry the server accepts them once more
    await eventually(lambda: refused in js._connection.problem, what="an attempt that is refused")
    failing = {
        "publish": lambda: js.publish("s.x", b"", timeout=0.2),
        "publisher": lambda: publisher.publish("s.x", b"", timeout=0.2),
        "request": js.account_info,
        "fetch": lambda: puller.fetch(1, expires=1.0),
        "ping": lambda: js.ping(timeout=0.2),
    }
    for name, call in failing.items():
        with pytest.raises(JetStreamError, match="not connected to a server") as caught:
            await call()
        text = f"{name}: {caught.value}"
        assert "the connection was lost (User Authentication Expired)" in text, text
        assert f"then {own.url} refused the credentials" in text, text
        assert f"the JWT in the file '{secret.file}' expired on 20" in text, text
        assert secret.shown_in(caught.value) == []
    secret.write()
    await eventually(lambda: js.is_connected, what="the reconnect")
    assert js._connection.problem == ""
    await js.publish("s.x", b"")


async def test_errors_with_a_server_away_say_why(connect: Any, proxy: Any) -> None:
    tap = await proxy()
    js = await connect(tap, **PATIENT)
    tap.refuse()
    tap.cut()
    await eventually(lambda: "then" in js._connection.problem, what="an attempt that fails")
    with pytest.raises(
        RequestTimeoutError, match=r"within 0\.2 s: the connection was lost \(.+\), then nats://.+: .+"
    ) as caught:
        await js.publish("s.x", b"", timeout=0.2)
    assert pickle.loads(pickle.dumps(caught.value)).why == caught.value.why
