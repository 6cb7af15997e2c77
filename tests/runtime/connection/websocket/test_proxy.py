"""The option ``proxy``, and the request for a tunnel."""

from __future__ import annotations

import pytest

from jsclient._runtime.connection.websocket.proxy import Proxy, proxy_for
from jsclient.errors import ConfigError
from jsclient.protocol.connection.handshake import HandshakeError
from jsclient.protocol.connection.urls import parse_url
from jsclient.protocol.connection.websocket import HttpAnswer, HttpRefusedError

SERVER = parse_url("wss://nats.example:8443")


def test_request_with_credentials():
    proxy = Proxy("http://ann:p%40ss@proxy.example:3128")
    assert proxy.tunnel_request(SERVER).split(b"\r\n") == [
        b"CONNECT nats.example:8443 HTTP/1.1",
        b"Host: nats.example:8443",
        b"Proxy-Authorization: Basic YW5uOnBAc3M=",
        b"",
        b"",
    ]
    assert proxy.shown == "http://proxy.example:3128"


def test_request_without_credentials():
    assert b"Authorization" not in Proxy("http://proxy.example").tunnel_request(SERVER)
    assert Proxy("http://proxy.example").url.port == 80


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (7, "proxy is int"),
        ("proxy.example:3128", "not a valid URL|scheme"),
        ("socks5://proxy.example:1080", "scheme 'socks5'"),
        ("https://proxy.example:3128", "only http://"),
        ("http://ann:hush/x@proxy.example", "percent-encoded"),
        ("http://proxy.example/path", "more than a host and a port"),
        ("http://proxy.example:99999", "not a valid URL"),
    ],
)
def test_invalid_options(text: object, says: str):
    with pytest.raises(ConfigError, match=says) as caught:
        proxy_for(["ws://nats.example"], text)
    assert "hush" not in str(caught.value)


def test_only_for_websockets():
    with pytest.raises(ConfigError, match="WebSockets only"):
        proxy_for(["nats://nats.example"], "http://proxy.example")
    assert proxy_for(["nats://nats.example"], None) is None


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (407, HttpRefusedError, "requires credentials: put user:password@ in its URL"),
        (502, HandshakeError, "HTTP status 502"),
        (101, HandshakeError, "HTTP status 101"),
    ],
)
def test_refusals(status: int, error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        Proxy("http://proxy.example").check_answer(HttpAnswer(b"HTTP/1.1 %d No\r\n" % status))


def test_tunnel_that_is_open():
    Proxy("http://proxy.example").check_answer(HttpAnswer(b"HTTP/1.1 200 Connection established\r\n"))
