"""Checks server URLs, reads the user info in them, and formats them without it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import ParseResult, unquote, urlparse

from ...errors import ConfigError

__all__ = ["IDENTITY", "is_websocket", "parse_url", "server_urls", "shared_identity", "shown", "url_identity"]

_PORTS: Final = {"nats": 4222, "tls": 4222, "ws": 80, "wss": 443}
"""The default port of each scheme."""

_WITH_PORT: Final = re.compile(
    r"(?:\w+://)?(?:[^@]*@)?(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>[^@/]*)/?"
)
"""Matches a server. The groups leave out the user info, which must not be shown."""

_NEXT_SCHEME: Final = re.compile(r",(?=\s*(?:nats|tls|wss?)://)")
"""Matches the comma in front of a URL with a scheme."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")

IDENTITY: Final = frozenset(
    {
        "user",
        "password",
        "token",
        "user_credentials",
        "nkeys_seed",
        "nkeys_seed_str",
        "signature_cb",
        "user_jwt_cb",
    }
)  # options of `connect` that identify the user


def url_identity(url: ParseResult) -> dict[str, str | None]:
    """Return the ``user`` and ``password``, or ``token``, from a URL, percent-decoded, or {} without user info."""
    if url.username is None:
        return {}
    name = unquote(url.username)
    if url.password is None:
        return {"user": None, "password": None, "token": name}
    return {"user": name, "password": unquote(url.password), "token": None}


def shared_identity(servers: Sequence[str], options: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the identity for servers without user info in their URL, such as servers that a cluster announces.

    It is the user info of the first URL in ``servers`` that has any, or {} if ``options`` identify the user.
    """
    if any(options.get(name) is not None for name in IDENTITY):
        return {}
    return next(filter(None, map(_identity_in, servers)), {})


def _identity_in(server: str) -> dict[str, str | None]:
    try:
        return url_identity(urlparse(_with_scheme(server)))
    except ValueError:  # the attempt to connect reports the invalid URL
        return {}


def server_urls(servers: object) -> list[str]:
    """Return the URLs in ``servers``, which is a URL, several URLs separated by commas, or a sequence of such texts.

    In a sequence, user info may contain a comma. A single text with such a comma is refused, because the comma may be
    part of a password, and the remainder of the password would be read as another server.

    Raises:
        ConfigError: There is no URL, or a URL is not a NATS URL.
    """
    texts = [servers] if isinstance(servers, str) else servers
    # The errors show only types, because a URL may contain a password.
    if not isinstance(texts, Sequence) or isinstance(texts, bytes):
        raise ConfigError(f"servers is {type(servers).__name__}: it must be a URL, or a list of URLs")
    if odd := next((type(url).__name__ for url in texts if not isinstance(url, str)), ""):
        raise ConfigError(f"servers has {odd} where a URL is needed")
    urls = [url for text in texts for url in _split(text, is_list=texts is servers)]
    if not urls:
        raise ConfigError("servers is empty: give at least one URL")
    for url in urls:
        _check_url(url)
    if len({is_websocket(urlparse(_with_scheme(url))) for url in urls}) > 1:
        raise ConfigError("servers has WebSocket URLs and others: give URLs of one kind")
    return urls


def _split(text: str, *, is_list: bool) -> list[str]:
    """Return the URLs that are separated by commas in ``text``. Raises `ConfigError` for a comma in user info."""
    urls: list[str] = []
    for part in _NEXT_SCHEME.split(text):
        user_info, at, servers = part.rpartition("@")
        if "," in user_info and not is_list:
            raise ConfigError(
                "servers has a comma in front of an @: percent-encode a comma in a password as %2C, or pass a list, "
                "with a URL in each element"
            )
        first, *others = servers.split(",")
        urls += [f"{user_info}{at}{first}", *others]
    return [url.strip() for url in urls if url.strip()]


def parse_url(url: str) -> ParseResult:
    """Return the parts of a URL that `server_urls` has accepted, with the port of its scheme if it has none."""
    parsed = urlparse(_with_scheme(url))
    if parsed.port is None:
        parsed = parsed._replace(netloc=f"{parsed.netloc.rstrip(':')}:{_PORTS[parsed.scheme]}")
    return parsed


def is_websocket(url: ParseResult) -> bool:
    """Return whether the URL is a WebSocket URL."""
    return url.scheme in {"ws", "wss"}


def _check_url(url: str) -> None:
    # `urlparse` drops tabs and line breaks, so the client would send a different password. Refuse such a URL, and don't
    # show it, because it may contain the password.
    if _CONTROL.search(url):
        raise ConfigError(
            "a server URL has a control character, such as a tab or a line break: percent-encode it in a password, "
            "as %09 for a tab, or remove it"
        )
    try:
        parsed = urlparse(_with_scheme(url))
        host, _ = parsed.hostname, parsed.port
    except ValueError:
        parsed, host = None, None
    if parsed is None:  # raised outside the handler, because the original error would show the URL
        _check_port(url)
    # If an @ follows the address, the text in front of the @ is user info, and the apparent port is a password. The
    # error must not show the URL, because it would reveal that password.
    if parsed is None or "@" in parsed._replace(scheme="", netloc="").geturl():
        raise ConfigError(
            "a server URL is not valid: the port must be a number, special characters must be percent-encoded"
        )
    if parsed.scheme not in _PORTS:
        raise ConfigError(
            f"unknown scheme {parsed.scheme!r} in {shown(url)!r}: use nats://, tls://, ws:// or wss://"
        )
    if not host:
        raise ConfigError(f"the server URL {shown(url)!r} has no host")


def _check_port(url: str) -> None:
    """Raise `ConfigError` if the port of a server is not valid, and the URL is valid otherwise."""
    if (server := _WITH_PORT.fullmatch(url)) and not re.fullmatch("[0-9]{0,4}", server["port"]):
        # If this isn't a number, it may be part of a password, so don't show it.
        port = server["port"] if re.fullmatch("[0-9]+", server["port"]) else "not a number"
        raise ConfigError(
            f"the port of the server {server['host']} is {port}: a number up to 65535 is needed"
        )


def _with_scheme(server: str) -> str:
    return server if "://" in server else f"nats://{server}"


def shown(url: Any) -> str:
    """Return a server's URL without user info."""
    try:
        parsed = urlparse(url) if isinstance(url, str) else url
        host = parsed.hostname or ""
        if ":" in host:  # an IPv6 address
            host = f"[{host}]"
        return f"{parsed.scheme}://{host}:{parsed.port}" if parsed.port else f"{parsed.scheme}://{host}"
    except (ValueError, AttributeError):
        return "?"
