"""Encoding of values as JSON, so that they are decoded unchanged.

JSON values are null, booleans, numbers, str, lists and dicts with str keys. A tuple becomes a list. Values that JSON
would change silently are refused: NaN, integers beyond 64 bits, keys of other types, dates, bytes, objects.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, overload

import msgspec

from ...errors import ConfigError, ProtocolError

__all__ = ["Codec", "JsonCodec", "codec_for", "codec_name"]

if TYPE_CHECKING:  # type checkers know defaults of type variables, which Python 3.11 does not have
    from typing_extensions import TypeVar

    ValueT = TypeVar("ValueT", default=Any)
else:
    from typing import TypeVar

    ValueT = TypeVar("ValueT")

_DEPTH: Final = 100
_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**64 - 1


class Codec(Protocol[ValueT]):
    """Encodes and decodes values. Both methods raise a `JetStreamError` for a value that they cannot handle."""

    def encode(self, value: ValueT) -> bytes:
        """Encode a value."""

    def decode(self, data: bytes) -> ValueT:
        """Decode the value in ``data``."""


class JsonCodec(Generic[ValueT]):
    """Encodes values as JSON, if JSON does not change them, or values of a given type.

    Args:
        type: The type of all values, such as a ``msgspec.Struct``, a dataclass or ``list[int]``. Without a type,
            values are the values that JSON has.

    Raises:
        ConfigError: JSON cannot represent values of this type.
    """

    @overload
    def __init__(self: JsonCodec[Any], type: None = None) -> None: ...

    @overload
    def __init__(self, type: type[ValueT]) -> None: ...

    def __init__(self, type: type[ValueT] | None = None) -> None:
        self._type = type
        try:
            decoder = msgspec.json.Decoder() if type is None else msgspec.json.Decoder(type)
        except TypeError as error:
            raise ConfigError(f"JSON cannot represent {type!r:.80}: {error}") from None
        self._decode = decoder.decode

    def encode(self, value: ValueT) -> bytes:
        """Encode a value as JSON.

        Raises:
            ConfigError: JSON would change the value, or the value does not have the type. The text names the part.
        """
        if self._type is not None:
            return self._encode_typed(value)
        if problem := _problem(value, "", 0):
            raise ConfigError(f"the value cannot be encoded as JSON: {problem}")
        return msgspec.json.encode(value)

    def _encode_typed(self, value: ValueT) -> bytes:
        try:
            data = msgspec.json.encode(value)
            self._decode(data)  # a value that no reader could decode must not be stored
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            name = getattr(self._type, "__name__", repr(self._type))
            raise ConfigError(f"{value!r:.60} cannot be encoded as {name}: {error}") from None
        return data

    def decode(self, data: bytes) -> ValueT:
        """Decode the JSON value in ``data``.

        Raises:
            ProtocolError: The data is not JSON, or the value does not have the type.
        """
        try:
            value: ValueT = self._decode(data)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ProtocolError(f"{data!r:.60} is not JSON: {error}") from None
        return value


def _problem(value: Any, path: str, depth: int) -> str:
    """Describe the first part at or below ``path`` that JSON cannot represent. "" if JSON can represent all parts."""
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
        ConfigError: ``custom`` has another name, or it is None and the name is not JSON.
    """
    codec = JsonCodec() if custom is None else custom
    if codec_name(codec) != name:
        raise ConfigError(
            f"the values are encoded with codec {name!r}, not {codec_name(codec)!r}: give codec="
        )
    return codec
