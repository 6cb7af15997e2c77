"""Uploads that continue where an earlier attempt ended: `ObjectStore.put` with ``resume``."""

from __future__ import annotations

import secrets
from typing import Any

from ...errors import ObjectExistsError, PublishError, SourceChangedError
from ...protocol.buckets.object_content import ChunkSplitter
from ...protocol.buckets.object_info import ObjectInfo
from ...protocol.buckets.upload_token import UploadToken, has_mark, mark_of_chunk, split_stored
from ...protocol.streams.direct_get import BATCH_GET_SERVER
from ...protocol.wire.checks import is_at_least
from .chunk_listing import ListedChunk, list_chunks
from .descriptions import ObjectDescriptions
from .site import ObjectSite
from .source import pieces_of
from .upload import ChunkUpload, Progress, report_progress

__all__ = ["ResumedUpload", "check_equal", "remove_surplus"]


class ResumedUpload(ChunkUpload):
    """Continues an upload after the chunks that earlier attempts have stored. If it fails, the chunks are kept.

    The message id of each chunk contains its number, and a digest of the content up to its end. The headers of the
    stored chunks therefore tell how far an earlier attempt got, and whether the content is still the same.
    """

    _must_count = True  # another process may be storing chunks of the same upload

    def __init__(
        self,
        site: ObjectSite,
        token: UploadToken,
        splitter: ChunkSplitter,
        *,
        timeout: float,
        progress: Progress | None,
        total: int | None,
    ) -> None:
        target = site.chunks(token.nuid)
        super().__init__(site.context, target, splitter, timeout=timeout, progress=progress, total=total)
        self._site, self._token = site, token
        self._prefix = f"{token.nuid}-{secrets.token_hex(6)}."  # each attempt uses different message ids
        self._kept, self._surplus = list[ListedChunk](), list[ListedChunk]()
        self._is_tidy = False

    async def run(self, source: Any) -> None:
        await self._load()
        await super().run(source)

    async def _load(self) -> None:
        """Find the chunks of earlier attempts. Raises `ObjectExistsError` if they already belong to another object."""
        site, nuid = self._site, self._token.nuid
        end = (await site.state()).state.last_seq + 1
        chunks = await list_chunks(site, nuid, end)
        if not chunks:
            return
        for info in await ObjectDescriptions(site).newest():
            if info.nuid == nuid and not info.is_deleted:
                raise ObjectExistsError(site.bucket, info.name, info.revision)
        self._kept, self._surplus = split_stored(chunks, self._token.chunk_size)
        # nats-server 2.10 doesn't deliver the last message of a subject if messages before it were removed. To resume,
        # the surplus chunks would have to be removed, so start over instead.
        if self._surplus and not self._can_remove_last:
            await site.remove_chunks(nuid)
            self._kept, self._surplus = [], []

    @property
    def _can_remove_last(self) -> bool:
        return is_at_least(self._context.connection.server_version, BATCH_GET_SERVER)

    def _mark(self) -> str:
        return mark_of_chunk(self.splitter.chunks, self.splitter.digest_so_far)

    async def _send(self, chunk: bytes) -> None:
        number, count = self.splitter.chunks, len(self._kept)
        if number <= count and not has_mark(self._kept[number - 1].msg_id, self._mark()):
            raise self._changed()
        # Store the last chunk again to renew its timestamp. Otherwise, `ObjectStore.gc` could consider the upload
        # abandoned and remove its chunks.
        is_stored = number < count or (number == count and not self._can_remove_last)
        if not is_stored:
            await self._tidy()
            await super()._send(chunk)
            return
        self._last_seq = self._kept[number - 1].seq
        self._acked += len(chunk)
        report_progress(self._context, self._progress, self._acked, self._total)

    async def _tidy(self) -> None:
        """Remove superfluous chunks. This must not happen before the content is known to be the same."""
        if self._is_tidy:
            return
        surplus = self._surplus + (self._kept[-1:] if self._can_remove_last else [])
        for chunk in surplus:
            await self._target.remove(chunk.seq)
        self._is_tidy = True

    async def _check_count(self) -> None:
        if self.splitter.chunks < len(self._kept):
            raise self._changed()
        if not self.splitter.chunks:
            await self._tidy()
        try:
            await super()._check_count()
        except PublishError:
            await self._leave_to_other()
            raise

    async def _leave_to_other(self) -> None:
        """Remove the chunks of this attempt if another one has completed the object in the meantime."""
        current = await self._site.current(self._token.name, replacing=True)
        if current is not None and current.nuid == self._token.nuid:
            await remove_surplus(self._site, current)

    def _changed(self) -> SourceChangedError:
        size = sum(chunk.size for chunk in self._kept)
        return SourceChangedError(self._token.bucket, self._token.name, size)

    async def _undo(self) -> None:
        await self._end_publishes()


async def check_equal(info: ObjectInfo, source: Any, size: int) -> None:
    """Raise `SourceChangedError` if the content differs from a stored object. ``size`` is the size of its chunks."""
    splitter = ChunkSplitter(size)
    async for piece in pieces_of(source):
        for _ in splitter.add(piece):
            pass
    for _ in splitter.finish():
        pass
    if (splitter.size, splitter.digest) != (info.size, info.digest):
        raise SourceChangedError(info.bucket, info.name, info.size)


async def remove_surplus(site: ObjectSite, info: ObjectInfo) -> None:
    """Remove chunks that another attempt of the same upload stored after the object was complete.

    An attempt counts the chunks before it stores the description, so the chunks of the object are the first ones.
    """
    end = (await site.state()).state.last_seq + 1
    for chunk in (await list_chunks(site, info.nuid, end))[info.chunks :]:
        await site.chunks(info.nuid).remove(chunk.seq)
