"""Options of `connect` from a context of the tool ``nats``, beside options that are passed."""

from __future__ import annotations

import json
from collections import UserString

import pytest

from jsclient._runtime.saved_contexts import with_context
from jsclient.errors import ConfigError


@pytest.fixture
def save(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / ".config" / "nats" / "context"
    folder.mkdir(parents=True)

    def save(**fields):
        (folder / "prod.json").write_text(json.dumps(fields))

    return save


def test_fields_become_options(save):
    save(url="nats://a, nats://b:1", token="t", nkey="~/ann.nk", description="shop", tls_first=True, nsc="")
    options = with_context("prod", {"name": "mine"})
    nkey = options.pop("nkeys_seed")
    assert nkey.endswith("/ann.nk")
    assert not nkey.startswith("~")
    assert options == {
        "servers": ["nats://a", "nats://b:1"],
        "token": "t",
        "tls_handshake_first": True,
        "name": "mine",
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"password": "mine"}, {"user": "ann", "password": "mine"}),
        ({"token": "mine"}, {"token": "mine"}),
        ({"servers": ["nats://bob:x@a"]}, {"servers": ["nats://bob:x@a"]}),
        ({"domain": "d"}, {"domain": "d", "user": "ann", "password": "p"}),
    ],
)
def test_context_is_not_used_for_group_of_an_option(save, options, expected):
    save(user="ann", password="p", jetstream_api_prefix="hub.API")
    read = with_context("prod", options)
    if "domain" not in options:
        assert read.pop("prefix") == "hub.API"
    assert read == expected


def test_text_of_credentials(save, monkeypatch):
    monkeypatch.setenv("CREDS", "the text\n")
    save(creds="env://CREDS")
    options = with_context("prod", {})
    assert isinstance(options["user_credentials"], UserString)
    save(nkey="ENV://CREDS")
    assert with_context("prod", {}) == {"nkeys_seed_str": "the text\n"}
    save(token="env://CREDS")
    assert with_context("prod", {}) == {"token": "the text"}


def test_number_is_not_taken_for_an_empty_field(save):
    save(password=0)
    with pytest.raises(ConfigError, match="password is int"):
        with_context("prod", {})
