"""What the tests of buckets share."""

from __future__ import annotations

from typing import Any


async def keys_of(kv: Any, *filters: str) -> list[str]:
    """The keys of a bucket that have a value."""
    return [key async for key in kv.keys(*filters)]
