"""Contexts of the command line tool ``nats``: how their fields are used, and which are refused."""

from __future__ import annotations

import base64
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

import jsclient
from integration.connection.test_tls import certificate
from integration.kit.servers.creds import operator_config
from jsclient import AuthenticationError, ConfigError

CANARY = "canary-secret"
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Save:
    """Write a context, as the tool does: all fields, most of them empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "config" / "nats" / "context"
    folder.mkdir(parents=True)
    empty = dict.fromkeys(("description", "socks_proxy", "token", "user", "creds", "nsc", "color_scheme"), "")

    def save(name: str, **fields: Any) -> Path:
        path = folder / f"{name}.json"
        written = {**empty, "tls_first": False, "windows_ca_certs_match": None, **fields}
        path.write_text(json.dumps(written))
        return path

    return save


async def test_url_and_user_of_context(own_server: Any, save: Save) -> None:
    own = await own_server(config={"authorization": {"user": "ann", "password": CANARY}})
    save("prod", url=f"nats://127.0.0.1:1,{own.url}", user="ann", password=CANARY, description="of a shop")
    async with jsclient.connect(context="prod", dont_randomize=True) as js:
        assert (await js.account_info()).streams == 0
        assert CANARY not in repr(js)


async def test_selected_context(own_server: Any, save: Save) -> None:
    own = await own_server()
    selected = save("a.b", url=own.url).parent.parent / "context.txt"
    with pytest.raises(ConfigError, match=r"no context is selected.*a\.b"):
        await jsclient.connect(context=True)
    selected.write_text("a.b\n")
    async with jsclient.connect(context=True) as js:
        assert js.is_connected


async def test_options_replace_fields(own_server: Any, save: Save) -> None:
    users = [{"user": name, "password": f"of {name}"} for name in ("ann", "bob")]
    own = await own_server(config={"authorization": {"users": users}})
    save("prod", url="nats://127.0.0.1:1", user="ann", password="wrong", jetstream_domain="none")
    async with jsclient.connect(own.url, context="prod", password="of ann", prefix="$JS.API") as js:
        await js.account_info()
    async with jsclient.connect(own.url.replace("//", "//bob:of%20bob@"), context="prod") as js:
        assert js._context.api.domain == "none"
    async with jsclient.connect(own.url, context="prod", user="bob", password="of bob", domain="x") as js:
        assert js._context.api.domain == "x"
    with pytest.raises(AuthenticationError) as caught:
        await jsclient.connect(own.url, context="prod")
    assert "wrong" not in "".join(traceback.format_exception(caught.value))


async def test_prefixes_of_context(own_server: Any, save: Save) -> None:
    own = await own_server()
    save("hub", url=own.url, jetstream_api_prefix="hub.API", inbox_prefix="_INBOX_ann")
    async with jsclient.connect(context="hub") as js:
        assert js._context.api.prefix == "hub.API"
        assert js._connection.new_inbox().startswith("_INBOX_ann.")


@pytest.mark.parametrize("way", ["~", "$VARIABLE", "file://", "data:", "user_jwt"])
async def test_credentials_of_context(
    way: str, own_server: Any, save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    creds = tmp_path / "ann.creds"
    own = await own_server(config=operator_config(creds))
    lines = creds.read_text().splitlines()
    jwt, seed = lines[1], lines[-2]
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VARIABLE", str(tmp_path))
    monkeypatch.setenv("SEED", seed)
    fields = {
        "~": {"creds": "~/ann.creds"},
        "$VARIABLE": {"creds": "${VARIABLE}/ann.creds"},
        "file://": {"creds": f"file://{tmp_path}/ann.creds"},
        "data:": {"creds": "data:;base64," + base64.b64encode(creds.read_bytes()).decode()},
        "user_jwt": {"user_jwt": jwt, "user_seed": "env://SEED"},
    }[way]
    save("prod", url=own.url, **fields)
    async with jsclient.connect(context="prod") as js:
        await js.account_info()


async def test_tls_files_of_context(own_server: Any, save: Save, tmp_path: Path) -> None:
    ca = trustme.CA()
    block = {**certificate(ca, tmp_path, "127.0.0.1"), "verify": True, "handshake_first": True}
    own = await own_server(config={"tls": block})
    files = {"ca": block["ca_file"], "cert": block["cert_file"], "key": block["key_file"]}
    save("prod", url=own.url, tls_first=True, **files)
    async with jsclient.connect(context="prod") as js:
        await js.account_info()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"socks_proxy": f"socks5://ann:{CANARY}@proxy"}, "socks_proxy"),
        ({"nsc": "nsc://operator/account/ann"}, "nsc"),
        ({"windows_cert_store": "user"}, "windows_cert_store"),
        ({"windows_ca_certs_match": [CANARY]}, "windows_ca_certs_match"),
        ({"jetstream_event_prefix": "hub.EVENT"}, "jetstream_event_prefix"),
        ({"pasword": CANARY}, "no field 'pasword'; did you mean 'password'"),
        ({"password": 5}, "password is int"),
        ({"tls_first": "yes"}, "tls_first is str"),
        ({"creds": "op://vault/item"}, "creds .* op:"),
        ({"password": "env://JSCLIENT_NOT_SET"}, "password .* JSCLIENT_NOT_SET is not set"),
        ({"user_jwt": f"data:{CANARY}"}, "user_jwt .*base64"),
        ({"user": "ann", "creds": "ann.creds"}, "user and creds"),
        ({"user_seed": CANARY}, "user_seed .* user_jwt"),
        ({"cert": "no-such-cert.pem", "key": "no-such-key.pem"}, "no-such-cert.pem"),
        ({"jetstream_domain": "hub", "jetstream_api_prefix": "hub.API"}, "prefix"),
        ({"url": f"nats://ann:{CANARY}/@host"}, "URL"),
    ],
)
async def test_field_that_cannot_be_used_is_refused(fields: dict[str, Any], text: str, save: Save) -> None:
    save("prod", **{"url": "nats://127.0.0.1:1", **fields})
    with pytest.raises(ConfigError, match=text) as caught:
        await jsclient.connect(context="prod")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("prood", r"prood\.json.*the contexts are dev and prod"),
        ("../prod", "name of a context"),
        ("", "name of a context"),
        (5, "context is int"),
    ],
)
async def test_context_that_does_not_exist(name: Any, text: str, save: Save) -> None:
    save("prod")
    save("dev")
    with pytest.raises(ConfigError, match=text):
        await jsclient.connect(context=name)


@pytest.mark.parametrize("text", ["", f'{{"password": "{CANARY}"', "[]", "\x00"])
async def test_malformed_file(text: str, save: Save) -> None:
    path = save("prod")
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"prod\.json") as caught:
        await jsclient.connect(context="prod")
    assert CANARY not in "".join(traceback.format_exception(caught.value))
