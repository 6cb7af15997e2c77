"""Reads an object from any position, as needed after `ObjectReader.seek`."""

from __future__ import annotations

from typing import Final

from ..._runtime.context import Context
from ...errors import MessageNotFoundError
from ...protocol.buckets.chunk_index import ChunkIndex
from ...protocol.buckets.object_info import ObjectInfo
from .chunk_listing import list_chunks
from .direct_chunks import DirectChunks
from .site import ObjectSite

__all__ = ["ObjectRanges"]

_AHEAD: Final = 4 * 1024 * 1024  # maximum number of bytes to request at once


class ObjectRanges:
    """Reads an object from any position, without a consumer. Sequential reads request more and more chunks at once.

    The chunks of most objects are adjacent in the stream, so two requests suffice to locate all of them. If they aren't
    adjacent, the headers of all chunks are read once.
    """

    def __init__(self, context: Context, site: ObjectSite, info: ObjectInfo) -> None:
        self._context, self._site, self._info = context, site, info
        self._subject = site.space.chunk_subject(info.nuid)
        self._index: ChunkIndex | None = None
        self._chunks: DirectChunks | None = None
        self._next = 0  # number of the chunk that ``_chunks`` returns next

    async def read_piece(self, position: int) -> bytes | None:
        """Return the content from a position to the end of its chunk, or None if the chunk is missing.

        May raise any error of an API request. If the call is cancelled, nothing is lost.
        """
        if self._index is None:
            self._index = await self._found_index()
        index = self._index
        if index is None or index.size != self._info.size:
            return None
        number = index.number_at(position)
        chunks = await self._chunks_from(index, number)
        data = await chunks.next_chunk()
        # nats-server 2.10 doesn't return the last message of a subject if messages before it were removed, so request
        # the last chunk by its sequence.
        if data is None and number == index.last:
            seq = index.seq_of(number)
            data = await chunks.search_chunk(seq + 1, start=seq)
        start, end = index.extent_of(number)
        # If the chunk was removed, the server returns the one after it, so compare the sequence and the size.
        if data is None or chunks.seq != index.seq_of(number) or len(data[0]) != end - start:
            self._chunks = None
            return None
        self._next = number + 1
        return data[0][position - start :]

    async def _chunks_from(self, index: ChunkIndex, number: int) -> DirectChunks:
        """Return a reader that starts at a chunk. The last reader is reused if the chunk is its next one."""
        chunks = self._chunks
        if chunks is None or self._next != number:
            most = max(1, _AHEAD * self._info.chunks // self._info.size)
            chunks = DirectChunks(
                self._context,
                await self._site.stream_handle(),
                self._subject,
                page=1,
                most=most,
                max_bytes=2 * _AHEAD,
                after=index.seq_of(number) - 1,
            )
            self._chunks, self._next = chunks, number
        return chunks

    async def _found_index(self) -> ChunkIndex | None:
        stream = await self._site.stream_handle()
        try:
            first = await stream.get_next_message(self._subject)
            last = await stream.get_last_message(self._subject)
        except MessageNotFoundError:
            return None
        regular = ChunkIndex.regular(self._info, first.seq, last.seq)
        if regular is not None:
            return regular
        listed = await list_chunks(self._site, self._info.nuid, self._info.revision)
        return ChunkIndex.of_chunks((chunk.seq, chunk.size) for chunk in listed)
