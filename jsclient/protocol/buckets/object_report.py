"""The results of a check of an object store, and of the removal of garbage from it."""

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
    """Chunks without a description. They remain from an earlier upload, or belong to an upload in progress.

    Attributes:
        nuid: The unique name under which the chunks are stored.
        chunks: The number of chunks.
        modified_ns: The time at which the newest chunk was stored, in nanoseconds since 1970.
    """

    nuid: str
    chunks: int
    modified_ns: int

    @property
    def modified(self) -> datetime:
        """The time at which the newest chunk was stored, in UTC with microseconds."""
        return _EPOCH + timedelta(microseconds=self.modified_ns // 1000)


class BrokenObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object or link that cannot be read.

    Attributes:
        name: The name of the object or link.
        info: The description, or None if it is not valid.
        error: The error that `ObjectStore.get` raises, such as `ObjectIncompleteError`.
    """

    name: str
    error: JetStreamError
    info: ObjectInfo | None = None


class ObjectStoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `ObjectStore.check`.

    Attributes:
        objects: The number of objects and links that were checked.
        orphans: Chunks without a description.
        broken: Objects with missing chunks, a wrong size or digest, or an invalid description.
        broken_links: Links whose target does not exist, or is not an object.
    """

    objects: int
    orphans: Sequence[OrphanChunks] = ()
    broken: Sequence[BrokenObject] = ()
    broken_links: Sequence[BrokenObject] = ()

    @property
    def is_sound(self) -> bool:
        """Whether every object and link can be read. Orphan chunks only waste storage."""
        return not self.broken and not self.broken_links


class RemovedGarbage(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `ObjectStore.gc`.

    Attributes:
        orphans: The removed chunks that had no description.
        deletions: The removed descriptions of deleted objects.
    """

    orphans: Sequence[OrphanChunks] = ()
    deletions: Sequence[ObjectInfo] = ()
