"""Lists the chunks of an object store. Only headers are read, not the content."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import NamedTuple

from ...consumers.message import Message
from ...errors import MessageNotFoundError, RequestTimeoutError
from ...protocol.buckets.entry import payload_size
from ...protocol.consumers.ack import Metadata
from ...protocol.models.consumer import DeliverPolicy
from ...protocol.streams.direct_get import BATCH_GET_SERVER
from ...protocol.wire.checks import is_at_least
from ...protocol.wire.header_names import MSG_ID
from ..reading import RECHECK, has_nothing_left, open_consumer, reader_config
from .site import ObjectSite

__all__ = ["ChunkTotal", "ListedChunk", "count_all_chunks", "list_chunks"]


class ListedChunk(NamedTuple):
    """The sequence, the size in bytes and the message id of a chunk. The id is "" if the chunk has none."""

    seq: int
    size: int
    msg_id: str


class ChunkTotal(NamedTuple):
    """The number of an object's chunks, their total size in bytes, and the time of the newest one in nanoseconds."""

    chunks: int
    size: int
    newest_ns: int


async def list_chunks(site: ObjectSite, nuid: str, end: int) -> list[ListedChunk]:
    """Return the chunks of an object in order. ``end`` must be greater than all of their sequences.

    May raise any error of an API request.
    """
    chunks = list[ListedChunk]()
    async with aclosing(_headers(site, site.space.chunk_subject(nuid))) as messages:
        async for message in messages:
            headers: Mapping[str, str] = message.headers or {}
            chunks.append(
                ListedChunk(message.metadata.stream_seq, payload_size(headers), headers.get(MSG_ID, ""))
            )
    # nats-server 2.10 doesn't deliver the last message of a subject if messages before it were removed. Request the
    # missing chunks one by one.
    if not is_at_least(site.context.connection.server_version, BATCH_GET_SERVER):
        missing = await site.count_chunks(nuid) - len(chunks)
        seq = chunks[-1].seq if chunks else 0
        while missing > 0 and (seq := seq + 1) < end:
            if (chunk := await _chunk_at(site, nuid, seq)) is not None:
                chunks.append(chunk)
                missing -= 1
    return chunks


async def _chunk_at(site: ObjectSite, nuid: str, seq: int) -> ListedChunk | None:
    try:
        message = await (await site.stream_handle()).get_message(seq)
    except MessageNotFoundError:
        return None
    if message.subject != site.space.chunk_subject(nuid):
        return None
    return ListedChunk(seq, len(message.data), message.headers.get(MSG_ID, ""))


async def count_all_chunks(site: ObjectSite) -> dict[str, ChunkTotal]:
    """Return the totals of all chunks in the bucket, by nuid. May raise any error of an API request."""
    totals, start = dict[str, ChunkTotal](), len(site.space.chunk_subject(""))
    async with aclosing(_headers(site, site.space.chunk_subject(">"))) as messages:
        async for message in messages:
            nuid, size = message.subject[start:], payload_size(message.headers or {})
            before = totals.get(nuid, ChunkTotal(0, 0, 0))
            totals[nuid] = ChunkTotal(before.chunks + 1, before.size + size, message.metadata.timestamp_ns)
    return totals


async def _headers(site: ObjectSite, subject: str) -> AsyncGenerator[Message, None]:
    """Iterate over the messages that a subject has when the iteration starts, without their payloads."""
    config = reader_config([subject], policy=DeliverPolicy.ALL, headers_only=True)
    consumer, count = await open_consumer(site.context, site.stream, config, "create_object_store")
    last: Metadata | None = None
    try:
        while count > 0:
            try:
                message = await consumer.next(RECHECK)
            except RequestTimeoutError:
                # If chunks were removed during the iteration, fewer messages arrive than were counted at its start, so
                # stop once the consumer has nothing left.
                if await has_nothing_left(consumer, last):
                    break
            else:
                last = message.metadata
                count -= 1
                yield message
    finally:
        await consumer.close()
