"""The options of WebSockets: HTTP headers, and an HTTP proxy. Source: RFC 9110."""

from __future__ import annotations

import base64
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import ParseResult, unquote, urlparse

from ...errors import ConfigError
from ...protocol.connection.handshake import HandshakeError
from ...protocol.connection.urls import is_websocket, parse_url, shown
from ...protocol.connection.websocket import HttpAnswer, HttpRefusedError
from .credentials import CallbackError

__all__ = ["GivenHeaders", "Proxy", "UpgradeHeaders", "proxy_for"]

HeaderValues: TypeAlias = Mapping[str, str | Sequence[str]]
GivenHeaders: TypeAlias = HeaderValues | Callable[[], HeaderValues | Awaitable[HeaderValues]]

_OPTION: Final = "ws_connection_headers"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OWN: Final = {"connection", "upgrade", "content-length", "transfer-encoding"}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class UpgradeHeaders:
    """The headers of each attempt to connect. The repr does not show them.

    Raises:
        ConfigError: The option is not a mapping or a function without arguments, or a header is not valid.
    """

    def __init__(self, given: GivenHeaders | None) -> None:
        self._call: Callable[[], Any] | None = None
        self._pairs: list[tuple[str, str]] = []
        if callable(given):
            _check_signature(given)
            self._call = given
        else:
            self._pairs = _pairs(given or {}, f"{_OPTION} is")

    async def pairs(self) -> list[tuple[str, str]]:
        """Return the headers of the next request.

        Raises:
            CallbackError: The function raised, or did not return headers.
        """
        if self._call is None:
            return self._pairs
        try:
            headers = self._call()
            if inspect.isawaitable(headers):
                headers = await headers
        except Exception as error:
            raise CallbackError(f"{_OPTION} raised {error!r}") from error
        try:
            return _pairs(headers, f"{_OPTION} returned")
        except ConfigError as error:
            raise CallbackError(str(error)) from None


def _check_signature(function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return  # some builtins have no signature
    try:
        signature.bind()
    except TypeError as error:
        raise ConfigError(f"{_OPTION} is called with no argument, and takes {signature}: {error}") from None


def _pairs(headers: Any, what: str) -> list[tuple[str, str]]:
    """Return each header with each of its values. Raises `ConfigError`, which shows names, but no values."""
    if not isinstance(headers, Mapping):
        raise ConfigError(
            f"{what} {type(headers).__name__}: a mapping of names to values is needed, or a function that returns one"
        )
    pairs = []
    for name, values in headers.items():
        _check_name(name)
        several = isinstance(values, Sequence) and not isinstance(values, str | bytes)
        for value in values if several else [values]:
            _check_value(name, value)
            pairs.append((name, value.strip(" \t")))
    return pairs


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        shown = repr(name) if isinstance(name, str) else type(name).__name__
        raise ConfigError(f"{_OPTION} has a header with the name {shown:.60}, which is not valid in HTTP")
    if name.lower() in _OWN or name.lower().startswith("sec-websocket-"):
        raise ConfigError(f"{_OPTION} has the header {name}, which the client sets itself")


def _check_value(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ConfigError(f"{_OPTION} has {type(value).__name__} as the value of {name}: a str is needed")
    if _VALUE.fullmatch(value) is None:
        raise ConfigError(
            f"{_OPTION} has a value of {name} with a line break, another control character, or a character outside of "
            "latin-1"
        )


class Proxy:
    """The HTTP proxy in the option ``proxy``. No text of it shows the user info.

    Attributes:
        url: The URL, with a port.
        shown: The URL without user info.
    """

    def __init__(self, text: Any) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"proxy is {type(text).__name__}: it must be a URL, such as http://host:3128")
        self.url: ParseResult = _parsed(text)
        self.shown: str = shown(self.url)

    def request(self, url: ParseResult) -> bytes:
        """Return the request for a tunnel to a server."""
        to = url.netloc.rpartition("@")[2]
        lines = [f"CONNECT {to} HTTP/1.1", f"Host: {to}"]
        if self.url.username is not None:
            pair = f"{unquote(self.url.username)}:{unquote(self.url.password or '')}"
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair.encode()).decode()}")
        return "\r\n".join([*lines, "", ""]).encode()

    def check(self, answer: HttpAnswer) -> None:
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
        pass  # raised outside of the handler: the original error would show the URL as the context
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
