"""A watch of an object store: `ObjectStore.watch`. Source: ADR-20."""

from __future__ import annotations

from ...protocol.buckets.object_info import ObjectInfo
from ..watch import BucketWatch

__all__ = ["ObjectWatch"]


class ObjectWatch(BucketWatch[ObjectInfo]):
    """An asynchronous iterator that yields the description of each object, and then each change as it happens.

    Returned by `ObjectStore.watch`. Use it in an ``async with`` block::

        async with store.watch() as watch:
            async for info in watch:
                print(info.name, "deleted" if info.is_deleted else info.size)

    The watch survives reconnects, server restarts and the loss of its consumer. It may skip intermediate descriptions
    of an object in these cases, but it never misses the latest one. Revisions only increase, with one exception. If the
    bucket is recreated or restored, the watch emits the event `StreamReset` and starts again from the first description
    in the bucket.
    """
