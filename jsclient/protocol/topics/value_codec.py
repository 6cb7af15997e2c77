"""Encoding of values as JSON, so that they are decoded unchanged.

JSON values are null, booleans, numbers, str, lists and dicts with str keys. A tuple becomes a list. Values that JSON
would change silently are refused: NaN, integers beyond 64 bits, keys of other types, dates, bytes, objects.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import msgspec

from ...errors import ConfigError, ProtocolError

__all__ = ["Codec", "JsonCodec", "codec_for", "codec_name"]

_DEPTH: Final = 100
_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**64 - 1


class Codec(Protocol):
    """Encodes and decodes values. Both methods raise a `JetStreamError` for a value that they cannot handle."""

    def encode(self, value: Any) -> bytes:
        """Return the value as bytes."""

    def decode(self, data: bytes) -> Any:
        """Return the value in ``data``."""


class JsonCodec:
    """JSON, for values that it does not change."""

    def encode(self, value: Any) -> bytes:
        """Return the value as JSON.

        Raises:
            ConfigError: JSON would change the value. The text names the part.
        """
        if problem := _problem(value, "", 0):
            raise ConfigError(f"the value cannot be encoded as JSON: {problem}")
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        """Return the value in ``data``.

        Raises:
            ProtocolError: The data is not JSON.
        """
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ProtocolError(f"{data!r:.60} is not JSON: {error}") from None


def _problem(value: Any, path: str, depth: int) -> str:
    """Describe the first part at or below ``path`` that JSON cannot represent, "" if there is none."""
    where = f" at {path}" if path else ""
    if depth > _DEPTH:
        return f"it is nested more than {_DEPTH} deep"
    match value:
        case None | bool():
            return ""
        case int():
            return "" if _LOWEST <= value <= _HIGHEST else f"an integer beyond 64 bits{where}"
        case float():
            return "" if math.isfinite(value) else f"{value}{where}"
        case str():
            return "" if _encodable(value) else f"a str with a lone surrogate{where}"
        case list() | tuple():
            parts = ((f"{path}[{index}]", part) for index, part in enumerate(value))
            return next((problem for name, part in parts if (problem := _problem(part, name, depth + 1))), "")
        case dict():
            for key, part in value.items():
                if not isinstance(key, str) or not _encodable(key):
                    return f"the key {key!r:.60}{where}"
                if problem := _problem(part, f"{path}[{key!r:.40}]", depth + 1):
                    return problem
            return ""
        case _:
            return f"{type(value).__name__}{where}"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_JSON: Final = "json"


def codec_name(codec: Codec) -> str:
    """Return the name of a codec in descriptors: its ``name``, or the name of its class."""
    if type(codec) is JsonCodec:
        return _JSON
    return str(getattr(codec, "name", type(codec).__name__))


def codec_for(name: str, custom: Codec | None) -> Codec:
    """Return the codec that a descriptor names.

    Raises:
        ConfigError: The name differs from the codec ``given``, or is not JSON and no codec is given.
    """
    codec = JsonCodec() if custom is None else custom
    if codec_name(codec) != name:
        raise ConfigError(
            f"the values are encoded with codec {name!r}, not {codec_name(codec)!r}: give codec="
        )
    return codec
