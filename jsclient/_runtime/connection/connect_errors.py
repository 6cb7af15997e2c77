"""The errors of `connect`, with the answer of each server and possible solutions."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import ParseResult

from ...errors import AuthenticationError, ConnectError
from ...protocol.connection.handshake import RefusedError, TlsNotOfferedError
from ...protocol.connection.urls import shown
from ...protocol.wire.server_error import is_authentication
from .credentials import CallbackError

__all__ = ["FailedAttempt", "connect_error", "is_refusal", "reason", "server_error"]


def reason(error: BaseException) -> str:
    """Return the text of an error, or its class if it has none."""
    return str(error) or type(error).__name__


def is_refusal(error: BaseException) -> bool:
    """Return whether the server refused the credentials."""
    # Look only at -ERR lines, because "expired" in a TLS error refers to the server's certificate.
    return isinstance(error, RefusedError) and is_authentication(reason(error))


class FailedAttempt(NamedTuple):
    """A failed attempt to connect to a server."""

    url: ParseResult
    error: BaseException


_WAIT = "; connect(..., wait=30) waits up to 30 s for a server that is starting"
_IDENTITY = "give user= and password=, token=, user_credentials= or nkeys_seed= to connect"


def connect_error(
    failures: Sequence[FailedAttempt], *, identified: bool = True, expiry: str = ""
) -> ConnectError:
    """Return the error that `connect` raises for the failures at each server.

    ``identified`` is true if credentials were passed. ``expiry`` is a remark on the credentials, if they were
    refused.
    """
    refused = [failure for failure in failures if is_refusal(failure.error)]
    if refused or len(failures) == 1:
        url, error = (refused or failures)[0]
        return server_error(shown(url), error, identified=identified, expiry=expiry)
    each = "; ".join(f"{shown(failure.url)} ({reason(failure.error)})" for failure in failures)
    failed = ConnectError(f"no server could be reached: {each}{_WAIT}")
    failed.__cause__ = next(
        (failure.error.__cause__ for failure in failures if isinstance(failure.error, CallbackError)), None
    )
    return failed


def server_error(
    where: str, error: BaseException, *, identified: bool = True, expiry: str = ""
) -> ConnectError:
    """Return the error for a failed attempt at one server, which ``where`` names without user info."""
    if isinstance(error, TlsNotOfferedError):
        return ConnectError(f"TLS was requested, and {where} does not offer it")
    text = reason(error)
    # nats-server has no codes for its refusals, so they are recognized by their text.
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
    if is_refusal(error):
        if not identified:
            return AuthenticationError(
                f"no credentials were given, and {where} requires them: {text}; {_IDENTITY}"
            )
        return AuthenticationError(f"{where} refused the credentials: {text}{expiry}")
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return ConnectError(f"no server could be reached at {where}: {text}{_WAIT}")
    return ConnectError(f"cannot connect to {where}: {text}")
