"""Finds objects that can't be read, and chunks that belong to no object: `ObjectStore.check`."""

from __future__ import annotations

from ...errors import (
    ApiError,
    DigestMismatchError,
    JetStreamError,
    LinkError,
    ObjectChangedError,
    ObjectIncompleteError,
    ObjectInfoError,
    ObjectNotFoundError,
)
from ...protocol.buckets.object_info import ObjectInfo
from ...protocol.buckets.object_report import BrokenObject, ObjectStoreReport, OrphanChunks
from .chunk_listing import ChunkTotal, count_all_chunks, list_chunks
from .descriptions import ObjectDescriptions
from .links import find_object, linked_site
from .reader import ObjectReader
from .site import ObjectSite

__all__ = ["check_objects"]


async def check_objects(site: ObjectSite, *, digests: bool) -> ObjectStoreReport:
    """Check a bucket, and return the problems that were found. See `ObjectStore.check`."""
    return await _Check(site, digests=digests).check_all()


class _Check:
    """One check of a bucket, which other clients may change at the same time.

    The chunks are read before the descriptions. Objects may be stored or removed in between, so every mismatch is
    checked again before it is reported.
    """

    def __init__(self, site: ObjectSite, *, digests: bool) -> None:
        self._site, self._digests = site, digests
        self._descriptions = ObjectDescriptions(site, self._add_invalid)
        self._broken = list[BrokenObject]()

    def _add_invalid(self, error: ObjectInfoError) -> None:
        self._broken.append(BrokenObject(name=error.name, error=error))

    async def check_all(self) -> ObjectStoreReport:
        totals = await count_all_chunks(self._site)
        last_seq = (await self._site.state()).state.last_seq
        infos = await self._descriptions.newest()
        live = [info for info in infos if not info.is_deleted]
        broken_links = list[BrokenObject]()
        for info in live:
            if info.is_link:
                if (error := await self._error_of_link(info)) is not None:
                    broken_links.append(BrokenObject(name=info.name, info=info, error=error))
            elif (error := await self._error_of_object(info, totals)) is not None:
                self._broken.append(BrokenObject(name=info.name, info=info, error=error))
        orphans = await self._orphans(totals, {info.nuid for info in live}, last_seq)
        return ObjectStoreReport(
            objects=len(live),
            orphans=tuple(orphans),
            broken=tuple(self._broken),
            broken_links=tuple(broken_links),
        )

    async def _error_of_link(self, info: ObjectInfo) -> JetStreamError | None:
        """Return the error that following a link raises, or None."""
        link = info.link
        assert link is not None
        try:
            if link.name:
                await find_object(self._site, info.name)
            else:
                await linked_site(self._site, info.bucket, info.name, link.bucket).state()
        except (LinkError, ObjectInfoError, ObjectNotFoundError) as error:
            return error
        except ApiError as error:
            # If the bucket doesn't exist, the link is broken, so report it. Any other error ends the check.
            if error.code != 404:
                raise
            return error
        return None

    async def _error_of_object(
        self, info: ObjectInfo, totals: dict[str, ChunkTotal]
    ) -> JetStreamError | None:
        """Return the error that reading an object raises, or None."""
        if not info.nuid:
            return ObjectInfoError(info.bucket, info.name, "it has neither a nuid nor a link")
        total = totals.get(info.nuid, ChunkTotal(0, 0, 0))
        error: JetStreamError | None = None
        if info.is_counted and (total.chunks, total.size) != (info.chunks, info.size):
            error = await self._error_of_chunks(info)
        # If the description lacks the size, reading the content is the only way to find out whether it is complete.
        if error is None and (self._digests or not info.is_counted):
            error = await self._error_of_content(info)
        return error

    async def _error_of_chunks(self, info: ObjectInfo) -> JetStreamError | None:
        chunks = await list_chunks(self._site, info.nuid, info.revision)
        size = sum(chunk.size for chunk in chunks)
        if (len(chunks), size) == (info.chunks, info.size) or not await self._is_current(info):
            return None
        return ObjectIncompleteError(info.bucket, info.name, info.size, size)

    async def _error_of_content(self, info: ObjectInfo) -> JetStreamError | None:
        async def found() -> tuple[ObjectSite, ObjectInfo]:
            return self._site, info

        try:
            async with ObjectReader(self._site.context, found, progress=None) as reader:
                async for _ in reader:
                    pass
        except ObjectChangedError:
            return None
        except (ObjectIncompleteError, DigestMismatchError) as error:
            return error if await self._is_current(info) else None
        return None

    async def _is_current(self, info: ObjectInfo) -> bool:
        """Return whether this is still the current content of the object."""
        current = await self._site.current(info.name, replacing=True)
        return current is not None and not current.is_deleted and current.nuid == info.nuid

    async def _orphans(
        self, totals: dict[str, ChunkTotal], nuids: set[str], last_seq: int
    ) -> list[OrphanChunks]:
        """Return the chunks that belong to no object. Descriptions stored after ``last_seq`` are taken into account."""
        orphans = list[OrphanChunks]()
        for nuid in totals.keys() - nuids:
            newest = await self._site.last_chunk(nuid)
            if newest is not None:
                chunks = await self._site.count_chunks(nuid)
                orphans.append(OrphanChunks(nuid=nuid, chunks=chunks, modified_ns=newest.time_ns))
        if orphans:
            named = {info.nuid for info in await self._descriptions.newest(last_seq) if not info.is_deleted}
            orphans = [orphan for orphan in orphans if orphan.nuid not in named]
        return sorted(orphans, key=lambda orphan: orphan.modified_ns)
