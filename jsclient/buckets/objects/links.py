"""Follows the links of an object store. Source: ADR-20."""

from __future__ import annotations

from typing import Final

from ...errors import InvalidNameError, LinkError, ObjectInfoError, ObjectNotFoundError
from ...protocol.buckets.keys import check_bucket
from ...protocol.buckets.object_info import ObjectInfo, ObjectLink
from ...protocol.buckets.object_names import ObjectSpace
from .site import ObjectSite

__all__ = ["find_object", "linked_site"]

_MOST_LINKS: Final = 8


async def find_object(origin: ObjectSite, first: str) -> tuple[ObjectSite, ObjectInfo]:
    """Return the object of a name, and the bucket that contains it. If the name is a link, follow it.

    Raises:
        ObjectNotFoundError: The object does not exist.
        ObjectInfoError: A description is invalid.
        LinkError: A link leads to a whole bucket, or the links form a cycle or a chain that is too long.

    May also raise any error of an API request.
    """
    site, name, links = origin, first, list[ObjectLink]()
    while True:
        current = await site.current(name)
        if current is None or current.is_deleted:
            raise ObjectNotFoundError(site.bucket, name, current, first if links else "")
        link = current.link
        if link is None:
            # The subject of the chunks contains the nuid, so the chunks can't be found without it.
            if not current.nuid:
                raise ObjectInfoError(site.bucket, name, "it has neither a nuid nor a link")
            return site, current
        if not link.name:
            raise LinkError(site.bucket, name, f"it is a link to bucket {link.bucket!r}, not to an object")
        if link in links:
            raise LinkError(origin.bucket, first, "its links lead in a circle")
        if len(links) == _MOST_LINKS:
            raise LinkError(origin.bucket, first, f"it leads to more than {_MOST_LINKS} links")
        links.append(link)
        if link.bucket != site.bucket:
            site = linked_site(origin, site.bucket, name, link.bucket)
        name = link.name


def linked_site(origin: ObjectSite, bucket: str, name: str, target: str) -> ObjectSite:
    """Return the bucket ``target`` of the link ``name`` in ``bucket``. Raises `LinkError` if the target is invalid."""
    if target == origin.bucket:
        return origin
    try:
        return ObjectSite(origin.context, ObjectSpace.of(check_bucket(target), None), None)
    except InvalidNameError:
        raise LinkError(bucket, name, f"{target!r} is not the name of a bucket") from None
