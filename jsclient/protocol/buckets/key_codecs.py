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
    """Converts an application's keys to keys that NATS allows, and back.

    Pass a codec as ``key_codec`` when you open a bucket. `Base64Keys` and `PathKeys` are codecs. Implement this
    interface for a different format. Encoded keys must consist of tokens of letters, digits and ``-/_=``, separated by
    dots.
    """

    def encode(self, key: str) -> str:
        """Return the encoded form of a key, which the bucket stores.

        If this method raises an exception, the call that received the key raises `InvalidNameError`.
        """

    def decode(self, stored: str) -> str:
        """Return the original key of an encoded key. Raise ``ValueError`` if ``stored`` isn't an encoded key.

        If this method raises an exception, or if encoding its result doesn't give ``stored`` again, a different client
        may have stored the key without this codec. Readers then return ``stored`` unchanged.
        """

    def encode_filter(self, pattern: str) -> str:
        """Return a filter that matches encoded keys, for a filter that matches original keys.

        Any token of a filter may be the wildcard ``*``, and the last token may be ``>``. Don't encode wildcards.
        """


class Base64Keys:
    """Allows any characters in keys, by encoding each token as URL-safe base64. Dots still separate tokens.

    The padding is kept for compatibility with the codec of nats.js.
    """

    def encode(self, key: str) -> str:
        """Return the key with each token encoded. Raises `InvalidNameError` if it can't be encoded as UTF-8."""
        return ".".join(map(_base64, key.split(".")))

    def decode(self, stored: str) -> str:
        """Return the original key. Raises ``ValueError`` if a token isn't base64-encoded UTF-8."""
        return ".".join(map(_text, stored.split(".")))

    def encode_filter(self, pattern: str) -> str:
        """Return the filter with each token encoded as base64, except for wildcards."""
        tokens = pattern.split(".")
        return ".".join(token if token in _WILDCARDS else _base64(token) for token in tokens)


def _base64(token: str) -> str:
    try:
        return urlsafe_b64encode(token.encode()).decode()
    except UnicodeEncodeError:
        raise InvalidNameError("key", token, "it cannot be encoded as UTF-8") from None


def _text(token: str) -> str:
    # Other clients may omit the padding or use the standard base64 alphabet, so accept these keys too.
    padded = token.replace("+", "-").replace("/", "_").rstrip("=")
    try:
        return urlsafe_b64decode(padded + "=" * (-len(padded) % 4)).decode()
    except binascii.Error as error:
        raise ValueError(f"{token!r:.60} is not base64") from error


class PathKeys:
    """Allows paths such as ``/config/app`` as keys, by replacing each slash with a dot. A trailing slash is removed.

    ``/config/app`` is stored as ``_root_.config.app``, so filters such as ``/config/*`` work.
    """

    def encode(self, key: str) -> str:
        """Return the path as the bucket stores it.

        Raises:
            InvalidNameError: The path contains a dot or an empty part, or begins with ``_root_``, so it would be
                decoded to a different path.
        """
        if "." in key:
            raise InvalidNameError("key", key, "a path has no dots: they would become slashes")
        if "//" in key:
            raise InvalidNameError("key", key, "a part of the path is empty")
        if key.split("/", 1)[0] == _ROOT:
            raise InvalidNameError("key", key, f"{_ROOT!r} stands for the slash at the start of a path")
        return _dotted(key)

    def decode(self, stored: str) -> str:
        """Return the original path of an encoded path. Any key can be decoded, so no exception is raised."""
        root, dot, below = stored.partition(".")
        parts = below if root == _ROOT else stored
        return ("/" if root == _ROOT and (dot or stored == _ROOT) else "") + parts.replace(".", "/")

    def encode_filter(self, pattern: str) -> str:
        """Return a filter for stored keys, from a filter for paths such as ``/config/*``."""
        return self.encode(pattern)


def _dotted(path: str) -> str:
    start = f"{_ROOT}/" if path.startswith("/") else ""
    return (start + path.removeprefix("/").removesuffix("/")).removesuffix("/").replace("/", ".")


class ChainedKeys:
    """Combines several codecs: the first one encodes a key, the second one encodes the result, and so on.

    For example, ``ChainedKeys(PathKeys(), Base64Keys())`` allows any characters in the parts of a path, except dots.

    Args:
        codecs: The codecs, in the order in which they encode.

    Raises:
        ConfigError: No codec is given.
    """

    def __init__(self, *codecs: KeyCodec) -> None:
        if not codecs:
            raise ConfigError("no codec is given: a chain has at least one")
        self._codecs = codecs

    def encode(self, key: str) -> str:
        """Return the key after all codecs have encoded it, one after the other."""
        for codec in self._codecs:
            key = codec.encode(key)
        return key

    def decode(self, stored: str) -> str:
        """Return the original key, which the codecs decode in reverse order."""
        for codec in reversed(self._codecs):
            stored = codec.decode(stored)
        return stored

    def encode_filter(self, pattern: str) -> str:
        """Return the filter after all codecs have encoded it, one after the other."""
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
    except Exception:  # noqa: BLE001  a user's codec may raise anything
        return stored
