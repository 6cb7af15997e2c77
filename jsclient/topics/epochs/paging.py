"""Requests of epochs to a log: retried through restarts, paged, and the last frontier record of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from ..._runtime.retry import Retry
from ...errors import JetStreamError, ProtocolError
from ...protocol.epochs.frontier import Order
from ...protocol.epochs.records import FrontierEntry
from ...protocol.events import RecordSkipped
from ...protocol.topics.record import Record
from ..log import Log, Page

__all__ = ["LastFrontier", "last_frontier", "page_up_to", "patiently", "report_skipped"]

R = TypeVar("R")
T = TypeVar("T", bound=Hashable)

_PAGE, _PAGE_BYTES = 5000, 8 * 1024 * 1024
_PAUSE: Final = 0.05  # seconds
_PAUSES: Final = 100
_NEAR: Final = 64  # records in which the last valid frontier record is searched first


async def patiently(log: Log, ask: Callable[[], Awaitable[R]]) -> R:
    """Send a request until it succeeds. Raises errors that are not transient."""
    tries = Retry()
    while True:
        await log.wait_ready()
        try:
            return await ask()
        except JetStreamError as error:
            if not await tries.again(error):
                raise


async def page_up_to(log: Log, since: int, end: int, *, limit: int = _PAGE) -> Page:
    """Read records after a sequence. The page is empty only if no record up to ``end``, which was stored, matches.

    A replica may lag, and a restarted server may not know all of its messages yet.
    """
    page = Page([])
    for _ in range(_PAUSES):
        page = await patiently(log, partial(log.history, since, limit, _PAGE_BYTES))
        if page.records or page.up_to >= end:
            break
        await asyncio.sleep(_PAUSE)
    return page


class LastFrontier(NamedTuple, Generic[T]):
    """The newest frontier record of a partition, or None.

    Attributes:
        entry: The frontier record.
        record: The record that it was read from.
        last_seq: The last message of the subject, which the next record has to follow; 0: none. Those between the
            record and it are invalid.
    """

    entry: FrontierEntry[T] | None
    record: Record | None
    last_seq: int


async def last_frontier(log: Log, order: Order[T], subject: str) -> LastFrontier[T]:
    """Find the newest valid frontier record on a subject. Raises those of any request."""
    found = await log.last(subject)
    if found is None:
        return LastFrontier(None, None, 0)
    try:
        return LastFrontier(FrontierEntry.read(found, order), found, found.seq)
    except ProtocolError as error:
        report_skipped(log, found, error)
    # Search backwards in growing steps, each read forwards.
    first, end, step = (await log.extent()).first_seq, found.seq - 1, _NEAR
    while end >= first:
        since = max(end - step, first - 1)
        record = await _last_valid(log, order, subject, since, end)
        if record is not None:
            return LastFrontier(FrontierEntry.read(record, order), record, found.seq)
        end, step = since, step * 8
    return LastFrontier(None, None, found.seq)


async def _last_valid(log: Log, order: Order[T], subject: str, since: int, end: int) -> Record | None:
    last = None
    while since < end:
        page = await page_up_to(log, since, end)
        if not page.records:
            break
        for record in page.records:
            since = record.seq
            if record.subject == subject and since <= end and _is_valid(record, order):
                last = record
    return last


def _is_valid(record: Record, order: Order[T]) -> bool:
    try:
        FrontierEntry.read(record, order)
    except ProtocolError:
        return False
    return True


def report_skipped(log: Log, record: Record, error: ProtocolError, count: int = 1) -> None:
    """Report an invalid record: the first one of a reader, and then each doubling."""
    if count & (count - 1) == 0:
        log.emit(
            RecordSkipped(
                stream=log.stream, subject=record.subject, stream_seq=record.seq, count=count, error=error
            )
        )
