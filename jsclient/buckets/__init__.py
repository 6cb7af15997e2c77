"""Key-value buckets: handles, entries, configurations.

::

    from jsclient.buckets import KeyValue

    async def colour(settings: KeyValue) -> bytes:
        return (await settings.get("colour")).value
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..protocol.buckets.bucket_config import BucketFields, BucketStatus
    from ..protocol.buckets.entry import KeyValueEntry
    from .key_value.key_value import KeyValue
    from .key_value.snapshot import KeyValueSnapshot
    from .key_value.watch import KeyValueWatch

__all__ = [
    "BucketFields",
    "BucketStatus",
    "KeyValue",
    "KeyValueEntry",
    "KeyValueSnapshot",
    "KeyValueWatch",
]

_LAZY = {
    "BucketFields": "protocol.buckets.bucket_config",
    "BucketStatus": "protocol.buckets.bucket_config",
    "KeyValue": "buckets.key_value.key_value",
    "KeyValueEntry": "protocol.buckets.entry",
    "KeyValueSnapshot": "buckets.key_value.snapshot",
    "KeyValueWatch": "buckets.key_value.watch",
}

if not TYPE_CHECKING:  # else a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Import a class on first use, so that `jsclient.connect` need not import them."""
        if (module := _LAZY.get(name)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .._exports import set_module

        value = globals()[name] = getattr(import_module(f"..{module}", __name__), name)
        set_module(__name__, (value,))
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
