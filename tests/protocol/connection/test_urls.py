"""User info of server URLs, and URLs as they are shown."""

from __future__ import annotations

from urllib.parse import urlparse

import pytest

from jsclient.errors import ConfigError
from jsclient.protocol.connection.urls import parse_url, server_urls, shared_identity, shown, url_identity

ANN = {"user": "ann", "password": "p@ss/word", "token": None}


@pytest.mark.parametrize(
    ("url", "identity"),
    [
        ("nats://a:1", {}),
        ("nats://ann:p%40ss%2Fword@a:1", ANN),
        ("nats://t%3Aoken@a", {"user": None, "password": None, "token": "t:oken"}),
        ("nats://ann:@a", {"user": "ann", "password": "", "token": None}),
    ],
)
def test_url_identity(url, identity):
    assert url_identity(urlparse(url)) == identity


def test_shared_identity_first():
    assert shared_identity(["nats://a", "ann:p%40ss%2Fword@b:1", "nats://bob:x@c"], {}) == ANN
    assert shared_identity(["nats://a", "b:1", "tls://[::1"], {}) == {}


@pytest.mark.parametrize("option", ["user", "token", "user_credentials", "nkeys_seed_str", "signature_cb"])
def test_options_win_over_urls(option):
    assert shared_identity(["nats://ann:x@a"], {option: "given"}) == {}
    assert shared_identity(["nats://ann:x@a"], {option: None}) != {}


def test_shown_hides_user_info():
    assert shown("nats://ann:secret@a:4222") == "nats://a:4222"
    assert shown("tls://[::1") == "?"


@pytest.mark.parametrize("url", ["nats://a:99999", "nats://ann:secret@a:99999", "a:99999/"])
def test_port_too_large(url):
    with pytest.raises(
        ConfigError, match="the port of the server a is 99999: a number up to 65535"
    ) as caught:
        server_urls(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("servers", "text"),
    [
        ({"nats://ann:secret@a"}, "servers is set: it must be a URL"),
        (b"nats://ann:secret@a", "servers is bytes: it must be a URL"),
        (["nats://ann:secret@a", None], "servers has NoneType where a URL is needed"),
    ],
)
def test_servers_of_another_type_are_not_shown(servers, text):
    with pytest.raises(ConfigError, match=text) as caught:
        server_urls(servers)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("control", ["\t", "\n", "\r", "\0", "\x7f"])
def test_control_character_is_refused(control):
    for url in (f"nats://ann:12{control}34@a:1", f"12{control}34@a", f"nats://a{control}12:1"):
        with pytest.raises(ConfigError, match="control character") as caught:
            server_urls(["nats://b", url])
        assert "12" not in str(caught.value)
    assert server_urls("nats://ann:12%0934@a:1\n") == ["nats://ann:12%0934@a:1"]


def test_odd_password_is_not_shown():
    with pytest.raises(ConfigError, match="the port must be a number") as caught:
        server_urls("nats://ann:1234567/s@a:1")
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("nats://h:0x", "the port of the server h is not a number: a number up to 65535 is needed"),
        ("h:70000", "the port of the server h is 70000: a number up to 65535"),
        ("tls://user:secret@h:secret", "the port of the server h is not a number"),
        ("nats://user:se/cret@h:4222", "special characters must be percent-encoded"),
        ("nats://[::1", "special characters must be percent-encoded"),
    ],
)
def test_port_names_its_server(url: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        server_urls(["nats://fine:4222", url])
    assert text in str(caught.value)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("a", "a:4222"),
        ("nats://a:1", "a:1"),
        ("tls://x:y@a", "x:y@a:4222"),
        ("ws://a", "a:80"),
        ("wss://a/b", "a:443"),
        ("[::1]", "[::1]:4222"),
    ],
)
def test_port_of_scheme_is_default(url: str, address: str) -> None:
    assert parse_url(url).netloc == address


def test_ipv6_address_is_shown_in_brackets():
    assert shown("nats://[::1]:4222") == "nats://[::1]:4222"


@pytest.mark.parametrize(
    ("servers", "urls"),
    [
        ("a:1, b:2 ,", ["a:1", "b:2"]),
        ("nats://u:p@a,nats://v:q@b,c", ["nats://u:p@a", "nats://v:q@b", "c"]),
        ("u:p@a,b", ["u:p@a", "b"]),
        (["nats://u:1,2@a", "b,c"], ["nats://u:1,2@a", "b", "c"]),
        (["nats://u:1,2@a,b, tls://v:3,4@c"], ["nats://u:1,2@a", "b", "tls://v:3,4@c"]),
    ],
)
def test_commas_separate_urls(servers: object, urls: list[str]) -> None:
    assert server_urls(servers) == urls


@pytest.mark.parametrize("servers", ["nats://u:12,34@a", "a,u:p@b", "nats://a,nats://u:1,2@b"])
def test_comma_in_user_info_is_refused_in_a_single_text(servers: str) -> None:
    with pytest.raises(
        ConfigError, match="percent-encode a comma in a password as %2C, or pass a list"
    ) as caught:
        server_urls(servers)
    assert "34" not in str(caught.value)


@pytest.mark.parametrize("mark", ["/", "?", "#", ";/"])
@pytest.mark.parametrize("scheme", ["", "nats://", "ws://"])
def test_user_info_that_ends_the_address_is_refused(mark: str, scheme: str) -> None:
    with pytest.raises(ConfigError, match="special characters must be percent-encoded") as caught:
        server_urls(f"{scheme}u:1234{mark}rest@h")
    assert "rest" not in str(caught.value)
    assert "1234" not in str(caught.value)
