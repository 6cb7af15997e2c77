"""A watch of a key-value bucket: `KeyValue.watch`. Source: ADR-8."""

from __future__ import annotations

from typing import Generic

from ...protocol.buckets.entry import KeyValueEntry, ValueT
from ..watch import BucketWatch

__all__ = ["KeyValueWatch"]


class KeyValueWatch(BucketWatch[KeyValueEntry[ValueT]], Generic[ValueT]):
    """An asynchronous iterator over the entries of a bucket, and then over its changes. Returned by `KeyValue.watch`.

    Use it in an ``async with`` block::

        async with kv.watch("shop.*") as watch:
            async for entry in watch:
                print(entry.key, entry.operation, entry.value)

    The watch survives reconnects, server restarts and the loss of its consumer. It may skip intermediate values of a
    key in these cases, but it never misses the latest one. Revisions only increase, with one exception. If the bucket
    is recreated or restored, the watch emits the event `StreamReset` and starts again from the first entry in the
    bucket.
    """
