"""Key-value buckets and object stores: their handles, entries and configurations.

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
    from ..protocol.buckets.key_codecs import Base64Keys, ChainedKeys, KeyCodec, PathKeys
    from ..protocol.buckets.object_config import ObjectStoreFields, ObjectStoreStatus
    from ..protocol.buckets.object_info import ObjectInfo, ObjectLink
    from ..protocol.buckets.object_report import (
        BrokenObject,
        ObjectStoreReport,
        OrphanChunks,
        RemovedGarbage,
    )
    from .key_value.cache import KeyValueCache, KeyValueCacheChanges, KeyValueChange
    from .key_value.key_value import KeyValue
    from .key_value.lock import KeyValueLock
    from .key_value.snapshot import KeyValueSnapshot
    from .key_value.transaction import KeyValueTransaction
    from .key_value.watch import KeyValueWatch
    from .objects.object_store import ObjectStore
    from .objects.reader import ObjectReader
    from .objects.source import BinaryFile
    from .objects.watch import ObjectWatch

__all__ = [
    "Base64Keys",
    "BinaryFile",
    "BrokenObject",
    "BucketFields",
    "BucketStatus",
    "ChainedKeys",
    "KeyCodec",
    "KeyValue",
    "KeyValueCache",
    "KeyValueCacheChanges",
    "KeyValueChange",
    "KeyValueEntry",
    "KeyValueLock",
    "KeyValueSnapshot",
    "KeyValueTransaction",
    "KeyValueWatch",
    "ObjectInfo",
    "ObjectLink",
    "ObjectReader",
    "ObjectStore",
    "ObjectStoreFields",
    "ObjectStoreReport",
    "ObjectStoreStatus",
    "ObjectWatch",
    "OrphanChunks",
    "PathKeys",
    "RemovedGarbage",
]

_LAZY = {
    "Base64Keys": "protocol.buckets.key_codecs",
    "BinaryFile": "buckets.objects.source",
    "BrokenObject": "protocol.buckets.object_report",
    "BucketFields": "protocol.buckets.bucket_config",
    "BucketStatus": "protocol.buckets.bucket_config",
    "ChainedKeys": "protocol.buckets.key_codecs",
    "KeyCodec": "protocol.buckets.key_codecs",
    "KeyValue": "buckets.key_value.key_value",
    "KeyValueCache": "buckets.key_value.cache",
    "KeyValueCacheChanges": "buckets.key_value.cache",
    "KeyValueChange": "buckets.key_value.cache",
    "KeyValueEntry": "protocol.buckets.entry",
    "KeyValueLock": "buckets.key_value.lock",
    "KeyValueSnapshot": "buckets.key_value.snapshot",
    "KeyValueTransaction": "buckets.key_value.transaction",
    "KeyValueWatch": "buckets.key_value.watch",
    "ObjectInfo": "protocol.buckets.object_info",
    "ObjectLink": "protocol.buckets.object_info",
    "ObjectReader": "buckets.objects.reader",
    "ObjectStore": "buckets.objects.object_store",
    "ObjectStoreFields": "protocol.buckets.object_config",
    "ObjectStoreReport": "protocol.buckets.object_report",
    "ObjectStoreStatus": "protocol.buckets.object_config",
    "ObjectWatch": "buckets.objects.watch",
    "OrphanChunks": "protocol.buckets.object_report",
    "PathKeys": "protocol.buckets.key_codecs",
    "RemovedGarbage": "protocol.buckets.object_report",
}

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> object:
        """Import a class on first use, because `jsclient.connect` does not need it."""
        if (module := _LAZY.get(name)) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .._exports import set_module

        value = globals()[name] = getattr(import_module(f"..{module}", __name__), name)
        set_module(__name__, (value,))
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
