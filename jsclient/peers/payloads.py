"""Payloads: attributes of events, queries and their answers, all JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import ConfigError, ProtocolError
from ..protocol.peers.relationship import Attrs
from .errors import QueryRefusedError

__all__ = ["pack", "read_answer", "read_attrs", "refusal", "reply", "unpack"]


def pack(attrs: Mapping[str, Any]) -> bytes:
    """Encode attributes.

    Raises:
        ConfigError: They are not JSON.
    """
    try:
        data = msgspec.json.encode(dict(attrs))
        if all(isinstance(name, str) for name in attrs):
            return data
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the attributes are not a JSON object: {error}") from None
    raise ConfigError("the attributes are not a JSON object: a name is not a str")


def read_attrs(attrs: Mapping[str, Any], limit: int) -> Attrs:
    """Attributes as the other side receives them: a JSON copy.

    Raises:
        ConfigError: They are not JSON, or more than ``limit`` bytes.
    """
    data = pack(attrs)
    if len(data) > limit:
        raise ConfigError(f"the attributes have {len(data)} bytes; max_event_size is {limit}")
    return unpack(data) or {}


def unpack(data: bytes) -> Attrs | None:
    """Decode attributes; None: not a JSON object. An empty payload is an empty object."""
    if not data:
        return {}
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def reply(value: Any) -> bytes:
    """The answer to a query. Raises `ConfigError` if the value is not JSON."""
    return pack({"value": value})


def refusal(which: str, detail: str = "") -> bytes:
    """The refusal of a query."""
    return pack({"refusal": which, "detail": detail})


def read_answer(data: bytes) -> Any:
    """The value of an answer.

    Raises:
        QueryRefusedError: It is a refusal.
        ProtocolError: It is not an answer.
    """
    answer = unpack(data) or {}
    if "value" in answer:
        return answer["value"]
    if isinstance(answer.get("refusal"), str):
        raise QueryRefusedError(answer["refusal"], str(answer.get("detail", "")))
    raise ProtocolError(f"not an answer to a query: {data[:60]!r}")
