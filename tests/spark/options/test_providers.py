"""Functions that provide credentials: found by name, or refused with the name and why."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from jsclient.errors import ConfigError
from jsclient.spark.options.connect import ConnectOptions

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
    return ConnectOptions.of({**SERVERS, **options}).arguments()


def test_token_is_the_function(module):
    assert arguments(tokenProvider="our_secrets:token")["token"] is module.token


def test_credentials_are_taken_apart(module):
    seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
    module.creds = lambda: (
        "-----BEGIN NATS USER JWT-----\nabc.def.ghi\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    given = arguments(credentialsProvider="our_secrets:creds")
    assert len(given["signature_cb"]("nonce")) == 88
    assert given["user_jwt_cb"]() == b"abc.def.ghi"


@pytest.mark.parametrize("text", ["", "abc.def.ghi", None, 7])
def test_what_is_not_a_credentials_file(module, text):
    module.creds = lambda: text
    with pytest.raises(ValueError, match="the text of a credentials file is needed"):
        arguments(credentialsProvider="our_secrets:creds")["signature_cb"]("nonce")


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
