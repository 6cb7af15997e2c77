"""Servers' addresses as they may be shown, and what went wrong in connecting to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlparse

import nats.errors

from ...errors import AuthenticationError, ConnectError
from ...protocol.wire.server_error import is_authentication

__all__ = ["connect_error", "reason", "shown"]


def shown(url: Any) -> str:
    """A server's URL without user info."""
    try:
        parsed = urlparse(url) if isinstance(url, str) else url
        host = parsed.hostname or ""
        return f"{parsed.scheme}://{host}:{parsed.port}" if parsed.port else f"{parsed.scheme}://{host}"
    except (ValueError, AttributeError):
        return "?"


def reason(error: BaseException | None) -> str:
    """An error of nats-py in words."""
    if error is None:
        return "unknown"
    return str(error).removeprefix("nats: ") or type(error).__name__


def connect_error(
    error: Exception, servers: Sequence[str], last_failure: BaseException | None
) -> ConnectError:
    """What `connect` raises for an error of nats-py."""
    where = ", ".join(shown(server if "://" in server else f"nats://{server}") for server in servers)
    if isinstance(error, nats.errors.SecureConnRequiredError):
        return ConnectError(f"TLS was asked for, and {where} does not offer it")
    if isinstance(error, nats.errors.NoServersError):
        return ConnectError(f"no server could be reached at {where}: {reason(last_failure)}")
    text = reason(error)
    if isinstance(error, nats.errors.AuthorizationError) or is_authentication(text):
        return AuthenticationError(f"{where} refused the credentials: {text}")
    return ConnectError(f"cannot connect to {where}: {text}")
