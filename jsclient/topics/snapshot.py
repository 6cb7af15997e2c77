"""Reads the newest record of each subject of a stream by a batch of direct gets, an ordered consumer, or requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final, NamedTuple

from .._runtime.retry import Retry
from ..consumers.message import frames_of
from ..consumers.ordered.consumer import ordered_consumer
from ..errors import ConsumerLimitError, JetStreamError, NoRespondersError, TooManyResultsError
from ..protocol.consumers.status import Ending
from ..protocol.models.consumer import ConsumerConfig, DeliverPolicy
from ..protocol.topics.position import Position
from ..protocol.topics.record import Record
from ..protocol.topics.record_codec import DeliveredRecords
from .stream_log import MAX_BYTES, StreamLog

__all__ = ["Snapshot", "newest_of_each", "read_directly", "take_snapshot"]

_PAGE: Final = 500
_AT_ONCE: Final = 64  # maximum number of concurrent requests for the newest record of a subject


class Snapshot(NamedTuple):
    """The newest record of each subject up to a position."""

    records: dict[str, Record]
    position: Position


async def take_snapshot(log: StreamLog) -> Snapshot:
    """Read the newest record of each subject. Transient errors are retried. May raise any other error of a request."""
    tries = Retry()
    while True:
        try:
            await log.wait_ready()
            return (log.reads_directly and await read_directly(log)) or await _delivered(log)
        except JetStreamError as error:
            if not await tries.again(error):
                raise


async def read_directly(log: StreamLog) -> Snapshot | None:
    """Read a snapshot with one request. Return None if it is empty or too large, or direct gets aren't answered."""
    origin = log.origin or (await log.extent()).start
    batch = log.handle.get_last_messages(log.subject, max_bytes=MAX_BYTES)
    newest: dict[str, Record] = {}
    try:
        async for records in batch.records(linked=False, origin=origin):
            newest.update((record.subject, record) for record in records)
    except (TooManyResultsError, NoRespondersError):
        return None
    if not newest or batch.num_pending or not batch.up_to_seq:
        return None
    return Snapshot(newest, origin.at(batch.up_to_seq))


async def _delivered(log: StreamLog) -> Snapshot:
    """Read a snapshot with a consumer. Its deliveries are in order, so the snapshot is complete up to the last."""
    extent = await log.extent()
    newest: dict[str, Record] = {}
    last = extent.start
    async with aclosing(newest_of_each(log, extent.last_seq)) as lists:
        async for records in lists:
            newest.update((record.subject, record) for record in records)
            # Without a consumer, each subject is requested separately, so some records may be newer than ``extent``.
            # Other subjects may have changed by then without being included, so the position is the end of ``extent``,
            # not the last record.
            last = records[-1].position if records[-1].seq <= extent.last_seq else extent.end
    return Snapshot(newest, last)


async def newest_of_each(
    log: StreamLog, end: int, *, headers_only: bool = False
) -> AsyncGenerator[list[Record], None]:
    """Yield the newest record of each subject, in order, in lists that are not empty.

    Records after sequence ``end`` may follow, including several of one subject. If the stream allows no further
    consumer, each subject is requested from its leader. May raise any error of a request.
    """
    with suppress(ConsumerLimitError):
        async with aclosing(_delivered_newest(log, end, headers_only)) as lists:
            async for records in lists:
                yield records
        return
    async with aclosing(_requested_newest(log)) as lists:
        async for records in lists:
            yield records


async def _requested_newest(log: StreamLog) -> AsyncGenerator[list[Record], None]:
    """Yield the newest record of each subject, with one request per subject, because no consumer is allowed."""
    subjects = [subject async for subject, _ in log.handle.subjects(log.subject)]
    records: list[Record] = []
    for first in range(0, len(subjects), _AT_ONCE):
        answers = await asyncio.gather(*map(log.last, subjects[first : first + _AT_ONCE]))
        records += [record for record in answers if record is not None]
    if records:
        yield sorted(records, key=lambda record: record.seq)


async def _delivered_newest(
    log: StreamLog,
    end: int,
    headers_only: bool,  # noqa: FBT001  internal
) -> AsyncGenerator[list[Record], None]:
    config = ConsumerConfig(
        filter_subject=log.subject, deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, headers_only=headers_only
    )
    reading = DeliveredRecords(linked=False, origin=log.origin)
    async with ordered_consumer(
        log.context, log.stream, config, name_prefix=None, max_reset_attempts=None
    ) as consumer:
        while True:
            batch = await consumer.fetch(_PAGE, no_wait=True)
            if batch:
                yield reading.read_frames(frames_of(batch))
            if batch.error is not None:
                raise batch.error
            # The snapshot is complete when it has reached `end`, even if newer records follow.
            if not batch or batch.ending is Ending.NO_MESSAGES or batch[-1].metadata.stream_seq >= end:
                return
