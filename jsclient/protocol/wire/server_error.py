"""The meaning of the server's ``-ERR`` lines. Source: nats-server client.go, server.go; ADR-40."""

from __future__ import annotations

import re
from typing import NamedTuple

from ...errors import AuthenticationError, JetStreamError, PermissionDeniedError, ProtocolError

__all__ = ["ServerError", "is_authentication", "read_server_error"]

_PERMISSION = re.compile(r"permissions violation for (publish|subscription) to \"(.*?)\"", re.IGNORECASE)
_AUTHENTICATION = re.compile(r"authorization|authentication|(expired|revoked)", re.IGNORECASE)
# After these errors, the connection stays open.
_HARMLESS = (
    "invalid subject",
    "invalid publish subject",
    "invalid subscription",
    "maximum subscriptions",
    "permissions violation",
)


class ServerError(NamedTuple):
    """An error that the server reported, and whether the server then closes the connection."""

    error: JetStreamError
    closes: bool


def read_server_error(text: str) -> ServerError:
    """Interpret the text of an error from the server, which is between quotes on the wire.

    Expiry, too many connections, a stale connection and unknown errors close the connection, and the client
    reconnects.
    """
    if match := _PERMISSION.search(text):
        operation = "publish" if match[1].lower() == "publish" else "subscribe"
        return ServerError(PermissionDeniedError(operation, match[2]), closes=False)
    kind = AuthenticationError if is_authentication(text) else ProtocolError
    return ServerError(kind(f"the server says: {text}"), closes=not text.lower().startswith(_HARMLESS))


def is_authentication(text: str) -> bool:
    """Return whether an error is about authentication."""
    return _AUTHENTICATION.search(text) is not None
