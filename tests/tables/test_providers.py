"""Functions that provide credentials: found by name, or refused with the name and why."""

from __future__ import annotations

import base64
import json
import sys
from types import ModuleType

import pytest

from jsclient._runtime.connection.credentials_file import CredentialsError
from jsclient.errors import ConfigError
from jsclient.tables.providers import provided
from jsclient.tables.server_options import ServerOptions

SERVERS = {"servers": "nats://x"}


@pytest.fixture(autouse=True)
def module(monkeypatch):
    secrets = ModuleType("our_secrets")
    secrets.token = lambda: "t0ken"
    secrets.creds = lambda: "text"
    secrets.number = 7
    monkeypatch.setitem(sys.modules, "our_secrets", secrets)
    return secrets


def arguments(**options):
    return ServerOptions.of({**SERVERS, **options}).arguments()


def test_token_is_the_function(module):
    assert arguments(tokenProvider="our_secrets:token")["token"] is module.token


SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"


def credentials_text(seed: str = SEED, **claims: object) -> str:
    """The text of a credentials file. Its signature is not checked here."""
    parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {"sub": "U", **claims}]
    encoded = [
        base64.urlsafe_b64encode(part) for part in (*(json.dumps(p).encode() for p in parts), bytes(64))
    ]
    jwt = b".".join(encoded).replace(b"=", b"").decode()
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


def credentials():
    return arguments(credentialsProvider="our_secrets:creds")["user_credentials"]


def test_credentials_are_taken_apart(module):
    """The JWT and the signature of one attempt come from one call. None is made before."""
    texts = [credentials_text(name="one"), credentials_text(name="two")]
    ahead = iter(texts)
    module.creds = lambda: next(ahead)
    arguments = credentials()
    arguments.check()
    for text in texts:
        assert len(arguments.signature("nonce")) == 88
        assert arguments.jwt().decode() == text.splitlines()[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "what our_secrets:creds returned has no user JWT"),
        ("abc.def.ghi", "what our_secrets:creds returned has no user JWT"),
        (credentials_text()[:150], "the JWT in what our_secrets:creds returned is malformed"),
        (credentials_text(SEED[:-2]), "the seed in what our_secrets:creds returned is malformed"),
        (credentials_text().partition("-----BEGIN USER")[0], "what our_secrets:creds returned has no seed"),
        (None, "what our_secrets:creds returned is NoneType: the text of a credentials file is needed"),
        (7, "what our_secrets:creds returned is int: the text of a credentials file is needed"),
    ],
)
def test_what_is_not_a_credentials_file(module, text, says):
    module.creds = lambda: text
    with pytest.raises(CredentialsError, match=f"^credentialsProvider: {says}") as caught:
        credentials().signature("nonce")
    assert SEED[:16] not in str(caught.value)


def test_function_that_raises(module):
    module.creds = lambda: {}["vault"]
    with pytest.raises(CredentialsError, match=r"^credentialsProvider: .*KeyError\('vault'\)") as caught:
        credentials().signature("nonce")
    assert isinstance(caught.value.__cause__, KeyError)


def test_expiry_is_reported(module):
    module.creds = lambda: credentials_text(exp=1_700_000_000)
    arguments = credentials()
    arguments.signature("nonce")
    assert arguments.expired(1_700_000_060.0) == (
        "the JWT in what our_secrets:creds returned expired on 2023-11-14 22:13:20 UTC, "
        "1 minute ago by the clock of this machine"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("our_secrets", "package.module:function is needed"),
        ("our_secrets:", "package.module:function is needed"),
        ("no_such_module:token", "No module named 'no_such_module'"),
        ("our_secrets:none", "no attribute 'none'"),
        ("our_secrets:number", "int, not a function"),
    ],
)
def test_names_that_are_refused(name, reason):
    with pytest.raises(ConfigError, match=f"option 'tokenProvider' is '{name}'.*{reason}"):
        arguments(tokenProvider=name)


def test_one_identity():
    with pytest.raises(ConfigError, match="'token' and 'tokenProvider' are both set"):
        arguments(token="x", tokenProvider="our_secrets:token")


def test_without_a_provider_nothing_is_added():
    assert provided(None, None) == {}
