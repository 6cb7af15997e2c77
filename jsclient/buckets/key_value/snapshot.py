"""The newest entries of a bucket as of one revision: `KeyValue.get_many`."""

from __future__ import annotations

from ...protocol.buckets.entry import KeyValueEntry

__all__ = ["KeyValueSnapshot"]


class KeyValueSnapshot(dict[str, KeyValueEntry]):
    """The entry of each key that has a value, as of one revision of the bucket. Created by `KeyValue.get_many`.

    Attributes:
        revision: A watch with ``after=snapshot.revision`` returns every later change.
    """

    revision: int = 0
