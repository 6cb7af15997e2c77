"""Encodes and decodes the values of a bucket, and converts the exceptions that codecs raise."""

from __future__ import annotations

from typing import Any

from ...errors import ConfigError, JetStreamError
from ..topics.value_codec import Codec

__all__ = ["DecodedValue", "check_codec", "encoded_value"]


def check_codec(name: str, codec: object, methods: tuple[str, ...]) -> None:
    """Raise `ConfigError` if a codec is a class instead of an instance, or lacks one of these methods."""
    if codec is None:
        return
    if isinstance(codec, type):
        raise ConfigError(f"{name} is the class {codec.__name__}: give an instance of it")
    for method in methods:
        if not callable(getattr(codec, method, None)):
            raise ConfigError(f"{name} is {codec!r:.60}, which has no method {method}()")


def encoded_value(codec: Codec[Any], key: str, value: Any) -> bytes:
    """Encode a value as bytes.

    Raises:
        ConfigError: The codec can't encode the value, or its result isn't bytes.
    """
    try:
        data = codec.encode(value)
    except JetStreamError:
        raise
    except Exception as error:
        raise ConfigError(f"the value of key {key!r} cannot be encoded: {error}") from error
    if not isinstance(data, bytes):
        raise ConfigError(
            f"the codec has encoded the value of key {key!r} as {type(data).__name__}, not bytes"
        )
    return data


class DecodedValue:
    """Decodes the value of an entry on first access, and keeps the result."""

    __slots__ = ("codec", "is_decoded", "value")

    def __init__(self, codec: Codec[Any]) -> None:
        self.codec: Codec[Any] = codec
        self.is_decoded: bool = False
        self.value: Any = None

    def __eq__(self, other: object) -> bool:
        """Compare the codecs. Entries are equal if they have the same raw values and the same codec."""
        return isinstance(other, DecodedValue) and self.codec is other.codec

    def __hash__(self) -> int:
        return hash(id(self.codec))

    def __repr__(self) -> str:
        return f"<value by {type(self.codec).__name__}>"

    def decode_once(self, data: bytes) -> Any:
        """Return the decoded value. All calls must pass the same bytes. Raises the exception of the codec.

        An exception isn't kept. Its traceback refers to the entry, which the garbage collector doesn't track, so the
        entry would never be freed. If the codec fails, each access calls it again.
        """
        if not self.is_decoded:
            self.value = self.codec.decode(data)
            self.is_decoded = True
        return self.value
