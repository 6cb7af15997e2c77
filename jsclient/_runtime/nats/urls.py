"""Server URLs: as shown to the user, the user info in them, and the error if connecting fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import ParseResult, unquote, urlparse

import nats.errors

from ...errors import AuthenticationError, ConnectError
from ...protocol.wire.server_error import is_authentication

__all__ = ["IDENTITY", "connect_error", "reason", "shared_identity", "shown", "url_identity"]

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
    """``user`` and ``password``, or ``token``, from a URL, percent-decoded; {} if it has no user info."""
    if url.username is None:
        return {}
    name = unquote(url.username)
    if url.password is None:
        return {"user": None, "password": None, "token": name}
    return {"user": name, "password": unquote(url.password), "token": None}


def shared_identity(servers: Sequence[str], options: Mapping[str, Any]) -> dict[str, str | None]:
    """The identity for servers without user info in their URL, such as those that a cluster announces.

    It comes from the first of ``servers`` that has user info; {} if ``options`` identify the user.
    """
    if any(options.get(name) is not None for name in IDENTITY):
        return {}
    return next(filter(None, map(_identity_in, servers)), {})


def _identity_in(server: str) -> dict[str, str | None]:
    try:
        return url_identity(urlparse(_with_scheme(server)))
    except ValueError:  # connecting reports it
        return {}


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


def connect_error(
    error: Exception, servers: Sequence[str], last_failure: BaseException | None, *, identified: bool = True
) -> ConnectError:
    """Return the error that `connect` raises for an error of nats-py; ``identified``: credentials were given."""
    where = ", ".join(shown(_with_scheme(server)) for server in servers)
    if isinstance(error, nats.errors.SecureConnRequiredError):
        return ConnectError(f"TLS was requested, and {where} does not offer it")
    if isinstance(error, nats.errors.NoServersError):
        return ConnectError(f"no server could be reached at {where}: {reason(last_failure)}")
    if isinstance(error, ModuleNotFoundError) and error.name == "nkeys":
        return ConnectError('this identity needs the package nkeys: pip install "jsclient[nkeys]"')
    text = reason(error)
    if isinstance(error, nats.errors.AuthorizationError) or is_authentication(text):
        if not identified:
            return AuthenticationError(f"no credentials were given, and {where} requires them: {text}")
        return AuthenticationError(f"{where} refused the credentials: {text}")
    return ConnectError(f"cannot connect to {where}: {text}")
