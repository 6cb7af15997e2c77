"""Server URLs: as shown to the user, the user info in them, and the error if connecting fails."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import ParseResult, unquote, urlparse

import nats.aio.client
import nats.errors

from ...errors import AuthenticationError, ConfigError, ConnectError, ProtocolError
from ...protocol.wire.server_error import is_authentication
from .credentials import CallbackError

__all__ = [
    "IDENTITY",
    "FailedAttempt",
    "announced",
    "connect_error",
    "is_refusal",
    "reason",
    "server_urls",
    "shared_identity",
    "shown",
    "url_identity",
]

MAX_ANNOUNCED = 256
"""The maximum number of servers that are kept from an INFO."""

_SCHEMES: Final = ("nats", "tls", "ws", "wss")

_WITH_PORT: Final = re.compile(
    r"(?:\w+://)?(?:[^@]*@)?(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>[^@/]*)/?"
)
"""Matches a server. The groups leave out the user info, which must not be shown."""

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
    """Return ``user`` and ``password``, or ``token``, from a URL, percent-decoded. {} if it has no user info."""
    if url.username is None:
        return {}
    name = unquote(url.username)
    if url.password is None:
        return {"user": None, "password": None, "token": name}
    return {"user": name, "password": unquote(url.password), "token": None}


def shared_identity(servers: Sequence[str], options: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the identity for servers without user info in their URL, such as servers that a cluster announces.

    It comes from the first of ``servers`` that has user info. It is {} if ``options`` identify the user.
    """
    if any(options.get(name) is not None for name in IDENTITY):
        return {}
    return next(filter(None, map(_identity_in, servers)), {})


def _identity_in(server: str) -> dict[str, str | None]:
    try:
        return url_identity(urlparse(_with_scheme(server)))
    except ValueError:  # connecting reports it
        return {}


def server_urls(servers: object) -> list[str]:
    """Return the URLs in ``servers``: a URL, several separated by commas, or a sequence of such texts.

    Raises:
        ConfigError: There is no URL, or one of them is not a URL of NATS.
    """
    texts = [servers] if isinstance(servers, str) else servers
    if not isinstance(texts, Sequence) or not all(isinstance(url, str) for url in texts):
        raise ConfigError(f"servers is {servers!r:.60}: it must be a URL, or a list of URLs")
    urls = [url.strip() for text in texts for url in text.split(",") if url.strip()]
    if not urls:
        raise ConfigError("servers is empty: give at least one URL")
    for url in urls:
        _check_url(url)
    if len({urlparse(_with_scheme(url)).scheme in {"ws", "wss"} for url in urls}) > 1:
        raise ConfigError("servers has WebSocket URLs and others: give URLs of one kind")
    return urls


def _check_url(url: str) -> None:
    try:
        parsed = urlparse(_with_scheme(url))
        host, _ = parsed.hostname, parsed.port
    except ValueError:
        parsed, host = None, None
    if parsed is None:  # raised outside of the handler: the original error would show the URL as the context
        if (server := _WITH_PORT.fullmatch(url)) and not re.fullmatch("[0-9]{0,4}", server["port"]):
            # A text that is not a number may be part of a password.
            port = server["port"] if re.fullmatch("[0-9]+", server["port"]) else "not a number"
            raise ConfigError(
                f"the port of the server {server['host']} is {port}: a number up to 65535 is needed"
            )
        # The text would show a password that is not percent-encoded.
        raise ConfigError(
            "a server URL is not valid: the port must be a number, special characters must be percent-encoded"
        )
    if parsed.scheme not in _SCHEMES:
        raise ConfigError(
            f"unknown scheme {parsed.scheme!r} in {shown(url)!r}: use nats://, tls://, ws:// or wss://"
        )
    if not host:
        raise ConfigError(f"the server URL {shown(url)!r} has no host")


def _with_scheme(server: str) -> str:
    return server if "://" in server else f"nats://{server}"


def shown(url: Any) -> str:
    """Return a server's URL without user info."""
    try:
        parsed = urlparse(url) if isinstance(url, str) else url
        host = parsed.hostname or ""
        return f"{parsed.scheme}://{host}:{parsed.port}" if parsed.port else f"{parsed.scheme}://{host}"
    except (ValueError, AttributeError):
        return "?"


def reason(error: BaseException | None) -> str:
    """Return the text of an error of nats-py."""
    if error is None:
        return "unknown"
    return str(error).removeprefix("nats: ") or type(error).__name__


