"""Renames objects: `ObjectStore.rename`. The new name is stored first, so that the object always has a name."""

from __future__ import annotations

import msgspec

from ...errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from ...protocol.buckets.object_info import ObjectInfo
from ...protocol.buckets.object_names import check_object_name
from .site import ObjectSite

__all__ = ["rename_object"]


async def rename_object(site: ObjectSite, old: str, new: str) -> ObjectInfo:
    """Rename an object, and return its description. See `ObjectStore.rename`."""
    check_object_name(new)
    site.space.check_writable()
    before = await site.current(old)
    if before is None or before.is_deleted:
        raise ObjectNotFoundError(site.bucket, old, before)
    if old == new:
        return before

    def renamed(current: ObjectInfo | None) -> ObjectInfo:
        if current is not None and not current.is_deleted:
            raise ObjectExistsError(site.bucket, new, current.revision)
        return msgspec.structs.replace(before, name=new)

    _, after = await site.change(new, renamed)
    assert after is not None
    # Both names now refer to the same chunks. If another client replaced the object under its old name, that client
    # would remove them. So first replace the old description with one that has no chunks, provided that it hasn't
    # changed, and then remove it.
    tombstone = ObjectInfo(bucket=site.bucket, name=old, is_deleted=True)

    def retired(current: ObjectInfo | None) -> ObjectInfo | None:
        return tombstone if current is not None and current.revision == before.revision else None

    current, marker = await site.change(old, retired)
    if marker is None or marker is current:
        await site.remove_info(new, after.revision + 1)
        revision = 0 if current is None else current.revision
        raise ObjectChangedError(site.bucket, old, before.revision, revision)
    await site.remove_info(old, marker.revision + 1)
    return after
