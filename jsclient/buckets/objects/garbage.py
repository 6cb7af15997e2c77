"""Removes the chunks of abandoned uploads and the descriptions of deleted objects: `ObjectStore.gc`."""

from __future__ import annotations

import asyncio
import random
import secrets
from datetime import timedelta
from typing import Final

from ..._runtime.publish import publish
from ...errors import (
    ApiError,
    BucketFullError,
    ConfigError,
    ObjectInfoError,
    ProtocolError,
    WrongLastSequenceError,
)
from ...protocol.buckets.object_info import ObjectInfo
from ...protocol.buckets.object_report import OrphanChunks, RemovedGarbage
from ...protocol.models.message import StoredMessage
from ...protocol.models.stream import StreamInfo
from ...protocol.wire.checks import check_seconds
from .descriptions import ObjectDescriptions
from .site import ObjectSite
from .upload import named_refusal

__all__ = ["LEAST_AGE", "check_age", "remove_garbage"]

LEAST_AGE: Final = 60.0
"""Minimum age of removed chunks, in seconds.

If an upload takes longer than this to store its description, it counts its chunks before.
"""

_ATTEMPTS: Final = 10  # attempts to remove the chunks of an upload while other clients store messages
_PAUSE: Final = 0.005  # seconds. The maximum pause between attempts grows by this amount with each attempt


def check_age(older_than: float) -> float:
    """Return ``older_than``. Raises `ConfigError` if it is so small that running uploads could be damaged."""
    if check_seconds("older_than", older_than) < LEAST_AGE:
        raise ConfigError(
            f"older_than is {older_than:g} s: at least {LEAST_AGE:.0f} s are needed, because an upload that pauses "
            "looks like one that has ended"
        )
    return older_than


async def remove_garbage(site: ObjectSite, older_than: float) -> RemovedGarbage:
    """Remove abandoned chunks and deletions that are older than ``older_than`` seconds. See `ObjectStore.gc`."""
    return await _Removal(site, older_than).remove_all()


class _Removal:
    """Removes the garbage from a bucket, in which other clients may store objects at the same time.

    An upload stores its chunks before the description. Chunks are therefore removed only if the newest one is old
    enough according to the server's clock, if no description refers to them, and if no message has been stored in the
    bucket since the descriptions were read.
    """

    def __init__(self, site: ObjectSite, older_than: float) -> None:
        self._site, self._older_than = site, timedelta(seconds=older_than)
        self._descriptions = ObjectDescriptions(site, self._refuse)
        self._named = set[str]()  # nuids of all known objects
        self._seq = 0  # all descriptions up to this sequence have been read

    @staticmethod
    def _refuse(error: ObjectInfoError) -> None:
        raise error  # the invalid description may refer to any of the chunks

    async def remove_all(self) -> RemovedGarbage:
        oldest_ns = self._oldest_ns(await self._site.state())
        subjects = await self._chunk_subjects()
        infos = await self._learn(await self._site.state())
        orphans = list[OrphanChunks]()
        for subject, count in subjects.items():
            nuid = subject.removeprefix(self._site.space.chunk_subject(""))
            if nuid not in self._named and (newest := await self._remove_if_orphan(nuid, oldest_ns)):
                orphans.append(OrphanChunks(nuid=nuid, chunks=count, modified_ns=newest.time_ns))
        deletions = [info for info in infos if info.is_deleted and info.modified_ns < oldest_ns]
        for info in deletions:
            # A newer description of this name has a higher sequence, so it isn't removed.
            await self._site.remove_info(info.name, info.revision + 1)
        return RemovedGarbage(orphans=tuple(orphans), deletions=tuple(deletions))

    def _oldest_ns(self, info: StreamInfo) -> int:
        """Return the time of the oldest message to keep. The server's clock is used, because it also dates messages."""
        if info.ts is None:
            raise ProtocolError("the server does not say what time it is")
        return int((info.ts - self._older_than).timestamp() * 1_000_000) * 1000

    async def _chunk_subjects(self) -> dict[str, int]:
        stream = await self._site.stream_handle()
        return {
            subject: count async for subject, count in stream.subjects(self._site.space.chunk_subject(">"))
        }

    async def _remove_if_orphan(self, nuid: str, oldest_ns: int) -> StoredMessage | None:
        """Remove the chunks of an abandoned upload, and return the newest one. Return None if nothing was removed.

        If other clients store messages during every attempt, the chunks aren't removed. A later call can remove them
        once the bucket is less busy.
        """
        for attempt in range(_ATTEMPTS):
            newest = await self._site.last_chunk(nuid)
            if newest is None or newest.time_ns >= oldest_ns or await self._is_named(nuid):
                return None
            if await self._remove(nuid, newest.seq):
                return newest
            await asyncio.sleep(random.uniform(0, _PAUSE * attempt))  # noqa: S311  not for secrets
        return None

    async def _is_named(self, nuid: str) -> bool:
        """Return whether a description refers to these chunks at this moment."""
        known, info = self._seq, await self._site.state()
        if info.state.last_seq > known:
            # Look for a newer description first. That is faster than creating a consumer, so it is less likely that
            # other clients store messages in between.
            newest = await self._site.newest_info_seq()
            if newest > known:
                await self._learn(info)
            self._seq = info.state.last_seq
        return nuid in self._named

    async def _learn(self, info: StreamInfo) -> list[ObjectInfo]:
        """Read all new descriptions, at least up to this state of the stream."""
        infos = await self._descriptions.newest(self._seq or None)
        self._named.update(one.nuid for one in infos if not one.is_deleted)
        self._seq = info.state.last_seq
        return infos

    async def _remove(self, nuid: str, seq: int) -> bool:
        """Remove the chunks of an upload, of which ``seq`` is the newest, and return whether they were removed.

        They are not removed if a message has been stored in the bucket since the descriptions were read.
        """
        site = self._site
        subject = site.space.chunk_subject(nuid)
        try:
            # A purge can't have conditions, so use a rollup. It replaces all chunks with an empty message, unless a
            # message has been stored since the descriptions were read. That message could refer to the chunks.
            ack = await publish(
                site.context,
                subject,
                b"",
                msg_id=secrets.token_hex(11),
                expected_last_seq=self._seq,
                expected_last_subject_seq=seq,
                rollup="sub",
                stream_exists=True,
            )
        except WrongLastSequenceError:
            return False
        except ApiError as error:
            if not isinstance(refusal := named_refusal(error), BucketFullError):
                raise refusal from None
            # If the bucket is too full for this message, it is also too full for the larger chunks and description that
            # could follow. So it suffices to check what was stored before the refusal.
            if await self._is_named(nuid):
                return False
            await site.remove_chunks(nuid, below=seq + 1)
            return True
        self._seq = ack.seq
        await site.remove_chunks(nuid, below=ack.seq + 1)
        return True