def is_refusal(error: BaseException) -> bool:
    """Whether the server refused the credentials."""
    # Only an -ERR line counts: "expired" in a TLS error is about the server's certificate.
    return isinstance(error, nats.errors.Error) and is_authentication(reason(error))


class FailedAttempt(NamedTuple):
    """A failed attempt to connect to a server."""

    uri: ParseResult
    error: BaseException


_WAIT = "; connect(..., wait=30) waits up to 30 s for a server that is starting"
_IDENTITY = "give user= and password=, token=, user_credentials= or nkeys_seed= to connect"


def connect_error(
    error: Exception,
    servers: Sequence[str],
    failures: Sequence[FailedAttempt] = (),
    *,
    identified: bool = True,
    expiry: str = "",
) -> ConnectError:
    """Return the error that `connect` raises for an error of nats-py and the failures at each server.

    ``identified``: credentials were passed. ``expiry``: a remark on them, if they were refused.
    """
    where = ", ".join(shown(_with_scheme(server)) for server in servers)
    if isinstance(error, nats.errors.NoServersError) and failures:
        refused = [f for f in failures if is_refusal(f.error)]
        if refused:
            return _one_error(shown(refused[0].uri), refused[0].error, identified=identified, expiry=expiry)
        if len(failures) == 1:
            return _one_error(shown(failures[0].uri), failures[0].error, identified=identified, expiry=expiry)
        each = "; ".join(f"{shown(f.uri)} ({reason(f.error)})" for f in failures)
        failed = ConnectError(f"no server could be reached: {each}{_WAIT}")
        failed.__cause__ = next(
            (f.error.__cause__ for f in failures if isinstance(f.error, CallbackError)), None
        )
        return failed
    return _one_error(where, error, identified=identified, expiry=expiry)


def _one_error(where: str, error: BaseException, *, identified: bool, expiry: str) -> ConnectError:
    if isinstance(error, nats.errors.SecureConnRequiredError):
        return ConnectError(f"TLS was requested, and {where} does not offer it")
    if isinstance(error, ModuleNotFoundError) and error.name == "nkeys":
        return ConnectError('this identity needs the package nkeys: pip install "jsclient[nkeys]"')
    text = reason(error)
    # nats-server has no codes for its refusals: they are known by their text.
    if "maximum account" in text.lower():
        return ConnectError(
            f"{where} takes no more connections of this account: {text}; close some, or raise its limit"
        )
    if "maximum connections" in text.lower():
        return ConnectError(
            f"{where} takes no more connections: {text}; close some, or raise max_connections of the server"
        )
    if isinstance(error, CallbackError):
        failed = ConnectError(f"cannot connect to {where}: {text}")
        failed.__cause__ = error.__cause__
        return failed
    if isinstance(error, nats.errors.AuthorizationError) or is_refusal(error):
        if not identified:
            return AuthenticationError(
                f"no credentials were given, and {where} requires them: {text}; {_IDENTITY}"
            )
        return AuthenticationError(f"{where} refused the credentials: {text}{expiry}")
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return ConnectError(f"no server could be reached at {where}: {text}{_WAIT}")
    return ConnectError(f"cannot connect to {where}: {text}")


def announced(info: Mapping[str, Any], current: Any, known: Sequence[Any]) -> list[Any]:
    """Return the servers that an INFO of ``current`` announces and that are not ``known``, as nats-py's entries.

    Raises:
        ProtocolError: The INFO is malformed.
    """
    scheme = current.uri.scheme or "nats"
    taken, new = {server.uri.netloc.rpartition("@")[2] for server in known}, []
    urls = info["connect_urls"]
    if not isinstance(urls, list):
        raise ProtocolError(f"malformed INFO: connect_urls is {urls!r:.60}")
    for url in urls[:MAX_ANNOUNCED]:
        uri = urlparse(f"{scheme}://{url}")
        try:
            usable = isinstance(url, str) and uri.hostname and (uri.port is None or uri.port)
        except ValueError:  # the port is not a number
            continue
        if not usable or uri.netloc in taken:
            continue
        taken.add(uri.netloc)
        server = nats.aio.client.Srv(uri)
        server.discovered = True
        if info.get("tls_required") and _is_ip(uri.hostname):
            server.tls_name = current.tls_name or current.uri.hostname  # the name in its certificate
        new.append(server)
    return new


def _is_ip(host: str | None) -> bool:
    try:
        ipaddress.ip_address(host or "")
    except ValueError:
        return False
    return True
