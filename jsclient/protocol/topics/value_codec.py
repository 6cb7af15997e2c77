"""Codecs, which encode values. `JsonCodec` makes sure that a decoded value is equal to the encoded one.

JSON values are null, booleans, numbers, strings, lists, and dicts with strings as keys. A tuple becomes a list. Values
that JSON would silently change are refused: NaN, integers beyond 64 bits, keys of other types, dates, bytes and
objects.
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
    """Converts values to the payloads of messages, and back. Implement it to use a format other than JSON.

    A codec is any object with the methods ``encode`` and ``decode``. It needs no base class::

        class Text:
            def encode(self, value: str) -> bytes:
                return value.encode()

            def decode(self, data: bytes) -> str:
                return data.decode(errors="replace")

    Both methods should raise a `JetStreamError` for a value that they can't handle.
    """

    def encode(self, value: ValueT) -> bytes:
        """Return the payload for a value."""

    def decode(self, data: bytes) -> ValueT:
        """Return the value that a payload encodes. It should equal the value that was encoded."""


class JsonCodec(Generic[ValueT]):
    """Encodes values as JSON, and refuses values that JSON would silently change.

    If a type is given, decoding returns instances of this type and checks their fields::

        class Order(msgspec.Struct):
            number: int

        codec = JsonCodec(Order)

    Args:
        type: The type of all values, such as a ``msgspec.Struct``, a dataclass or ``list[int]``. By default, values are
            plain JSON values: None, booleans, numbers, strings, lists, and dicts with strings as keys.

    Raises:
        ConfigError: Values of this type can't be represented as JSON.
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
        """Return a value as JSON.

        Without a type, a tuple becomes a list, and values that JSON can't represent exactly are refused: NaN and
        infinity, integers beyond 64 bits, and dicts with keys that aren't strings.

        Raises:
            ConfigError: JSON would change the value, or the value doesn't have the type. The message names the part
                that is wrong.
        """
        if self._type is not None:
            return self._encode_typed(value)
        if problem := _problem(value, "", 0):
            raise ConfigError(f"the value cannot be encoded as JSON: {problem}")
        return msgspec.json.encode(value)

    def _encode_typed(self, value: ValueT) -> bytes:
        try:
            data = msgspec.json.encode(value)
            self._decode(data)  # refuse a value that no reader could decode
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            name = getattr(self._type, "__name__", repr(self._type))
            raise ConfigError(f"{value!r:.60} cannot be encoded as {name}: {error}") from None
        return data

    def decode(self, data: bytes) -> ValueT:
        """Return the value that the JSON text contains.

        Raises:
            ProtocolError: ``data`` isn't JSON, or the value doesn't have the type of the codec.
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
    """Return the name that descriptors use for a codec: its ``name``, or the name of its class."""
    if type(codec) is JsonCodec:
        return _JSON
    return str(getattr(codec, "name", type(codec).__name__))


def codec_for(name: str, custom: Codec | None) -> Codec:
    """Return the codec that a descriptor names.

    Raises:
        ConfigError: ``custom`` has another name, or it is None although the codec isn't JSON.
    """
    codec = JsonCodec() if custom is None else custom
    if codec_name(codec) != name:
        raise ConfigError(
            f"the values are encoded with codec {name!r}, not {codec_name(codec)!r}: give codec="
        )
    return codec
