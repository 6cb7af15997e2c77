"""Removing what belongs to no object: the chunks of dead uploads, and old deletions. `ObjectStore.gc`."""

from __future__ import annotations

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
from ...protocol.models.stream import StreamInfo
from ...protocol.wire.checks import check_seconds
from .descriptions import ObjectDescriptions
from .site import ObjectSite
from .upload import named_refusal

__all__ = ["LEAST_AGE", "check_age", "remove_garbage"]

LEAST_AGE: Final = 60.0
"""Seconds for which chunks are always kept. An upload has stored its description by then, or counts its chunks."""


def check_age(older_than: float) -> float:
    """Return the number of seconds. Raises `ConfigError` if uploads that are going on would be removed."""
    if check_seconds("older_than", older_than) < LEAST_AGE:
        raise ConfigError(
            f"older_than is {older_than:g} s: at least {LEAST_AGE:.0f} s are needed, because an upload that pauses "
            "looks like one that has ended"
        )
    return older_than


async def remove_garbage(site: ObjectSite, older_than: float) -> RemovedGarbage:
    """Remove the chunks and deletions that are older than this number of seconds. See `ObjectStore.gc`."""
    return await _Removal(site, older_than).remove_all()


class _Removal:
    """One removal from a bucket, in which other clients may store objects meanwhile.

    An upload consists of chunks, and then a description. So chunks are only removed if the newest one is old by the
    clock of the server, if no description names them just before, and if no chunk has followed at that moment.
    """

    def __init__(self, site: ObjectSite, older_than: float) -> None:
        self._site, self._older_than = site, timedelta(seconds=older_than)
        self._descriptions = ObjectDescriptions(site, self._refuse)
        self._named = set[str]()  # the nuids of all objects
        self._seq = 0  # all descriptions up to this sequence are known

    @staticmethod
    def _refuse(error: ObjectInfoError) -> None:
        raise error  # this description may name any of the chunks

    async def remove_all(self) -> RemovedGarbage:
        oldest_ns = self._oldest_ns(await self._site.state())
        subjects = await self._chunk_subjects()
        infos = await self._learn(await self._site.state())
        orphans = list[OrphanChunks]()
        for subject, count in subjects.items():
            nuid = subject.removeprefix(self._site.space.chunk_subject(""))
            newest = await self._site.last_chunk(nuid) if nuid not in self._named else None
            if newest is None or newest.time_ns >= oldest_ns or await self._is_named(nuid):
                continue
            if await self._remove(nuid, newest.seq):
                orphans.append(OrphanChunks(nuid=nuid, chunks=count, modified_ns=newest.time_ns))
        deletions = [info for info in infos if info.is_deleted and info.modified_ns < oldest_ns]
        for info in deletions:
            # A newer description of this name has a greater sequence, and stays.
            await self._site.remove_info(info.name, info.revision + 1)
        return RemovedGarbage(orphans=tuple(orphans), deletions=tuple(deletions))

    def _oldest_ns(self, info: StreamInfo) -> int:
        """Return the time from which on messages are kept, by the clock of the server, which also dates messages."""
        if info.ts is None:
            raise ProtocolError("the server does not say what time it is")
        return int((info.ts - self._older_than).timestamp() * 1_000_000) * 1000

    async def _chunk_subjects(self) -> dict[str, int]:
        stream = await self._site.stream_handle()
        return {
            subject: count async for subject, count in stream.subjects(self._site.space.chunk_subject(">"))
        }

    async def _is_named(self, nuid: str) -> bool:
        """Return whether a description names these chunks now."""
        info = await self._site.state()
        if info.state.last_seq > self._seq:
            await self._learn(info)
        return nuid in self._named

    async def _learn(self, info: StreamInfo) -> list[ObjectInfo]:
        """Read the descriptions that are not known yet, up to this state of the stream at least."""
        infos = await self._descriptions.newest(self._seq or None)
        self._named.update(one.nuid for one in infos if not one.is_deleted)
        self._seq = info.state.last_seq
        return infos

    async def _remove(self, nuid: str, seq: int) -> bool:
        """Remove chunks, ``seq`` being the newest, and return True, or False if another chunk has followed."""
        site = self._site
        subject = site.space.chunk_subject(nuid)
        try:
            # A rollup replaces all chunks by an empty message, unless a chunk has followed. A purge has no conditions.
            ack = await publish(
                site.context,
                subject,
                b"",
                msg_id=secrets.token_hex(11),
                expected_last_subject_seq=seq,
                rollup="sub",
                stream_exists=True,
            )
        except WrongLastSequenceError:
            return False
        except ApiError as error:
            if not isinstance(refusal := named_refusal(error), BucketFullError):
                raise refusal from None
            # A full bucket has no capacity for the message, and refuses the chunks that could follow, too.
            await site.remove_chunks(nuid, below=seq + 1)
            return True
        await site.remove_chunks(nuid, below=ack.seq + 1)
        if self._seq == ack.seq - 1:  # nothing was stored but this message
            self._seq = ack.seq
        return True
