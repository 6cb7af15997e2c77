"""Key codecs, which encode arbitrary names as valid keys. Source: ADR-54."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, Protocol

from ...errors import ConfigError, InvalidNameError, JetStreamError

__all__ = [
    "Base64Keys",
    "ChainedKeys",
    "KeyCodec",
    "PathKeys",
    "decoded_key",
    "encoded_filter",
    "encoded_key",
]

_ROOT: Final = "_root_"  # represents the slash at the start of a path
_WILDCARDS: Final = ("*", ">")


class KeyCodec(Protocol):
    """The interface of a codec that encodes and decodes the keys of a bucket. Encoded keys must be valid keys."""

    def encode(self, key: str) -> str:
        """Return the key as the bucket stores it."""

    def decode(self, stored: str) -> str:
        """Decode a stored key. Raise ``ValueError`` if ``stored`` isn't an encoded key."""

    def encode_filter(self, pattern: str) -> str:
        """Encode a filter so that it matches stored keys. A token may be ``*``, and the last token ``>``."""


class Base64Keys:
    """Encodes each token of a key as URL-safe base64, so that keys may contain any characters. Dots separate tokens.

    The padding is kept for compatibility with the codec of nats.js.
    """

    def encode(self, key: str) -> str:
        """Encode each token of a key. Raises `InvalidNameError` if the key can't be encoded as UTF-8."""
        return ".".join(map(_base64, key.split(".")))

    def decode(self, stored: str) -> str:
        """Decode each token of a key. Raises ``ValueError`` if a token is not base64-encoded UTF-8."""
        return ".".join(map(_text, stored.split(".")))

    def encode_filter(self, pattern: str) -> str:
        """Encode each token of a filter, except for wildcards."""
        tokens = pattern.split(".")
        return ".".join(token if token in _WILDCARDS else _base64(token) for token in tokens)


def _base64(token: str) -> str:
    try:
        return urlsafe_b64encode(token.encode()).decode()
    except UnicodeEncodeError:
        raise InvalidNameError("key", token, "it cannot be encoded as UTF-8") from None


def _text(token: str) -> str:
    # Some clients omit the padding, or use the standard alphabet.
    padded = token.replace("+", "-").replace("/", "_").rstrip("=")
    try:
        return urlsafe_b64decode(padded + "=" * (-len(padded) % 4)).decode()
    except binascii.Error as error:
        raise ValueError(f"{token!r:.60} is not base64") from error


class PathKeys:
    """Encodes paths as keys, without trailing slashes. For example, ``/config/app`` becomes ``_root_.config.app``."""

    def encode(self, key: str) -> str:
        """Encode a path as a key.

        Raises:
            InvalidNameError: The path contains a dot or an empty part, or begins with ``_root_``. The encoded key would
                be decoded to a different path.
        """
        if "." in key:
            raise InvalidNameError("key", key, "a path has no dots: they would become slashes")
        if "//" in key:
            raise InvalidNameError("key", key, "a part of the path is empty")
        if key.split("/", 1)[0] == _ROOT:
            raise InvalidNameError("key", key, f"{_ROOT!r} stands for the slash at the start of a path")
        return _dotted(key)

    def decode(self, stored: str) -> str:
        """Decode a stored key to a path."""
        root, dot, below = stored.partition(".")
        parts = below if root == _ROOT else stored
        return ("/" if root == _ROOT and (dot or stored == _ROOT) else "") + parts.replace(".", "/")

    def encode_filter(self, pattern: str) -> str:
        """Encode a filter for paths as a filter for keys."""
        return self.encode(pattern)


def _dotted(path: str) -> str:
    start = f"{_ROOT}/" if path.startswith("/") else ""
    return (start + path.removeprefix("/").removesuffix("/")).removesuffix("/").replace("/", ".")


class ChainedKeys:
    """Combines several codecs. The first codec encodes a key, the second codec encodes the result, and so on.

    Raises:
        ConfigError: No codec is given.
    """

    def __init__(self, *codecs: KeyCodec) -> None:
        if not codecs:
            raise ConfigError("no codec is given: a chain has at least one")
        self._codecs = codecs

    def encode(self, key: str) -> str:
        """Return the key after all codecs have encoded it."""
        for codec in self._codecs:
            key = codec.encode(key)
        return key

    def decode(self, stored: str) -> str:
        """Return the key after all codecs have decoded it, beginning with the last codec."""
        for codec in reversed(self._codecs):
            stored = codec.decode(stored)
        return stored

    def encode_filter(self, pattern: str) -> str:
        """Return the filter after all codecs have encoded it."""
        for codec in self._codecs:
            pattern = codec.encode_filter(pattern)
        return pattern


def encoded_key(codec: KeyCodec, key: str) -> str:
    """Return a key as the bucket stores it. Raises `InvalidNameError` if the codec raises any error."""
    if not isinstance(key, str):
        raise InvalidNameError("key", key, f"a str is needed, not {type(key).__name__}")
    try:
        return codec.encode(key)
    except JetStreamError:
        raise
    except Exception as error:
        raise InvalidNameError("key", key, f"its codec refuses it: {error}") from error


def encoded_filter(codec: KeyCodec, pattern: str) -> str:
    """Return a filter as the bucket matches it. Raises `InvalidNameError` if the codec raises any error."""
    if not isinstance(pattern, str):
        raise InvalidNameError("filter", pattern, f"a str is needed, not {type(pattern).__name__}")
    try:
        return codec.encode_filter(pattern)
    except JetStreamError:
        raise
    except Exception as error:
        raise InvalidNameError("filter", pattern, f"the codec of keys refuses it: {error}") from error


def decoded_key(codec: KeyCodec, stored: str) -> str:
    """Decode a stored key. If the codec can't decode it, or would encode the result differently, return it unchanged.

    Other clients may have stored such keys. They must not cause errors in readers, and must not be confused with
    properly encoded keys.
    """
    try:
        key = codec.decode(stored)
        return key if codec.encode(key) == stored else stored
    except Exception:  # noqa: BLE001  a codec of the user
        return stored
