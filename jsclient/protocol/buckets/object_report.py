"""The results of `ObjectStore.check` and `ObjectStore.gc`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from ...errors import JetStreamError
from .object_info import ObjectInfo

__all__ = ["BrokenObject", "ObjectStoreReport", "OrphanChunks", "RemovedGarbage"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class OrphanChunks(msgspec.Struct, frozen=True, kw_only=True):
    """Chunks that belong to no object, found by `ObjectStore.check`.

    They were left behind by a failed upload, or belong to an upload that is still in progress. `ObjectStore.gc` removes
    abandoned chunks, which only occupy storage.

    Attributes:
        nuid: Unique name under which the chunks are stored.
        chunks: Number of chunks.
        modified_ns: Time when the latest chunk was stored, as Unix time in nanoseconds.
    """

    nuid: str
    chunks: int
    modified_ns: int

    @property
    def modified(self) -> datetime:
        """Time when the latest chunk was stored, in UTC and truncated to microseconds."""
        return _EPOCH + timedelta(microseconds=self.modified_ns // 1000)


class BrokenObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object or link that can't be read. Listed in an `ObjectStoreReport`.

    Attributes:
        name: Name of the object or link.
        info: Description of the object or link, or None if the description is invalid.
        error: The error that `ObjectStore.get` would raise, for example `ObjectIncompleteError`.
    """

    name: str
    error: JetStreamError
    info: ObjectInfo | None = None


class ObjectStoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """Lists the problems found in an object store. Returned by `ObjectStore.check`.

    Attributes:
        objects: Number of objects and links that were checked, without those whose description is invalid.
        orphans: Chunks that belong to no object, oldest first. `ObjectStore.gc` removes them.
        broken: Objects with missing chunks, an incorrect size or digest, or an invalid description.
        broken_links: Links whose targets don't exist or aren't objects.
    """

    objects: int
    orphans: Sequence[OrphanChunks] = ()
    broken: Sequence[BrokenObject] = ()
    broken_links: Sequence[BrokenObject] = ()

    @property
    def is_sound(self) -> bool:
        """Whether the check has found no object or link that can't be read.

        Orphaned chunks are ignored, because they only occupy storage. A damaged content of the right size is found only
        if ``digests=True`` was passed to `ObjectStore.check`.
        """
        return not self.broken and not self.broken_links


class RemovedGarbage(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks and descriptions that were removed from an object store. Returned by `ObjectStore.gc`.

    Attributes:
        orphans: Chunks that belonged to no object and were removed.
        deletions: Descriptions of deleted objects that were removed.
    """

    orphans: Sequence[OrphanChunks] = ()
    deletions: Sequence[ObjectInfo] = ()
