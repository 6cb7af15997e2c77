"""What the tests of buckets share."""

from __future__ import annotations

import base64
import hashlib
from typing import Any


async def keys_of(kv: Any, *filters: str) -> list[str]:
    """The keys of a bucket that have a value."""
    return [key async for key in kv.keys(*filters)]


async def names_of(store: Any, prefix: str = "") -> list[str]:
    """The names of the objects of a bucket."""
    return [info.name async for info in store.list(prefix)]


def info_subject(bucket: str, name: str) -> str:
    """The subject of the description of an object, as other clients have it."""
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def digest(data: bytes) -> str:
    """The digest of content, as other clients store it."""
    return f"SHA-256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()}"


def is_same(content: bytes, expected: bytes) -> bool:
    """Whether the contents are equal. Comparing them in an assertion would print all differences."""
    return content == expected
