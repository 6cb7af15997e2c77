"""A watch of a key-value bucket: `KeyValue.watch`. Source: ADR-8."""

from __future__ import annotations

from typing import Generic

from ...protocol.buckets.entry import KeyValueEntry, ValueT
from ..watch import BucketWatch

__all__ = ["KeyValueWatch"]


class KeyValueWatch(BucketWatch[KeyValueEntry[ValueT]], Generic[ValueT]):
    """Reads the entries of a bucket and then its changes, with ``async for``. Created by `KeyValue.watch`.

    Use it with ``async with``. It survives reconnects, restarts of servers, and the loss of its consumer. A value that
    was replaced meanwhile may be skipped, but never the newest value of a key. Revisions only increase.
    """
