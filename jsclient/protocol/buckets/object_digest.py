"""The digest of an object, which is stored as ``SHA-256=`` followed by base64url. Source: ADR-20."""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode
from typing import Final

__all__ = ["digest_text", "read_digest"]

_PREFIX: Final = "SHA-256="
_BYTES: Final = 32


def digest_text(digest: bytes) -> str:
    """Return a digest in the text form that descriptions contain."""
    return _PREFIX + urlsafe_b64encode(digest).decode()


def read_digest(text: str) -> bytes | None:
    """Parse the text form of a digest. Return None if it isn't a SHA-256 digest.

    Some clients omit the padding, use the standard base64 alphabet, or write hexadecimal digits.
    """
    if text[: len(_PREFIX)].upper() != _PREFIX:
        return None
    encoded = text[len(_PREFIX) :].strip()
    try:
        if len(encoded) == 2 * _BYTES:
            return bytes.fromhex(encoded)
        plain = encoded.rstrip("=").replace("-", "+").replace("_", "/")
        digest = b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return digest if len(digest) == _BYTES else None
