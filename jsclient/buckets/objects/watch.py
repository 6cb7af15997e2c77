"""A watch of an object store: `ObjectStore.watch`. Source: ADR-20."""

from __future__ import annotations

from ...protocol.buckets.object_info import ObjectInfo
from ..watch import BucketWatch

__all__ = ["ObjectWatch"]


class ObjectWatch(BucketWatch[ObjectInfo]):
    """Reads the descriptions of objects and then each change, with ``async for``. Created by `ObjectStore.watch`.

    Use it with ``async with``. It survives reconnects, restarts of servers, and the loss of its consumer. A description
    that was replaced meanwhile may be skipped, but never the newest description of an object. Revisions only increase.
    """
