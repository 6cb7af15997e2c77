"""Stores objects: the chunks first, then the description. The chunks of the replaced object are removed last."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Final

import msgspec

from ...errors import (
    ConfigError,
    DisconnectedError,
    ObjectChangedError,
    ObjectExistsError,
    RequestTimeoutError,
)
from ...protocol.buckets.object_content import ChunkSplitter
from ...protocol.buckets.object_info import ObjectInfo
from ...protocol.buckets.object_names import nuid_of
from ...protocol.buckets.upload_token import UploadToken
from ...protocol.wire.checks import check_count
from .resuming import ResumedUpload, check_equal, remove_surplus
from .site import ObjectSite
from .upload import ChunkUpload, Progress

__all__ = ["PutCondition", "chunk_size_for", "new_nuid", "store_object"]

_CHUNK: Final = 128 * 1024  # default size of a chunk in bytes, which is the same in all clients
_HEADERS: Final = 256  # bytes reserved for the header block of a chunk
_NUID_BITS: Final = 130


class PutCondition(msgspec.Struct, frozen=True):
    """The condition that an existing object must meet before it is replaced.

    Attributes:
        revision: The revision that the object must have, or None if any revision will do.
        is_absent: If true, store the object only if it doesn't exist yet.
    """

    revision: int | None = None
    is_absent: bool = False

    @classmethod
    def of(cls, if_match: int | None, if_none_match: bool) -> PutCondition:  # noqa: FBT001  as in `put`
        """Create the condition from these arguments of `ObjectStore.put`. Raises `ConfigError` if both are given."""
        if if_match is not None:
            check_count("if_match", if_match)
            if if_none_match:
                raise ConfigError("if_match and if_none_match are both given: give one of them")
        return cls(if_match, if_none_match)

    def check(self, bucket: str, name: str, current: ObjectInfo | None) -> None:
        """Raise `ObjectChangedError` or `ObjectExistsError` if the condition is not met."""
        exists = current is not None and not current.is_deleted
        revision = current.revision if current is not None and exists else 0
        if self.is_absent and exists:
            raise ObjectExistsError(bucket, name, revision)
        if self.revision is not None and revision != self.revision:
            raise ObjectChangedError(bucket, name, self.revision, revision)


def new_nuid() -> str:
    """Return a new unique name for the chunks of an object."""
    return nuid_of(secrets.randbits(_NUID_BITS))


def chunk_size_for(site: ObjectSite, chunk_size: int | None) -> int:
    """Return the size of chunks in bytes. Raises `ConfigError` if the server would refuse such large messages."""
    most = site.context.connection.max_payload - _HEADERS
    if chunk_size is None:
        return min(_CHUNK, most)
    if check_count("chunk_size", chunk_size) > most:
        raise ConfigError(f"chunk_size is {chunk_size:,}: the server takes messages of up to {most:,} bytes")
    return chunk_size


async def store_object(
    site: ObjectSite,
    info: ObjectInfo,
    source: Any,
    *,
    condition: PutCondition,
    timeout: float,
    progress: Progress | None,
    size: int | None,
    token: UploadToken | None = None,
) -> ObjectInfo:
    """Store an object, and return its description.

    Args:
        site: The bucket.
        info: The description, without the fields that depend on the content.
        source: The content. See `pieces_of`.
        condition: See `PutCondition`.
        timeout: How long to wait for the ack of each chunk, in seconds.
        progress, size: See `ObjectStore.put`.
        token: The token of the upload to be resumed, or None.
    """
    current = await site.current(info.name, replacing=True)
    if token is not None and current is not None and not current.is_deleted and current.nuid == token.nuid:
        await check_equal(current, source, token.chunk_size)  # an earlier attempt has stored the whole object
        await remove_surplus(site, current)
        return current
    condition.check(info.bucket, info.name, current)  # fail early, before the first chunk is sent
    splitter = ChunkSplitter(info.max_chunk_size)
    upload: ChunkUpload
    if token is None:
        info = msgspec.structs.replace(info, nuid=new_nuid())
        upload = ChunkUpload(
            site.context,
            site.chunks(info.nuid),
            splitter,
            timeout=timeout,
            progress=progress,
            total=size,
        )
    else:
        info = msgspec.structs.replace(info, nuid=token.nuid)
        upload = ResumedUpload(site, token, splitter, timeout=timeout, progress=progress, total=size)
    try:
        await upload.run(source)
        if size is not None and splitter.size != size:
            raise ConfigError(f"size is {size:,}, and the content has {splitter.size:,} bytes")
        info = msgspec.structs.replace(
            info, size=splitter.size, chunks=splitter.chunks, digest=splitter.digest
        )
    except BaseException:
        await upload.undo()
        raise
    # If this task is cancelled, wait for the end of the storing instead of interrupting it. Otherwise, nobody would
    # know whether the description was stored, and so whether its chunks must be kept.
    storing = site.context.tasks.start(
        _describe(site, info, current, condition, upload), "store an object", awaited=True
    )
    try:
        return await asyncio.shield(storing)
    except asyncio.CancelledError:
        if not storing.done():
            await asyncio.wait({storing})
        raise


async def _describe(
    site: ObjectSite,
    info: ObjectInfo,
    current: ObjectInfo | None,
    condition: PutCondition,
    upload: ChunkUpload,
) -> ObjectInfo:
    """Store the description, and remove the chunks of the object that it replaces."""

    def described(current: ObjectInfo | None) -> ObjectInfo:
        condition.check(info.bucket, info.name, current)
        return info

    try:
        before, stored = await site.change(info.name, described, read=(current,), replacing=True)
    except (RequestTimeoutError, DisconnectedError):
        raise  # the description may be stored, so its chunks must be kept
    except BaseException:
        await upload.undo()
        raise
    assert stored is not None
    if before is not None and before.nuid != info.nuid:
        await site.remove_replaced(before.nuid)
    return stored
