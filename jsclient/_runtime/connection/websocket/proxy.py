"""A tunnel through an HTTP proxy. Source: RFC 9110, section 9.3.6 (CONNECT)."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import ParseResult, unquote, urlparse

from ....errors import ConfigError
from ....protocol.connection.handshake import HandshakeError
from ....protocol.connection.urls import is_websocket, parse_url, shown
from ....protocol.connection.websocket import HttpAnswer, HttpRefusedError

__all__ = ["Proxy", "proxy_for"]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Proxy:
    """The HTTP proxy in the option ``proxy``. User info in its URL never appears in an error.

    Attributes:
        url: The URL, with a port.
        shown: The URL without user info.
    """

    def __init__(self, text: Any) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"proxy is {type(text).__name__}: it must be a URL, such as http://host:3128")
        self.url: ParseResult = _parsed(text)
        self.shown: str = shown(self.url)

    def tunnel_request(self, url: ParseResult) -> bytes:
        """Return the request for a tunnel to a server."""
        to = url.netloc.rpartition("@")[2]
        lines = [f"CONNECT {to} HTTP/1.1", f"Host: {to}"]
        if self.url.username is not None:
            pair = f"{unquote(self.url.username)}:{unquote(self.url.password or '')}"
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
        return "\r\n".join([*lines, "", ""]).encode()

    def check_answer(self, answer: HttpAnswer) -> None:
        """Raise `HandshakeError` unless the proxy has opened the tunnel."""
        if answer.status == 407:
            hint = "put user:password@ in its URL" if self.url.username is None else "check those in its URL"
            raise HttpRefusedError(f"the proxy {self.shown} requires credentials: {hint}")
        if not 200 <= answer.status < 300:
            raise HandshakeError(
                f"the proxy {self.shown} opens no tunnel, with the HTTP status {answer.status}"
            )


def proxy_for(servers: Sequence[str], text: Any) -> Proxy | None:
    """Return the proxy for these servers, or None without ``text``. Raises `ConfigError` if it cannot be used."""
    if text is None:
        return None
    proxy = Proxy(text)
    if not is_websocket(parse_url(servers[0])):
        raise ConfigError(
            "proxy is used for WebSockets only: give servers with ws:// or wss:// URLs, or leave it out"
        )
    return proxy


def _parsed(text: str) -> ParseResult:
    """Return the parts of the URL. Raises `ConfigError`, whose text shows nothing that may be a password."""
    url, host, port = ParseResult("", "", "", "", "", ""), None, None
    try:
        url = urlparse(text)
        host, port = url.hostname, url.port
    except ValueError:
        pass  # the error is raised below, because the context of an error raised here would show the URL
    # A path or a query may be the rest of a password that is not percent-encoded.
    if not host or _CONTROL.search(text) or "@" in url._replace(netloc="").geturl():
        raise ConfigError(
            "proxy is not a valid URL: http://host:port is needed, and user info in it must be percent-encoded"
        )
    if url.scheme != "http":
        raise ConfigError(f"proxy has the scheme {url.scheme!r}: only http:// is supported")
    if url.path not in {"", "/"} or url.query or url.fragment:
        raise ConfigError("proxy has more than a host and a port: http://host:port is needed")
    return url if port else url._replace(netloc=f"{url.netloc.rstrip(':')}:80")
