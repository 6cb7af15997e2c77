"""INFO, the first line of a server, which it sends again when something has changed. Source: nats-server, server.go."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from ...errors import ProtocolError

__all__ = ["MAX_ANNOUNCED", "ServerInfo", "read_info"]

MAX_ANNOUNCED: Final = 256
"""The maximum number of servers that are kept from an INFO."""

_LARGEST_PAYLOAD: Final = 2**31


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of INFO that the client uses. A field that is missing or has another type has its default.

    Attributes:
        max_payload: The maximum number of bytes of headers and payload, or None if the server announces none.
        connect_urls: Host and port of each server of the cluster, or None if the server announces none.
        ldm: Whether the server is about to stop (lame duck mode).
    """

    server_id: str = ""
    version: str = ""
    headers: bool = False
    max_payload: int | None = None
    nonce: str = ""
    auth_required: bool = False
    tls_required: bool = False
    tls_available: bool = False
    tls_verify: bool = False
    connect_urls: tuple[str, ...] | None = None
    ldm: bool = False


_TEXTS: Final = ("server_id", "version", "nonce")
_FLAGS: Final = ("headers", "auth_required", "tls_required", "tls_available", "tls_verify", "ldm")


def read_info(body: bytes) -> ServerInfo:
    """Read the JSON object of INFO.

    Raises:
        ProtocolError: The body is not a JSON object, or ``connect_urls`` is not a list.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"malformed INFO: {type(error).__name__}") from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"malformed INFO: {type(fields).__name__} where an object is needed")
    values: dict[str, Any] = {name: _text(fields.get(name)) for name in _TEXTS}
    values |= {name: bool(fields.get(name)) for name in _FLAGS}
    return ServerInfo(**values, max_payload=_limit(fields.get("max_payload")), connect_urls=_urls(fields))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _limit(value: Any) -> int | None:
    """Return a plausible limit, otherwise None. A limit of 0 would allow no message."""
    return value if type(value) is int and 0 < value <= _LARGEST_PAYLOAD else None


def _urls(fields: dict[str, Any]) -> tuple[str, ...] | None:
    urls = fields.get("connect_urls")
    if not urls:
        return None
    if not isinstance(urls, list):
        raise ProtocolError(f"malformed INFO: connect_urls is {urls!r:.60}")
    return tuple(url for url in urls[:MAX_ANNOUNCED] if isinstance(url, str))
